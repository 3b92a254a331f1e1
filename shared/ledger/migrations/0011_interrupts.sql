-- Interrupts (SPEC 4): one row shape for every wait for somebody, one rule of expiry, one way to decide. An approval is
-- an interrupt over one effect; the claim consumes it (SPEC 4.1).

create table holdfast.interrupts (
  interrupt_id  holdfast.interrupt_id primary key,
  state         text                  not null default 'open' check (state in
    ('open', 'approved', 'denied', 'answered', 'consumed', 'expired', 'revoked', 'superseded', 'withdrawn')),
  kind          text                  not null check (kind in ('approval', 'input', 'reconciliation')),
  tenant_id     text                  not null,
  run_id        text                  not null references holdfast.runs,
  turn          integer               not null,
  step          integer               not null,
  slot          integer               not null,
  effect_id     text                  not null references holdfast.effects,
  -- Who asked for what waits; for an approval, who may not approve it.
  requested_by  text                  not null,
  -- What a person decides about: made from the stored arguments that will run, never from the model's words.
  scope         jsonb                 not null,
  -- SHA-256 over the RFC 8785 form of the scope; a decision names it.
  scope_sha256  holdfast.sha256       not null,
  -- JSON Schema of the answer.
  answer_schema jsonb                 not null,
  required_role holdfast.name         not null,
  quorum        integer               not null default 1 check (quorum between 1 and 10),
  created_at    timestamptz           not null default clock_timestamp(),
  expires_at    timestamptz           not null,
  -- What the expiry makes of the wait.
  on_expiry     text                  not null check (on_expiry in ('deny', 'escalate')),
  decided_at    timestamptz,
  consumed_at   timestamptz,
  consumed_by   text                  references holdfast.effects,
  constraint decided_iff_not_open check ((state = 'open') = (decided_at is null)),
  constraint consumed_iff_by check ((state = 'consumed') = (consumed_by is not null)
                                and (state = 'consumed') = (consumed_at is not null)),
  constraint consumed_by_its_own check (consumed_by is null or consumed_by = effect_id)
);
-- One wait at a time for one effect.
create unique index interrupts_open on holdfast.interrupts (effect_id, kind) where state in ('open', 'approved');
create index interrupts_by_tenant on holdfast.interrupts (tenant_id, interrupt_id);
create index interrupts_waiting on holdfast.interrupts (tenant_id, interrupt_id) where state in ('open', 'approved');
create index interrupts_by_run on holdfast.interrupts (run_id);

-- What each person said: append-only, one word of each person for one wait.
create table holdfast.decisions (
  interrupt_id    text            not null references holdfast.interrupts,
  actor_id        holdfast.actor  not null,
  tenant_id       text            not null,
  decision        text            not null check (decision in ('approve', 'deny', 'revoke', 'answer')),
  authority       text            not null,
  scope_sha256    text            not null,
  note            text            not null default '' check (char_length(note) <= 4000),
  endpoint        text            not null,
  idempotency_key text            not null,
  request_sha256  holdfast.sha256 not null,
  created_at      timestamptz     not null default clock_timestamp(),
  primary key (interrupt_id, actor_id, decision),
  unique (tenant_id, endpoint, idempotency_key)
);
create trigger append_only before update or delete on holdfast.decisions
  for each row execute function holdfast.refuse_change();
create trigger no_delete before delete on holdfast.interrupts
  for each row execute function holdfast.refuse_change();

-- No run ends over an open wait (SPEC 2): an end closes what is open, except `completed`, which may not come then.
create function holdfast.close_interrupts(r holdfast.runs, p_state text) returns holdfast.runs language plpgsql as $$
declare
  i holdfast.interrupts;
begin
  for i in update holdfast.interrupts set state = p_state, decided_at = coalesce(decided_at, clock_timestamp())
            where run_id = r.run_id and state in ('open', 'approved') returning * loop
    r := holdfast.append_event(r, 'interrupt.' || p_state, jsonb_build_object(
      'interrupt_id', i.interrupt_id, 'kind', i.kind, 'effect_id', i.effect_id));
  end loop;
  return r;
end $$;

