-- Admission: the row is the queue (SPEC 3.8). One start key, one run, whatever Temporal does.

create function holdfast.register_agent(p_agent text, p_version text, p_manifest jsonb) returns void
language plpgsql security definer set search_path = holdfast, pg_temp as $$
begin
  insert into holdfast.agent_versions (agent, agent_version, manifest) values (p_agent, p_version, p_manifest)
    on conflict do nothing;
  insert into holdfast.agents (agent, agent_version) values (p_agent, p_version)
    on conflict (agent) do update set agent_version = excluded.agent_version, updated_at = now()
    where agents.agent_version <> excluded.agent_version;
end $$;

-- Admits a run, or answers with the run that this key admitted before. `p_run` carries the ids and content that
-- shared/ledger/admission.ts has checked.
create function holdfast.admit_run(
  p_tenant text, p_actor text, p_endpoint text, p_key text, p_request_sha256 text, p_run jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  v_known holdfast.api_requests;
  v_run_id text := p_run ->> 'run_id';
begin
  select * into v_known from holdfast.api_requests
   where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind',
      case when v_known.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end,
      'run_id', coalesce(v_known.run_id, v_known.message_id));
  end if;

  if p_run ->> 'agent_version' is null then
    return jsonb_build_object('kind', 'agent_not_found');
  end if;
  if (p_run ->> 'budget_unmet')::boolean then
    return jsonb_build_object('kind', 'budget_unmet');
  end if;

  perform holdfast.insert_run(p_tenant, p_actor, p_run);

  -- Of two admissions under one key at once, the second waits here for the first and then finds its row.
  insert into holdfast.api_requests (tenant_id, endpoint, idempotency_key, request_sha256, run_id)
    values (p_tenant, p_endpoint, p_key, p_request_sha256, v_run_id)
    on conflict do nothing;
  if not found then
    raise exception 'key_taken' using errcode = 'HF009';
  end if;

  return jsonb_build_object('kind', 'admitted', 'run_id', v_run_id);
end $$;

-- The rows of one admitted run: its job, itself, its budget, and what every admission leaves.
create function holdfast.insert_run(p_tenant text, p_actor text, p_run jsonb) returns void language plpgsql as $$
declare
  v_run_id text := p_run ->> 'run_id';
  v_job_id text := p_run ->> 'job_id';
  v_contract jsonb := p_run -> 'contract';
  v_at timestamptz := clock_timestamp();
begin
  insert into holdfast.jobs (job_id, tenant_id, objective, acceptance_rule, accepted_by, owner, created_by)
    values (v_job_id, p_tenant, v_contract ->> 'objective', v_contract #>> '{acceptance,rule}',
            v_contract #>> '{acceptance,accepted_by}', v_contract ->> 'owner', p_actor);
  insert into holdfast.runs (run_id, tenant_id, job_id, actor_id, agent, agent_version, pins, contract, contract_sha256,
                             input, task_queue, state_version, event_seq, admitted_at, deadline_at, root_run_id,
                             steps_max, tool_calls_max, priority, thread_id, thread_place, memory_thread_id,
                             memory_generation)
    values (v_run_id, p_tenant, v_job_id, p_actor, p_run ->> 'agent', p_run ->> 'agent_version', p_run -> 'pins',
            v_contract, p_run ->> 'contract_sha256', p_run -> 'input', p_run ->> 'task_queue', 1, 1, v_at,
            v_at + make_interval(secs => (v_contract #>> '{limits,wall_clock_seconds}')::int), v_run_id,
            (v_contract #>> '{limits,steps_max}')::int, (v_contract #>> '{limits,tool_calls_max}')::int,
            coalesce((v_contract ->> 'priority')::int, 3), p_run ->> 'thread_id', (p_run ->> 'thread_place')::int,
            p_run ->> 'memory_thread_id', (p_run ->> 'memory_generation')::int);
  if jsonb_array_length(p_run -> 'budget_lines') > 0 then
    perform holdfast.add_run_budgets(p_tenant, v_run_id, p_run -> 'budget_lines');
  end if;
  perform holdfast.record_admission(v_run_id, p_run ->> 'input_text');
end $$;

-- What every admission leaves beside its row: the first transition, event and message, and word to the starter.
create function holdfast.record_admission(p_run text, p_input_text text) returns void language plpgsql as $$
declare
  r holdfast.runs;
  v_digest text;
begin
  select * into strict r from holdfast.runs where run_id = p_run;
  v_digest := holdfast.transition_digest('', p_run, 1, 'run', null, 'admitted', 'admitted', r.actor_id, 0, r.admitted_at);
  insert into holdfast.transitions (run_id, seq, tenant_id, region, from_state, to_state, reason, actor_id, epoch,
                                    created_at, prev_digest, digest)
    values (p_run, 1, r.tenant_id, 'run', null, 'admitted', 'admitted', r.actor_id, 0, r.admitted_at, '', v_digest);
  update holdfast.runs set last_digest = v_digest where run_id = p_run;
  insert into holdfast.run_events (run_id, seq, tenant_id, type, data) values
    (p_run, 1, r.tenant_id, 'run.admitted', jsonb_strip_nulls(jsonb_build_object(
      'state', 'admitted', 'control', 'active', 'state_version', 1, 'agent', r.agent,
      'agent_version', r.agent_version, 'job_id', r.job_id, 'actor_id', r.actor_id, 'parent_run_id', r.parent_run_id,
      'thread_id', r.thread_id, 'forked_from', holdfast.forked_from(r))));
  -- A fork may go on from what it inherits, without a word of its own.
  if p_input_text is not null then
    insert into holdfast.messages (run_id, turn, step, position, tenant_id, role, content, as_of)
      values (p_run, 1, 1, 0, r.tenant_id, 'user', jsonb_build_object('text', p_input_text), 1);
  end if;
  perform holdfast.tell_starter(r);
end $$;

-- Tells the starter of a run that may begin: the message that workers/starter.ts reads.
create function holdfast.tell_starter(r holdfast.runs) returns void language sql as $$
  select pg_notify('holdfast_admitted', jsonb_build_object('run_id', r.run_id, 'tenant_id', r.tenant_id, 'agent', r.agent,
    'job_id', r.job_id, 'task_queue', r.task_queue)::text)
$$;

create function holdfast.confirm_starts(p_runs text[]) returns void
language sql security definer set search_path = holdfast, pg_temp as $$
  update holdfast.runs set start_confirmed_at = clock_timestamp()
   where run_id = any (p_runs) and start_confirmed_at is null
$$;
