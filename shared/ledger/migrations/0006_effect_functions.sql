-- The seam (SPEC 3.1): intent, claim, receipt, each one call and one transaction. No transaction is open while a
-- target is called.

-- Deterministic, sortable by run and step: the run's own time, the step, then a digest of the place.
create function holdfast.effect_id(p_run text, p_turn integer, p_step integer, p_slot integer, p_redo integer)
returns text language sql immutable as $$
  select 'eff_' || substr(p_run, 5, 12) || '7' || lpad(to_hex(p_step & 4095), 3, '0') || '8' || substr(encode(sha256(
    convert_to(p_run || '/' || p_turn || '/' || p_step || '/' || p_slot || '/' || p_redo, 'UTF8')), 'hex'), 1, 15)
$$;

-- Names the logical effect: run, turn, step, call slot, and the count of deliberate redos. Neither the arguments nor
-- the provider's call id nor Temporal's run id is in it.
create function holdfast.effect_key(p_run text, p_turn integer, p_step integer, p_slot integer, p_redo integer)
returns text language sql immutable as $$
  select p_run || ':t' || p_turn || ':s' || p_step || ':c' || p_slot % 1000 || case when p_slot >= 1000 then ':undo' else '' end
    || case when p_redo > 0 then ':r' || p_redo else '' end
$$;

-- Whether an ended attempt of the effect may have been carried out, for all anybody knows. A read carries nothing out.
create function holdfast.may_have_happened(e holdfast.effects) returns boolean language sql stable as $$
  select e.effect_class <> 'read' and exists (
    select from holdfast.attempts a
     where a.effect_id = e.effect_id and a.outcome in ('unknown', 'lost', 'in_progress')
       and not exists (select from holdfast.late_receipts l
                        where l.attempt_id = a.attempt_id and l.outcome in ('rejected', 'not_sent', 'throttled')))
$$;

-- The late receipt that settles an unknown effect, or no row. A late success proves itself. A late refusal, or proof
-- that nothing left, speaks for its own attempt alone: it settles only when no other attempt is in doubt.
create function holdfast.settling_receipt(e holdfast.effects) returns setof holdfast.late_receipts
language sql stable as $$
  select * from holdfast.late_receipts l
   where l.effect_id = e.effect_id
     and (l.outcome = 'succeeded'
          or l.outcome in ('rejected', 'not_sent', 'throttled') and not holdfast.may_have_happened(e))
   order by l.outcome = 'succeeded' desc, l.recorded_at limit 1
$$;

-- Whether the model has been told what became of the call.
create function holdfast.has_result(p_run text, p_turn integer, p_step integer, p_slot integer)
returns boolean language sql stable as $$
  select exists (select from holdfast.messages
                  where run_id = p_run and turn = p_turn and step = p_step and position = p_slot + 2)
$$;

-- What settles an unknown outcome whose key is not sent again (SPEC 3.6): evidence, then the target's word, then a person.
create function holdfast.next_to_settle(e holdfast.effects) returns text language plpgsql stable as $$
declare
  v_queries integer;
