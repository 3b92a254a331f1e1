-- Child runs (SPEC 4): an agent starts another as a tool. The child is a run like any other, with a row here that says
-- whose it is. Locks are taken from parent to child and never the other way: what a child has to say to its parent
-- stands in its own row, and the parent comes for it.

create table holdfast.child_runs (
  child_run_id       holdfast.run_id primary key references holdfast.runs,
  -- The place of the call: one child for it, for ever.
  parent_run_id      text            not null references holdfast.runs,
  turn               integer         not null,
  step               integer         not null,
  slot               integer         not null,
  tenant_id          text            not null,
  -- The top of the tree. No foreign key: checking it would lock that row from below.
  root_run_id        holdfast.run_id not null,
  depth              integer         not null check (depth between 1 and 5),
  -- The delegate's name: what the parent's model called.
  tool               holdfast.name   not null,
  on_cancel          text            not null check (on_cancel in ('cancel', 'leave')),
  -- What it holds of its parent's limits while it is open.
  steps_granted      integer         not null check (steps_granted > 0),
  tool_calls_granted integer         not null check (tool_calls_granted >= 0),
  created_at         timestamptz     not null default clock_timestamp(),
  constraint one_child_a_call unique (parent_run_id, turn, step, slot),
  constraint no_own_parent check (child_run_id <> parent_run_id and child_run_id <> root_run_id),
  constraint root_is_the_first_parent check ((depth = 1) = (root_run_id = parent_run_id))
);
create index child_runs_by_root on holdfast.child_runs (root_run_id);
create trigger append_only before update or delete on holdfast.child_runs
  for each row execute function holdfast.refuse_change();
create trigger no_truncate before truncate on holdfast.child_runs
  for each statement execute function holdfast.refuse_change();

-- What the run's children hold of its steps and tool calls while they are open, and have used of them once they ended;
-- their own children's are part of it. So a whole tree stays within the limits of its root.
create function holdfast.held_by_children(p_run text, out steps integer, out tool_calls integer)
language plpgsql stable as $$
declare
  c record;
  v_below record;
begin
  steps := 0;
  tool_calls := 0;
  for c in select h.*, k.ended_at, k.step as used_steps, k.tool_calls as used_tool_calls
             from holdfast.child_runs h join holdfast.runs k on k.run_id = h.child_run_id
            where h.parent_run_id = p_run loop
    if c.ended_at is null then
      steps := steps + c.steps_granted;
      tool_calls := tool_calls + c.tool_calls_granted;
    else
      select * into v_below from holdfast.held_by_children(c.child_run_id);
      steps := steps + c.used_steps + v_below.steps;
      tool_calls := tool_calls + c.used_tool_calls + v_below.tool_calls;
    end if;
  end loop;
end $$;

