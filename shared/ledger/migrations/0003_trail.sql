-- How a run's past becomes durable: the fence, transitions, events and the trail that rides along (SPEC 3.4, 4).
--
-- A refusal is an exception of class HF: it rolls the call back, so what is refused changes nothing. The names and
-- codes stand in shared/ledger/refusals.ts; a test compares.
--   HF001 run_not_found   HF002 run_ended        HF003 unknown_execution  HF004 lost_ownership
--   HF005 out_of_step     HF006 illegal_move     HF007 effect_not_found   HF008 lost_takeover   HF009 key_taken        HF010 key_conflict     HF011 scope_mismatch     HF012 must_compensate

-- Appends to the run's feed. The caller holds the run's row lock and saves the row: sequences stay gapless.
create function holdfast.append_event(r holdfast.runs, p_type text, p_data jsonb) returns holdfast.runs
language plpgsql as $$
begin
  r.event_seq := r.event_seq + 1;
  r.feed_xid := greatest(r.feed_xid, (pg_current_xact_id()::text)::bigint);
  insert into holdfast.run_events (run_id, seq, tenant_id, type, data, feed_xid)
    values (r.run_id, r.event_seq, r.tenant_id, p_type, p_data, r.feed_xid);
  return r;
end $$;

-- The digest of one transition row; shared/ledger/transition-digest.ts computes the same.
create function holdfast.transition_digest(
  p_prev text, p_run text, p_seq integer, p_region text, p_from text, p_to text, p_reason text, p_actor text,
  p_epoch integer, p_at timestamptz) returns text
language sql immutable as $$
  select encode(sha256(convert_to(
    p_prev || '|' || p_run || '|' || p_seq || '|' || p_region || '|' || coalesce(p_from, '') || '|' || p_to || '|' ||
    p_reason || '|' || p_actor || '|' || p_epoch || '|' ||
    to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'UTF8')), 'hex')
$$;

-- Moves one region of the run. The foreign key to legal_transitions would refuse too; this names the refusal.
create function holdfast.move_run(r holdfast.runs, p_region text, p_to text, p_reason text, p_actor text)
returns holdfast.runs language plpgsql as $$
declare
  v_from text := case when p_region = 'run' then r.state else r.control end;
  v_at timestamptz := clock_timestamp();
  v_digest text;
begin
  -- What happened is undone before the run fails, where its contract or a cancel in force says so.
  if p_region = 'run' and p_to = 'failed' and r.compensation_cause is null
     and holdfast.is_to_undo(r) and holdfast.has_happened(r.run_id) then
    raise exception 'must_compensate: % is to undo what it did before it fails', r.run_id using errcode = 'HF012';
  end if;
  -- The run region carries a cancel from here on, also one that came while the run was on its way.
  if p_region = 'run' and p_to = 'compensating' and r.control = 'cancel_requested' then
    r := holdfast.move_run(r, 'control', 'active', 'cancel_requested', p_actor);
    v_at := clock_timestamp();
  end if;
  -- Said truthfully: the model answered because nothing more was to be called.
  if p_to = 'completed' and r.finishing is not null then p_reason := 'answer_at_limit'; end if;
  if not exists (select from holdfast.legal_transitions
                  where region = p_region and from_state = v_from and to_state = p_to) then
    raise exception 'illegal_move: % → % in region % of %', v_from, p_to, p_region, r.run_id using errcode = 'HF006';
  end if;
  r.state_version := r.state_version + 1;
  v_digest := holdfast.transition_digest(
    r.last_digest, r.run_id, r.state_version, p_region, v_from, p_to, p_reason, p_actor, r.epoch, v_at);
  insert into holdfast.transitions (run_id, seq, tenant_id, region, from_state, to_state, reason, actor_id, epoch,
                                    created_at, prev_digest, digest)
    values (r.run_id, r.state_version, r.tenant_id, p_region, v_from, p_to, p_reason, p_actor, r.epoch,
            v_at, r.last_digest, v_digest);
  r.last_digest := v_digest;
  if p_region = 'run' then
    r.state := p_to;
    r.reason := p_reason;
    if p_to = 'running' and r.started_at is null then r.started_at := v_at; end if;
    if p_to = 'compensating' then r := holdfast.begin_compensation(r, p_reason); end if;
    if p_to = 'needs_reconciliation' then r := holdfast.open_doubts(r);
    elsif v_from in ('needs_reconciliation', 'reconciling') and p_to <> 'reconciling' then
      r := holdfast.withdraw_doubts(r);
    end if;
    if p_to in ('completed', 'compensated', 'failed', 'cancelled') then
      r.ended_at := v_at;
      if p_to <> 'completed' then r := holdfast.close_interrupts(r, 'withdrawn'); end if;
      r := holdfast.settle_lost_reads(r);
      -- What never left is withdrawn with the run; what may have left stops the end (guard_run).
      r := holdfast.close_intended(r, 'withdrawn');
      r := holdfast.command_children(r, 'cancel', '{}');
      if r.budgeted then r := holdfast.settle_all_budgets(r); end if;
    end if;
  else
    r.control := p_to;
  end if;
  if r.parent_run_id is not null and (r.ended_at is not null or p_to = 'paused') then
    perform holdfast.tell_parent(r);
  end if;
  -- Before the transition: whoever reads a feed up to the end of its run misses nothing.
  r := holdfast.decide_commands(r, p_region, v_from, p_to);
  return holdfast.append_event(r, 'run.transition', jsonb_build_object(
    'region', p_region, 'from', v_from, 'to', p_to, 'reason', p_reason, 'actor_id', p_actor,
    'state_version', r.state_version, 'epoch', r.epoch));
