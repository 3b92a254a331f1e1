-- Sleep-time runs and what they keep (SPEC 10): a thread's memory, in generations that never change. The next generation is
-- made only of the newest; a run reads the one that was newest when it was made, and each of its model calls says which.
--
-- Locks: the run, then its thread, as everywhere.

-- What is remembered of a conversation. Written by an effect like any other, whose key is honoured here.
create table holdfast.thread_memories (
  thread_id     text              not null references holdfast.threads,
  generation    integer           not null check (generation > 0),
  tenant_id     holdfast.name     not null,
  text          text              not null check (length(text) between 1 and 16000),
  -- Who made it: the run, and in it the effect. An effect writes once.
  run_id        text              not null references holdfast.runs,
  effect_id     text              not null unique references holdfast.effects,
  -- The runs of the thread up to this place are consolidated in it.
  through_place integer           not null check (through_place >= 0),
  created_at    timestamptz       not null default clock_timestamp(),
  primary key (thread_id, generation)
);
create trigger append_only before update or delete on holdfast.thread_memories
  for each row execute function holdfast.refuse_change();
create trigger never_emptied before truncate on holdfast.thread_memories
  for each statement execute function holdfast.refuse_change();

alter table holdfast.runs
  -- The thread whose memory it reads, or keeps: a sleep-time run stands on no thread itself, so it holds up no message. A
  -- fork reads what its source read.
  add column memory_thread_id  text references holdfast.threads,
  -- What it reads in every prompt; null where there was nothing yet.
  add column memory_generation integer,
  add foreign key (memory_thread_id, memory_generation) references holdfast.thread_memories,
  add constraint generation_of_a_memory check (memory_generation is null or memory_thread_id is not null),
  add constraint reads_its_own_thread check (
    thread_id is null or memory_thread_id is null or memory_thread_id = thread_id and memory_generation is not null);
create unique index runs_one_sleeper_a_thread on holdfast.runs (memory_thread_id)
  where ended_at is null and thread_id is null and fork_mode is null and memory_thread_id is not null;

alter table holdfast.model_calls
  -- The generation of the memory that its prompt holds; null where it holds none.
  add column memory_generation integer;

alter table holdfast.threads
  -- The number of runs it had when it was last seen to; more by now is something new.
  add column slept_run_seq integer not null default 0;
create index threads_to_sleep_over on holdfast.threads (tenant_id, agent, updated_at)
  where run_seq > slept_run_seq and archived_at is null;

-- Which agent consolidates the idle threads of another. Every change is a row; the newest counts, and one without a sleeper
-- says that nobody does any more.
create table holdfast.sleep_triggers (
  tenant_id       holdfast.name        not null,
  -- Whose threads.
  agent           text                 not null references holdfast.agents,
  version         integer              not null,
  -- Who does it, under which contract, after how long without anything new.
  sleeper         text                 references holdfast.agents,
  contract        jsonb,
  idle_seconds    integer              check (idle_seconds between 1 and 2592000),
  task_queue      text,
  -- The requester of its runs.
  actor_id        holdfast.actor       not null,
  authority       holdfast.name        not null,
  endpoint        text                 not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  changed_at      timestamptz          not null default clock_timestamp(),
  primary key (tenant_id, agent, version),
  unique (tenant_id, endpoint, idempotency_key),
  constraint whole_or_lifted check (num_nonnulls(sleeper, contract, idle_seconds, task_queue) in (0, 4))
);
create trigger append_only before update or delete on holdfast.sleep_triggers
  for each row execute function holdfast.refuse_change();
create trigger never_emptied before truncate on holdfast.sleep_triggers
  for each statement execute function holdfast.refuse_change();

create view holdfast.sleep_triggers_in_force as
  select * from (select distinct on (tenant_id, agent) * from holdfast.sleep_triggers
                  order by tenant_id, agent, version desc) as newest
   where sleeper is not null;

