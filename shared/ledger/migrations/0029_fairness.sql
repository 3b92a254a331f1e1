-- Fairness: how many runs of a tenant, or of one of its agents, are under way at once, and who is started next.
--
-- A limited start is a fact of its own: `grant_start` counts and grants under one lock, so that two starters never start more
-- than the limit between them. Child runs are not counted and never held: their parent, which waits for them, is.

alter table holdfast.runs
  -- 1 is started and served first, 5 last (Temporal's own scale).
  add column priority         smallint not null default 3 check (priority between 1 and 5),
  -- Set where a limit applied as the run was started.
  add column start_granted_at timestamptz;

create table holdfast.active_run_limits (
  tenant_id  holdfast.name  not null,
  -- Null: all runs of the tenant together.
  agent      holdfast.name,
  active_max integer        not null check (active_max between 0 and 1000000),
  changed_by holdfast.actor not null,
  changed_at timestamptz    not null default clock_timestamp(),
  unique nulls not distinct (tenant_id, agent)
);

-- Who set which limit to what: append-only. Null: the limit was lifted.
create table holdfast.active_run_limit_changes (
  tenant_id       holdfast.name        not null,
  endpoint        text                 not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  actor_id        holdfast.actor       not null,
  authority       holdfast.name        not null,
  agent           holdfast.name,
  active_max      integer,
  changed_at      timestamptz          not null default clock_timestamp(),
  primary key (tenant_id, endpoint, idempotency_key)
);
create trigger append_only before update or delete on holdfast.active_run_limit_changes
  for each row execute function holdfast.refuse_change();

-- What a limit counts: under way from the grant, or from Temporal's yes, to the end, waits included.
create view holdfast.active_runs as
  select run_id, tenant_id, agent from holdfast.runs
   where ended_at is null and parent_run_id is null
     and (state <> 'admitted' or start_confirmed_at is not null or start_granted_at is not null);
create index runs_active on holdfast.runs (tenant_id, agent) where ended_at is null;
-- Each tenant's queue in its order.
drop index holdfast.runs_unstarted;
create index runs_unstarted on holdfast.runs (tenant_id, priority, admitted_at, run_id) where state = 'admitted';

-- Admitted runs that may start now, in the order in which they are to: by priority, then the tenants in turn, then by age.
-- What a limit holds back is left out, or a tenant's backlog would stand before everybody else's.
create function holdfast.startable_runs(p_tenant text) returns table (
  run_id text, tenant_id text, agent text, job_id text, task_queue text, place bigint)
language sql stable as $$
  with owed as (
    select r.*, (r.parent_run_id is not null or r.start_granted_at is not null) as free,
           row_number() over (partition by r.tenant_id, r.agent, r.parent_run_id is null and r.start_granted_at is null
                              order by r.priority, r.admitted_at, r.run_id) as in_agent
      from holdfast.runs r
     where r.state = 'admitted' and r.start_confirmed_at is null and (p_tenant is null or r.tenant_id = p_tenant)),
  room as (
    select l.tenant_id, l.agent, l.active_max - (
             select count(*) from holdfast.active_runs a
              where a.tenant_id = l.tenant_id and (l.agent is null or a.agent = l.agent)) as free
      from holdfast.active_run_limits l where p_tenant is null or l.tenant_id = p_tenant),
  by_agent as (
    select o.*, row_number() over (partition by o.tenant_id, o.free order by o.priority, o.admitted_at, o.run_id) as in_tenant
      from owed o left join room on room.tenant_id = o.tenant_id and room.agent = o.agent
     where o.free or room.free is null or o.in_agent <= room.free),
  startable as (
    select b.*, row_number() over (partition by b.tenant_id order by b.priority, b.admitted_at, b.run_id) as turn_of_tenant
      from by_agent b left join room on room.tenant_id = b.tenant_id and room.agent is null
     where b.free or room.free is null or b.in_tenant <= room.free)
  select s.run_id, s.tenant_id, s.agent, s.job_id, s.task_queue,
         row_number() over (order by s.priority, s.turn_of_tenant, s.admitted_at, s.run_id)
    from startable s
$$;

create function holdfast.unstarted_runs(p_limit integer) returns table (
  run_id text, tenant_id text, agent text, job_id text, task_queue text)
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select run_id, tenant_id, agent, job_id, task_queue from holdfast.startable_runs(null) order by place limit p_limit
$$;

-- What a limit leaves free; null where none is set.
create function holdfast.room_for(p_tenant text, p_agent text) returns bigint language sql stable as $$
  select l.active_max - (select count(*) from holdfast.active_runs a
                          where a.tenant_id = l.tenant_id and (l.agent is null or a.agent = l.agent))
    from holdfast.active_run_limits l where l.tenant_id = p_tenant and l.agent is not distinct from p_agent
$$;

-- Whose turn it is in a tenant's queue, as `startable_runs` has it: this run where its turn has come, the first of them
-- where none is named, else null. So a run that was admitted just now, or is the next of a thread, passes nobody.
create function holdfast.next_start(p_tenant text, p_run text default null) returns holdfast.runs language plpgsql as $$
declare
  v_agent constant text := (select agent from holdfast.runs where run_id = p_run);
  v_room bigint := holdfast.room_for(p_tenant, null);
  v_rooms jsonb := (select coalesce(jsonb_object_agg(agent, holdfast.room_for(p_tenant, agent)), '{}')
                      from holdfast.active_run_limits where tenant_id = p_tenant and agent is not null);
  r holdfast.runs;
begin
  if v_room <= 0 or (v_rooms ->> v_agent)::bigint <= 0 then return null; end if;
  for r in select * from holdfast.runs
            where tenant_id = p_tenant and state = 'admitted' and start_confirmed_at is null and start_granted_at is null
              and parent_run_id is null
            order by priority, admitted_at, run_id loop
    -- Without a limit of the tenant one agent stands in no other's way.
    continue when v_room is null and r.agent <> v_agent or (v_rooms ->> r.agent)::bigint <= 0;
    if r.run_id = coalesce(p_run, r.run_id) then return r; end if;
    v_room := v_room - 1;
    if v_rooms ? r.agent then
      v_rooms := jsonb_set(v_rooms, array[r.agent], to_jsonb((v_rooms ->> r.agent)::bigint - 1));
    end if;
    exit when v_room <= 0 or (v_rooms ->> v_agent)::bigint <= 0;
  end loop;
  return null;
end $$;

-- Whether a run whose start is owed may start now. Where a limit applies, the grant is written here, under the tenant's lock.
create function holdfast.grant_start(p_run text) returns boolean
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
begin
  select * into r from holdfast.runs where run_id = p_run;
  if not found or r.state <> 'admitted' or r.start_confirmed_at is not null then return false; end if;
  if r.parent_run_id is not null or r.start_granted_at is not null then return true; end if;
  if not exists (select from holdfast.active_run_limits
                  where tenant_id = r.tenant_id and (agent is null or agent = r.agent)) then
    return true;
  end if;
  perform pg_advisory_xact_lock(hashtextextended('holdfast.active_run_limits/' || r.tenant_id, 0));
  r := holdfast.next_start(r.tenant_id, p_run);
  if r.run_id is null then return false; end if;
  update holdfast.runs set start_granted_at = clock_timestamp()
   where run_id = p_run and state = 'admitted' and start_confirmed_at is null;
  return found;
end $$;

-- A limited run that ends makes room for the next of its tenant: the starter is told whom to start.
create function holdfast.tell_next_start() returns trigger language plpgsql as $$
declare
  s constant holdfast.runs := holdfast.next_start(new.tenant_id);
begin
  if s.run_id is not null then
    perform holdfast.tell_starter(s);
  end if;
  return null;
end $$;
create trigger tell_next_start after update of ended_at on holdfast.runs
  for each row when (old.ended_at is null and new.ended_at is not null and new.start_granted_at is not null)
  execute function holdfast.tell_next_start();

-- An admin sets one limit, or lifts it (null).
create function holdfast.set_active_run_limit(
  p_tenant text, p_actor text, p_authority text, p_agent text, p_max integer, p_endpoint text, p_key text,
  p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  v_known text;
begin
  perform pg_advisory_xact_lock(hashtextextended('holdfast.active_run_limits/' || p_tenant, 0));
  select request_sha256 into v_known from holdfast.active_run_limit_changes
   where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind', case when v_known = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  delete from holdfast.active_run_limits where tenant_id = p_tenant and agent is not distinct from p_agent;
  if p_max is not null then
    insert into holdfast.active_run_limits (tenant_id, agent, active_max, changed_by)
      values (p_tenant, p_agent, p_max, p_actor);
  end if;
  insert into holdfast.active_run_limit_changes (tenant_id, endpoint, idempotency_key, request_sha256, actor_id, authority,
                                                 agent, active_max)
    values (p_tenant, p_endpoint, p_key, p_request_sha256, p_actor, p_authority, p_agent, p_max);
  return jsonb_build_object('kind', 'set');
end $$;

grant select on holdfast.active_run_limits, holdfast.active_run_limit_changes, holdfast.active_runs to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.unstarted_runs, holdfast.grant_start, holdfast.set_active_run_limit to holdfast_app;