-- The rules by tool name that a child runs under: its parent's contract, and whatever the parent's own agent must have
-- approved. A rule only adds care to the child's own file, so no child is looser than its parent.
create function holdfast.child_effect_rules(r holdfast.runs) returns jsonb language sql stable as $$
  select coalesce(jsonb_object_agg(name, rule || case when gated then '{"approval": "required"}'::jsonb else '{}' end), '{}')
    from (
      select name, bool_or(gated) as gated, coalesce(r.contract #> array['effects', name], '{}') as rule
        from (
          select key as name, false as gated from jsonb_object_keys(r.contract -> 'effects') as key
          union all
          select t ->> 'name', true from holdfast.agent_versions v, jsonb_array_elements(v.manifest -> 'tools') as t
           where v.agent = r.agent and v.agent_version = r.agent_version and t ->> 'approval' = 'required') as every
       -- No tool has another name, and an exotic one would not be ordered as RFC 8785 says.
       where name ~ '^[!-~]+$'
       group by name) as rules
$$;

-- The contract of a child: its parent's, with the rules above and the share of the limits that the delegate declares.
-- Never more than what the parent has left, and one step stays with the parent to hear the result.
create function holdfast.child_contract(r holdfast.runs, p_share jsonb, p_agent_limits jsonb, p_now timestamptz)
returns jsonb language plpgsql stable as $$
declare
  v_limits constant jsonb := r.contract -> 'limits';
  -- By itself: inside the expression below Postgres 18 loses what the aggregate made.
  v_rules constant jsonb := holdfast.child_effect_rules(r);
  v_held record;
begin
  select * into v_held from holdfast.held_by_children(r.run_id);
  return r.contract || jsonb_build_object('effects', v_rules, 'limits', v_limits || jsonb_build_object(
    'steps_max', least(greatest(1, floor((p_share ->> 'steps')::numeric * (v_limits ->> 'steps_max')::int)::int),
      r.steps_max - r.step - v_held.steps - 1, (p_agent_limits ->> 'stepsMax')::int),
    'tool_calls_max', greatest(0, least(floor((p_share ->> 'toolCalls')::numeric * (v_limits ->> 'tool_calls_max')::int)::int,
      r.tool_calls_max - r.tool_calls - v_held.tool_calls, (p_agent_limits ->> 'toolCallsMax')::int)),
    'wall_clock_seconds', least(greatest(1, floor((p_share ->> 'wallClock')::numeric * (v_limits ->> 'wall_clock_seconds')::int)::int),
      floor(extract(epoch from r.deadline_at - p_now))::int, (p_agent_limits ->> 'wallClockSecondsMax')::int)));
end $$;

-- Admits the child of one call, in the transaction that looked whether it may be. Its pins are resolved here, once; who
-- asked for the parent asked for it. Answers with the run, or says why there is none.
create function holdfast.admit_child(
  r holdfast.runs, p_plan jsonb, p_turn integer, p_step integer, p_child text, p_versions jsonb) returns text
language plpgsql as $$
declare
  v_at constant timestamptz := clock_timestamp();
  v_above holdfast.child_runs;
  v holdfast.agent_versions;
  v_contract jsonb;
begin
  select * into v_above from holdfast.child_runs where child_run_id = r.run_id;
  if v_above.depth >= 5 then return 'limit_depth'; end if;
  select w.* into v from holdfast.agents a join holdfast.agent_versions w using (agent, agent_version)
   where a.agent = p_plan ->> 'agent';
  if v.agent is null then return 'agent_unavailable'; end if;
  v_contract := holdfast.child_contract(r, p_plan -> 'share', v.manifest -> 'limits', v_at);
  if (v_contract #>> '{limits,steps_max}')::int < 1 then return 'limit_steps'; end if;
  if (v_contract #>> '{limits,wall_clock_seconds}')::int < 1 then return 'limit_wall_clock'; end if;

  insert into holdfast.runs (run_id, tenant_id, job_id, parent_run_id, actor_id, agent, agent_version, pins, contract,
                             contract_sha256, input, task_queue, state_version, event_seq, admitted_at, deadline_at, root_run_id,
                             steps_max, tool_calls_max, priority)
    values (p_child, r.tenant_id, r.job_id, r.run_id, r.actor_id, v.agent, v.agent_version,
      p_versions || jsonb_build_object('agent_version', v.agent_version, 'model', v.manifest #> '{model,model}', 'tools', (
        select coalesce(jsonb_object_agg(t ->> 'name', t -> 'version'), '{}') from jsonb_array_elements(v.manifest -> 'tools') as t)),
      v_contract, holdfast.canonical_sha256(v_contract), p_plan -> 'task',
      r.task_queue, 1, 1, v_at,
      least(r.deadline_at, v_at + make_interval(secs => (v_contract #>> '{limits,wall_clock_seconds}')::int)),
      -- A tree spends from one budget.
      r.root_run_id, (v_contract #>> '{limits,steps_max}')::int, (v_contract #>> '{limits,tool_calls_max}')::int,
      r.priority);
  insert into holdfast.child_runs (child_run_id, parent_run_id, turn, step, slot, tenant_id, root_run_id, depth, tool,
                                   on_cancel, steps_granted, tool_calls_granted)
    values (p_child, r.run_id, p_turn, p_step, (p_plan ->> 'slot')::int, r.tenant_id,
      coalesce(v_above.root_run_id, r.run_id), coalesce(v_above.depth, 0) + 1, p_plan ->> 'toolName',
      p_plan ->> 'onCancel', (v_contract #>> '{limits,steps_max}')::int, (v_contract #>> '{limits,tool_calls_max}')::int);
  perform holdfast.record_admission(p_child, p_plan ->> 'task');
  return null;
end $$;

-- A planned call of a delegate: its child is admitted once, and when it has ended the call gets its one result.
-- `open`: the child is not over. `settled`: the model has its result.
create function holdfast.start_child(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_turn integer, p_step integer, p_slot integer,
  p_child text, p_versions jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  c holdfast.child_runs;
  k holdfast.runs;
  v_plan jsonb;
  v_kind text := 'open';
  v_refusal text;
  v_reached jsonb;
  v_way text;
begin
  if r.state <> 'running' then
    raise exception 'out_of_step: % is %, and starts no child', p_run, r.state using errcode = 'HF005';
  end if;
  select plan -> p_slot into v_plan from holdfast.model_calls
   where run_id = p_run and turn = p_turn and step = p_step;
  if v_plan ->> 'kind' is distinct from 'delegate' then
    raise exception 'effect_not_found: no child is planned at %/%/%/%', p_run, p_turn, p_step, p_slot
      using errcode = 'HF007';
  end if;
  select * into c from holdfast.child_runs
   where parent_run_id = p_run and turn = p_turn and step = p_step and slot = p_slot;
  if holdfast.has_result(p_run, p_turn, p_step, p_slot) then
    v_kind := 'settled';
  elsif c.child_run_id is not null then
    select * into k from holdfast.runs where run_id = c.child_run_id;
    if k.ended_at is not null then
      r := holdfast.tell_child_end(r, c, k, v_plan);
      v_kind := 'settled';
    end if;
  elsif r.control <> 'active' then
    v_kind := 'control';
  else
    v_reached := case when r.finishing is not null then null
      when clock_timestamp() >= r.deadline_at then holdfast.run_limit(r, 'wall_clock')
      when r.tool_calls >= r.tool_calls_max then holdfast.run_limit(r, 'tool_calls') end;
    if v_reached is not null then
      v_way := holdfast.limit_way(r);
      r := holdfast.meet_limit(r, v_way, p_turn, p_step, v_reached);
    end if;
    if r.finishing is not null then
      v_refusal := r.finishing;
    elsif v_reached is null then
      r.tool_calls := r.tool_calls + 1;
      -- Nothing leaves a simulation, and another run could send.
      v_refusal := case when r.fork_mode = 'simulate' then 'simulated_refused'
        else holdfast.admit_child(r, v_plan, p_turn, p_step, p_child, p_versions) end;
    end if;
    if r.finishing is null and v_reached is not null then
      v_kind := 'limit';
    elsif v_refusal is null then
      r := holdfast.append_event(r, 'child.started', jsonb_build_object('child_run_id', p_child,
        'tool', v_plan ->> 'toolName', 'agent', v_plan ->> 'agent', 'turn', p_turn, 'step', p_step, 'slot', p_slot,
        'on_cancel', v_plan ->> 'onCancel'));
    else
      r := holdfast.write_result(r, p_turn, p_step, p_slot, jsonb_build_object(
        'callId', v_plan ->> 'callId', 'toolName', v_plan ->> 'toolName', 'isError', true,
        'text', jsonb_build_object('error', 'child_not_started', 'reason', v_refusal, 'message',
          'The other agent was not started and has done nothing. Do without it.')::text));
      r := holdfast.append_event(r, 'child.refused', jsonb_build_object('tool', v_plan ->> 'toolName',
        'agent', v_plan ->> 'agent', 'turn', p_turn, 'step', p_step, 'slot', p_slot, 'reason', v_refusal));
      v_kind := 'settled';
    end if;
  end if;
  perform holdfast.save_run(r);
  return case v_kind when 'limit' then holdfast.limit_answer(v_way, v_reached)
    else jsonb_strip_nulls(jsonb_build_object('kind', v_kind,
      'control', case v_kind when 'control' then r.control end)) end;
end $$;

-- The one result of a delegate's call: what the child said last, or how it ended. A child that was swept has failed.
create function holdfast.tell_child_end(r holdfast.runs, c holdfast.child_runs, k holdfast.runs, p_plan jsonb)
returns holdfast.runs language plpgsql as $$
declare
  v_said text;
  v_text text;
begin
  select nullif(string_agg(p ->> 'text', E'\n' order by n), '') into v_said
    from (select content from holdfast.messages where run_id = k.run_id and role = 'assistant'
           order by turn desc, step desc limit 1) as m,
         jsonb_array_elements(m.content -> 'parts') with ordinality as t (p, n)
   where p ->> 'type' = 'text';
  v_text := case when k.state = 'completed' then coalesce(v_said, 'The other agent finished and said nothing.')
    else jsonb_strip_nulls(jsonb_build_object('error', 'child_not_completed', 'run_id', k.run_id, 'state', k.state,
      'reason', k.reason, 'said_last', left(v_said, 4000),
      'effects_done', (select count(*) from holdfast.effects where run_id = k.run_id and effect_class <> 'read'
                         and state in ('succeeded', 'committed')),
      'message', 'The other agent did not finish. What it has done stands; nothing is repeated by itself.'))::text end;
  r := holdfast.write_result(r, c.turn, c.step, c.slot, jsonb_build_object(
    'callId', p_plan ->> 'callId', 'toolName', p_plan ->> 'toolName', 'isError', k.state <> 'completed',
    'text', left(v_text, 65536) || case when length(v_text) > 65536 then E'\n[cut: the answer was longer]' else '' end));
  return holdfast.append_event(r, 'child.settled', jsonb_build_object('child_run_id', k.run_id, 'tool', c.tool,
    'turn', c.turn, 'step', c.step, 'slot', c.slot, 'state', k.state, 'reason', k.reason));
end $$;

-- Passes a command in force on to the children that are bound to it, each as a command of its own; a child that is to be
-- left goes on, and the feed says so. A cancel that reached a child once is not repeated. A resume wakes whom the
-- parent's pause stopped, and nobody whom a person stopped.
create function holdfast.command_children(r holdfast.runs, p_kind text, p_payload jsonb) returns holdfast.runs
language plpgsql as $$
declare
  c holdfast.child_runs;
  k holdfast.runs;
  v_key text;
begin
  for c in select * from holdfast.child_runs where parent_run_id = r.run_id order by child_run_id loop
    select * into k from holdfast.runs where run_id = c.child_run_id for update;
    continue when k.ended_at is not null;
    if c.on_cancel = 'leave' then
      if p_kind = 'cancel' and not exists (select from holdfast.run_events where run_id = r.run_id
           and type = 'child.left' and data ->> 'child_run_id' = c.child_run_id) then
        r := holdfast.append_event(r, 'child.left', jsonb_build_object(
          'child_run_id', c.child_run_id, 'tool', c.tool, 'state', k.state));
      end if;
      continue;
    end if;
    continue when p_kind = 'pause' and k.control <> 'active';
    continue when p_kind = 'resume' and (k.control <> 'paused' or (
      select endpoint from holdfast.commands where run_id = k.run_id and kind = 'pause' and fate = 'applied'
       order by created_at desc limit 1) is distinct from 'holdfast:parent');
    v_key := k.run_id || ':' || p_kind || case p_kind when 'cancel' then '' else ':' || r.state_version end;
    perform holdfast.submit_command(holdfast.new_command_id(), k.tenant_id, k.run_id, p_kind, p_payload, 'holdfast:parent',
      'parent', null, 'holdfast:parent', v_key, encode(sha256(convert_to(v_key, 'UTF8')), 'hex'));
  end loop;
  return r;
end $$;

-- A UUIDv7 under the prefix, like shared/ledger/new-id.ts.
create function holdfast.new_command_id() returns text language sql volatile as $$
  select 'cmd_' || lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
    || substr(hex, 14, 3) || substr(hex, 17)
    from (select replace(gen_random_uuid()::text, '-', '') as hex) as random
$$;

-- A child has come to its end, or to rest under a pause: whoever waits for it is told. In the same transaction, so that
-- nothing is told that is not so.
create function holdfast.tell_parent(r holdfast.runs) returns void language plpgsql as $$
begin
  if exists (select from holdfast.child_runs where child_run_id = r.run_id) then
    perform pg_notify('holdfast_nudge', r.parent_run_id);
  end if;
end $$;

-- How many children are open that end with their parent, and how many of those are still coming to rest under its pause.
create function holdfast.bound_children(p_run text, out open integer, out draining integer)
language sql stable as $$
  select count(*)::int, (count(*) filter (where k.control in ('pause_requested', 'pausing')))::int
    from holdfast.child_runs c join holdfast.runs k on k.run_id = c.child_run_id
   where c.parent_run_id = p_run and c.on_cancel = 'cancel' and k.ended_at is null
$$;

-- No run is `cancelled` while a child that ends with it goes on: the database refuses it too.
create function holdfast.guard_children() returns trigger language plpgsql as $$
begin
  if (select open from holdfast.bound_children(new.run_id)) > 0 then
    raise exception 'open_children: run % cannot end as cancelled while a child of it goes on', new.run_id
      using errcode = 'restrict_violation';
  end if;
  return new;
end $$;
create trigger guard_children before update on holdfast.runs
  for each row when (new.state = 'cancelled' and old.ended_at is null) execute function holdfast.guard_children();

-- Runs that wait for a child which has ended, and have not taken that up: the next in call order, so that a child that
-- has ended before its turn makes no noise.
create function holdfast.parents_to_nudge(p_quiet_seconds integer) returns table (run_id text)
language sql stable as $$
  select distinct r.run_id from holdfast.child_runs c
    join holdfast.runs k on k.run_id = c.child_run_id
    join holdfast.runs r on r.run_id = c.parent_run_id
   where r.ended_at is null and r.owner_execution <> 'sweeper'
     and k.ended_at < clock_timestamp() - make_interval(secs => p_quiet_seconds)
     and not holdfast.has_result(c.parent_run_id, c.turn, c.step, c.slot)
     and case when r.state = 'running' then r.control = 'active' and not exists (
                select from holdfast.child_runs o join holdfast.runs n on n.run_id = o.child_run_id
                 where o.parent_run_id = c.parent_run_id and o.turn = c.turn and o.step = c.step and o.slot < c.slot
                   and n.ended_at is null)
              when r.state in ('cancelling', 'reconciling') then (select open from holdfast.bound_children(r.run_id)) = 0
                and not exists (select from holdfast.effects e where e.run_id = r.run_id and e.state in ('dispatching', 'unknown'))
              else false end
$$;

grant select on holdfast.child_runs to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.start_child to holdfast_app;