-- What each idle period of a thread came to: a run, or why there could be none.
create table holdfast.sleep_runs (
  thread_id       text          not null references holdfast.threads,
  -- The thread's number of runs then, and the generation that was the newest: once for each pair.
  run_seq         integer       not null,
  from_generation integer       not null check (from_generation >= 0),
  tenant_id       holdfast.name not null,
  agent           text          not null,
  trigger_version integer       not null,
  run_id          text          unique references holdfast.runs,
  refused         holdfast.name,
  -- The places that its run is given to consolidate.
  after_place     integer       not null,
  through_place   integer       not null,
  created_at      timestamptz   not null default clock_timestamp(),
  primary key (thread_id, run_seq, from_generation),
  foreign key (tenant_id, agent, trigger_version) references holdfast.sleep_triggers,
  constraint run_or_refused check (num_nonnulls(run_id, refused) = 1),
  constraint places_in_order check (after_place >= 0 and through_place > after_place)
);
create trigger append_only before update or delete on holdfast.sleep_runs
  for each row execute function holdfast.refuse_change();
create trigger never_emptied before truncate on holdfast.sleep_runs
  for each statement execute function holdfast.refuse_change();

-- What the next run of a thread reads, as members of its admission.
create function holdfast.memory_of(p_thread text) returns jsonb language sql stable as $$
  select coalesce((select jsonb_build_object('memory_thread_id', thread_id, 'memory_generation', generation)
                     from holdfast.thread_memories where thread_id = p_thread order by generation desc limit 1), '{}')
$$;

