-- What a tool says of its call while it works (SPEC 6): told in the feed, believed by nobody. Only the attempt that holds the
-- effect is heard, so that one which was taken for lost says nothing more.
create function holdfast.append_progress(
  p_run text, p_execution text, p_effect text, p_fencing_token integer, p_progress jsonb) returns boolean
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  e holdfast.effects;
begin
  select * into r from holdfast.runs where run_id = p_run for update;
  select * into e from holdfast.effects where effect_id = p_effect and run_id = p_run;
  if r.ended_at is not null or r.owner_execution is distinct from p_execution or e.state is distinct from 'dispatching'
     or e.fencing_token <> p_fencing_token then
    return false;
  end if;
  r := holdfast.append_event(r, 'effect.progress', jsonb_build_object('effect_id', e.effect_id, 'tool', e.tool,
    'turn', e.turn, 'step', e.step, 'slot', e.slot, 'attempt', e.attempts) || p_progress);
  perform holdfast.save_run(r);
  return true;
end $$;

revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.append_progress to holdfast_app;
