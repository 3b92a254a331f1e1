-- Checkpoints (SPEC 4.2). No row is written for one: a boundary is an event of the run, and everything a checkpoint says
-- is told from the events, messages and transitions up to it. They are append-only, so it says the same at every read,
-- and a step costs what it did (docs/decisions/0015-checkpoints-are-told.md).

-- Names the event: the run's own time, 40 bits of what tells its runs apart, then the sequence.
create function holdfast.checkpoint_id(p_run text, p_seq bigint) returns text language sql immutable as $$
  select 'ckp_' || substr(p_run, 5, 12) || '7' || substr(p_run, 18, 3) || '8' || substr(p_run, 22, 7)
    || lpad(to_hex(p_seq), 8, '0')
$$;

-- The boundary that an event stands for; null for any other event. `verification_committed` has its place when runs are
-- verified.
create function holdfast.boundary_of(p_type text, p_data jsonb) returns text language sql immutable as $$
  select case p_type
    when 'run.admitted' then 'run_created'
    when 'model.message' then 'model_response_committed'
    when 'effect.dispatching' then case when p_data ->> 'attempt' = '1' then 'pre_effect_intent_committed' end
    when 'effect.settled' then 'effect_settled'
    when 'effect.unknown' then 'effect_settled'
    when 'effect.closed' then 'effect_settled'
    when 'interrupt.opened' then 'interrupt_opened'
    when 'command.applied' then case when p_data ->> 'kind' in ('change_budget', 'change_deadline') then 'control_applied' end
    when 'run.transition' then case
      when p_data ->> 'region' = 'control' and (p_data ->> 'to' = 'paused' or p_data ->> 'from' = 'claiming'
           and p_data ->> 'to' = 'active') then 'control_applied'
      when p_data ->> 'region' = 'run' and p_data ->> 'to' in ('completed', 'compensated', 'failed', 'cancelled')
        then 'run_terminal'
      when p_data ->> 'region' = 'run' and p_data ->> 'to' in ('cancelling', 'compensating')
           and p_data ->> 'reason' = 'cancel_requested' then 'control_applied' end
  end
$$;

-- What the prompt of the run held at an event, up to a whole step, and what was said to it since.
create function holdfast.prompt_of(p_run text, p_cut integer, p_seq bigint)
returns table (step integer, "position" integer, role text, content jsonb) language sql stable as $$
  select m.step, m.position, m.role::text, m.content from holdfast.messages m
   where m.run_id = p_run and m.as_of <= p_seq and (m.step <= p_cut or m.step = p_cut + 1 and m.role = 'user')
  union all
  -- What the earlier runs of its thread left stands before it.
  select (h ->> 'step')::int, (h ->> 'position')::int, h ->> 'role', h -> 'content'
    from holdfast.runs r, jsonb_array_elements(holdfast.thread_history(r)) as h
   where r.run_id = p_run and r.thread_id is not null
$$;

-- Each step that the model has answered: from which event on it is answered, and from which on it is whole, each of its
-- calls with its one result; null while one has none.
create function holdfast.answered_steps(p_run text) returns table (step integer, answered_at bigint, whole_at bigint)
language sql stable as $$
  select c.step, min(m.as_of) filter (where m.role = 'assistant'),
         case when count(*) filter (where m.role = 'tool') = jsonb_array_length(c.plan)
               and count(*) filter (where m.role = 'assistant') = 1 then max(m.as_of) end
    from holdfast.model_calls c left join holdfast.messages m
      on m.run_id = c.run_id and m.turn = c.turn and m.step = c.step and m.role <> 'user'
   where c.run_id = p_run and c.state = 'answered' group by c.turn, c.step, c.plan
$$;

-- The first transition that breaks the chain or is not there, and the first event whose number is not its place; null
-- where there is no such event.
create function holdfast.first_faults(p_run text, out state_version integer, out event_seq bigint)
language sql stable as $$
  select
    (select coalesce(min(seq) filter (where not holds), count(*) + 1)::int from (
       select t.seq, row_number() over (order by t.seq) = t.seq and t.digest = holdfast.transition_digest(t.prev_digest,
                t.run_id, t.seq, t.region, t.from_state, t.to_state, t.reason, t.actor_id, t.epoch, t.created_at)
              and t.prev_digest = coalesce(lag(t.digest::text) over (order by t.seq), '') as holds
         from holdfast.transitions t where t.run_id = p_run) as links),
    (select min(seq) from (select seq, row_number() over (order by seq) as n from holdfast.run_events
                            where run_id = p_run) as events where seq <> n)
