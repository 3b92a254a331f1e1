-- Compensation (SPEC 3.7) and what the desk says about it: what a run did is undone backwards, each step an effect of
-- its own; what no tool can undo waits for a person, who undoes it by hand or leaves it as it is.

-- What a person must see to, or has: one row an effect. It is made when no tool can undo the effect, or when a person
-- settles an unknown one as undone already.
create table holdfast.undos (
  effect_id      text                primary key references holdfast.effects,
  tenant_id      text                not null,
  run_id         text                not null references holdfast.runs,
  state          text                not null default 'waiting' check (state in ('waiting', 'compensated', 'left')),
  -- Why no tool undid it. `by_hand`: nobody had to be asked.
  why            text                not null check (why in ('no_compensation', 'arguments_missing', 'key_conflict',
    'rejected', 'given_up', 'not_committed', 'workflow_gone', 'by_hand')),
  owner          holdfast.actor      not null,
  since          timestamptz         not null default clock_timestamp(),
  deadline_at    timestamptz         not null,
  actor_id       holdfast.actor,
  authority      holdfast.name,
  -- The outside name of what undid it.
  reference      holdfast.text_1000,
  note           text                check (char_length(note) between 1 and 4000),
  decided_at     timestamptz,
  constraint decided_by_somebody check (
    (state = 'waiting') = (decided_at is null) and (state = 'waiting') = (actor_id is null)
    and (state = 'waiting') = (authority is null) and (state = 'waiting') = (note is null)),
  constraint compensated_iff_reference check ((state = 'compensated') = (reference is not null))
);
create index undos_waiting on holdfast.undos (tenant_id, deadline_at) where state = 'waiting';
create index undos_by_run on holdfast.undos (run_id);

-- Each word of a person about an effect, in the order they came. Where two must agree, the newest on this very wait stands
-- until another person says the same.
create table holdfast.settlement_words (
  effect_id       text                 not null references holdfast.effects,
  word            integer              not null,
  tenant_id       text                 not null,
  run_id          text                 not null,
  -- The wait that it answers.
  interrupt_id    text                 not null references holdfast.interrupts,
  -- What was asked: whether it happened, or whether it is undone.
  about           text                 not null check (about in ('outcome', 'undo')),
  decided         text                 not null check (decided in ('committed', 'not_committed', 'compensated', 'left')),
  reference       holdfast.text_1000,
  note            text                 not null check (char_length(note) between 1 and 4000),
  actor_id        holdfast.actor       not null,
  authority       holdfast.name        not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  created_at      timestamptz          not null default clock_timestamp(),
  primary key (effect_id, word),
  unique (effect_id, idempotency_key),
  constraint word_answers_its_question check (
    case about when 'outcome' then decided <> 'left' else decided in ('compensated', 'left') end)
);

-- That an item was told about as overdue: once for each deadline.
create table holdfast.escalations (
  effect_id   text           not null references holdfast.effects,
  deadline_at timestamptz    not null,
  tenant_id   text           not null,
  run_id      text           not null,
  owner       holdfast.actor not null,
  created_at  timestamptz    not null default clock_timestamp(),
  primary key (effect_id, deadline_at)
);

do $$
declare
  v_table text;
