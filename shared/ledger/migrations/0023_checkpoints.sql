-- Checkpoints (SPEC 4.2). No row is written for one: a boundary is an event of the run, and everything a checkpoint says
-- is told from the events, messages and transitions up to it. They are append-only, so it says the same at every read,
-- and a step costs what it did (docs/decisions/0011-checkpoints-are-told.md).

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

-- The last step that is whole at an event: the model has answered it and each of its calls has its result. A fork goes on
-- after it; 0 is before the first.
create function holdfast.cut_of(p_run text, p_seq bigint) returns integer language sql stable as $$
  select coalesce((
    select m.step - (jsonb_array_length(c.plan) > (
        select count(*) from holdfast.messages t
         where t.run_id = p_run and t.turn = m.turn and t.step = m.step and t.role = 'tool' and t.as_of <= p_seq))::int
      from holdfast.messages m join holdfast.model_calls c using (run_id, turn, step)
     where m.run_id = p_run and m.role = 'assistant' and m.as_of <= p_seq order by m.step desc limit 1), 0)
$$;

-- What the prompt of the run held at an event, up to a whole step, and what was said to it since.
create function holdfast.prompt_of(p_run text, p_cut integer, p_seq bigint)
returns table (step integer, "position" integer, role text, content jsonb) language sql stable as $$
  select m.step, m.position, m.role::text, m.content from holdfast.messages m
   where m.run_id = p_run and m.as_of <= p_seq and (m.step <= p_cut or m.step = p_cut + 1 and m.role = 'user')
$$;

-- Why nobody may go on from a checkpoint; empty when it validates.
create function holdfast.checkpoint_faults(r holdfast.runs, p_seq bigint, p_cut integer, p_version integer)
returns text[] language sql stable as $$
  select array_remove(array[
    case when (r.pins ->> 'ledger_version')::int is distinct from 1 then 'schema_unknown' end,
    case when not (select coalesce(bool_and(whole), false) and count(*) = p_version from (
        select digest = holdfast.transition_digest(prev_digest, run_id, seq, region, from_state, to_state, reason, actor_id,
                 epoch, created_at) and prev_digest = coalesce(lag(digest::text) over (order by seq), '') as whole
          from holdfast.transitions where run_id = r.run_id and seq <= p_version) as links)
      then 'chain_broken' end,
    case when p_seq <> (select count(*) from holdfast.run_events where run_id = r.run_id and seq <= p_seq)
      then 'events_missing' end,
    -- Of every whole step the answer, and one result for each of its calls.
    case when not exists (select from holdfast.prompt_of(r.run_id, p_cut, p_seq) where role = 'user')
      or p_cut <> (select count(*) from holdfast.model_calls where run_id = r.run_id and step <= p_cut and state = 'answered')
      or exists (select from holdfast.model_calls c where c.run_id = r.run_id and c.step <= p_cut
           and jsonb_array_length(c.plan) + 1 <> (select count(*) from holdfast.messages m where m.run_id = r.run_id
             and m.turn = c.turn and m.step = c.step and m.role <> 'user' and m.as_of <= p_seq))
      then 'transcript_broken' end], null)
$$;

-- The effects and waits that were open at an event, each with the last word on it up to there.
create function holdfast.open_at(p_run text, p_seq bigint, out operations jsonb, out interrupts jsonb, out unknown jsonb)
language sql stable as $$
  with effects as (
    select distinct on (data ->> 'effect_id') data ->> 'effect_id' as id, data ->> 'tool' as tool,
           min(seq) over (partition by data ->> 'effect_id') as since, case type
        when 'effect.dispatching' then 'dispatching' when 'effect.unknown' then 'unknown'
        when 'effect.released' then 'intended' when 'interrupt.opened' then 'intended' end as state
      from holdfast.run_events
     where run_id = p_run and seq <= p_seq and data ? 'effect_id' and type in ('effect.dispatching', 'effect.released',
       'effect.unknown', 'effect.settled', 'effect.closed', 'interrupt.opened')
     order by data ->> 'effect_id', seq desc),
  waits as (
    select distinct on (data ->> 'interrupt_id') data ->> 'interrupt_id' as id, data ->> 'kind' as kind,
           min(seq) over (partition by data ->> 'interrupt_id') as since,
           type = 'interrupt.opened' or type = 'interrupt.decided' and data ->> 'state' = 'open' as is_open
      from holdfast.run_events
     where run_id = p_run and seq <= p_seq and data ? 'interrupt_id' and type like 'interrupt.%'
       and type <> 'interrupt.decision_refused'
     order by data ->> 'interrupt_id', seq desc)
  select
    (select coalesce(jsonb_agg(jsonb_build_object('effect_id', id, 'tool', tool, 'state', state) order by since), '[]')
       from effects where state is not null),
    (select coalesce(jsonb_agg(jsonb_build_object('interrupt_id', id, 'kind', kind) order by since), '[]')
       from waits where is_open),
    (select coalesce(jsonb_agg(id order by since), '[]') from effects where state = 'unknown')