$$;

-- The checkpoints at these events of a run, which are boundaries: one look at its record for all of them.
create function holdfast.tell_checkpoints(p_run text, p_seqs bigint[]) returns table (seq bigint, checkpoint jsonb)
language sql stable as $$
  with told as materialized (
    select e.seq, e.type, e.data, e.created_at, coalesce(e.data ->> 'region', 'run') as region from holdfast.run_events e
     where e.run_id = p_run and e.seq <= (select max(s) from unnest(p_seqs) as s) and e.type <> 'model.chunk'),
  moves as materialized (select * from told where type in ('run.admitted', 'run.transition', 'run.taken_over', 'run.resumed')),
  models as materialized (select * from told where type in ('model.started', 'model.message', 'model.failed')),
  -- Each word on an effect or a wait holds until the next one on it.
  effects as materialized (
    select data ->> 'effect_id' as id, data ->> 'tool' as tool, seq as since,
           min(seq) over same as first, lead(seq, 1, 9223372036854775807) over (same order by seq) as until,
           case type when 'effect.dispatching' then 'dispatching' when 'effect.unknown' then 'unknown'
             when 'effect.released' then 'intended' when 'interrupt.opened' then 'intended' end as state
      from told where type in ('effect.dispatching', 'effect.released', 'effect.unknown', 'effect.settled', 'effect.closed',
        'interrupt.opened') and data ? 'effect_id' window same as (partition by data ->> 'effect_id')),
  waits as materialized (
    select data ->> 'interrupt_id' as id, data ->> 'kind' as kind, seq as since, min(seq) over same as first,
           lead(seq, 1, 9223372036854775807) over (same order by seq) as until,
           type = 'interrupt.opened' or type = 'interrupt.decided' and data ->> 'state' = 'open' as is_open
      from told where type like 'interrupt.%' and type <> 'interrupt.decision_refused'
    window same as (partition by data ->> 'interrupt_id')),
  steps as materialized (select * from holdfast.answered_steps(p_run)),
  faults as materialized (select * from holdfast.first_faults(p_run)),
  spoken as materialized (select turn, step, "position", role, as_of from holdfast.messages where run_id = p_run)
  select c.seq, jsonb_build_object(
      'checkpoint_id', holdfast.checkpoint_id(p_run, c.seq), 'run_id', p_run,
      'boundary', holdfast.boundary_of(c.type, c.data), 'at', c.created_at, 'event_seq', c.seq,
      'schema_version', 1, 'pins', r.pins, 'agent', r.agent, 'agent_version', r.agent_version,
      'state', at_state.state, 'control', coalesce(at_control.control, 'active'), 'state_version', v.state_version,
      'epoch', v.epoch, 'turn', coalesce(m.turn, 1), 'step', coalesce(m.step, 0), 'attempt', coalesce(m.attempt, 0),
      'calls_model', coalesce(m.is_open, false),
      'messages', jsonb_build_object('count', (select count(*) from spoken where as_of <= c.seq),
        'turn', l.turn, 'step', l.step, 'position', l.position),
      'open_effects', (select coalesce(jsonb_agg(jsonb_build_object('effect_id', id, 'tool', tool, 'state', state)
          order by first), '[]') from effects where since <= c.seq and until > c.seq and state is not null),
      'open_interrupts', (select coalesce(jsonb_agg(jsonb_build_object('interrupt_id', id, 'kind', kind) order by first), '[]')
        from waits where since <= c.seq and until > c.seq and is_open),
      'unknown_effects', (select coalesce(jsonb_agg(id order by first), '[]')
        from effects where since <= c.seq and until > c.seq and state = 'unknown'),
      'resumes_after_step', cut.step, 'valid', f.codes = '{}', 'faults', to_jsonb(f.codes))
    from holdfast.runs r
    cross join faults
    join told c on c.seq = any (p_seqs)
    left join lateral (select coalesce(data ->> 'to', data ->> 'state') as state from moves
      where seq <= c.seq and type in ('run.admitted', 'run.transition') and region = 'run'
      order by seq desc limit 1) as at_state on true
    left join lateral (select data ->> 'to' as control from moves
      where seq <= c.seq and type = 'run.transition' and region = 'control' order by seq desc limit 1) as at_control on true
    cross join lateral (select coalesce(max((data ->> 'state_version')::int), 0) as state_version,
        coalesce(max((data ->> 'epoch')::int), 0) as epoch from moves where seq <= c.seq) as v
    left join lateral (select (data ->> 'turn')::int as turn, (data ->> 'step')::int as step,
        (data ->> 'attempt')::int as attempt, type = 'model.started' as is_open
      from models where seq <= c.seq order by seq desc limit 1) as m on true
    left join lateral (select turn, step, "position" from spoken where as_of <= c.seq
      order by turn desc, step desc, "position" desc limit 1) as l on true
    -- The last step that is whole here: a fork goes on after it; 0 is before the first.
    cross join lateral (select coalesce((
      select step - (coalesce(whole_at, 9223372036854775807) > c.seq)::int from steps
       where answered_at <= c.seq order by step desc limit 1), 0) as step) as cut
    cross join lateral (select array_remove(array[
      case when (r.pins ->> 'ledger_version')::int is distinct from 1 then 'schema_unknown' end,
      case when faults.state_version <= v.state_version then 'chain_broken' end,
      case when faults.event_seq <= c.seq then 'events_missing' end,
      case when cut.step <> (select count(*) from steps where step <= cut.step and whole_at <= c.seq)
          or not exists (select from spoken where role = 'user' and as_of <= c.seq and step <= cut.step + 1)
        then 'transcript_broken' end], null) as codes) as f
   where r.run_id = p_run