-- An operator says who consolidates the idle threads of an agent, or that nobody does (no sleeper).
create function holdfast.set_sleep_trigger(
  p_tenant text, p_actor text, p_authority text, p_agent text, p_trigger jsonb, p_endpoint text, p_key text,
  p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  v_known text;
begin
  perform pg_advisory_xact_lock(hashtextextended('holdfast.sleep_triggers/' || p_tenant, 0));
  select request_sha256 into v_known from holdfast.sleep_triggers
   where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind', case when v_known = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  if not exists (select from holdfast.agents where agent = p_agent) then
    return jsonb_build_object('kind', 'agent_not_found', 'agent', p_agent);
  end if;
  if p_trigger ->> 'sleeper' is not null and not exists (
       select from holdfast.agents where agent = p_trigger ->> 'sleeper') then
    return jsonb_build_object('kind', 'agent_not_found', 'agent', p_trigger ->> 'sleeper');
  end if;
  insert into holdfast.sleep_triggers (tenant_id, agent, version, sleeper, contract, idle_seconds, task_queue, actor_id,
                                       authority, endpoint, idempotency_key, request_sha256)
    select p_tenant, p_agent, 1 + count(*), p_trigger ->> 'sleeper', p_trigger -> 'contract',
           (p_trigger ->> 'idle_seconds')::int, p_trigger ->> 'task_queue', p_actor, p_authority, p_endpoint, p_key,
           p_request_sha256
      from holdfast.sleep_triggers where tenant_id = p_tenant and agent = p_agent;
  return jsonb_build_object('kind', 'set');
end $$;

-- Threads that have had nothing new for as long as their trigger says, and have something that nobody has seen to.
create function holdfast.sleepy_threads(p_limit integer) returns table (
  thread_id text, tenant_id text, agent text, run_seq integer, generation integer, after_place integer,
  trigger_version integer, sleeper text, contract jsonb, task_queue text)
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select t.thread_id, t.tenant_id, t.agent, t.run_seq, coalesce(m.generation, 0), coalesce(m.through_place, 0), g.version,
         g.sleeper, g.contract, g.task_queue
    from holdfast.sleep_triggers_in_force g
    join holdfast.threads t on t.tenant_id = g.tenant_id and t.agent = g.agent
    left join lateral (select generation, through_place from holdfast.thread_memories
                        where thread_id = t.thread_id order by generation desc limit 1) m on true
   where t.run_seq > t.slept_run_seq and t.archived_at is null
     and t.updated_at <= clock_timestamp() - make_interval(secs => g.idle_seconds)
     and not exists (select from holdfast.runs r where r.thread_id = t.thread_id and r.ended_at is null)
     and not exists (select from holdfast.runs r where r.memory_thread_id = t.thread_id and r.thread_id is null
                        and r.fork_mode is null and r.ended_at is null)
   order by t.updated_at limit p_limit
$$;

-- What one ended run of a thread said, in order, each call with its result: at most its first 20 and last 100 messages, each
-- of at most 4,000 characters; what is left out is told.
create function holdfast.said_in_run(p_run text) returns jsonb language sql stable as $$
  with said as (
    select m.step, m.position, case m.role::text
        when 'user' then jsonb_build_object('by', 'user', 'text', left(m.content ->> 'text', 4000))
        when 'tool' then jsonb_build_object('by', 'tool', 'tool', m.content ->> 'toolName',
          'failed', coalesce((m.content ->> 'isError')::boolean, false), 'text', left(m.content ->> 'text', 4000))
        else jsonb_strip_nulls(jsonb_build_object('by', 'agent',
          'text', (select left(string_agg(p ->> 'text', ''), 4000)
                     from jsonb_array_elements(m.content -> 'parts') p where p ->> 'type' = 'text'),
          'calls', (select jsonb_agg(jsonb_build_object('tool', p ->> 'toolName', 'arguments', left(p ->> 'arguments', 4000)))
                      from jsonb_array_elements(m.content -> 'parts') p where p ->> 'type' = 'tool_call'))) end as content
      from holdfast.messages m where m.run_id = p_run
    union all
    select c.step, (p ->> 'slot')::int + 2, jsonb_build_object('by', 'tool', 'tool', f ->> 'toolName',
             'failed', (f ->> 'isError')::boolean, 'text', f ->> 'text')
      from holdfast.model_calls c, jsonb_array_elements(c.plan) as p,
           lateral holdfast.missing_result(c.run_id, c.turn, c.step, p) as f
     where c.run_id = p_run and not holdfast.has_result(c.run_id, c.turn, c.step, (p ->> 'slot')::int)
  ), numbered as (
    select content, row_number() over (order by step, position) as n, count(*) over () as total from said)
  select coalesce(jsonb_agg(case when n = 21 and total > 120 then jsonb_build_object('left_out', total - 120) else content end
                            order by n), '[]')
    from numbered where n <= 20 or n > total - 100 or n = 21
$$;

-- The conversation of a thread after a place, oldest run first: whole runs until it is long enough for one consolidation,
-- and always one. Nothing is lost by that: what is left is something new still.
create function holdfast.read_conversation(p_thread text, p_after integer) returns jsonb
language plpgsql stable security definer set search_path = holdfast, pg_temp as $$
declare
  v_run record;
  v_said jsonb;
  v_runs jsonb := '[]';
  v_length integer := 0;
  v_through integer := p_after;
begin
  for v_run in select run_id, thread_place from holdfast.runs
                where thread_id = p_thread and thread_place > p_after and ended_at is not null and rolled_back_by is null
                order by thread_place loop
    v_said := holdfast.said_in_run(v_run.run_id);
    v_length := v_length + length(v_said::text);
    exit when v_length > 200000 and v_through > p_after;
    v_runs := v_runs || jsonb_build_array(jsonb_build_object('run_id', v_run.run_id, 'said', v_said));
    v_through := v_run.thread_place;
  end loop;
  return jsonb_build_object('through_place', v_through, 'runs', v_runs);
end $$;

-- Begins the one sleep-time run of an idle period, where the thread still is as it was seen: nothing said since, nothing
-- consolidated, nobody at work on it. The run is one of its own, and the thread takes messages meanwhile as ever.
create function holdfast.begin_sleep_run(p_seen jsonb, p_through integer, p_run jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  t holdfast.threads;
  g holdfast.sleep_triggers;
  v_after constant integer := (p_seen ->> 'after_place')::int;
  v_generation constant integer := (p_seen ->> 'generation')::int;
  v_refused text;
begin
  select * into t from holdfast.threads where thread_id = p_seen ->> 'thread_id' for no key update;
  select * into g from holdfast.sleep_triggers_in_force where tenant_id = t.tenant_id and agent = t.agent;
  if g.version is distinct from (p_seen ->> 'trigger_version')::int or t.run_seq <> (p_seen ->> 'run_seq')::int
     or t.slept_run_seq >= t.run_seq or t.archived_at is not null
     or t.updated_at > clock_timestamp() - make_interval(secs => g.idle_seconds)
     or v_generation <> coalesce((select max(generation) from holdfast.thread_memories where thread_id = t.thread_id), 0)
     or exists (select from holdfast.runs where thread_id = t.thread_id and ended_at is null)
     or exists (select from holdfast.runs where memory_thread_id = t.thread_id and thread_id is null and fork_mode is null
                   and ended_at is null)
  then
    return jsonb_build_object('kind', 'moved_on');
  end if;
  -- `updated_at` stays: that is when something was said or done last.
  update holdfast.threads set slept_run_seq = run_seq where thread_id = t.thread_id;
  if p_through <= v_after then return jsonb_build_object('kind', 'nothing_new'); end if;
  v_refused := case when p_run ->> 'agent_version' is null then 'agent_not_found'
                    when (p_run ->> 'budget_unmet')::boolean then 'budget_unmet' end;
  if v_refused is null then
    perform holdfast.insert_run(t.tenant_id, g.actor_id, p_run || jsonb_strip_nulls(jsonb_build_object(
      'memory_thread_id', t.thread_id, 'memory_generation', nullif(v_generation, 0))));
  end if;
  insert into holdfast.sleep_runs (thread_id, run_seq, from_generation, tenant_id, agent, trigger_version, run_id, refused,
                                   after_place, through_place)
    values (t.thread_id, t.run_seq, v_generation, t.tenant_id, t.agent, g.version,
            case when v_refused is null then p_run ->> 'run_id' end, v_refused, v_after, p_through);
  return jsonb_build_object('kind', coalesce(v_refused, 'begun'), 'run_id', p_run ->> 'run_id');
end $$;

-- Does what the intent of a memory's effect says, once: writes the next generation, if it was made of the newest. What is
-- written is what the ledger holds of the intent, and only while the effect is claimed: whoever lost the claim writes nothing.
create function holdfast.write_memory(p_effect text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  e holdfast.effects;
  m holdfast.thread_memories;
  v_thread text;
  v_through integer;
begin
  select * into r from holdfast.runs
   where run_id = (select run_id from holdfast.effects where effect_id = p_effect) for update;
  select * into strict e from holdfast.effects where effect_id = p_effect;
  select * into m from holdfast.thread_memories where effect_id = p_effect;
  if found then
    return jsonb_build_object('kind', 'written', 'thread_id', m.thread_id, 'generation', m.generation);
  end if;
  if e.state <> 'dispatching' or e.namespace <> 'holdfast:memory' then return jsonb_build_object('kind', 'not_claimed'); end if;
  -- A fork stands on no thread: it reads what its source read, and writes nothing there.
  v_thread := case when r.fork_mode is null then coalesce(r.thread_id, r.memory_thread_id) end;
  if v_thread is null then return jsonb_build_object('kind', 'no_thread'); end if;
  perform 1 from holdfast.threads where thread_id = v_thread for no key update;
  select * into m from holdfast.thread_memories where thread_id = v_thread order by generation desc limit 1;
  if coalesce(m.generation, 0) <> (e.arguments::jsonb ->> 'from_generation')::numeric then
    return jsonb_build_object('kind', 'stale', 'generation', coalesce(m.generation, 0), 'text', m.text);
  end if;
  select through_place into v_through from holdfast.sleep_runs where run_id = r.run_id;
  insert into holdfast.thread_memories (thread_id, generation, tenant_id, text, run_id, effect_id, through_place)
    values (v_thread, coalesce(m.generation, 0) + 1, r.tenant_id, e.arguments::jsonb ->> 'text', r.run_id, p_effect,
            greatest(coalesce(v_through, 0), coalesce(m.through_place, 0)))
    returning * into m;
  -- What did not fit into this consolidation is something new still.
  if v_through is not null then
    update holdfast.threads set slept_run_seq = least(slept_run_seq, m.through_place) where thread_id = v_thread;
  end if;
  return jsonb_build_object('kind', 'written', 'thread_id', v_thread, 'generation', m.generation);
end $$;

grant select on holdfast.thread_memories, holdfast.sleep_triggers, holdfast.sleep_triggers_in_force, holdfast.sleep_runs
  to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.set_sleep_trigger, holdfast.sleepy_threads, holdfast.read_conversation,
  holdfast.begin_sleep_run, holdfast.write_memory to holdfast_app;
