-- What a waiting workflow asks when it is nudged: enums and numbers, no content. `p_position` is how far the workflow
-- believes its trail is durable (null: it does not say). A workflow task may be lost after its commits, and is run again
-- from before them: what it sees here is not its own doing then, and it must take up the ledger's place.
create function holdfast.look(p_run text, p_execution text, p_position bigint) returns jsonb
language plpgsql stable security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  v_open integer;
  v_expiry timestamptz;
  v_inputs integer;
  v_input_expiry timestamptz;
  v_bound record;
begin
  select * into r from holdfast.runs where run_id = p_run;
  if not found then
    raise exception 'run_not_found: %', p_run using errcode = 'HF001';
  end if;
  if r.owner_execution is distinct from p_execution and r.owner_execution is not null then
    raise exception 'unknown_execution: % does not own %', p_execution, p_run using errcode = 'HF003';
  end if;
  if r.trail_position <> p_position then
    raise exception 'out_of_step: the ledger holds % trail entries of %, the workflow knows of %',
      r.trail_position, p_run, p_position using errcode = 'HF005';
  end if;
  select count(*), min(expires_at) into v_open, v_expiry from holdfast.interrupts
   where run_id = p_run and state = 'open' and kind = 'approval' and expires_at > clock_timestamp();
  select count(*), min(expires_at) into v_inputs, v_input_expiry from holdfast.interrupts
   where run_id = p_run and state = 'open' and kind in ('input', 'budget') and expires_at > clock_timestamp();
  select * into v_bound from holdfast.bound_children(p_run);
  return jsonb_build_object(
    'state', r.state, 'control', r.control,
    'open_children', v_bound.open, 'draining_children', v_bound.draining,
    'open_approvals', v_open,
    -- `greatest` takes no notice of a null.
    'next_expiry_ms', case when v_expiry is not null then
      greatest(0, ceil(extract(epoch from v_expiry - clock_timestamp()) * 1000)::bigint) end,
    'open_inputs', v_inputs,
    'next_input_expiry_ms', case when v_input_expiry is not null then
      greatest(0, ceil(extract(epoch from v_input_expiry - clock_timestamp()) * 1000)::bigint) end,
    -- Their time is over and nobody has taken that up yet.
    'input_expired', exists (select from holdfast.interrupts
      where run_id = p_run and state = 'open' and kind in ('input', 'budget') and expires_at <= clock_timestamp()),
    'compensate', exists (select from holdfast.commands where run_id = p_run and kind = 'cancel'
      and fate = 'accepted' and (payload ->> 'compensate')::boolean),
    -- What keeps the run from its end: an unknown read does not, since it changed nothing.
    'unknown', coalesce((
      select jsonb_agg(jsonb_build_object('turn', turn, 'step', step, 'slot', slot) order by turn, step, slot)
        from holdfast.effects where run_id = p_run
         and (state = 'dispatching' or state = 'unknown' and effect_class <> 'read')), '[]'::jsonb));
end $$;

-- Runs for which something was decided a while ago and not taken up: a message may be lost, the row is not.
create function holdfast.runs_to_nudge(p_limit integer, p_quiet_seconds integer) returns table (run_id text)
language plpgsql stable security definer set search_path = holdfast, pg_temp as $$
#variable_conflict use_column
begin
  return query select waiting.run_id from (
    -- A call in flight ends first, and what must be found out takes its time: there is nothing to tell then.
    select c.run_id from holdfast.commands c join holdfast.runs r using (run_id)
     where c.fate = 'accepted'
       and case c.kind when 'pause' then r.state <> 'running'
                         or exists (select from holdfast.child_runs h where h.parent_run_id = r.run_id)
                           and (select draining from holdfast.bound_children(r.run_id)) = 0
                       when 'cancel' then r.state not in ('needs_reconciliation', 'reconciling')
                       -- What it misses is looked for once a minute.
                       when 'resume' then not exists (select from holdfast.resume_blocks b where b.run_id = r.run_id
                         and b.cleared_at is null and b.checked_at > clock_timestamp() - interval '1 minute')
                       else true end
       and c.created_at < clock_timestamp() - make_interval(secs => p_quiet_seconds)
    union
    select i.run_id from holdfast.interrupts i join holdfast.runs r using (run_id)
     where i.state in ('approved', 'denied', 'revoked') and r.state = 'awaiting_approval' and r.control = 'active'
       -- One that still waits for somebody else would hear nothing new.
       and not exists (select from holdfast.interrupts o where o.run_id = i.run_id and o.kind = 'approval'
                        and o.state = 'open' and o.expires_at > clock_timestamp())
       and i.decided_at < clock_timestamp() - make_interval(secs => p_quiet_seconds)
    union
    select i.run_id from holdfast.interrupts i join holdfast.runs r using (run_id)
     where (i.state = 'answered' and i.kind in ('input', 'budget') or i.state = 'superseded' and i.kind = 'budget')
       and r.state = 'waiting_for_input' and r.control = 'active'
       and not exists (select from holdfast.interrupts o where o.run_id = i.run_id and o.kind in ('input', 'budget')
                        and o.state = 'open' and o.expires_at > clock_timestamp())
       and i.decided_at < clock_timestamp() - make_interval(secs => p_quiet_seconds)
    union
    select p.run_id from holdfast.parents_to_nudge(p_quiet_seconds) p
    union
    select r.run_id from holdfast.runs r
     where r.state = 'needs_reconciliation' and r.owner_execution <> 'sweeper'
       and r.updated_at < clock_timestamp() - make_interval(secs => p_quiet_seconds)
       and not exists (select from holdfast.effects e where e.run_id = r.run_id and e.state = 'unknown')
       and not holdfast.waits_for_undo(r.run_id)
  ) as waiting limit p_limit;
end $$;

revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.look, holdfast.runs_to_nudge to holdfast_app;
