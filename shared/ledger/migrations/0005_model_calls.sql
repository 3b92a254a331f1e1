-- Model calls go through the same door as effects (SPEC 3.4): keyed by run, turn and step; a committed response is
-- returned on any replay, and what every attempt cost is counted.

-- How many attempts may end without a word (killed workers) before the call is given up: it stops a call that
-- kills worker after worker, and is far above what rolling restarts cause.
create function holdfast.lost_attempts_max() returns integer language sql immutable as $$ select 30 $$;

-- What the workflow must know of a committed response: slots and enums, no content.
create function holdfast.response_summary(m holdfast.model_calls) returns jsonb language sql stable as $$
  select jsonb_build_object(
    'kind', 'answered',
    'stop_reason', m.stop_reason,
    'calls', coalesce((
      select jsonb_agg(jsonb_build_object(
          'slot', (c ->> 'slot')::int,
          'parallel', coalesce((c ->> 'parallel')::boolean, false),
          'short', coalesce((c ->> 'short')::boolean, false),
          'gated', coalesce(c #>> '{policy,approval}' = 'required', false)) order by (c ->> 'slot')::int)
        from jsonb_array_elements(m.plan) as c where c ->> 'kind' = 'planned'), '[]'::jsonb),
    'refused', (select count(*) from jsonb_array_elements(m.plan) as c where c ->> 'kind' = 'refused'))
    || coalesce((select jsonb_build_object('asks', jsonb_agg((c ->> 'slot')::int order by (c ->> 'slot')::int))
                   from jsonb_array_elements(m.plan) as c where c ->> 'kind' = 'question' having count(*) > 0), '{}')
    || coalesce((select jsonb_build_object('children', jsonb_agg(jsonb_build_object(
                     'slot', (c ->> 'slot')::int, 'parallel', (c ->> 'parallel')::boolean) order by (c ->> 'slot')::int))
                   from jsonb_array_elements(m.plan) as c where c ->> 'kind' = 'delegate' having count(*) > 0), '{}')
$$;

-- Claims the next attempt of a model call and hands out the transcript after step `p_known_step`.
create function holdfast.claim_model_call(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_turn integer, p_step integer,
  p_attempt_id text, p_worker text, p_known_step integer) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  m holdfast.model_calls;
  v_answer jsonb;
  v_attempt integer;
  v_wait text;
  v_held record;
  v_lost text;
  v_reached jsonb;
  v_way text;
  v_slot timestamptz;
begin
  if r.state <> 'running' then
    raise exception 'out_of_step: % is %, and calls no model', p_run, r.state using errcode = 'HF005';
  end if;
  select * into m from holdfast.model_calls where run_id = p_run and turn = p_turn and step = p_step;
  if m.state = 'answered' then
    perform holdfast.save_run(r);
    return holdfast.response_summary(m);
  end if;
  select attempt into v_attempt from holdfast.model_attempts where attempt_id = p_attempt_id;
  if m.run_id is not null and v_attempt is null then
    v_wait := holdfast.model_wait_standing(m);
    if v_wait = 'expiring' then
      r := holdfast.expire_input(r, holdfast.newest_input(p_run, p_turn, p_step, null));
      v_wait := 'given_up';
    end if;
  end if;
  select * into v_held from holdfast.held_by_children(p_run);
  v_answer := case
    when r.control <> 'active' then jsonb_build_object('kind', 'control', 'control', r.control)
    when v_wait = 'given_up' then jsonb_build_object('kind', 'given_up') end;
  if v_answer is null then
    v_reached := holdfast.step_limit(r, p_step);
    v_answer := case when v_reached is null and v_wait = 'person_needed' then jsonb_build_object('kind', 'person_needed') end;
  end if;
  if v_reached is not null then
    v_way := holdfast.limit_way(r);
    r := holdfast.meet_limit(r, v_way, p_turn, p_step, v_reached);
    v_answer := holdfast.limit_answer(v_way, v_reached);
  end if;
  if v_answer is not null then
    perform holdfast.save_run(r);
    return v_answer;
  end if;

  if v_wait = 'try_again' then
    -- A person's word begins a series of its own: what waited for it has all its attempts and time still.
    update holdfast.model_calls set
      attempts_max = m.attempts - m.lost_attempts + (r.contract #>> '{retry,attempts_max}')::int,
      series_deadline_at = clock_timestamp() + make_interval(secs => (r.contract #>> '{retry,series_seconds_max}')::int)
     where run_id = p_run and turn = p_turn and step = p_step returning * into m;
  end if;
  if v_attempt <> m.attempts then
    -- The claim's acknowledgement was lost, and another attempt holds the call by now.
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'late');
  end if;
  if v_attempt is null then
    update holdfast.model_attempts set outcome = 'lost', reason = 'worker_lost', ended_at = clock_timestamp()
     where run_id = p_run and turn = p_turn and step = p_step and ended_at is null returning attempt_id into v_lost;
    if found then
      m.lost_attempts := m.lost_attempts + 1;
      -- Nobody knows what it took: the worst case counts, until it is heard of.
      r := holdfast.settle_budget(r, v_lost, 'used');
    end if;
    if m.attempts - m.lost_attempts >= m.attempts_max or m.lost_attempts >= holdfast.lost_attempts_max() then
      update holdfast.model_calls set lost_attempts = m.lost_attempts
       where run_id = p_run and turn = p_turn and step = p_step;
      perform holdfast.save_run(r);
      return jsonb_build_object('kind', 'exhausted');
    end if;
    v_slot := holdfast.cooldown_turn(r, 'model', r.model_target);
    if v_slot is not null then
      update holdfast.model_calls set lost_attempts = m.lost_attempts
       where run_id = p_run and turn = p_turn and step = p_step;
      perform holdfast.save_run(r);
      return holdfast.cooling_answer(r, v_slot, coalesce(m.attempts - m.lost_attempts, 0),
        coalesce(m.attempts_max, (r.contract #>> '{retry,attempts_max}')::int), m.series_deadline_at);
    end if;
    v_reached := holdfast.reserve_budget(r, p_attempt_id, jsonb_build_object('model', true, 'steps', (m.run_id is null)::int));
    if v_reached ->> 'kind' = 'reached' then
      update holdfast.model_calls set lost_attempts = m.lost_attempts
       where run_id = p_run and turn = p_turn and step = p_step;
      v_way := holdfast.limit_way(r);
      r := holdfast.meet_limit(r, v_way, p_turn, p_step, v_reached);
      perform holdfast.save_run(r);
      return holdfast.limit_answer(v_way, v_reached);
    end if;
    r.budgeted := r.budgeted or v_reached is not null;
    if r.finishing is not null and r.last_step is null then r.last_step := p_step; end if;
    if m.run_id is null then
      insert into holdfast.model_calls (run_id, turn, step, tenant_id, attempts_max, series_deadline_at)
        values (p_run, p_turn, p_step, r.tenant_id, (r.contract #>> '{retry,attempts_max}')::int,
                clock_timestamp() + make_interval(secs => (r.contract #>> '{retry,series_seconds_max}')::int))
        returning * into m;
      r.turn := p_turn;
      r.step := p_step;
      r.model_calls := r.model_calls + 1;
      -- Once a call: every attempt at it is asked the same.
      if r.thread_id is not null and r.finishing is null then r := holdfast.take_up_messages(r, p_turn, p_step); end if;
    end if;
    m.attempts := m.attempts + 1;
    r.model_attempts := r.model_attempts + 1;
    update holdfast.model_calls set attempts = m.attempts, lost_attempts = m.lost_attempts
     where run_id = p_run and turn = p_turn and step = p_step;
    insert into holdfast.model_attempts (run_id, turn, step, attempt, attempt_id, tenant_id, epoch, execution, worker)
      values (p_run, p_turn, p_step, m.attempts, p_attempt_id, r.tenant_id, r.epoch, p_execution, p_worker);
    -- A reader drops the chunks of every earlier attempt when it sees this.
    r := holdfast.append_event(r, 'model.started', jsonb_build_object(
      'turn', p_turn, 'step', p_step, 'attempt', m.attempts));
  end if;
  perform holdfast.save_run(r);
  return jsonb_build_object(
    'kind', 'claimed', 'attempt', m.attempts, 'tenant_id', r.tenant_id, 'agent', r.agent,
    'agent_version', r.agent_version, 'epoch', r.epoch,
    'model_seconds', (r.contract #>> '{timeouts,model_seconds}')::int,
    'effect_rules', r.contract -> 'effects',
    -- Where reaching it is more than an error for the model, the claim of each call looks.
    'tool_calls_left', case when holdfast.on_reached(r) = 'fail'
      then r.tool_calls_max - r.tool_calls - v_held.tool_calls else 1000 end,
    'finishing', r.finishing,
    'messages', case when r.thread_id is not null and p_known_step = 0 then holdfast.thread_history(r) else '[]' end || coalesce((
      select jsonb_agg(jsonb_build_object('step', step, 'position', position, 'role', role, 'content', content)
                       order by step, position)
        -- What a fork inherits stands at the steps up to 0.
        from holdfast.messages where run_id = p_run and (step > p_known_step or p_known_step = 0)), '[]'::jsonb));
end $$;

-- Whether an attempt still has the right to speak for the call.
create function holdfast.holds_model_call(r holdfast.runs, p_execution text, m holdfast.model_calls, p_attempt integer)
returns boolean language sql immutable as $$
  select coalesce(
    r.ended_at is null and r.owner_execution = p_execution and m.state = 'calling' and m.attempts = p_attempt, false)
$$;

-- Ends an attempt and counts what it cost, whether or not it still holds the call: spend recorded is spend incurred.
create function holdfast.end_model_attempt(
  r holdfast.runs, p_attempt_id text, p_outcome text, p_reason text, p_detail text, p_request_id text,
  p_input_tokens bigint, p_output_tokens bigint) returns holdfast.runs
language plpgsql as $$
begin
  update holdfast.model_attempts set
    outcome = coalesce(outcome, p_outcome), ended_at = coalesce(ended_at, clock_timestamp()),
    reason = coalesce(reason, p_reason), detail = p_detail, request_id = p_request_id,
    input_tokens = p_input_tokens, output_tokens = p_output_tokens
  where attempt_id = p_attempt_id and input_tokens = 0 and output_tokens = 0;
  if found then
    r.input_tokens := r.input_tokens + p_input_tokens;
    r.output_tokens := r.output_tokens + p_output_tokens;
    r := holdfast.settle_model_budget(r, p_attempt_id, p_outcome, p_reason, p_input_tokens, p_output_tokens);
  end if;
  return r;
end $$;

-- Commits the response, the assistant's message, the plan of tool calls and the results of refused ones.
-- `p_complete`: the workflow has nothing left to say before the end, so a final answer ends the run in this very
-- commit, unless somebody asked for control meanwhile.
create function holdfast.commit_model_response(
  p_run text, p_execution text, p_turn integer, p_step integer, p_attempt integer, p_attempt_id text,
  p_response text, p_summary jsonb, p_plan jsonb, p_assistant jsonb, p_refused jsonb, p_chunks jsonb, p_complete boolean) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  m holdfast.model_calls;
  v jsonb;
begin
  select * into r from holdfast.runs where run_id = p_run for update;
  select * into m from holdfast.model_calls where run_id = p_run and turn = p_turn and step = p_step;
  if r.cooldown_id is not null then perform holdfast.ease_cooldown(r, 'model', r.model_target); end if;
  r := holdfast.end_model_attempt(r, p_attempt_id, 'answered', null, null, p_summary ->> 'requestId',
    (p_summary #>> '{usage,inputTokens}')::bigint, (p_summary #>> '{usage,outputTokens}')::bigint);
  if m.state = 'answered' and m.attempts = p_attempt then
    perform holdfast.save_run(r);
    return holdfast.response_summary(m) || jsonb_build_object('state', r.state);
  end if;
  if not holdfast.holds_model_call(r, p_execution, m, p_attempt) then
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'late');
  end if;

  update holdfast.model_calls set state = 'answered', response = p_response, plan = p_plan,
         stop_reason = p_summary ->> 'stopReason', left_out = p_summary -> 'leftOut', answered_at = clock_timestamp()
   where run_id = p_run and turn = p_turn and step = p_step returning * into m;
  r.last_stop_reason := m.stop_reason;
  insert into holdfast.messages (run_id, turn, step, position, tenant_id, role, content, as_of)
    values (p_run, p_turn, p_step, 1, r.tenant_id, 'assistant', p_assistant, r.event_seq + 1);
  r := holdfast.append_chunks_to(r, p_turn, p_step, p_attempt, p_chunks);
  -- Before the event of the response: a checkpoint there holds the whole commit.
  for v in select value from jsonb_array_elements(p_refused) loop
    r := holdfast.write_result(r, p_turn, p_step, (v ->> 'slot')::int, v -> 'content');
  end loop;
  r := holdfast.append_event(r, 'model.message', jsonb_build_object(
    'turn', p_turn, 'step', p_step, 'attempt', p_attempt, 'message', p_assistant,
    'stop_reason', m.stop_reason, 'usage', p_summary -> 'usage', 'model', p_summary -> 'modelId',
    'request_id', p_summary -> 'requestId')
    || case when p_summary ? 'leftOut' then jsonb_build_object('left_out', p_summary -> 'leftOut') else '{}' end);
  for v in select value from jsonb_array_elements(p_refused) loop
    r := holdfast.append_event(r, 'tool.refused', jsonb_build_object(
      'turn', p_turn, 'step', p_step, 'slot', (v ->> 'slot')::int, 'code', v ->> 'code', 'tool', v #>> '{content,toolName}'));
  end loop;
  if p_complete and r.control = 'active' and r.state = 'running' and m.stop_reason = 'stop'
     and jsonb_array_length(p_plan) = 0 then
    r := holdfast.move_run(r, 'run', 'completed', 'answer_final', 'holdfast:workflow');
    r.trail_position := r.trail_position + 1;
  end if;
  perform holdfast.save_run(r);
  return holdfast.response_summary(m) || jsonb_build_object('state', r.state);
end $$;

create function holdfast.append_chunks_to(
  r holdfast.runs, p_turn integer, p_step integer, p_attempt integer, p_chunks jsonb) returns holdfast.runs
language plpgsql as $$
declare
  v jsonb;
begin
  for v in select value from jsonb_array_elements(p_chunks) loop
    r := holdfast.append_event(r, 'model.chunk', jsonb_build_object(
      'turn', p_turn, 'step', p_step, 'attempt', p_attempt) || v);
  end loop;
  return r;
end $$;

-- Stores coalesced pieces of a streaming answer while it comes. Says whether the attempt still holds the call: one
-- that does not should stop streaming.
create function holdfast.append_chunks(
  p_run text, p_execution text, p_turn integer, p_step integer, p_attempt integer, p_chunks jsonb) returns boolean
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  m holdfast.model_calls;
begin
  select * into r from holdfast.runs where run_id = p_run for update;
  select * into m from holdfast.model_calls where run_id = p_run and turn = p_turn and step = p_step;
  if not holdfast.holds_model_call(r, p_execution, m, p_attempt) then return false; end if;
  r := holdfast.append_chunks_to(r, p_turn, p_step, p_attempt, p_chunks);
  perform holdfast.save_run(r);
  return true;
end $$;

-- Ends an attempt that gave no response and says where the series stands. One that was aborted with its worker is lost,
-- as if that had been killed: a deploy counts as no attempt. `p_wait`: only a person can mend it, and is asked to.
create function holdfast.fail_model_attempt(
  p_run text, p_execution text, p_turn integer, p_step integer, p_attempt integer, p_attempt_id text,
  p_reason text, p_detail text, p_request_id text, p_input_tokens bigint, p_output_tokens bigint,
  p_interrupt_id text, p_wait jsonb, p_retry_after_ms bigint) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  m holdfast.model_calls;
  v_again boolean;
  v_slot timestamptz;
begin
  select * into r from holdfast.runs where run_id = p_run for update;
  select * into m from holdfast.model_calls where run_id = p_run and turn = p_turn and step = p_step;
  v_again := exists (select from holdfast.model_attempts where attempt_id = p_attempt_id and ended_at is not null);
  if p_reason in ('rate_limited', 'overloaded') then
    -- Also from an attempt that has lost the call: it speaks of the provider.
    v_slot := case when v_again then r.cooldown_slot_at
      else holdfast.meet_stop(r, 'model', r.model_target, p_reason, p_retry_after_ms, p_detail) end;
  end if;
  r := holdfast.end_model_attempt(r, p_attempt_id, case p_reason when 'aborted' then 'lost' else 'failed' end, p_reason,
                                  p_detail, p_request_id, p_input_tokens, p_output_tokens);
  if not holdfast.holds_model_call(r, p_execution, m, p_attempt) then
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'late');
  end if;
  update holdfast.model_calls c set lost_attempts = (
      select count(*) from holdfast.model_attempts a
       where a.run_id = p_run and a.turn = p_turn and a.step = p_step and a.outcome = 'lost')
   where c.run_id = p_run and c.turn = p_turn and c.step = p_step returning * into m;
  if not v_again then
    r := holdfast.append_event(r, 'model.failed', jsonb_build_object(
      'turn', p_turn, 'step', p_step, 'attempt', p_attempt, 'reason', p_reason, 'request_id', p_request_id));
    -- In the failure's own transaction: there is no moment in which the call could be made again unasked.
    if p_wait is not null then
      r := holdfast.open_input(r, p_interrupt_id, p_turn, p_step, null, p_wait || jsonb_build_object(
        'expiresSeconds', r.contract #> '{timeouts,input_seconds}'));
    end if;
  end if;
  perform holdfast.save_run(r);
  return jsonb_build_object('kind', 'failed', 'attempt', m.attempts - m.lost_attempts,
    'attempts_max', m.attempts_max,
    'retry_after_max_ms', (r.contract #>> '{retry,retry_after_seconds_max}')::bigint * 1000,
    'series_ms_left', floor(extract(epoch from
      least(m.series_deadline_at, r.deadline_at) - clock_timestamp()) * 1000)::bigint,
    'not_before_ms', holdfast.ms_until(v_slot));
end $$;

-- Writes the one result of one tool call into the transcript, before the event that tells of it. A second one for the
-- same place is a bug.
create function holdfast.write_result(r holdfast.runs, p_turn integer, p_step integer, p_slot integer, p_content jsonb)
returns holdfast.runs language plpgsql as $$
begin
  -- The model asked for no compensation, and reads none.
  if p_slot >= 1000 then return r; end if;
  insert into holdfast.messages (run_id, turn, step, position, tenant_id, role, content, as_of)
    values (r.run_id, p_turn, p_step, p_slot + 2, r.tenant_id, 'tool', p_content || jsonb_build_object(
      'text', holdfast.edit_note(r.run_id, p_turn, p_step, p_slot) || (p_content ->> 'text')), r.event_seq + 1);
  return r;
end $$;