$$;

-- The checkpoint at an event that is a boundary.
create function holdfast.checkpoint_at(r holdfast.runs, p_event holdfast.run_events) returns jsonb
language plpgsql stable as $$
declare
  v_seq constant bigint := p_event.seq;
  v_cut constant integer := holdfast.cut_of(r.run_id, v_seq);
  v_move jsonb;
  v_model record;
  v_last record;
  v_open record;
  v_faults text[];
begin
  -- The newest of each of what is told apart, up to here.
  select jsonb_build_object(
      'state', max(coalesce(data ->> 'to', data ->> 'state')) filter (where seq = (
        select max(seq) from holdfast.run_events where run_id = r.run_id and seq <= v_seq
           and type in ('run.admitted', 'run.transition') and coalesce(data ->> 'region', 'run') = 'run')),
      'control', coalesce(max(data ->> 'to') filter (where seq = (
        select max(seq) from holdfast.run_events where run_id = r.run_id and seq <= v_seq
           and type = 'run.transition' and data ->> 'region' = 'control')), 'active'),
      'state_version', coalesce(max((data ->> 'state_version')::int), 0),
      'epoch', coalesce(max((data ->> 'epoch')::int), 0)) into v_move
    from holdfast.run_events
   where run_id = r.run_id and seq <= v_seq and type in ('run.admitted', 'run.transition', 'run.taken_over', 'run.resumed');
  select type, (data ->> 'turn')::int as turn, (data ->> 'step')::int as step, (data ->> 'attempt')::int as attempt
    into v_model from holdfast.run_events
   where run_id = r.run_id and seq <= v_seq and type in ('model.started', 'model.message', 'model.failed')
   order by seq desc limit 1;
  select count(*) over () as count, turn, step, "position" into v_last from holdfast.messages
   where run_id = r.run_id and as_of <= v_seq order by turn desc, step desc, "position" desc limit 1;
  v_open := holdfast.open_at(r.run_id, v_seq);
  v_faults := holdfast.checkpoint_faults(r, v_seq, v_cut, (v_move ->> 'state_version')::int);
  return jsonb_build_object(
    'checkpoint_id', holdfast.checkpoint_id(r.run_id, v_seq), 'run_id', r.run_id,
    'boundary', holdfast.boundary_of(p_event.type, p_event.data), 'at', p_event.created_at, 'event_seq', v_seq,
    'schema_version', 1, 'pins', r.pins, 'agent', r.agent, 'agent_version', r.agent_version,
    'state', v_move -> 'state', 'control', v_move -> 'control', 'state_version', v_move -> 'state_version',
    'epoch', v_move -> 'epoch', 'turn', coalesce(v_model.turn, 1), 'step', coalesce(v_model.step, 0),
    'attempt', coalesce(v_model.attempt, 0), 'calls_model', coalesce(v_model.type = 'model.started', false),
    'messages', jsonb_build_object('count', coalesce(v_last.count, 0), 'turn', v_last.turn, 'step', v_last.step,
      'position', v_last.position),
    'open_effects', v_open.operations, 'open_interrupts', v_open.interrupts, 'unknown_effects', v_open.unknown,
    'resumes_after_step', v_cut, 'valid', v_faults = '{}', 'faults', to_jsonb(v_faults));
end $$;

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
  select holdfast.checkpoint_at(r, e) from holdfast.find_checkpoint(p_tenant, p_checkpoint) e
    join holdfast.runs r on r.run_id = e.run_id
$$;

-- The checkpoints of a run after a sequence, in order.
create function holdfast.list_checkpoints(p_tenant text, p_run text, p_after bigint, p_limit integer)
returns table (checkpoint jsonb) language sql stable security definer set search_path = holdfast, pg_temp as $$
  select holdfast.checkpoint_at(r, e) from holdfast.runs r, lateral (
    select * from holdfast.run_events v where v.run_id = r.run_id and v.seq > p_after
       and holdfast.boundary_of(v.type, v.data) is not null order by v.seq limit p_limit) e
   where r.run_id = p_run and r.tenant_id = p_tenant order by e.seq
$$;

-- The newest checkpoint of a run; null where its events are not held any more.
create function holdfast.newest_checkpoint(p_run text) returns text
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select holdfast.checkpoint_id(run_id, seq) from holdfast.run_events
   where run_id = p_run and holdfast.boundary_of(type, data) is not null order by seq desc limit 1
$$;

revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.read_checkpoint, holdfast.list_checkpoints, holdfast.newest_checkpoint to holdfast_app;
