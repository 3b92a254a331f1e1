-- Settling an unknown outcome (SPEC 3.6): a late receipt first, then status queries in a bounded series. A person is
-- the last; nothing here guesses.

-- Opens one look at an unknown effect. A late receipt settles it on the spot; otherwise the caller learns what to ask.
create function holdfast.begin_query(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_turn integer, p_step integer, p_slot integer)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  e holdfast.effects := holdfast.newest_effect(p_run, p_turn, p_step, p_slot);
begin
  if e.effect_id is null then
    raise exception 'effect_not_found: %/%/%/%', p_run, p_turn, p_step, p_slot using errcode = 'HF007';
  end if;
  select * into e from holdfast.effects where effect_id = e.effect_id for update;
  if e.state <> 'unknown' then
    perform holdfast.save_run(r);
    return holdfast.effect_standing(r, e);
  end if;
  r := holdfast.settle_by_late_receipt(r, e);
  perform holdfast.save_run(r);
  select * into e from holdfast.effects where effect_id = e.effect_id;
  if e.state <> 'unknown' then
    return holdfast.effect_standing(r, e);
  end if;
  if holdfast.next_to_settle(e) <> 'query' then
    return holdfast.effect_standing(r, e) || jsonb_build_object('next', holdfast.next_to_settle(e));
  end if;
  return jsonb_build_object(
    'kind', 'query', 'effect_id', e.effect_id, 'tenant_id', e.tenant_id, 'tool', e.tool,
    'tool_version', e.tool_version, 'arguments', e.arguments, 'idempotency_key', e.idempotency_key,
    'tool_seconds', (r.contract #>> '{timeouts,tool_seconds}')::int, 'asked_at', clock_timestamp(),
    'query', (select coalesce(max(query), 0) + 1 from holdfast.status_queries where effect_id = e.effect_id));
end $$;

-- Stores one answer of a target and settles the effect when the series allows it: `found` at once, `absent` only
-- after the settling time and k equal answers in a row. `p_query` and `p_asked_at` are what `begin_query` gave: a
-- record that is repeated because its acknowledgement was lost stays one answer, and an answer is as old as its question.
create function holdfast.record_query(
  p_run text, p_execution text, p_effect text, p_query integer, p_asked_at timestamptz, p_answer text, p_reason text,
  p_reference text, p_body bytea, p_body_sha256 text, p_content_type text, p_truncated boolean, p_result_text text)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, null, null);
  e holdfast.effects;
  q jsonb;
  v_number integer;
  -- An `absent` that was asked before says nothing. Counted from when the outcome was lost, which is after the
  -- attempt's last byte could leave.
  v_settling_until timestamptz;
  v_counts boolean;
  v_equal integer;
  -- A call that was left while it ran in a worker may do it yet: that the target knows nothing of it proves nothing.
  v_may_run boolean := exists (
    select from holdfast.attempts where effect_id = p_effect and reason = 'still_running');
