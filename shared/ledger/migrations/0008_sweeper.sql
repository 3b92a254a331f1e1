-- The sweeper compares Temporal with the ledger (SPEC 3.8): what Temporal lost is shown truthfully, and nothing that
-- may have happened outside is forgotten.

-- Open runs that were compared longest ago; those that just moved are left alone.
create function holdfast.sweep_candidates(p_limit integer, p_quiet_seconds integer) returns table (
  run_id text, owner_execution text, epoch integer, state text)
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select run_id, owner_execution, epoch, state from holdfast.runs
   where ended_at is null
     and (start_confirmed_at is not null or state <> 'admitted')
     -- Swept already and waiting for a person: nothing to compare, unless evidence came that settles it.
     and not (owner_execution = 'sweeper' and (exists (
       select from holdfast.effects e where e.run_id = runs.run_id and e.state = 'unknown'
          and not exists (select from holdfast.settling_receipt(e)))
       or holdfast.waits_for_undo(run_id)))
     and updated_at < clock_timestamp() - make_interval(secs => p_quiet_seconds)
   order by swept_at limit p_limit
$$;

create function holdfast.mark_swept(p_runs text[]) returns void
language sql security definer set search_path = holdfast, pg_temp as $$
  update holdfast.runs set swept_at = clock_timestamp() where run_id = any (p_runs)
$$;

-- Open runs with late evidence on an effect that is still unknown: their workflow is told to look again.
create function holdfast.runs_with_late_evidence(p_limit integer) returns table (run_id text)
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select distinct e.run_id from holdfast.effects e
    join holdfast.runs r on r.run_id = e.run_id and r.owner_execution <> 'sweeper'
   where e.state = 'unknown' and exists (select from holdfast.settling_receipt(e)) limit p_limit
$$;

-- Takes a run from an execution that Temporal says is over, and brings it to rest by lawful moves: to
-- needs_reconciliation when an effect is unresolved, else to its end. Compare-and-swap on the epoch: a run that
-- somebody else took over meanwhile is left alone.
create function holdfast.close_orphan(p_run text, p_expected_epoch integer, p_reason text)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  v_actor constant text := 'holdfast:sweeper';
  e holdfast.effects;
  v_unresolved boolean;
  v_undoes boolean;
  v_reason text := p_reason;
begin
  select * into r from holdfast.runs where run_id = p_run for update;
  if not found or r.ended_at is not null or r.epoch <> p_expected_epoch then
    return jsonb_build_object('kind', 'left_alone');
  end if;
  if r.owner_execution is distinct from 'sweeper' then
    r := holdfast.grant_ownership(r, 'sweeper', 'swept');
  end if;
  -- Nobody looks after them any more. At every look, so that they are locked before any budget.
  r := holdfast.command_children(r, 'cancel', '{}');
  r := holdfast.settle_lost_reads(r);
  for e in select * from holdfast.effects where run_id = p_run and state = 'unknown' order by effect_id for update loop
    -- A run that was swept before is looked at again when its last effect is settled: by a person, or by evidence.
    if p_reason = 'person_settled' and exists (select from holdfast.settling_receipt(e)) then
      v_reason := 'late_receipt';
    end if;
    r := holdfast.settle_by_late_receipt(r, e);
  end loop;
  v_unresolved := exists (select from holdfast.effects where run_id = p_run and state = 'unknown');
  v_undoes := holdfast.is_to_undo(r);
  if v_undoes and not v_unresolved then
    -- Nobody is left to call a tool: a person undoes what still stands, or leaves it.
    r.compensation_cause := coalesce(r.compensation_cause, v_reason);
    r := holdfast.undo_rest_by_person(r);
    v_unresolved := holdfast.waits_for_undo(p_run);
  end if;

  if v_unresolved then
    if r.state in ('waiting_for_input', 'awaiting_approval', 'retry_wait') then
      r := holdfast.move_run(r, 'run', 'running', v_reason, v_actor);
    end if;
    if r.state <> 'needs_reconciliation' then
      r := holdfast.move_run(r, 'run', 'needs_reconciliation', v_reason, v_actor);
    end if;
  elsif r.state = 'cancelling' and (select open from holdfast.bound_children(p_run)) > 0 then
    -- Its children end first; the next look ends it.
    perform holdfast.save_run(r);
    return jsonb_build_object('kind', 'left_alone');
  else
    if r.state = 'cancelling' and p_reason = 'person_settled' then v_reason := 'wound_down'; end if;
    if r.state = 'needs_reconciliation' then
      r := holdfast.move_run(r, 'run', 'reconciling', v_reason, v_actor);
    elsif r.state in ('waiting_for_input', 'awaiting_approval') then
      r := holdfast.move_run(r, 'run', 'running', v_reason, v_actor);
    end if;
    if v_undoes and r.state in ('running', 'retry_wait') then
      r := holdfast.move_run(r, 'run', 'compensating', v_reason, v_actor);
    end if;
    r := holdfast.move_run(r, 'run', case when r.state = 'cancelling' then 'cancelled'
           when v_undoes and not exists (select from holdfast.undos where run_id = p_run and state = 'left') then 'compensated'
           else 'failed' end, v_reason, v_actor);
  end if;
  perform holdfast.save_run(r);
  perform pg_notify('holdfast_events', p_run);
  return jsonb_build_object('kind', 'closed', 'state', r.state);
end $$;
