-- Waits for a person's input (SPEC 4): an agent asks a question, or a model provider refuses for a reason that only a
-- person can mend (SPEC 3.5). Rows of `interrupts` like any other, of kind `input`; the answer is content and stays here.

-- A question has no effect, and a failed model call has no slot either.
alter table holdfast.interrupts alter column effect_id drop not null;
alter table holdfast.interrupts alter column slot drop not null;
alter table holdfast.interrupts drop constraint interrupts_on_expiry_check;
alter table holdfast.interrupts
  add constraint interrupts_on_expiry_check check (on_expiry in ('deny', 'escalate', 'tell_model', 'fail')),
  add constraint effect_by_kind check (case kind when 'approval' then effect_id is not null
                                                 when 'input' then effect_id is null else true end),
  add constraint slot_unless_input check (kind = 'input' or slot is not null),
  add constraint input_states check (
    kind <> 'input' or state in ('open', 'answered', 'expired', 'superseded', 'withdrawn')),
  add constraint input_expiry check (kind <> 'input' or on_expiry in ('tell_model', 'fail'));
-- One open wait of a kind for one call, however often it is asked for.
create unique index interrupts_one_open on holdfast.interrupts (run_id, turn, step, (coalesce(slot, -1)), kind)
  where state in ('open', 'approved');

-- RFC 8785 text, for the model to read as it was said.
create domain holdfast.answer_text as text check (length(value) between 1 and 65536);
alter table holdfast.decisions add column answer holdfast.answer_text;
alter table holdfast.decisions add constraint answer_iff_answered check ((decision = 'answer') = (answer is not null));

-- The newest wait for input of a call; of the step's model call where the slot is null.
create function holdfast.newest_input(p_run text, p_turn integer, p_step integer, p_slot integer)
returns holdfast.interrupts language sql stable as $$
  select * from holdfast.interrupts
   where run_id = p_run and turn = p_turn and step = p_step and slot is not distinct from p_slot and kind = 'input'
   order by created_at desc limit 1
$$;

-- Opens a wait for input. `p_wait` holds what is shown and under which rules: scope, its digest, schema, role, seconds
-- until the expiry, what the expiry means.
create function holdfast.open_input(r holdfast.runs, p_interrupt_id text, p_turn integer, p_step integer,
  p_slot integer, p_wait jsonb) returns holdfast.runs language plpgsql as $$
declare
  v_expires timestamptz := least(
    clock_timestamp() + make_interval(secs => (p_wait ->> 'expiresSeconds')::int), r.deadline_at);
begin
  insert into holdfast.interrupts (interrupt_id, kind, tenant_id, run_id, turn, step, slot, requested_by, scope,
      scope_sha256, answer_schema, required_role, expires_at, on_expiry)
    values (p_interrupt_id, 'input', r.tenant_id, r.run_id, p_turn, p_step, p_slot, r.actor_id, p_wait -> 'scope',
      p_wait ->> 'scopeSha256', p_wait -> 'answerSchema', p_wait ->> 'role', v_expires, p_wait ->> 'onExpiry');
  return holdfast.append_event(r, 'interrupt.opened', jsonb_build_object(
    'interrupt_id', p_interrupt_id, 'kind', 'input', 'tool', p_wait #>> '{scope,tool}', 'turn', p_turn, 'step', p_step,
    'slot', p_slot, 'scope_sha256', p_wait ->> 'scopeSha256', 'expires_at', v_expires));
end $$;

-- An open wait whose time is over becomes `expired`, by the database's clock.
create function holdfast.expire_input(r holdfast.runs, i holdfast.interrupts) returns holdfast.runs
language plpgsql as $$
begin
  update holdfast.interrupts set state = 'expired', decided_at = clock_timestamp()
   where interrupt_id = i.interrupt_id;
  return holdfast.append_event(r, 'interrupt.expired', jsonb_build_object(
    'interrupt_id', i.interrupt_id, 'kind', i.kind, 'on_expiry', i.on_expiry));
end $$;