begin
  select * into e from holdfast.effects where effect_id = p_effect and run_id = p_run for update;
  if not found then
    raise exception 'effect_not_found: % of %', p_effect, p_run using errcode = 'HF007';
  end if;
  if e.state <> 'unknown' then
    return holdfast.effect_standing(r, e);
  end if;
  q := e.policy -> 'query';
  v_settling_until := e.unknown_at + make_interval(secs => (q ->> 'settlingSeconds')::float8);
  if not exists (select from holdfast.status_queries where effect_id = p_effect and query = p_query and answer = p_answer) then
    v_counts := p_answer <> 'absent' or p_asked_at >= v_settling_until and not v_may_run;
    select coalesce(max(query), 0) + 1 into v_number from holdfast.status_queries where effect_id = p_effect;
    insert into holdfast.status_queries (effect_id, query, tenant_id, run_id, answer, counts, reason, reference, body, asked_at)
      values (p_effect, v_number, e.tenant_id, p_run, p_answer, v_counts, p_reason, p_reference, p_body, p_asked_at);
    r := holdfast.append_event(r, 'effect.queried', jsonb_build_object(
      'effect_id', p_effect, 'tool', e.tool, 'query', v_number, 'answer', p_answer, 'counts', v_counts));
  end if;

  select count(*) into v_equal from holdfast.status_queries
   where effect_id = p_effect and answer = 'absent' and asked_at >= v_settling_until and query > coalesce((
     select max(query) from holdfast.status_queries where effect_id = p_effect and answer <> 'absent'), 0);
  -- Evidence that came while the target was asked goes before `absent`.
  if p_answer = 'found' or v_equal >= (q ->> 'equalAnswers')::int and not v_may_run
     and not exists (select from holdfast.settling_receipt(e)) then
    r := holdfast.reconcile_effect(r, e, case p_answer when 'found' then 'committed' else 'not_committed' end, 'probe',
      jsonb_build_object('query', coalesce(v_number, p_query), 'equal_answers', v_equal, 'body_sha256', p_body_sha256),
      'holdfast:ledger', case p_answer when 'found' then 'The target knows the key.'
        else 'The target does not know the key, in ' || v_equal || ' equal answers past its settling time.' end,
      p_reference, null, p_body, p_body_sha256, p_content_type, p_truncated, p_result_text);
  end if;
  perform holdfast.save_run(r);
  select * into e from holdfast.effects where effect_id = p_effect;
  return holdfast.effect_standing(r, e) || jsonb_build_object(
    'next', case when e.state = 'unknown' then holdfast.next_to_settle(e)
      else holdfast.effect_standing(r, e) ->> 'next' end,
    'query_wait_ms', greatest(ceil((q ->> 'intervalSeconds')::numeric * 1000)::bigint,
      case when e.state = 'unknown' then ceil(extract(epoch from e.unknown_at - clock_timestamp()
        + make_interval(secs => (q ->> 'settlingSeconds')::float8)) * 1000)::bigint else 0 end));
end $$;

-- Settles an unknown effect whose answer came late, if one did that settles it.
create function holdfast.settle_by_late_receipt(r holdfast.runs, e holdfast.effects) returns holdfast.runs
language plpgsql as $$
declare
  l holdfast.late_receipts;
begin
  select * into l from holdfast.settling_receipt(e);
  if not found then return r; end if;
  return holdfast.reconcile_effect(r, e,
    case l.outcome when 'succeeded' then 'committed' else 'not_committed' end, 'late_receipt',
    jsonb_build_object('attempt_id', l.attempt_id, 'outcome', l.outcome, 'body_sha256', l.body_sha256,
                       'recorded_at', l.recorded_at),
    'holdfast:ledger', 'An answer that came late says what happened.', l.reference, l.attempt_id, l.body,
    l.body_sha256, l.content_type, l.truncated, l.result_text);
end $$;

-- The settlement: a row with actor and evidence, the receipt, the state, and the fact the model hears.
create function holdfast.reconcile_effect(
  r holdfast.runs, e holdfast.effects, p_decided text, p_source text, p_evidence jsonb, p_actor text, p_note text,
  p_reference text, p_attempt_id text, p_body bytea, p_body_sha256 text, p_content_type text, p_truncated boolean,
  p_result_text text) returns holdfast.runs
language plpgsql as $$
begin
  insert into holdfast.reconciliations (effect_id, tenant_id, run_id, decided, source, evidence, actor_id, note)
    values (e.effect_id, e.tenant_id, e.run_id, p_decided, p_source, p_evidence, p_actor, p_note);
  r := holdfast.write_receipt(r, e, p_attempt_id,
    -- What was undone by hand had happened.
    case p_decided when 'compensated' then 'committed' else p_decided end, p_source, p_reference, null, coalesce(p_body, ''),
    p_body_sha256, p_content_type, p_truncated, p_result_text);
  return holdfast.close_settlement(r, e.effect_id, p_source, p_actor);
end $$;