-- Why a wait that was taken back, or is about to be, takes no decision.
create function holdfast.why_withdrawn(r holdfast.runs) returns text language sql immutable as $$
  select case when r.ended_at is not null then 'run_ended'
              when r.control = 'cancel_requested' or r.state = 'cancelling' then 'cancel_in_force'
              else 'interrupt_withdrawn' end
$$;

-- Opens the wait for an approval of an effect, once. The scope and its digest are made by the caller from the stored
-- row and checked here against it: what is shown is what will run.
create function holdfast.open_approval(
  p_run text, p_execution text, p_effect text, p_interrupt_id text, p_scope jsonb, p_scope_sha256 text,
  p_schema jsonb, p_role text, p_quorum integer, p_expires_at timestamptz) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, (
    select trail_position + 1 from holdfast.runs where run_id = p_run), '[]'::jsonb);
  e holdfast.effects;
begin
  select * into e from holdfast.effects where effect_id = p_effect and run_id = p_run for update;
  if not found then
    raise exception 'effect_not_found: %', p_effect using errcode = 'HF007';
  end if;
  perform holdfast.check_scope(e, p_scope);
  -- An opening that is repeated late, after the wait was decided or used, opens no second one.
  if e.state <> 'intended' or e.attempts > 0 or holdfast.approval_standing(r, e) ->> 'kind' <> 'needed' then
    return jsonb_build_object('kind', 'open');
  end if;
  insert into holdfast.interrupts (interrupt_id, kind, tenant_id, run_id, turn, step, slot, effect_id, requested_by,
      scope, scope_sha256, answer_schema, required_role, quorum, expires_at, on_expiry)
    values (p_interrupt_id, 'approval', e.tenant_id, p_run, e.turn, e.step, e.slot, e.effect_id, e.requested_by,
      p_scope, p_scope_sha256, p_schema, p_role, p_quorum, p_expires_at, 'deny')
    on conflict do nothing;
  if found then
    r := holdfast.append_event(r, 'interrupt.opened', jsonb_build_object(
      'interrupt_id', p_interrupt_id, 'kind', 'approval', 'effect_id', e.effect_id, 'tool', e.tool, 'step', e.step,
      'slot', e.slot, 'scope_sha256', p_scope_sha256, 'expires_at', p_expires_at));
    perform holdfast.save_run(r);
  end if;
  return jsonb_build_object('kind', 'open');
end $$;

-- Whether a call of the same step that comes before this one waits for somebody.
create function holdfast.earlier_call_waits(e holdfast.effects) returns boolean language sql stable as $$
  select exists (
    select from holdfast.interrupts o where o.run_id = e.run_id and o.turn = e.turn and o.step = e.step
       and o.slot < e.slot and o.kind in ('approval', 'input') and o.state = 'open' and o.expires_at > clock_timestamp())
$$;

-- Where the approval of an effect stands, as the claim sees it. Expiry is judged by the database's clock, here and
-- nowhere else. `ready` means: approved, unexpired, this very digest over the bytes that will leave, not yet used.
-- `changed`: what stands in the ledger is not what was approved; that is never dispatched.
create function holdfast.approval_standing(r holdfast.runs, e holdfast.effects) returns jsonb language plpgsql as $$
declare
  i holdfast.interrupts;
  v_lapsed text;
  v_grant text;