begin
  if exists (select from holdfast.settling_receipt(e)) then return 'late_receipt'; end if;
  -- Something else stands under our key: neither a resend nor a query by that key can say what became of ours.
  if (select coalesce(reason, '') in ('key_conflict', 'http_409') from holdfast.attempts
       where effect_id = e.effect_id order by attempt desc limit 1) then
    return 'person';
  end if;
  if jsonb_typeof(e.policy -> 'query') = 'object' then
    select count(*) into v_queries from holdfast.status_queries where effect_id = e.effect_id;
    if v_queries < (e.policy #>> '{query,queriesMax}')::int then return 'query'; end if;
  end if;
  return 'person';
end $$;

-- Where an unknown outcome goes next, by class (SPEC 3.3). `resend` is the same request under the same key. The series
-- bounds it like every other attempt, unless the last one was lost with its worker: an outage is no attempt.
create function holdfast.next_for_unknown(e holdfast.effects) returns text language plpgsql stable as $$
declare
  v_next constant text := holdfast.next_to_settle(e);
  v_last holdfast.attempts;
  v_in_series boolean;
begin
  if v_next = 'late_receipt' or e.effect_class not in ('read', 'keyed') then return v_next; end if;
  select * into v_last from holdfast.attempts where effect_id = e.effect_id order by attempt desc limit 1;
  v_in_series := e.lost_attempts < holdfast.lost_attempts_max() and (v_last.outcome = 'lost'
    or e.attempts - e.lost_attempts < e.attempts_max and clock_timestamp() < e.series_deadline_at);
  if e.effect_class = 'read' then
    return case when v_in_series then 'resend' else 'give_up' end;
  end if;
  if v_in_series
     and clock_timestamp() < e.first_dispatched_at + make_interval(secs => (e.policy #>> '{keyed,windowSeconds}')::int)
     and e.resends < (e.policy #>> '{keyed,resendsMax}')::int
     -- Refused while an earlier attempt is in doubt: the same request would only be refused again.
     and v_last.outcome <> 'rejected'
     and coalesce(v_last.reason, '') not in ('key_conflict', 'http_409')
     and not ((e.policy #>> '{keyed,keepsServerErrors}')::boolean and v_last.reason like 'http\_5%') then
    return 'resend';
  end if;
  return v_next;
end $$;

-- What follows an effect settled as not committed, by contract. A call whose result the model has read is over: a
-- redo of it would have a second one.
create function holdfast.next_for_not_committed(r holdfast.runs, e holdfast.effects) returns text
language sql stable as $$
  select case when e.compensates is not null then 'tell_model'
    when r.contract #>> '{reconciliation,after_not_committed}' = 'redo'
    and ((select count(*) from holdfast.effects o where o.run_id = e.run_id and o.turn = e.turn and o.step = e.step
            and o.slot = e.slot and o.state = 'not_committed') > (r.contract #>> '{reconciliation,redos_max}')::int
         or holdfast.has_result(e.run_id, e.turn, e.step, e.slot)) then 'tell_model'
    else r.contract #>> '{reconciliation,after_not_committed}' end
$$;

-- What the workflow decides from: enums and numbers, no content.
create function holdfast.effect_standing(r holdfast.runs, e holdfast.effects) returns jsonb
language plpgsql stable as $$
declare
  v_last holdfast.attempts;
begin
  select * into v_last from holdfast.attempts where effect_id = e.effect_id order by attempt desc limit 1;
  return jsonb_strip_nulls(jsonb_build_object(
    'kind', 'effect', 'state', e.state, 'effect_class', e.effect_class, 'redo', e.redo,
    'attempt', e.attempts - e.lost_attempts, 'attempts_max', e.attempts_max,
    -- What is not sent before the run's own end is never sent; finding out what became of something may take longer.
    'series_ms_left', floor(extract(epoch from
      least(e.series_deadline_at, case when e.state = 'intended' and e.compensates is null then r.deadline_at end) - clock_timestamp()) * 1000)::bigint,
    'outcome', v_last.outcome, 'retry_after_ms', v_last.retry_after_ms,
    'next', case
      when e.state = 'unknown' then holdfast.next_for_unknown(e)
      when e.state = 'not_committed' then holdfast.next_for_not_committed(r, e) end,
    'on_exhausted', case when e.compensates is null then r.contract #>> '{retry,on_exhausted}' else 'tell_model' end,
    'retry_after_max_ms', (r.contract #>> '{retry,retry_after_seconds_max}')::bigint * 1000,
    'lease_ms_left', case when e.state = 'dispatching'
      then greatest(0, floor(extract(epoch from v_last.lease_until - clock_timestamp()) * 1000)::bigint) end));
end $$;

create function holdfast.newest_effect(p_run text, p_turn integer, p_step integer, p_slot integer)
returns holdfast.effects language sql stable as $$
  select * from holdfast.effects where run_id = p_run and turn = p_turn and step = p_step and slot = p_slot
   order by redo desc limit 1
$$;

-- Writes the intent of one planned call. Unique on (namespace, key): the same key with another digest is refused as
-- a conflict and never overwritten.
create function holdfast.intend_effect(
  r holdfast.runs, p_plan jsonb, p_turn integer, p_step integer, p_redo integer, p_supersedes text)
returns holdfast.effects language plpgsql as $$
declare
  v_slot integer := (p_plan ->> 'slot')::int;
  e holdfast.effects;
begin
  insert into holdfast.effects (effect_id, tenant_id, run_id, turn, step, slot, redo, supersedes, call_id, tool,
      tool_version, effect_class, namespace, idempotency_key, arguments, arguments_sha256, policy, requested_by,
      attempts_max, series_deadline_at, simulated)
    values (holdfast.effect_id(r.run_id, p_turn, p_step, v_slot, p_redo), r.tenant_id, r.run_id, p_turn, p_step,
      v_slot, p_redo, p_supersedes, p_plan ->> 'callId', p_plan ->> 'toolName', p_plan ->> 'toolVersion',
      p_plan ->> 'effectClass', p_plan ->> 'namespace',
      holdfast.effect_key(r.run_id, p_turn, p_step, v_slot, p_redo), p_plan ->> 'arguments',
      p_plan ->> 'argumentsSha256', p_plan -> 'policy', r.actor_id, (r.contract #>> '{retry,attempts_max}')::int,
      clock_timestamp() + make_interval(secs => (r.contract #>> '{retry,series_seconds_max}')::int),
      coalesce(r.fork_mode = 'simulate', false))
    on conflict (namespace, idempotency_key) do nothing
    returning * into e;
  if e.effect_id is null then
    select * into e from holdfast.effects where namespace = p_plan ->> 'namespace'
       and idempotency_key = holdfast.effect_key(r.run_id, p_turn, p_step, v_slot, p_redo);
    if e.run_id <> r.run_id or e.arguments_sha256 <> p_plan ->> 'argumentsSha256' then
      raise exception 'key_conflict: % in % names another request', e.idempotency_key, e.namespace
        using errcode = 'HF010';
    end if;
  end if;
  return e;
end $$;

-- Intent and claim in one round trip. Of any number of callers at most one gets `claimed` for a fencing token; in
-- the same transaction everything that could forbid the dispatch is looked at again (SPEC 3.1.2).
create function holdfast.claim_effect(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_turn integer, p_step integer, p_slot integer,
  p_redo integer, p_attempt_id text, p_worker text, p_lease_margin_ms bigint) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  m holdfast.model_calls;
  e holdfast.effects;
  v_plan jsonb;
  v_resend boolean;
  v_uncounted boolean;
  v_approval jsonb;
  v_reached jsonb;
  v_way text;
  v_slot timestamptz;
begin
  if r.state <> (case when p_slot < 1000 then 'running' else 'compensating' end) then
    raise exception 'out_of_step: % is %, and dispatches nothing', p_run, r.state using errcode = 'HF005';
  end if;
  e := holdfast.newest_effect(p_run, p_turn, p_step, p_slot);
  if e.effect_id is null or (e.redo < p_redo and e.state = 'not_committed'
       and holdfast.next_for_not_committed(r, e) = 'redo') then
    if e.effect_id is null then
      select * into m from holdfast.model_calls where run_id = p_run and turn = p_turn and step = p_step;
      v_plan := m.plan -> p_slot;
      if v_plan is null or v_plan ->> 'kind' <> 'planned' then
        raise exception 'effect_not_found: no call is planned at %/%/%/%', p_run, p_turn, p_step, p_slot
          using errcode = 'HF007';
      end if;
      if r.finishing is null and holdfast.tool_calls_left(r) <= 0 then
        if r.control <> 'active' then
          perform holdfast.save_run(r);
          return jsonb_build_object('kind', 'control', 'control', r.control);
        end if;
        v_reached := holdfast.run_limit(r, 'tool_calls');
        v_way := holdfast.limit_way(r);
        r := holdfast.meet_limit(r, v_way, p_turn, p_step, v_reached);
        if r.finishing is null then
          perform holdfast.save_run(r);
          return holdfast.limit_answer(v_way, v_reached);
        end if;
      end if;
      -- What will be refused for a limit is no use of it.
      r.tool_calls := r.tool_calls + (r.finishing is null)::int;
      e := holdfast.intend_effect(r, v_plan, p_turn, p_step, 0, null);
    else
      -- What the one before was to do, which a person may have changed since it was planned.
      e := holdfast.intend_effect(r, holdfast.plan_of(e), p_turn, p_step, e.redo + 1, e.effect_id);
    end if;
  end if;
  select * into e from holdfast.effects where effect_id = e.effect_id for update;

  -- The claim's own acknowledgement was lost: this very attempt holds it, and nothing has left.
  if e.state = 'dispatching' and exists (
       select from holdfast.attempts where effect_id = e.effect_id and attempt_id = p_attempt_id and ended_at is null) then
    perform holdfast.save_run(r);
    return holdfast.claimed(r, e, p_attempt_id);
  end if;
  v_resend := e.state = 'unknown' and holdfast.next_for_unknown(e) = 'resend';
  -- An attempt that was opened and has ended is over, whatever became of its claim's acknowledgement.
  if not (e.state = 'intended' or v_resend) or exists (select from holdfast.attempts where attempt_id = p_attempt_id) then
    perform holdfast.save_run(r);
    return holdfast.effect_standing(r, e);
  end if;
  if r.control <> 'active' then
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'control', 'control', r.control);
  end if;
  -- What undoes is limited by nothing but time: a run that has spent everything must still clean up.
  if r.finishing is not null and r.state = 'running' and not v_resend then
    r := holdfast.deny_effect(r, e, 'limit');
    perform holdfast.save_run(r);
    return holdfast.effect_standing(r, holdfast.newest_effect(p_run, p_turn, p_step, p_slot));
  end if;
  -- What the run that this one was forked from has a receipt of is not done again; a simulation does nothing at all. What
  -- undoes an effect of this run is this run's to do.
  if r.fork_mode = 'simulate'
     or r.fork_mode = 'reuse_if_identical' and e.redo = 0 and e.attempts = 0 and e.compensates is null then
    r := holdfast.answer_from_source(r, e);
    e := holdfast.newest_effect(p_run, p_turn, p_step, p_slot);
    if e.settled_at is not null then
      perform holdfast.save_run(r);
      return holdfast.effect_standing(r, e);
    end if;
  end if;
  -- A resend under the same key is the same approved act; every first dispatch consumes an approval of its own.
  if (e.policy ->> 'approval') = 'required' and not v_resend and e.attempts = 0 then
    v_approval := holdfast.approval_standing(r, e);
    if v_approval ? 'lapsed' then
      r := holdfast.append_event(r, 'interrupt.revoked', v_approval -> 'lapsed');
    end if;
    case v_approval ->> 'kind'
      when 'ready', 'granted' then
        null;
      when 'expired', 'denied', 'changed', 'spent' then
        r := holdfast.deny_effect(r, e, v_approval ->> 'kind');
        perform holdfast.save_run(r);
        return holdfast.effect_standing(r, holdfast.newest_effect(p_run, p_turn, p_step, p_slot));
      else
        perform holdfast.save_run(r);
        return jsonb_build_object('kind', 'approval_required', 'expires_in_ms', v_approval -> 'expires_in_ms',
          'needed', case when v_approval ->> 'kind' = 'needed' then holdfast.needed_approval(r, e) end);
    end case;
  end if;
  -- No approval is used and nothing reserved by what waits for its turn.
  v_slot := holdfast.cooldown_turn(r, 'tool', e.namespace);
  if v_slot is not null then
    perform holdfast.save_run(r);
    return holdfast.cooling_answer(r, v_slot, e.attempts - e.lost_attempts, e.attempts_max,
      case when e.attempts > 0 then e.series_deadline_at end);
  end if;
  -- A resend is no new work: it finds out what became of the old, and what that may take is reserved still. What undoes is
  -- not held up by what the run may spend.
  if not v_resend and e.compensates is null then
    v_reached := case when clock_timestamp() >= r.deadline_at then holdfast.run_limit(r, 'wall_clock')
      else holdfast.reserve_budget(r, e.effect_id, jsonb_build_object(
        'tool', e.tool, 'arguments', e.arguments, 'tool_calls', (e.attempts = 0)::int)) end;
    if v_reached ->> 'kind' in ('reached', 'uncountable') then
      v_way := case v_reached ->> 'kind' when 'uncountable' then 'uncountable' else holdfast.limit_way(r) end;
      if v_way <> 'uncountable' then r := holdfast.meet_limit(r, v_way, p_turn, p_step, v_reached); end if;
      if v_way in ('finish', 'uncountable') then
        r := holdfast.deny_effect(r, e, case v_way when 'finish' then 'limit' else 'uncountable' end);
        perform holdfast.save_run(r);
        return holdfast.effect_standing(r, holdfast.newest_effect(p_run, p_turn, p_step, p_slot));
      end if;
      perform holdfast.save_run(r);
      return holdfast.limit_answer(v_way, v_reached);
    end if;
    r.budgeted := r.budgeted or v_reached is not null;
  end if;
  -- Nothing forbids the dispatch any more, so that an approval is used by what really leaves.
  if v_approval is not null then
    r := holdfast.use_approval(r, e, v_approval);
  end if;

  -- What follows a lost worker, or an attempt that did nothing, is no further use of the bounded count.
  v_uncounted := exists (select from holdfast.attempts where effect_id = e.effect_id and attempt = e.attempts
                            and outcome in ('lost', 'not_sent', 'throttled'));
  update holdfast.effects set
    state = 'dispatching', fencing_token = fencing_token + 1, attempts = attempts + 1,
    resends = resends + (v_resend and not v_uncounted)::int,
    -- Written down with the first attempt: what waited for a person or a resume has its whole series still.
    series_deadline_at = case when attempts > 0 then series_deadline_at
      else clock_timestamp() + make_interval(secs => (r.contract #>> '{retry,series_seconds_max}')::int) end,
    first_dispatched_at = coalesce(first_dispatched_at, clock_timestamp()), last_dispatched_at = clock_timestamp(),
    unknown_at = null, reconciliation_owner = null, reconciliation_deadline_at = null
   where effect_id = e.effect_id returning * into e;
  insert into holdfast.attempts (attempt_id, effect_id, attempt, fencing_token, tenant_id, run_id, epoch, execution,
                                 worker, lease_until)
    values (p_attempt_id, e.effect_id, e.attempts, e.fencing_token, e.tenant_id, e.run_id, r.epoch, p_execution,
            p_worker, clock_timestamp() + make_interval(secs => least((e.policy ->> 'timeoutSeconds')::float8,
              (r.contract #>> '{timeouts,tool_seconds}')::int)) + p_lease_margin_ms * interval '1 millisecond');
  r := holdfast.append_event(r, 'effect.dispatching', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'effect_class', e.effect_class, 'turn', p_turn, 'step', p_step,
    'slot', p_slot, 'attempt', e.attempts, 'idempotency_key', e.idempotency_key));
  perform holdfast.save_run(r);
  return holdfast.claimed(r, e, p_attempt_id);
end $$;

-- Nobody is asked any more about an effect that ends without being dispatched.
create function holdfast.withdraw_waits(r holdfast.runs, p_effect text) returns holdfast.runs language plpgsql as $$
declare
  v_wait record;
begin
  for v_wait in update holdfast.interrupts set state = 'withdrawn', decided_at = coalesce(decided_at, clock_timestamp())
            where effect_id = p_effect and state in ('open', 'approved') returning * loop
    r := holdfast.append_event(r, 'interrupt.withdrawn', jsonb_build_object(
      'interrupt_id', v_wait.interrupt_id, 'kind', v_wait.kind, 'effect_id', p_effect));
  end loop;
  return r;
end $$;

-- A call that was refused, expired or revoked, or that a limit stops, ends undispatched, and the model hears which
-- (SPEC 4.1, 4.3).
create function holdfast.deny_effect(r holdfast.runs, e holdfast.effects, p_why text) returns holdfast.runs
language plpgsql as $$
declare
  v_note text;
begin
  if p_why in ('limit', 'uncountable') then r := holdfast.withdraw_waits(r, e.effect_id); end if;
  select d.note into v_note from holdfast.decisions d join holdfast.interrupts i using (interrupt_id)
   where i.effect_id = e.effect_id and d.decision = 'deny' order by d.created_at desc limit 1;
  update holdfast.effects set state = 'denied', settled_at = clock_timestamp() where effect_id = e.effect_id;
  r := holdfast.write_result(r, e.turn, e.step, e.slot, jsonb_build_object(
    'callId', e.call_id, 'toolName', e.tool, 'isError', true, 'text', case p_why
      when 'denied' then 'Not done: a person refused this call.' || coalesce(' They said: ' || nullif(v_note, ''), '')
      when 'expired' then 'Not done: the approval that this call needs was not given in time. Nobody refused it.'
      when 'limit' then 'Not done: a limit of this run is reached (' || r.finishing || '), and nothing more is called. '
        || 'Answer with what you have.'
      when 'uncountable' then 'Not done: a budget of this run counts a number of these arguments that is missing, '
        || 'negative or no number.'
      when 'changed' then 'Not done: what was to run is no longer what a person was asked to approve.'
      else 'Not done: the approval that this call needs cannot be used.' end));
  if p_why = 'expired' then
    r := holdfast.append_event(r, 'interrupt.expired', jsonb_build_object('kind', 'approval', 'effect_id', e.effect_id,
      'interrupt_id', (select interrupt_id from holdfast.interrupts where effect_id = e.effect_id and state = 'expired'
                        order by created_at desc limit 1)));
  end if;
  return holdfast.append_event(r, 'effect.closed', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'turn', e.turn, 'step', e.step, 'slot', e.slot, 'state', 'denied',
    'reason', p_why));
end $$;

-- What the one who holds the claim needs for the dispatch.
create function holdfast.claimed(r holdfast.runs, e holdfast.effects, p_attempt_id text) returns jsonb
language sql stable as $$
  select jsonb_build_object(
    'kind', 'claimed', 'effect_id', e.effect_id, 'tenant_id', e.tenant_id, 'attempt_id', p_attempt_id,
    'attempt', e.attempts, 'fencing_token', e.fencing_token, 'tool', e.tool, 'tool_version', e.tool_version,
    'effect_class', e.effect_class, 'arguments', e.arguments, 'idempotency_key', e.idempotency_key,
    'call_id', e.call_id, 'tool_seconds', (r.contract #>> '{timeouts,tool_seconds}')::int)
$$;

-- Ends an attempt with its outcome. Fenced by the token and by ownership, inside this one transaction; what has lost
-- either is stored as a late receipt and settles nothing by itself.
create function holdfast.settle_effect(
  p_execution text, p_attempt_id text, p_fencing_token integer, p_outcome text, p_reason text, p_reference text,
  p_target_status text, p_body bytea, p_body_sha256 text, p_content_type text, p_truncated boolean,
  p_result_text text, p_retry_after_ms bigint) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  a holdfast.attempts;
  e holdfast.effects;
  r holdfast.runs;
  v_result text;
  v_slot timestamptz;
begin
  select * into a from holdfast.attempts where attempt_id = p_attempt_id;
  if not found then
    raise exception 'effect_not_found: no attempt %', p_attempt_id using errcode = 'HF007';
  end if;
  select * into r from holdfast.runs where run_id = a.run_id for update;
  select * into e from holdfast.effects where effect_id = a.effect_id for update;
  select * into a from holdfast.attempts where attempt_id = p_attempt_id;

  if e.state = 'dispatching' and e.fencing_token = p_fencing_token and a.fencing_token = p_fencing_token
     and r.owner_execution = p_execution and r.ended_at is null then
    -- Only a success speaks for the effect. A refusal, or proof that nothing left, speaks for this attempt: while an
    -- earlier one may have been carried out, the effect stays unknown, or it would be forgotten.
    v_result := case when p_outcome <> 'succeeded' and holdfast.may_have_happened(e) then 'unknown' else p_outcome end;
    if p_outcome = 'throttled' and p_retry_after_ms is not null then
      v_slot := holdfast.meet_stop(r, 'tool', e.namespace, 'throttled', p_retry_after_ms, null);
    elsif r.cooldown_id is not null and p_outcome in ('succeeded', 'rejected') then
      perform holdfast.ease_cooldown(r, 'tool', e.namespace);
    end if;
    case v_result
      when 'succeeded', 'rejected' then
        r := holdfast.write_receipt(r, e, p_attempt_id, p_outcome, 'response', p_reference, p_target_status, p_body,
               p_body_sha256, p_content_type, p_truncated, p_result_text);
        update holdfast.attempts set outcome = p_outcome, reason = p_reason, ended_at = clock_timestamp()
         where attempt_id = p_attempt_id;
      when 'not_sent', 'throttled' then
        update holdfast.attempts set outcome = p_outcome, reason = p_reason, ended_at = clock_timestamp(),
               retry_after_ms = p_retry_after_ms, evidence = p_body, evidence_type = p_content_type
         where attempt_id = p_attempt_id;
        update holdfast.effects set state = 'intended' where effect_id = e.effect_id;
        r := holdfast.settle_budget(r, e.effect_id, 'given_back');
        r := holdfast.append_event(r, 'effect.released', jsonb_build_object(
          'effect_id', e.effect_id, 'tool', e.tool, 'step', e.step, 'slot', e.slot, 'outcome', p_outcome,
          'reason', p_reason));
      else
        r := holdfast.lose_effect(r, e, p_outcome, coalesce(p_reason, p_target_status), p_retry_after_ms, p_body,
                                  p_content_type);
    end case;
    perform holdfast.save_run(r);
  elsif a.outcome is distinct from p_outcome then
    r := holdfast.keep_late_receipt(r, a, e, p_outcome, p_reference, p_target_status, p_body, p_body_sha256,
                                    p_content_type, p_truncated, p_result_text);
  end if;
  select * into e from holdfast.effects where effect_id = a.effect_id;
  return holdfast.effect_standing(r, e) || case when v_slot is null then '{}'
    else jsonb_build_object('not_before_ms', holdfast.ms_until(v_slot)) end;
end $$;

-- The receipt, the settled state and the result the model will read: none exists without the others.
create function holdfast.write_receipt(
  r holdfast.runs, e holdfast.effects, p_attempt_id text, p_status text, p_source text, p_reference text,
  p_target_status text, p_body bytea, p_body_sha256 text, p_content_type text, p_truncated boolean,
  p_result_text text) returns holdfast.runs
language plpgsql as $$
begin
  insert into holdfast.receipts (effect_id, attempt_id, tenant_id, run_id, epoch, status, source, reference,
                                 target_status, body, body_sha256, content_type, truncated)
    values (e.effect_id, p_attempt_id, e.tenant_id, e.run_id, r.epoch, p_status, p_source, p_reference,
            p_target_status, p_body, p_body_sha256, p_content_type, p_truncated);
  update holdfast.effects set state = p_status, settled_at = clock_timestamp(), unknown_at = null,
         reconciliation_owner = null, reconciliation_deadline_at = null
   where effect_id = e.effect_id;
  -- What happened counts; what is proven not to have happened gives back what was reserved for it.
  r := holdfast.settle_budget(r, e.effect_id,
    case when p_status in ('succeeded', 'committed') then 'used' else 'given_back' end);
  -- What was not committed may be done after all by a redo, which then writes the one result of the call.
  if p_status <> 'not_committed' then
    r := holdfast.write_result(r, e.turn, e.step, e.slot, jsonb_build_object(
      'callId', e.call_id, 'toolName', e.tool, 'text', p_result_text, 'isError', p_status = 'rejected'));
  end if;
  return holdfast.append_event(r, 'effect.settled', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'turn', e.turn, 'step', e.step, 'slot', e.slot, 'state', p_status,
    'source', p_source, 'reference', p_reference, 'result_text', left(p_result_text, 4000)));
end $$;

create function holdfast.keep_late_receipt(
  r holdfast.runs, a holdfast.attempts, e holdfast.effects, p_outcome text, p_reference text, p_target_status text,
  p_body bytea, p_body_sha256 text, p_content_type text, p_truncated boolean, p_result_text text)
returns holdfast.runs language plpgsql as $$
begin
  insert into holdfast.late_receipts (attempt_id, effect_id, tenant_id, run_id, outcome, reference, target_status,
                                      body, body_sha256, content_type, truncated, result_text)
    values (a.attempt_id, a.effect_id, a.tenant_id, a.run_id, p_outcome, p_reference, p_target_status,
            coalesce(p_body, ''), p_body_sha256, p_content_type, p_truncated, p_result_text)
    on conflict do nothing;
  -- The feed of a run ends with the run. What comes later stands in its own row, and nobody waits for it.
  if found and r.ended_at is null then
    r := holdfast.append_event(r, 'effect.late_receipt', jsonb_build_object(
      'effect_id', e.effect_id, 'tool', e.tool, 'outcome', p_outcome, 'attempt', a.attempt, 'effect_state', e.state));
    perform holdfast.save_run(r);
    perform pg_notify('holdfast_evidence', r.run_id);
  end if;
  return r;
end $$;

-- For the workflow whose activity ended without an answer: what does the ledger say? A dispatch that nobody reports
-- on any more becomes unknown, and its attempt is shut out. Never a second dispatch.
create function holdfast.examine_effect(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_turn integer, p_step integer, p_slot integer)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  e holdfast.effects := holdfast.newest_effect(p_run, p_turn, p_step, p_slot);
begin
  if e.effect_id is null then
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'absent');
  end if;
  select * into e from holdfast.effects where effect_id = e.effect_id for update;
  if e.state = 'dispatching' then
    r := holdfast.lose_effect(r, e, 'lost', 'worker_lost', null, null, null);
    select * into e from holdfast.effects where effect_id = e.effect_id;
  end if;
  perform holdfast.save_run(r);
  return holdfast.effect_standing(r, e);
end $$;

-- Ends an effect that was never dispatched (or whose redo is not wanted) and tells the model why.
create function holdfast.close_effect(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_turn integer, p_step integer, p_slot integer,
  p_state text, p_result_text text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  e holdfast.effects := holdfast.newest_effect(p_run, p_turn, p_step, p_slot);
begin
  if e.effect_id is null then
    raise exception 'effect_not_found: %/%/%/%', p_run, p_turn, p_step, p_slot using errcode = 'HF007';
  end if;
  select * into e from holdfast.effects where effect_id = e.effect_id for update;
  if (e.state in ('intended', 'denied', 'withdrawn', 'superseded', 'not_committed')
      or e.state = 'unknown' and e.effect_class = 'read')
     and not holdfast.has_result(p_run, p_turn, p_step, p_slot) then
    r := holdfast.write_result(r, p_turn, p_step, p_slot, jsonb_build_object(
      'callId', e.call_id, 'toolName', e.tool, 'text', p_result_text, 'isError', true));
  end if;
  if e.state = 'unknown' and e.effect_class = 'read' then
    r := holdfast.settle_lost_reads(r, e.effect_id);
  elsif e.state = 'intended' then
    r := holdfast.close_intended(r, p_state, e.effect_id);
  end if;
  select * into e from holdfast.effects where effect_id = e.effect_id;
  perform holdfast.save_run(r);
  return holdfast.effect_standing(r, e);
end $$;