end $$;

-- A read commits nothing, so an answer that never came leaves nothing to reconcile (SPEC 3.3). Of one effect, or of all
-- that the run has left.
create function holdfast.settle_lost_reads(r holdfast.runs, p_effect text default null) returns holdfast.runs
language plpgsql as $$
declare
  e holdfast.effects;
begin
  for e in update holdfast.effects set state = 'not_committed', settled_at = clock_timestamp(), unknown_at = null,
                  reconciliation_owner = null, reconciliation_deadline_at = null
            where run_id = r.run_id and state = 'unknown' and effect_class = 'read'
              and effect_id = coalesce(p_effect, effect_id)
           returning * loop
    insert into holdfast.reconciliations (effect_id, tenant_id, run_id, decided, source, evidence, actor_id, note)
      values (e.effect_id, e.tenant_id, e.run_id, 'not_committed', 'class', '{}'::jsonb, 'holdfast:ledger',
              'The effect class is read: nothing outside can have changed.');
    r := holdfast.settle_budget(r, e.effect_id, 'given_back');
    r := holdfast.append_event(r, 'effect.settled', jsonb_build_object(
      'effect_id', e.effect_id, 'tool', e.tool, 'turn', e.turn, 'step', e.step, 'slot', e.slot,
      'state', 'not_committed', 'source', 'class'));
    r := holdfast.close_settlement(r, e.effect_id, 'class', null);
  end loop;
  return r;
end $$;

-- Ends effects that were never dispatched, or gave proof that they did nothing: one, or all that the run has left.
create function holdfast.close_intended(r holdfast.runs, p_state text, p_effect text default null) returns holdfast.runs
language plpgsql as $$
declare
  e holdfast.effects;
begin
  for e in update holdfast.effects set state = p_state, settled_at = clock_timestamp()
            where run_id = r.run_id and state = 'intended' and effect_id = coalesce(p_effect, effect_id)
           returning * loop
    r := holdfast.append_event(r, 'effect.closed', jsonb_build_object(
      'effect_id', e.effect_id, 'tool', e.tool, 'step', e.step, 'slot', e.slot, 'state', p_state));
  end loop;
  return r;
end $$;