begin
  select * into i from holdfast.interrupts where effect_id = e.effect_id and kind = 'approval'
   order by created_at desc limit 1 for update;
  if not found then
    -- Nobody was asked yet: a standing grant may say yes. What somebody took back or changed is for a person again.
    v_grant := holdfast.usable_grant(r, e);
    if v_grant is null then return jsonb_build_object('kind', 'needed'); end if;
    return jsonb_build_object('kind', case when holdfast.earlier_call_waits(e) then 'early' else 'granted' end,
      'standing_grant_id', v_grant);
  end if;
  if i.state in ('revoked', 'superseded') then
    return jsonb_build_object('kind', 'needed');
  end if;
  if i.state in ('open', 'approved') and clock_timestamp() >= i.expires_at then
    update holdfast.interrupts set state = 'expired', decided_at = coalesce(decided_at, clock_timestamp())
     where interrupt_id = i.interrupt_id;
    return jsonb_build_object('kind', 'expired', 'interrupt_id', i.interrupt_id);
  end if;
  if i.state in ('open', 'approved') and (e.arguments_sha256 is distinct from i.scope ->> 'arguments_sha256'
       or e.arguments_sha256 <> encode(sha256(convert_to(e.arguments, 'UTF8')), 'hex')) then
    update holdfast.interrupts set state = 'superseded', decided_at = coalesce(decided_at, clock_timestamp())
     where interrupt_id = i.interrupt_id;
    return jsonb_build_object('kind', 'changed', 'interrupt_id', i.interrupt_id);
  end if;
  -- The right is looked at again when it is used: one that was taken back since has approved nothing (SPEC 4.1).
  v_lapsed := case when i.state = 'approved' then holdfast.lapsed_approver(i) end;
  if v_lapsed is not null then
    update holdfast.interrupts set state = 'revoked' where interrupt_id = i.interrupt_id;
    return jsonb_build_object('kind', 'needed', 'lapsed', jsonb_build_object(
      'interrupt_id', i.interrupt_id, 'kind', i.kind, 'effect_id', i.effect_id, 'reason', 'role_lost',
      'actor_id', v_lapsed));
  end if;
  -- The calls of a step run in their order: one whose time has not come waits, however early it was approved.
  if i.state = 'approved' and holdfast.earlier_call_waits(e) then
    return jsonb_build_object('kind', 'early', 'interrupt_id', i.interrupt_id);
  end if;
  return jsonb_build_object('kind', case i.state when 'approved' then 'ready' when 'open' then 'open'
      when 'expired' then 'expired' when 'denied' then 'denied' else 'spent' end,
    'interrupt_id', i.interrupt_id,
    'expires_in_ms', floor(extract(epoch from i.expires_at - clock_timestamp()) * 1000)::bigint);
end $$;

-- A word on a wait as it is heard: what it is about, under the run's lock, or what is answered without judging it.
create type holdfast.heard_word as (answer jsonb, r holdfast.runs, i holdfast.interrupts);

create function holdfast.hear_word(
  p_tenant text, p_interrupt text, p_endpoint text, p_key text, p_request_sha256 text) returns holdfast.heard_word
language plpgsql as $$
declare
  i holdfast.interrupts;
  r holdfast.runs;
  d holdfast.decisions;
  v_answer jsonb;
begin
  select * into i from holdfast.interrupts where interrupt_id = p_interrupt and tenant_id = p_tenant;
  if not found then
    return row(jsonb_build_object('kind', 'interrupt_not_found'), null, null)::holdfast.heard_word;
  end if;
  -- The run first, as everywhere: one order of locks.
  select * into r from holdfast.runs where run_id = i.run_id for update;
  select * into i from holdfast.interrupts where interrupt_id = p_interrupt for update;
  select * into d from holdfast.decisions where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    v_answer := jsonb_build_object('interrupt_id', d.interrupt_id,
      'kind', case when d.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  return row(v_answer, r, i)::holdfast.heard_word;
end $$;

-- One person's word on a wait (SPEC 4.1). Of any number at once, each is judged after the one before, under the lock.
create function holdfast.decide_approval(
  p_tenant text, p_interrupt text, p_actor text, p_authority text, p_decision text, p_scope_sha256 text, p_note text,
  p_endpoint text, p_key text, p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  h constant holdfast.heard_word := holdfast.hear_word(p_tenant, p_interrupt, p_endpoint, p_key, p_request_sha256);
  r constant holdfast.runs := h.r;
  i constant holdfast.interrupts := h.i;
  -- One instant for the judgement and the row: decided before the expiry, or not at all.
  v_at constant timestamptz := clock_timestamp();
  v_refusal text;
begin
  if h.answer is not null then return h.answer; end if;
  v_refusal := holdfast.decision_refusal(r, i, p_actor, p_authority, p_decision, p_scope_sha256, v_at);
  if v_refusal is not null then
    return holdfast.refuse_decision(r, i, p_actor, p_decision, v_refusal);
  end if;
  return holdfast.record_decision(r, i, p_actor, p_authority, p_decision, p_note, p_endpoint, p_key, p_request_sha256, v_at);
end $$;

grant select on holdfast.interrupts, holdfast.decisions to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.open_approval, holdfast.decide_approval to holdfast_app;