begin
  foreach v_table in array array['settlement_words', 'escalations'] loop
    execute format('create trigger append_only before update or delete on holdfast.%I
      for each row execute function holdfast.refuse_change()', v_table);
  end loop;
  foreach v_table in array array['settlement_words', 'escalations', 'undos'] loop
    execute format('create trigger never_emptied before truncate on holdfast.%I
      for each statement execute function holdfast.refuse_change()', v_table);
  end loop;
end $$;
create trigger decided_for_ever before update or delete on holdfast.undos
  for each row when (old.state <> 'waiting') execute function holdfast.refuse_change();
create trigger no_delete before delete on holdfast.undos
  for each row execute function holdfast.refuse_change();

-- Whether the run has changed anything outside that stands: what a compensation would undo.
create function holdfast.has_happened(p_run text) returns boolean language sql stable as $$
  select exists (select from holdfast.effects e
                  where e.run_id = p_run and e.compensates is null and e.effect_class <> 'read'
                    and e.state in ('succeeded', 'committed')
                    and not exists (select from holdfast.undos u where u.effect_id = e.effect_id))
$$;

-- Whether what the run did is to be undone: it is being undone, a cancel in force asks for it, or its contract does.
create function holdfast.is_to_undo(r holdfast.runs) returns boolean language sql stable as $$
  select r.compensation_cause is not null
    or exists (select from holdfast.commands where run_id = r.run_id and kind = 'cancel' and fate = 'accepted'
                  and (payload ->> 'compensate')::boolean)
    or r.state <> 'cancelling' and r.control <> 'cancel_requested'
       and r.contract ->> 'on_failure' = 'compensate' and holdfast.has_happened(r.run_id)
$$;

-- The first move into `compensating`: nothing that the run was about to do is done any more.
create function holdfast.begin_compensation(r holdfast.runs, p_cause text) returns holdfast.runs
language plpgsql as $$
begin
  if r.compensation_cause is not null then return r; end if;
  r.compensation_cause := p_cause;
  r := holdfast.close_interrupts(r, 'withdrawn');
  r := holdfast.settle_lost_reads(r);
  return holdfast.close_intended(r, 'withdrawn');
end $$;

-- Hands one effect that no tool undoes to whoever owns the run's doubts, with a deadline.
create function holdfast.undo_by_person(r holdfast.runs, e holdfast.effects, p_why text) returns holdfast.runs
language plpgsql as $$
declare
  u holdfast.undos;
begin
  insert into holdfast.undos (effect_id, tenant_id, run_id, why, owner, deadline_at)
    values (e.effect_id, e.tenant_id, e.run_id, p_why,
            coalesce(r.contract #>> '{reconciliation,owner}', r.contract ->> 'owner'),
            clock_timestamp() + make_interval(secs => (r.contract #>> '{reconciliation,deadline_seconds}')::int))
    on conflict do nothing returning * into u;
  if u.effect_id is null then return r; end if;
  r := holdfast.append_event(r, 'undo.waits_for_person', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'why', p_why, 'owner', u.owner, 'deadline_at', u.deadline_at));
  return holdfast.open_settlement(r, e, 'undo', u.owner, u.deadline_at, p_why);
end $$;

-- Whether a tool has undone the effect.
create function holdfast.is_undone_by_tool(e holdfast.effects) returns boolean language sql stable as $$
  select exists (select from holdfast.effects where compensates = e.effect_id and state in ('succeeded', 'committed'))
$$;

-- For a run that no workflow drives any more.
create function holdfast.undo_rest_by_person(r holdfast.runs) returns holdfast.runs language plpgsql as $$
declare
  e holdfast.effects;
begin
  for e in select * from holdfast.effects
            where run_id = r.run_id and compensates is null and effect_class <> 'read'
              and state in ('succeeded', 'committed')
            order by turn desc, step desc, slot desc loop
    if not holdfast.is_undone_by_tool(e) then r := holdfast.undo_by_person(r, e, 'workflow_gone'); end if;
  end loop;
  return r;
end $$;

-- What is undone next: backwards, the newest first, and nothing before what came after it is undone or left. Where the
-- compensation has no intent yet, the caller makes its arguments from what stands here and writes it by intend_undo.
create function holdfast.next_undo(p_run text, p_execution text, p_from bigint, p_trail jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  e holdfast.effects;
  c holdfast.effects;
  u holdfast.undos;
  v_why text;
  v_answer jsonb;
begin
  if r.compensation_cause is null or r.ended_at is not null then
    raise exception 'out_of_step: % is %, and undoes nothing', p_run, r.state using errcode = 'HF005';
  end if;
  if exists (select from holdfast.effects where run_id = p_run and compensates is null
                and (state = 'dispatching' or state = 'unknown' and effect_class <> 'read')) then
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'doubt');
  end if;
  for e in select * from holdfast.effects
            where run_id = p_run and compensates is null and effect_class <> 'read' and state in ('succeeded', 'committed')
            order by turn desc, step desc, slot desc loop
    select * into u from holdfast.undos where effect_id = e.effect_id;
    continue when u.state in ('compensated', 'left') or holdfast.is_undone_by_tool(e);
    if u.state is null then
      c := holdfast.newest_effect(p_run, e.turn, e.step, e.slot + 1000);
      if c.effect_id is null and jsonb_typeof(e.policy -> 'compensation') = 'object' then
        v_answer := jsonb_build_object('kind', 'plan', 'effect_id', e.effect_id, 'arguments', e.arguments,
          'rule', e.policy #> '{compensation,arguments}', 'idempotency_key', e.idempotency_key,
          'reference', (select reference from holdfast.receipts where effect_id = e.effect_id));
        exit;
      end if;
      v_why := case
        when c.effect_id is null then 'no_compensation'
        when c.state = 'rejected' then 'rejected'
        when c.state in ('denied', 'withdrawn', 'superseded') then 'given_up'
        when c.state = 'not_committed' and c.redo >= (r.contract #>> '{reconciliation,redos_max}')::int
          then 'not_committed' end;
      if v_why is null then
        if c.state = 'not_committed' then
          r := holdfast.write_undo(r, e, c.arguments, c.arguments_sha256, c.redo + 1, c.effect_id);
        end if;
        v_answer := jsonb_build_object('kind', 'call', 'turn', c.turn, 'step', c.step, 'slot', c.slot);
        exit;
      end if;
      r := holdfast.undo_by_person(r, e, v_why);
    end if;
    v_answer := jsonb_build_object('kind', 'person');
    exit;
  end loop;
  perform holdfast.save_run(r);
  return coalesce(v_answer, jsonb_build_object('kind', 'done',
    'left', (select count(*) from holdfast.undos where run_id = p_run and state = 'left')));
end $$;

-- The intent of one compensation: the tool as it was pinned with the effect that it undoes. It is asked of nobody: the
-- one who asked for the cancel, or the contract, has.
create function holdfast.write_undo(
  r holdfast.runs, e holdfast.effects, p_arguments text, p_sha256 text, p_redo integer, p_supersedes text)
returns holdfast.runs language plpgsql as $$
declare
  v constant jsonb := e.policy -> 'compensation';
  c holdfast.effects;
begin
  insert into holdfast.effects (effect_id, tenant_id, run_id, turn, step, slot, redo, supersedes, compensates, call_id,
      tool, tool_version, effect_class, namespace, idempotency_key, arguments, arguments_sha256, policy, requested_by,
      attempts_max, series_deadline_at)
    values (holdfast.effect_id(r.run_id, e.turn, e.step, e.slot + 1000, p_redo), e.tenant_id, r.run_id, e.turn, e.step,
      e.slot + 1000, p_redo, p_supersedes, e.effect_id, e.call_id, v ->> 'tool', v ->> 'toolVersion',
      v ->> 'effectClass', v ->> 'namespace',
      holdfast.effect_key(r.run_id, e.turn, e.step, e.slot + 1000, p_redo), p_arguments, p_sha256,
      jsonb_build_object('approval', 'not_required', 'timeoutSeconds', v -> 'timeoutSeconds', 'keyed', v -> 'keyed',
        'query', v -> 'query', 'compensation', null),
      r.actor_id, (r.contract #>> '{retry,attempts_max}')::int,
      clock_timestamp() + make_interval(secs => (r.contract #>> '{retry,series_seconds_max}')::int))
    on conflict (namespace, idempotency_key) do nothing
    returning * into c;
  -- Something that is not ours stands under the key: no tool can be asked by it.
  if c.effect_id is null then return holdfast.undo_by_person(r, e, 'key_conflict'); end if;
  return holdfast.append_event(r, 'undo.intended', jsonb_build_object(
    'effect_id', c.effect_id, 'compensates', e.effect_id, 'tool', c.tool, 'idempotency_key', c.idempotency_key));
end $$;

-- Writes the intent whose arguments the caller has made; null arguments say that none can be. Safe to repeat.
create function holdfast.intend_undo(p_run text, p_execution text, p_effect text, p_arguments text, p_sha256 text)
returns void language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, null, null);
  e holdfast.effects;
begin
  select * into e from holdfast.effects where effect_id = p_effect and run_id = p_run for update;
  if not found then
    raise exception 'effect_not_found: % of %', p_effect, p_run using errcode = 'HF007';
  end if;
  if r.compensation_cause is null or r.ended_at is not null or e.compensates is not null
     or e.state not in ('succeeded', 'committed') or jsonb_typeof(e.policy -> 'compensation') <> 'object' then
    raise exception 'out_of_step: % has nothing to undo at %', p_run, p_effect using errcode = 'HF005';
  end if;
  if exists (select from holdfast.undos where effect_id = p_effect)
     or exists (select from holdfast.effects where compensates = p_effect) then
    return;
  end if;
  r := case when p_arguments is null then holdfast.undo_by_person(r, e, 'arguments_missing')
       else holdfast.write_undo(r, e, p_arguments, p_sha256, 0, null) end;
  perform holdfast.save_run(r);
end $$;

-- A person settles what no machine can (SPEC 3.6, 3.7), with a note, under the run's lock: whether an effect happened,
-- or that one which happened is undone or left. Each key stands for one word for ever. Two at once: one settles.
-- Where the contract wants two people, the first word waits for the same word of another; nobody is both.
-- `p_interrupt`: the wait that the word is about, where the speaker names one; another than the open one takes no word.
create function holdfast.settle_by_person(
  p_tenant text, p_effect text, p_actor text, p_authority text, p_decided text, p_reference text, p_note text,
  p_result_text text, p_empty_sha256 text, p_key text, p_request_sha256 text, p_interrupt text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  e holdfast.effects;
  r holdfast.runs;
  u holdfast.undos;
  -- The word that stands.
  w holdfast.settlement_words;
  v_about text;
  v_wait text;
  v_settles boolean;
begin
  select * into e from holdfast.effects where effect_id = p_effect and tenant_id = p_tenant;
  if not found then
    return jsonb_build_object('kind', 'effect_not_found');
  end if;
  select * into r from holdfast.runs where run_id = e.run_id for update;
  select * into e from holdfast.effects where effect_id = p_effect for update;
  select * into u from holdfast.undos where effect_id = p_effect for update;
  select * into w from holdfast.settlement_words where effect_id = p_effect and idempotency_key = p_key;
  if found then
    return jsonb_build_object('state', e.state, 'kind', case when w.request_sha256 = p_request_sha256
      then 'replayed' else 'reused' end);
  end if;
  v_about := case u.state when 'waiting' then 'undo' else 'outcome' end;
  if u.state in ('compensated', 'left') or u.state is null and e.state in ('committed', 'not_committed') then
    return jsonb_build_object('kind', 'already_settled', 'state', e.state);
  end if;
  select interrupt_id into v_wait from holdfast.interrupts
   where effect_id = p_effect and kind = 'reconciliation' and state = 'open';
  if p_interrupt <> coalesce(v_wait, '') then
    return jsonb_build_object('kind', 'interrupt_withdrawn', 'state', e.state);
  end if;
  if u.state is null and (e.state <> 'unknown' or r.state not in ('needs_reconciliation', 'reconciling')) then
    return jsonb_build_object('kind', 'not_unknown', 'state', e.state);
  end if;
  -- A compensation that was undone again would leave what it undoes as it happened: nobody says that in one word.
  if (v_about = 'undo') <> (p_decided = 'left') and p_decided <> 'compensated'
     or e.compensates is not null and p_decided = 'compensated' then
    return jsonb_build_object('kind', 'word_not_asked', 'state', e.state);
  end if;

  -- A word on an earlier doubt judged less than what happened since.
  select * into w from holdfast.settlement_words where effect_id = p_effect and interrupt_id = v_wait order by word desc limit 1;
  v_settles := not coalesce(r.contract #> '{reconciliation,two_people}' ? e.effect_class, false)
    or w.actor_id is not null and w.actor_id <> holdfast.canonical_actor(p_actor);
  if v_settles and w.word is not null and (w.decided, w.reference) is distinct from (p_decided, p_reference) then
    r := holdfast.append_event(r, 'reconciliation.word_refused', jsonb_build_object(
      'effect_id', p_effect, 'about', v_about, 'decided', p_decided, 'actor_id', holdfast.canonical_actor(p_actor),
      'stands', w.decided, 'stands_by', w.actor_id));
    perform holdfast.save_run(r);
    perform pg_notify('holdfast_events', r.run_id);
    return jsonb_build_object('kind', 'words_differ', 'state', e.state);
  end if;
  if not v_settles and w.word is not null and (w.decided, w.reference) is not distinct from (p_decided, p_reference) then
    return jsonb_build_object('kind', 'second_person_needed', 'state', e.state);
  end if;
  insert into holdfast.settlement_words (effect_id, word, tenant_id, run_id, interrupt_id, about, decided, reference, note, actor_id,
                                         authority, idempotency_key, request_sha256)
    values (p_effect, (select count(*) + 1 from holdfast.settlement_words where effect_id = p_effect), e.tenant_id,
            e.run_id, v_wait, v_about, p_decided, p_reference, p_note, holdfast.canonical_actor(p_actor), p_authority,
            p_key, p_request_sha256);
  if not v_settles then
    r := holdfast.append_event(r, 'reconciliation.first_word', jsonb_build_object(
      'effect_id', p_effect, 'tool', e.tool, 'about', v_about, 'decided', p_decided, 'actor_id', holdfast.canonical_actor(p_actor)));
    perform holdfast.save_run(r);
    perform pg_notify('holdfast_events', r.run_id);
    return jsonb_build_object('kind', 'first_word', 'state', e.state);
  end if;

  if v_about = 'outcome' then
    r := holdfast.reconcile_effect(r, e, p_decided, 'person',
      jsonb_build_object('authority', p_authority, 'reference', p_reference, 'idempotency_key', p_key,
        'request_sha256', p_request_sha256)
      || case when w.word is null then '{}'::jsonb else jsonb_build_object('first_word', jsonb_build_object(
        'actor_id', w.actor_id, 'authority', w.authority, 'note', w.note, 'at', w.created_at)) end,
      p_actor, p_note, p_reference, null, ''::bytea, p_empty_sha256, null, false, p_result_text);
  end if;
  if p_decided in ('compensated', 'left') then
    r := holdfast.settle_undo(r, e, p_decided, p_actor, p_authority, p_reference, p_note);
  end if;
  perform holdfast.save_run(r);
  perform pg_notify('holdfast_events', r.run_id);
  perform pg_notify('holdfast_nudge', r.run_id);
  return jsonb_build_object('kind', 'settled', 'state', (select state from holdfast.effects where effect_id = p_effect));
end $$;

-- A person has undone an effect by hand, or leaves it as it is.
create function holdfast.settle_undo(
  r holdfast.runs, e holdfast.effects, p_decided text, p_actor text, p_authority text, p_reference text, p_note text)
returns holdfast.runs language plpgsql as $$
begin
  insert into holdfast.undos (effect_id, tenant_id, run_id, state, why, owner, deadline_at, actor_id, authority,
                              reference, note, decided_at)
    values (e.effect_id, e.tenant_id, e.run_id, p_decided, 'by_hand',
            coalesce(r.contract #>> '{reconciliation,owner}', r.contract ->> 'owner'), clock_timestamp(), p_actor,
            p_authority, p_reference, p_note, clock_timestamp())
    on conflict (effect_id) do update set state = excluded.state, actor_id = excluded.actor_id,
      authority = excluded.authority, reference = excluded.reference, note = excluded.note,
      decided_at = excluded.decided_at;
  r := holdfast.append_event(r, 'undo.settled', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'state', p_decided, 'source', 'person', 'actor_id', p_actor,
    'reference', p_reference));
  return holdfast.close_settlement(r, e.effect_id, 'person', p_actor);
end $$;

-- Says of one item that its deadline has passed, once, so that somebody hears of it. It settles nothing.
create function holdfast.escalate_overdue() returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  v record;
  r holdfast.runs;
begin
  for v in
    select * from (
      select e.effect_id, e.run_id, e.tool, 'outcome' as about, e.reconciliation_owner as owner,
             e.reconciliation_deadline_at as deadline_at
        from holdfast.effects e join holdfast.runs o using (run_id)
       where e.state = 'unknown' and o.state in ('needs_reconciliation', 'reconciling')
      union all
      select u.effect_id, u.run_id, e.tool, 'undo', u.owner, u.deadline_at
        from holdfast.undos u join holdfast.effects e using (effect_id) where u.state = 'waiting') as item
     where item.deadline_at <= clock_timestamp()
       and not exists (select from holdfast.escalations x
                        where x.effect_id = item.effect_id and x.deadline_at = item.deadline_at)
     order by item.deadline_at limit 20
  loop
    -- One run at a time: whoever holds it is served, and the item comes again.
    select * into r from holdfast.runs where run_id = v.run_id and ended_at is null for update skip locked;
    continue when not found;
    -- As it stands under the lock: somebody may have settled it meanwhile.
    continue when not exists (
      select from holdfast.effects where effect_id = v.effect_id and reconciliation_deadline_at = v.deadline_at
      union all
      select from holdfast.undos where effect_id = v.effect_id and state = 'waiting' and deadline_at = v.deadline_at);
    insert into holdfast.escalations (effect_id, deadline_at, tenant_id, run_id, owner)
      values (v.effect_id, v.deadline_at, r.tenant_id, v.run_id, v.owner) on conflict do nothing;
    continue when not found;
    r := holdfast.append_event(r, 'reconciliation.overdue', jsonb_build_object(
      'effect_id', v.effect_id, 'tool', v.tool, 'about', v.about, 'owner', v.owner, 'deadline_at', v.deadline_at,
      'interrupt_id', (select interrupt_id from holdfast.interrupts
        where effect_id = v.effect_id and kind = 'reconciliation' and state = 'open')));
    perform holdfast.save_run(r);
    perform pg_notify('holdfast_events', v.run_id);
    return jsonb_build_object('kind', 'escalated', 'run_id', v.run_id, 'effect_id', v.effect_id, 'owner', v.owner);
  end loop;
  return jsonb_build_object('kind', 'none');
end $$;

grant select on holdfast.undos, holdfast.settlement_words, holdfast.escalations to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function
  holdfast.next_undo, holdfast.intend_undo, holdfast.settle_by_person, holdfast.escalate_overdue to holdfast_app;