$$;

-- The run and the sequence that the id of a checkpoint names, within a tenant; no row where it names none.
create function holdfast.find_checkpoint(p_tenant text, p_checkpoint text) returns setof holdfast.run_events
language sql stable as $$
  select e.* from holdfast.runs r
    join holdfast.run_events e on e.run_id = r.run_id and e.seq = ('x' || substr(p_checkpoint, 29, 8))::bit(32)::bigint
   where r.run_id between 'run_' || substr(p_checkpoint, 5, 12) || '7' || repeat('0', 19)
                      and 'run_' || substr(p_checkpoint, 5, 12) || '7' || repeat('f', 19)
     and r.tenant_id = p_tenant and holdfast.checkpoint_id(r.run_id, e.seq) = p_checkpoint
     and holdfast.boundary_of(e.type, e.data) is not null
$$;

create function holdfast.read_checkpoint(p_tenant text, p_checkpoint text) returns jsonb
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select t.checkpoint from holdfast.find_checkpoint(p_tenant, p_checkpoint) e,
         lateral holdfast.tell_checkpoints(e.run_id, array[e.seq]) t
$$;

-- The checkpoints of a run after a sequence, in order.
create function holdfast.list_checkpoints(p_tenant text, p_run text, p_after bigint, p_limit integer)
returns table (checkpoint jsonb) language sql stable security definer set search_path = holdfast, pg_temp as $$
  select t.checkpoint from holdfast.tell_checkpoints(p_run, array(
      select v.seq from holdfast.runs r join holdfast.run_events v using (run_id)
       where r.run_id = p_run and r.tenant_id = p_tenant and v.seq > p_after
         and holdfast.boundary_of(v.type, v.data) is not null order by v.seq limit p_limit)) t
   order by t.seq
$$;

-- The newest checkpoint of a run; null where its events are not held any more.
create function holdfast.newest_checkpoint(p_run text) returns text
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select holdfast.checkpoint_id(run_id, seq) from holdfast.run_events
   where run_id = p_run and holdfast.boundary_of(type, data) is not null order by seq desc limit 1
$$;

revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.read_checkpoint, holdfast.list_checkpoints, holdfast.newest_checkpoint to holdfast_app;
