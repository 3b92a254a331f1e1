-- The feed beyond one run (SPEC 6): a place in the whole tenant's feed that skips nothing, and an end to keeping it.
--
-- Sequences are of one run, and across runs no number that is drawn before the commit will do: what was drawn first may
-- be committed last. So each event keeps the number of the transaction that wrote it, and a reader takes only what stands
-- below every transaction that still runs: nothing can come to be there any more (docs/decisions/0017).

alter table holdfast.runs
  -- Of its newest event, never less than of those before: the events of one run keep their order.
  add column feed_xid bigint not null default (pg_current_xact_id()::text)::bigint,
  -- The first event that is still there; past `event_seq` when none is.
  add column events_from bigint not null default 1,
  add column events_trimmed_at timestamptz,
  add constraint events_from_its_own check (events_from between 1 and event_seq + 1),
  add constraint trimmed_after_its_end check (events_trimmed_at is null or ended_at is not null),
  add constraint trimmed_iff_events_gone check ((events_from > 1) = (events_trimmed_at is not null));
create index runs_to_trim on holdfast.runs (ended_at) where ended_at is not null and events_trimmed_at is null;

alter table holdfast.run_events
  add column feed_xid bigint not null default (pg_current_xact_id()::text)::bigint check (feed_xid > 0);
-- Rows come in nearly this order, so that a few numbers for each stretch of the table do, and writing pays next to nothing.
create index run_events_by_feed on holdfast.run_events using brin (feed_xid) with (pages_per_range = 16, autosummarize = on);

-- Up to where a tenant's feed has holes: of what was written before, some is gone.
create table holdfast.feed_floors (
  tenant_id holdfast.name primary key,
  feed_xid  bigint        not null check (feed_xid > 0)
);
create trigger no_delete before delete on holdfast.feed_floors for each row execute function holdfast.refuse_change();
create trigger never_emptied before truncate on holdfast.feed_floors
  for each statement execute function holdfast.refuse_change();

-- Events are never changed, and go with their run's end and `trim_events` alone.
drop trigger append_only on holdfast.run_events;
create trigger append_only before update on holdfast.run_events
  for each row execute function holdfast.refuse_change();
create trigger trimmed_only before delete on holdfast.run_events
  for each row when (current_setting('holdfast.trims', true) is distinct from 'yes')
  execute function holdfast.refuse_change();

-- Lets go of the events of runs that ended so long ago; what they did stays: transitions, effects, attempts, receipts,
-- messages, decisions. Says how many runs there were, so that whoever calls goes on until there are none.
create function holdfast.trim_events(p_keep_seconds bigint, p_limit integer) returns integer
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  v_count integer := 0;
begin
  perform set_config('holdfast.trims', 'yes', true);
  for r in select * from holdfast.runs
            where ended_at < clock_timestamp() - make_interval(secs => p_keep_seconds) and events_trimmed_at is null
            order by ended_at limit p_limit for update skip locked loop
    delete from holdfast.run_events where run_id = r.run_id;
    update holdfast.runs set events_from = event_seq + 1, events_trimmed_at = clock_timestamp() where run_id = r.run_id;
    insert into holdfast.feed_floors as f (tenant_id, feed_xid) values (r.tenant_id, r.feed_xid)
      on conflict (tenant_id) do update set feed_xid = greatest(f.feed_xid, excluded.feed_xid);
    v_count := v_count + 1;
  end loop;
  perform set_config('holdfast.trims', '', true);
  return v_count;
end $$;

grant select on holdfast.feed_floors to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.trim_events to holdfast_app;
