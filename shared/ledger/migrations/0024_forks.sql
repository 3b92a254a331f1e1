-- Forks (SPEC 4.2): a new run from a checkpoint of another, in one transaction that reads the source and writes nothing of
-- it. What the source's prompt held is copied; its effects are named, and stay the source's.

create domain holdfast.checkpoint_id as text check (
  length(value) = 36 and starts_with(value, 'ckp_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.fork_mode as text check (value in ('simulate', 'reuse_if_identical', 'live'));

-- How calls of a fork are answered; null for every other run, which so pays for no look.
alter table holdfast.runs add column fork_mode holdfast.fork_mode;
alter table holdfast.effects
  -- The effect of another run whose receipt answered this call in place of a dispatch.
  add column reuses text references holdfast.effects,
  -- Of a simulation: whatever claims it, it is never sent.
  add column simulated boolean not null default false,
  add constraint reused_is_never_sent check (reuses is null or state = 'withdrawn' and attempts = 0),
  add constraint simulated_is_never_sent check (not simulated or attempts = 0);

create table holdfast.forks (
  run_id           holdfast.run_id        primary key references holdfast.runs,
  tenant_id        holdfast.name          not null,
  source_run_id    text                   not null references holdfast.runs,
  checkpoint_id    holdfast.checkpoint_id not null,
  source_event_seq bigint                 not null,
  -- The last whole step of the source there: its calls after it are those that answer the fork's.
  cut_step         integer                not null check (cut_step >= 0),
  mode             holdfast.fork_mode     not null,
  -- Whether the source's agent version was kept, or the current one taken on purpose.
  pins             text                   not null check (pins in ('keep', 'current')),
  -- What was changed on purpose, as it was asked for.
  edits            jsonb                  not null,
  actor_id         holdfast.actor         not null,
  -- The role that let the actor do it.
  authority        holdfast.name          not null,
  created_at       timestamptz            not null default clock_timestamp(),
  constraint no_fork_of_itself check (run_id <> source_run_id)
);
create index forks_by_source on holdfast.forks (source_run_id, run_id);

-- The effects before the cut, read-only: they are other runs' and stay theirs, so that no count, claim or compensation of
-- the fork meets them. The place is that of the copied messages.
create table holdfast.inherited_effects (
  run_id    text    not null references holdfast.forks,
  effect_id text    not null references holdfast.effects,
  tenant_id text    not null,
  step      integer not null check (step < 0),
  slot      integer not null,
  redo      integer not null,
  primary key (run_id, step, slot, redo)
);

do $$
declare
  v_table text;
begin
  foreach v_table in array array['forks', 'inherited_effects'] loop
    execute format('create trigger append_only before update or delete on holdfast.%I
      for each row execute function holdfast.refuse_change()', v_table);
    execute format('create trigger never_emptied before truncate on holdfast.%I
      for each statement execute function holdfast.refuse_change()', v_table);
  end loop;
end $$;

-- What the admission of a fork tells; null for every other run.
create function holdfast.forked_from(r holdfast.runs) returns jsonb language plpgsql stable as $$
begin
  if r.fork_mode is null then return null; end if;
  return (select jsonb_build_object('run_id', source_run_id, 'checkpoint_id', checkpoint_id, 'mode', mode)
            from holdfast.forks where run_id = r.run_id);
end $$;

-- The calls of a run, and of those before it, whose effects have been taken back.
create function holdfast.undone_calls(p_run text) returns table (step integer, slot integer) language sql stable as $$
  select e.step, e.slot from holdfast.effects e
   where e.run_id = p_run and e.compensates is null and holdfast.is_undone(e.effect_id)
  union
  select i.step, i.slot from holdfast.inherited_effects i where i.run_id = p_run and holdfast.is_undone(i.effect_id)
$$;

-- The prompt of the source up to the cut, with what is changed on purpose, and with what was taken back since said to be
-- so. A message keeps its place; of an answer the words are changed and its calls kept, so that each still has its one
-- result.
create function holdfast.edited_prompt(p_run text, p_cut integer, p_seq bigint, p_edits jsonb)
returns table (step integer, "position" integer, role text, content jsonb) language sql stable as $$
  select p.step, p.position, p.role, case
      when p.role = 'tool' and (p_edits #>> '{tool_result,step}')::int = p.step
           and (p_edits #>> '{tool_result,slot}')::int + 2 = p.position
        then p.content || jsonb_build_object('text', p_edits #> '{tool_result,text}',
                                             'isError', p_edits #> '{tool_result,is_error}')
      when u.step is not null and not starts_with(p.content ->> 'text', 'Undone since:')
        then p.content || jsonb_build_object('text', E'Undone since: what this call did was taken back.\n\n'
                                             || (p.content ->> 'text'))
      when w.text is null then p.content
      when p.role = 'user' then jsonb_build_object('text', w.text)
      else jsonb_build_object('parts', jsonb_build_array(jsonb_build_object('type', 'text', 'text', w.text)) || coalesce((
        select jsonb_agg(part order by n) from jsonb_array_elements(p.content -> 'parts') with ordinality as t (part, n)
         where part ->> 'type' = 'tool_call'), '[]')) end
    from holdfast.prompt_of(p_run, p_cut, p_seq) p
    left join jsonb_to_recordset(coalesce(p_edits -> 'messages', '[]')) as w (step integer, "position" integer, text text)
      on w.step = p.step and w.position = p.position and p.role <> 'tool'
    left join holdfast.undone_calls(p_run) u on u.step = p.step and u.slot + 2 = p.position and p.role = 'tool'
$$;

-- The first change that changes nothing of the prompt, as a fault of the request; null when each has its place.
create function holdfast.edit_fault(p_run text, p_cut integer, p_seq bigint, p_edits jsonb) returns jsonb
language sql stable as $$
  select jsonb_build_object('at', at, 'problem', problem) from (
    select n, 'body/messages/' || n - 1 as at, 'there is no such message of the user or the model before the cut' as problem
      from jsonb_array_elements(coalesce(p_edits -> 'messages', '[]')) with ordinality as t (w, n)
     where not exists (select from holdfast.prompt_of(p_run, p_cut, p_seq) p where p.role <> 'tool'
              and p.step = (w ->> 'step')::int and p.position = (w ->> 'position')::int)
    union all
    select 1000, 'body/tool_result', 'there is no such result before the cut'
     where p_edits ? 'tool_result' and not exists (
       select from holdfast.prompt_of(p_run, p_cut, p_seq) p where p.role = 'tool'
          and p.step = (p_edits #>> '{tool_result,step}')::int
          and p.position = (p_edits #>> '{tool_result,slot}')::int + 2)
    union all
    select 1001, 'body/add_message', 'is missing: the model has said its last word there, and would have nothing to answer'
     where not p_edits ? 'add_message' and 'assistant' = (
       select p.role from holdfast.prompt_of(p_run, p_cut, p_seq) p order by p.step desc, p.position desc limit 1)
  ) as faults order by n limit 1
$$;

-- What had left, by the checkpoint, of the step that was not whole there, and what is known of it now. The fork asks the
-- model for that step anew: what may have happened is never done again unasked. A child run answers for what it does itself,
-- and no receipt of it can be reused.
create function holdfast.calls_in_doubt(p_run text, p_cut integer, p_seq bigint, p_mode text)
returns table (id text, reason text) language sql stable as $$
  select e.effect_id::text, case when e.state in ('dispatching', 'unknown') then 'effects_unresolved' else 'step_half_done' end
    from holdfast.effects e
   where p_mode <> 'simulate' and e.run_id = p_run and e.step > p_cut and e.effect_class <> 'read'
     and (e.state in ('dispatching', 'unknown') or p_mode = 'live' and e.state in ('succeeded', 'committed'))
     and e.effect_id = any (array(select v.data ->> 'effect_id' from holdfast.run_events v
                                   where v.run_id = p_run and v.seq <= p_seq and v.type = 'effect.dispatching'))
  union all
  select v.data ->> 'child_run_id', 'step_half_done' from holdfast.run_events v
   where p_mode <> 'simulate' and v.run_id = p_run and v.seq <= p_seq and v.type = 'child.started'
     and (v.data ->> 'step')::int > p_cut
$$;

-- Makes a run of the checkpoint that `p_fork` names, or answers with the run that this key made before. Nothing of the
-- source is written; its row is held for no longer than this.
create function holdfast.fork_run(
  p_tenant text, p_actor text, p_authority text, p_endpoint text, p_key text, p_request_sha256 text, p_fork jsonb)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  v_known holdfast.api_requests;
  v_event holdfast.run_events;
  s holdfast.runs;
  v_cut integer;
  v_fault jsonb;
  v_doubts jsonb;
begin
  select * into v_known from holdfast.api_requests
   where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind',
      case when v_known.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end, 'run_id', v_known.run_id);
  end if;
  select * into v_event from holdfast.find_checkpoint(p_tenant, p_fork ->> 'checkpoint_id');
  if v_event.run_id is distinct from p_fork ->> 'source_run_id' then
    return jsonb_build_object('kind', 'checkpoint_not_found');
  end if;
  select * into s from holdfast.runs where run_id = v_event.run_id;
  select checkpoint into strict v_fault from holdfast.tell_checkpoints(s.run_id, array[v_event.seq]);
  if not (v_fault ->> 'valid')::boolean then
    return jsonb_build_object('kind', 'not_forkable', 'reasons', v_fault -> 'faults', 'in_doubt', '[]'::jsonb);
  end if;
  v_cut := (v_fault ->> 'resumes_after_step')::int;
  select jsonb_build_object('kind', 'not_forkable', 'reasons', jsonb_agg(distinct reason), 'in_doubt', jsonb_agg(id order by id))
    into v_doubts from holdfast.calls_in_doubt(s.run_id, v_cut, v_event.seq, p_fork ->> 'mode') having count(*) > 0;
  if v_doubts is not null then return v_doubts; end if;
  v_fault := holdfast.edit_fault(s.run_id, v_cut, v_event.seq, p_fork -> 'edits');
  if v_fault is not null then return jsonb_build_object('kind', 'edit_invalid', 'fault', v_fault); end if;
  if (p_fork ->> 'budget_unmet')::boolean then return jsonb_build_object('kind', 'budget_unmet'); end if;
  if p_fork ->> 'job_id' is null then
    -- Whoever judges the job now waits for this fork, or this fork for their word.
    perform from holdfast.jobs where job_id = s.job_id for share;
    if exists (select from holdfast.job_acceptances where job_id = s.job_id) then
      return jsonb_build_object('kind', 'job_decided', 'job_id', s.job_id);
    end if;
  end if;
  perform holdfast.write_fork(s, v_event.seq, v_cut, p_actor, p_authority, p_fork);
  -- Of two requests under one key at once, the second waits here for the first and then finds its row.
  insert into holdfast.api_requests (tenant_id, endpoint, idempotency_key, request_sha256, run_id)
    values (p_tenant, p_endpoint, p_key, p_request_sha256, p_fork ->> 'run_id')
    on conflict do nothing;
  if not found then
    raise exception 'key_taken' using errcode = 'HF009';
  end if;
  perform holdfast.record_admission(p_fork ->> 'run_id', p_fork #>> '{edits,add_message}');
  return jsonb_build_object('kind', 'forked', 'run_id', p_fork ->> 'run_id');
end $$;

-- The rows of a fork: its run and job, whence it comes, the copied messages at the steps up to 0, and the effects before
-- the cut by name. Its counters, budget and deadline begin anew.
create function holdfast.write_fork(
  s holdfast.runs, p_seq bigint, p_cut integer, p_actor text, p_authority text, p_fork jsonb) returns void
language plpgsql as $$
declare
  v_run constant text := p_fork ->> 'run_id';
  v_contract constant jsonb := p_fork -> 'contract';
  v_at constant timestamptz := clock_timestamp();
begin
  if p_fork ->> 'job_id' is not null then
    insert into holdfast.jobs (job_id, tenant_id, objective, acceptance_rule, accepted_by, owner, created_by)
      values (p_fork ->> 'job_id', s.tenant_id, v_contract ->> 'objective', v_contract #>> '{acceptance,rule}',
              v_contract #>> '{acceptance,accepted_by}', v_contract ->> 'owner', p_actor);
  end if;
  insert into holdfast.runs (run_id, tenant_id, job_id, actor_id, agent, agent_version, pins, contract, contract_sha256,
                             input, task_queue, state_version, event_seq, admitted_at, deadline_at, root_run_id,
                             steps_max, tool_calls_max, priority, fork_mode, memory_thread_id, memory_generation)
    values (v_run, s.tenant_id, coalesce(p_fork ->> 'job_id', s.job_id), p_actor, s.agent, p_fork ->> 'agent_version',
            p_fork -> 'pins', v_contract, p_fork ->> 'contract_sha256', coalesce(p_fork #> '{edits,add_message}', s.input),
            p_fork ->> 'task_queue', 1, 1, v_at,
            v_at + make_interval(secs => (v_contract #>> '{limits,wall_clock_seconds}')::int), v_run,
            (v_contract #>> '{limits,steps_max}')::int, (v_contract #>> '{limits,tool_calls_max}')::int,
            (v_contract ->> 'priority')::int, p_fork ->> 'mode',
            case when s.memory_generation is not null then s.memory_thread_id end, s.memory_generation);
  perform holdfast.add_run_budgets(s.tenant_id, v_run, p_fork -> 'budget_lines');
  insert into holdfast.forks (run_id, tenant_id, source_run_id, checkpoint_id, source_event_seq, cut_step, mode, pins,
                              edits, actor_id, authority)
    values (v_run, s.tenant_id, s.run_id, p_fork ->> 'checkpoint_id', p_seq, p_cut, p_fork ->> 'mode',
            p_fork ->> 'pins_choice', p_fork -> 'edits', p_actor, p_authority);
  insert into holdfast.messages (run_id, turn, step, position, tenant_id, role, content, as_of)
    select v_run, 0, step - p_cut - 1, position, s.tenant_id, role, content, 1
      from holdfast.edited_prompt(s.run_id, p_cut, p_seq, p_fork -> 'edits');
  -- Settled by then, and so for ever. The events are looked at once, not for each effect.
  insert into holdfast.inherited_effects (run_id, effect_id, tenant_id, step, slot, redo)
    select v_run, e.effect_id, s.tenant_id, e.step - p_cut - 1, e.slot, e.redo from holdfast.effects e
     where e.run_id = s.run_id and e.step <= p_cut and e.effect_id = any (array(
       select v.data ->> 'effect_id' from holdfast.run_events v
        where v.run_id = s.run_id and v.seq <= p_seq and v.type in ('effect.settled', 'effect.closed')))
    union all
    select v_run, effect_id, tenant_id, step - p_cut - 1, slot, redo from holdfast.inherited_effects
     where run_id = s.run_id;
end $$;

-- Answers a call of a fork from the receipt of the same call of its source: the same tool, target and arguments, the
-- first such call after the cut by the first, the second by the second. A simulation has no other answer than a refusal;
-- any other fork is refused where nobody knows what became of that call, and goes on by itself where it never happened or
-- has been taken back.
create function holdfast.answer_from_source(r holdfast.runs, e holdfast.effects) returns holdfast.runs
language plpgsql as $$
declare
  f holdfast.forks;
  o holdfast.effects;
  c holdfast.receipts;
  v_nth integer;
  v_told jsonb;
  v_why text;
begin
  select * into strict f from holdfast.forks where run_id = r.run_id;
  select count(*) into v_nth from holdfast.model_calls m, jsonb_array_elements(m.plan) as p
   where m.run_id = r.run_id and p ->> 'kind' = 'planned' and p ->> 'toolName' = e.tool
     and p ->> 'argumentsSha256' = e.arguments_sha256 and (m.step, (p ->> 'slot')::int) < (e.step, e.slot);
  select * into o from (
    select distinct on (step, slot) * from holdfast.effects
     where run_id = f.source_run_id and step > f.cut_step and compensates is null and tool = e.tool
       and namespace = e.namespace and arguments_sha256 = e.arguments_sha256
     order by step, slot, redo desc) as same order by step, slot offset v_nth limit 1;
  select * into c from holdfast.receipts
   where effect_id = coalesce(o.reuses, o.effect_id) and status in ('succeeded', 'rejected', 'committed');
  if found and e.redo = 0 and not (r.fork_mode = 'reuse_if_identical' and holdfast.is_undone(c.effect_id)) then
    select m.content into v_told from holdfast.effects x join holdfast.messages m
        on m.run_id = x.run_id and m.turn = x.turn and m.step = x.step and m.position = x.slot + 2
     where x.effect_id = c.effect_id;
    -- Somebody may have been asked before the source had its receipt.
    r := holdfast.withdraw_waits(r, e.effect_id);
    update holdfast.effects set state = 'withdrawn', settled_at = clock_timestamp(), reuses = c.effect_id
     where effect_id = e.effect_id;
    r := holdfast.write_result(r, e.turn, e.step, e.slot, coalesce(v_told, jsonb_build_object('toolName', e.tool,
      'isError', c.status = 'rejected', 'text', 'Settled before as ' || c.status || '; what was answered is not held any more.'))
      || jsonb_build_object('callId', e.call_id));
    return holdfast.append_event(r, 'effect.closed', jsonb_build_object(
      'effect_id', e.effect_id, 'tool', e.tool, 'turn', e.turn, 'step', e.step, 'slot', e.slot, 'state', 'withdrawn',
      'reason', 'reused', 'reuses', c.effect_id, 'receipt_run_id', c.run_id, 'receipt_status', c.status));
  end if;
  v_why := case when r.fork_mode = 'simulate' then 'simulated_refused'
    when o.state in ('dispatching', 'unknown') then 'source_unresolved' end;
  if v_why is null then return r; end if;
  r := holdfast.withdraw_waits(r, e.effect_id);
  update holdfast.effects set state = 'denied', settled_at = clock_timestamp() where effect_id = e.effect_id;
  r := holdfast.write_result(r, e.turn, e.step, e.slot, jsonb_build_object(
    'callId', e.call_id, 'toolName', e.tool, 'isError', true, 'text', jsonb_build_object('error', v_why, 'tool', e.tool,
      'message', case v_why when 'simulated_refused'
        then 'Not done: this run is a simulation, and the run it was forked from has no receipt of this call.'
        else 'Not done: nobody knows yet whether the same call of the run that this one was forked from happened.' end)::text));
  return holdfast.append_event(r, 'effect.closed', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'turn', e.turn, 'step', e.step, 'slot', e.slot, 'state', 'denied',
    'reason', v_why));
end $$;

grant select on holdfast.forks, holdfast.inherited_effects to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.fork_run to holdfast_app;