-- One update for everything a call changed. The feeds hear of it apart from it (announce).
create function holdfast.save_run(r holdfast.runs) returns void language plpgsql as $$
begin
  update holdfast.runs set
    state = r.state, control = r.control, state_version = r.state_version, last_digest = r.last_digest,
    reason = r.reason, compensation_cause = r.compensation_cause, epoch = r.epoch, owner_execution = r.owner_execution, trail_position = r.trail_position,
    event_seq = r.event_seq, feed_xid = r.feed_xid, turn = r.turn, step = r.step, model_calls = r.model_calls,
    model_attempts = r.model_attempts, tool_calls = r.tool_calls, input_tokens = r.input_tokens,
    output_tokens = r.output_tokens, last_stop_reason = r.last_stop_reason, started_at = r.started_at,
    ended_at = r.ended_at, deadline_at = r.deadline_at, steps_max = r.steps_max, tool_calls_max = r.tool_calls_max,
    budgeted = r.budgeted, finishing = r.finishing, last_step = r.last_step, updated_at = clock_timestamp()
  where run_id = r.run_id;
end $$;

-- Tells the feeds which runs have new events. A commit with a notification in it holds a lock of the whole server until
-- it is on the disk; this one holds nothing that must last, and so does not wait for the disk.
create function holdfast.announce(p_runs text[]) returns void
language plpgsql security definer set search_path = holdfast, pg_temp as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_notify('holdfast_events', run_id) from unnest(p_runs) as t (run_id);
end $$;

-- Records an execution as the owner under the next epoch. Effects that the owner before it left in flight become
-- unknown at once: their attempts can no longer settle them (SPEC 3.4).
create function holdfast.grant_ownership(r holdfast.runs, p_execution text, p_reason text) returns holdfast.runs
language plpgsql as $$
begin
  r.epoch := r.epoch + 1;
  r.owner_execution := p_execution;
  insert into holdfast.run_executions (run_id, execution, epoch, reason)
    values (r.run_id, p_execution, r.epoch, p_reason);
  if p_reason <> 'start' then
    r := holdfast.append_event(r, 'run.taken_over', jsonb_build_object('epoch', r.epoch, 'reason', p_reason));
    r := holdfast.lose_open_attempts(r, 'taken_over');
  end if;
  return r;
end $$;

-- Turns every dispatching effect of the run into an unknown one: by age or ownership nothing is ever sent again.
create function holdfast.lose_open_attempts(r holdfast.runs, p_reason text) returns holdfast.runs
language plpgsql as $$
declare
  e holdfast.effects;
begin
  for e in select * from holdfast.effects where run_id = r.run_id and state = 'dispatching' order by effect_id
           for update loop
    r := holdfast.lose_effect(r, e, 'lost', p_reason, null, null, null);
  end loop;
  return r;
end $$;

-- `dispatching` → `unknown`, with an owner and a deadline; the raised token shuts the attempt out.
create function holdfast.lose_effect(
  r holdfast.runs, e holdfast.effects, p_outcome text, p_reason text, p_retry_after_ms bigint,
  p_evidence bytea, p_evidence_type text) returns holdfast.runs