-- A planned question: opened once, and when its wait is over its one result is written (SPEC 4). `open`: somebody is
-- waited for. `settled`: the model has its result. `unanswered`: it has, and the run fails by the question's own rule.
create function holdfast.ask_question(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_turn integer, p_step integer, p_slot integer,
  p_interrupt_id text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  i holdfast.interrupts;
  v_plan jsonb;
  v_reached jsonb;
  v_way text;
begin
  if r.state <> 'running' then
    raise exception 'out_of_step: % is %, and asks nobody', p_run, r.state using errcode = 'HF005';
  end if;
  select plan -> p_slot into v_plan from holdfast.model_calls
   where run_id = p_run and turn = p_turn and step = p_step;
  if v_plan ->> 'kind' is distinct from 'question' then
    raise exception 'effect_not_found: no question is planned at %/%/%/%', p_run, p_turn, p_step, p_slot
      using errcode = 'HF007';
  end if;
  i := holdfast.newest_input(p_run, p_turn, p_step, p_slot);
  if i.interrupt_id is null then
    if r.control <> 'active' then
      perform holdfast.save_run(r);
      return jsonb_build_object('kind', 'control', 'control', r.control);
    end if;
    v_reached := case when r.finishing is not null then null
      when clock_timestamp() >= r.deadline_at then holdfast.run_limit(r, 'wall_clock')
      when r.tool_calls >= r.tool_calls_max then holdfast.run_limit(r, 'tool_calls') end;
    if v_reached is not null then
      v_way := holdfast.limit_way(r);
      r := holdfast.meet_limit(r, v_way, p_turn, p_step, v_reached);
    end if;
    if r.finishing is not null then
      if not holdfast.has_result(p_run, p_turn, p_step, p_slot) then
        r := holdfast.write_result(r, p_turn, p_step, p_slot, jsonb_build_object(
          'callId', v_plan ->> 'callId', 'toolName', v_plan ->> 'toolName', 'isError', true, 'text',
          'Not asked: a limit of this run is reached (' || r.finishing || '). Answer with what you have.'));
      end if;
      v_way := 'settled';
    elsif v_reached is null then
      r.tool_calls := r.tool_calls + 1;
      r := holdfast.open_input(r, p_interrupt_id, p_turn, p_step, p_slot, v_plan);
    end if;
    perform holdfast.save_run(r);
    return case when v_way = 'settled' then jsonb_build_object('kind', 'settled')
                when v_way is null then jsonb_build_object('kind', 'open')
                else holdfast.limit_answer(v_way, v_reached) end;
  end if;
  if i.state = 'open' and clock_timestamp() < i.expires_at then
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'open');
  end if;
  if i.state = 'open' then
    r := holdfast.expire_input(r, i);
    i.state := 'expired';
  end if;
  if not holdfast.has_result(p_run, p_turn, p_step, p_slot) then
    r := holdfast.tell_answer(r, i, v_plan);
  end if;
  perform holdfast.save_run(r);
  return jsonb_build_object('kind',
    case when i.state <> 'answered' and i.on_expiry = 'fail' then 'unanswered' else 'settled' end);
end $$;

-- The one result of a question's call: the answer as it was given, or that there is none.
create function holdfast.tell_answer(r holdfast.runs, i holdfast.interrupts, p_plan jsonb) returns holdfast.runs
language plpgsql as $$
declare
  v_text text;
begin
  select answer into v_text from holdfast.decisions where interrupt_id = i.interrupt_id and decision = 'answer';
  r := holdfast.write_result(r, i.turn, i.step, i.slot, jsonb_build_object(
    'callId', p_plan ->> 'callId', 'toolName', p_plan ->> 'toolName', 'isError', v_text is null,
    'text', coalesce(v_text, jsonb_build_object('error', 'no_answer', 'reason', i.state, 'message',
      case i.state when 'expired' then 'Nobody answered in time. Nobody refused to answer either.'
                   else 'The question was taken back before anybody answered.' end)::text)));
  return holdfast.append_event(r, 'question.settled', jsonb_build_object(
    'interrupt_id', i.interrupt_id, 'tool', p_plan ->> 'toolName', 'turn', i.turn, 'step', i.step, 'slot', i.slot,
    'state', i.state));