language plpgsql as $$
begin
  update holdfast.attempts set outcome = p_outcome, reason = p_reason, ended_at = clock_timestamp(),
         retry_after_ms = p_retry_after_ms, evidence = p_evidence, evidence_type = p_evidence_type
   where effect_id = e.effect_id and ended_at is null;
  update holdfast.effects set
    state = 'unknown', unknown_at = clock_timestamp(), fencing_token = fencing_token + 1,
    lost_attempts = lost_attempts + (p_outcome = 'lost')::int,
    reconciliation_owner = coalesce(r.contract #>> '{reconciliation,owner}', r.contract ->> 'owner'),
    reconciliation_deadline_at = clock_timestamp()
      + make_interval(secs => (r.contract #>> '{reconciliation,deadline_seconds}')::int)
   where effect_id = e.effect_id;
  r := holdfast.append_event(r, 'effect.unknown', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'effect_class', e.effect_class, 'step', e.step, 'slot', e.slot,
    'outcome', p_outcome, 'reason', p_reason));
  return case when r.state in ('needs_reconciliation', 'reconciling') then holdfast.open_doubts(r) else r end;
end $$;

-- Applies what the workflow has decided since its last commit. `p_from` is the position of the first entry: entries
-- that are durable already (an acknowledgement was lost) are skipped, a hole is refused.
create function holdfast.apply_trail(r holdfast.runs, p_from bigint, p_trail jsonb) returns holdfast.runs
language plpgsql as $$
declare
  v_skip bigint := r.trail_position - (p_from - 1);
  v_entry jsonb;
  v_actor text;
begin
  if v_skip < 0 or v_skip > jsonb_array_length(p_trail) then
    raise exception 'out_of_step: the ledger holds % trail entries of %, the workflow speaks of % and after',
      r.trail_position, r.run_id, p_from using errcode = 'HF005';
  end if;
  for v_entry in select value from jsonb_array_elements(p_trail) with ordinality as t (value, n)
                  where n > v_skip order by n loop
    r.trail_position := r.trail_position + 1;
    v_actor := coalesce(v_entry ->> 'actor', 'holdfast:workflow');
    case v_entry ->> 'kind'
      when 'move' then
        r := holdfast.move_run(r, 'run', v_entry ->> 'to', v_entry ->> 'reason', v_actor);
      when 'control' then
        r := holdfast.move_run(r, 'control', v_entry ->> 'to', v_entry ->> 'reason', v_actor);
      when 'retry' then
        r := holdfast.record_retry(r, v_entry);
      when 'warning' then
        r := holdfast.append_event(r, 'run.warning', jsonb_build_object('code', v_entry ->> 'code'));
      else
        raise exception 'illegal_move: unknown trail entry %', v_entry ->> 'kind' using errcode = 'HF006';
    end case;
  end loop;
  return r;
end $$;

-- One stop of a retry series as a row. The series' own deadline was written down with the intent; a call that waits for
-- its first attempt has the run's.
create function holdfast.record_retry(r holdfast.runs, p jsonb) returns holdfast.runs
language plpgsql as $$
declare
  v_effect_id text;
  v_deadline timestamptz;
  v_owner text := coalesce(r.contract #>> '{reconciliation,owner}', r.contract ->> 'owner');
  v_eligible timestamptz := clock_timestamp() + (p ->> 'waitMs')::bigint * interval '1 millisecond';
begin
  if p ? 'slot' then
    select effect_id, series_deadline_at into v_effect_id, v_deadline from holdfast.effects
     where run_id = r.run_id and turn = (p ->> 'turn')::int and step = (p ->> 'step')::int
       and slot = (p ->> 'slot')::int order by redo desc limit 1;
  else
    select series_deadline_at into v_deadline from holdfast.model_calls
     where run_id = r.run_id and turn = (p ->> 'turn')::int and step = (p ->> 'step')::int;
  end if;
  insert into holdfast.retries (run_id, trail_seq, tenant_id, turn, step, slot, effect_id, reason, action, owner,
                                attempt, attempts_max, deadline_at, eligible_at, retry_after_seconds)
    values (r.run_id, r.trail_position, r.tenant_id, (p ->> 'turn')::int, (p ->> 'step')::int, (p ->> 'slot')::int,
            v_effect_id, p ->> 'reason', p ->> 'action', v_owner, (p ->> 'attempt')::int,
            (p ->> 'attemptsMax')::int, coalesce(v_deadline, r.deadline_at), v_eligible, (p ->> 'retryAfterSeconds')::bigint);
  return holdfast.append_event(r, 'retry.recorded', jsonb_strip_nulls(jsonb_build_object(
    'turn', (p ->> 'turn')::int, 'step', (p ->> 'step')::int, 'slot', (p ->> 'slot')::int, 'effect_id', v_effect_id,
    'reason', p ->> 'reason', 'action', p ->> 'action', 'attempt', (p ->> 'attempt')::int,
    'attempts_max', (p ->> 'attemptsMax')::int, 'eligible_at', v_eligible, 'deadline_at', v_deadline,
    'retry_after_seconds', (p ->> 'retryAfterSeconds')::bigint)));
end $$;

-- The one door for a commit of the run's workflow: locks the row, checks the fence, applies the trail (null for none).
-- The first execution of an admitted run takes over by coming first; every other one through take_over.
create function holdfast.open_run(p_run text, p_execution text, p_from bigint, p_trail jsonb)
returns holdfast.runs language plpgsql as $$
declare
  r holdfast.runs;
begin
  select * into r from holdfast.runs where run_id = p_run for update;
  if not found then
    raise exception 'run_not_found: %', p_run using errcode = 'HF001';
  end if;
  if r.owner_execution is distinct from p_execution then
    if exists (select from holdfast.run_executions where run_id = p_run and execution = p_execution) then
      raise exception 'lost_ownership: % was taken over from %', p_run, p_execution using errcode = 'HF004';
    end if;
    if r.ended_at is not null then
      raise exception 'run_ended: % ended as %', p_run, r.state using errcode = 'HF002';
    end if;
    if r.owner_execution is not null then
      raise exception 'unknown_execution: % does not own %', p_execution, p_run using errcode = 'HF003';
    end if;
    r := holdfast.grant_ownership(r, p_execution, 'start');
  elsif r.ended_at is not null and r.trail_position < p_from - 1 + jsonb_array_length(p_trail) then
    raise exception 'run_ended: % ended as %', p_run, r.state using errcode = 'HF002';
  end if;
  return case when p_trail is null then r else holdfast.apply_trail(r, p_from, p_trail) end;
end $$;

-- A wait or an end flushes what is left.
create function holdfast.commit_trail(p_run text, p_execution text, p_from bigint, p_trail jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
begin
  perform holdfast.save_run(r);
  return jsonb_build_object('state', r.state, 'control', r.control, 'epoch', r.epoch);
end $$;

-- Compare-and-swap of ownership, for an execution that Temporal says is the run's open one. Two that try at once:
-- one raises the epoch, the other is refused.
create function holdfast.take_over(p_run text, p_execution text, p_expected_epoch integer, p_reason text)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
begin
  select * into r from holdfast.runs where run_id = p_run for update;
  if not found then
    raise exception 'run_not_found: %', p_run using errcode = 'HF001';
  end if;
  if r.ended_at is not null then
    raise exception 'run_ended: % ended as %', p_run, r.state using errcode = 'HF002';
  end if;
  if r.owner_execution = p_execution then
    return jsonb_build_object('epoch', r.epoch, 'trail_position', r.trail_position);
  end if;
  if r.epoch <> p_expected_epoch then
    raise exception 'lost_takeover: % is at epoch %, not %', p_run, r.epoch, p_expected_epoch using errcode = 'HF008';
  end if;
  if exists (select from holdfast.run_executions where run_id = p_run and execution = p_execution) then
    raise exception 'lost_ownership: % was taken over from %', p_run, p_execution using errcode = 'HF004';
  end if;
  r := holdfast.grant_ownership(r, p_execution, p_reason);
  perform holdfast.save_run(r);
  return jsonb_build_object('epoch', r.epoch, 'trail_position', r.trail_position);
end $$;

-- From where a workflow goes on that is out of step with the ledger (a reset, a takeover): ids, counters and enums.
create function holdfast.resume_point(p_run text, p_execution text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
begin
  select * into r from holdfast.runs where run_id = p_run;
  if not found then
    raise exception 'run_not_found: %', p_run using errcode = 'HF001';
  end if;
  return jsonb_build_object(
    'state', r.state, 'control', r.control, 'turn', r.turn, 'step', r.step, 'trail_position', r.trail_position,
    'epoch', r.epoch, 'owner', r.owner_execution, 'undoes', r.compensation_cause is not null,
    'unknown', coalesce((
      select jsonb_agg(jsonb_build_object('turn', turn, 'step', step, 'slot', slot) order by turn, step, slot)
        from holdfast.effects where run_id = p_run and state = 'unknown'), '[]'::jsonb),
    -- Whoever takes over comes no earlier than the one before would have.
    'retry_ms_left', case when r.state = 'retry_wait' then coalesce((
      select greatest(0, ceil(extract(epoch from eligible_at - clock_timestamp()) * 1000))::bigint
        from holdfast.retries where run_id = p_run order by trail_seq desc limit 1), 0) else 0 end,
    'known', exists (select from holdfast.run_executions where run_id = p_run and execution = p_execution));
end $$;