end $$;

-- What a wait for a person makes of the next attempt at a model call: null lets it be made. The wait that was opened
-- over the newest attempt governs; one attempt later it is spent.
create function holdfast.model_wait_standing(m holdfast.model_calls) returns text language plpgsql stable as $$
declare
  i holdfast.interrupts := holdfast.newest_input(m.run_id, m.turn, m.step, null);
begin
  if i.interrupt_id is null or (i.scope ->> 'attempt')::int <> m.attempts then return null; end if;
  return case
    when i.state = 'open' then case when clock_timestamp() < i.expires_at then 'person_needed' else 'expiring' end
    when i.state <> 'answered' then 'given_up'
    else (select case answer::jsonb ->> 'action' when 'try_again' then 'try_again' else 'given_up' end
            from holdfast.decisions where interrupt_id = i.interrupt_id and decision = 'answer') end;
end $$;

-- One person's answer to a wait for input, under the run's lock: of any number at once, one is taken. The caller has
-- looked whether it fits the schema of this very row, which never changes.
create function holdfast.answer_input(
  p_tenant text, p_interrupt text, p_actor text, p_authority text, p_answer text, p_fits boolean, p_note text,
  p_endpoint text, p_key text, p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  h constant holdfast.heard_word := holdfast.hear_word(p_tenant, p_interrupt, p_endpoint, p_key, p_request_sha256);
  i constant holdfast.interrupts := h.i;
  r holdfast.runs := h.r;
  -- One instant for the judgement and the row: answered before the expiry, or not at all.
  v_at constant timestamptz := clock_timestamp();
  v_refusal text;
begin
  if h.answer is not null then return h.answer; end if;
  v_refusal := case
    when i.kind not in ('input', 'budget') then 'decision_mismatch'
    when i.state = 'withdrawn' then holdfast.why_withdrawn(r)
    when i.state = 'superseded' then 'interrupt_superseded'
    when i.state = 'expired' or (i.state = 'open' and v_at >= i.expires_at) then 'interrupt_expired'
    when i.state <> 'open' then 'interrupt_decided'
    when p_authority <> i.required_role or holdfast.lacks_role(i.tenant_id, p_actor, i.required_role) then 'role_required'
    when r.ended_at is not null or r.control = 'cancel_requested' then holdfast.why_withdrawn(r)
    when not p_fits then 'answer_invalid'
  end;
  if v_refusal is not null then
    return holdfast.refuse_decision(r, i, p_actor, 'answer', v_refusal);
  end if;

  insert into holdfast.decisions (interrupt_id, actor_id, tenant_id, decision, authority, scope_sha256, note, answer,
                                  endpoint, idempotency_key, request_sha256)
    values (p_interrupt, holdfast.canonical_actor(p_actor), p_tenant, 'answer', p_authority, i.scope_sha256, p_note, p_answer,
            p_endpoint, p_key, p_request_sha256);
  update holdfast.interrupts set state = 'answered', decided_at = v_at where interrupt_id = p_interrupt;
  if i.kind = 'budget' then r := holdfast.take_budget_answer(r, i, p_answer::jsonb); end if;
  r := holdfast.append_event(r, 'interrupt.decided', jsonb_build_object(
    'interrupt_id', i.interrupt_id, 'kind', i.kind, 'tool', i.scope ->> 'tool', 'decision', 'answer',
    'state', 'answered', 'actor_id', holdfast.canonical_actor(p_actor)));
  perform holdfast.save_run(r);
  perform pg_notify('holdfast_events', r.run_id);
  perform pg_notify('holdfast_nudge', r.run_id);
  return jsonb_build_object('kind', 'decided', 'state', 'answered');
end $$;

revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.ask_question, holdfast.answer_input to holdfast_app;
