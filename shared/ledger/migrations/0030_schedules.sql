-- Schedules (SPEC 10). Temporal keeps the time: it ticks at every planned time, whatever is under way. What a tick makes is
-- judged here, under the schedule's lock, since only the ledger knows whether a run of it is under way: one that waits for an
-- approval is.
--
-- Locks: the schedule, then runs, threads and messages. Nothing that holds one of those comes for a schedule.

create domain holdfast.schedule_id as text check (
  length(value) = 36 and starts_with(value, 'sch_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.occurrence_id as text check (
  length(value) = 36 and starts_with(value, 'occ_') and translate(substr(value, 5), '0123456789abcdef', '') = '');

create table holdfast.schedules (
  schedule_id      holdfast.schedule_id primary key,
  tenant_id        holdfast.name        not null,
  name             holdfast.name        not null,
  agent            text                 not null references holdfast.agents,
  -- Null: each occurrence is a run of its own. Else each is a message to this thread.
  thread_id        text                 references holdfast.threads,
  input            jsonb                not null,
  contract         jsonb                not null,
  timing           jsonb                not null,
  overlap          text                 not null check (overlap in ('skip', 'buffer_one', 'buffer_all', 'allow_all', 'cancel_other')),
  catch_up_seconds integer              not null check (catch_up_seconds between 10 and 2592000),
  task_queue       text                 not null,
  -- Raised by every change, pauses included; what Temporal was told last is `synced_version`.
  version          integer              not null default 1,
  synced_version   integer              not null default 0,
  sync_problem     holdfast.text_1000,
  -- Who said what runs: the requester of its runs.
  defined_by       holdfast.actor       not null,
  created_at       timestamptz          not null default clock_timestamp(),
  changed_at       timestamptz          not null default clock_timestamp(),
  paused_at        timestamptz,
  deleted_at       timestamptz,
  -- As Temporal said last.
  next_at          timestamptz,
  -- Planned times before this are all accounted for.
  watched_until    timestamptz          not null default clock_timestamp()
);
create unique index schedules_by_name on holdfast.schedules (tenant_id, name) where deleted_at is null;
create index schedules_by_tenant on holdfast.schedules (tenant_id, schedule_id);
create index schedules_unsynced on holdfast.schedules (schedule_id) where synced_version <> version;

-- Who changed what: append-only.
create table holdfast.schedule_changes (
  schedule_id     text                 not null references holdfast.schedules,
  version         integer              not null,
  tenant_id       holdfast.name        not null,
  kind            text                 not null check (kind in ('created', 'changed', 'paused', 'resumed', 'deleted')),
  actor_id        holdfast.actor       not null,
  authority       holdfast.name        not null,
  -- The whole definition, where it was given.
  definition      jsonb,
  endpoint        text                 not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  -- False: it was so already. The key is used all the same, and does nothing when it comes again.
  changed         boolean              not null,
  changed_at      timestamptz          not null default clock_timestamp(),
  primary key (tenant_id, endpoint, idempotency_key)
);
create unique index schedule_changes_by_version on holdfast.schedule_changes (schedule_id, version) where changed;
create trigger append_only before update or delete on holdfast.schedule_changes
  for each row execute function holdfast.refuse_change();

-- Planned times in a pause are nobody's loss.
create table holdfast.schedule_pauses (
  schedule_id text        not null references holdfast.schedules,
  from_at     timestamptz not null,
  to_at       timestamptz,
  primary key (schedule_id, from_at)
);

-- Planned times of the past that somebody wants after all.
create table holdfast.schedule_backfills (
  schedule_id     text                 not null references holdfast.schedules,
  from_at         timestamptz          not null,
  to_at           timestamptz          not null check (to_at > from_at),
  actor_id        holdfast.actor       not null,
  authority       holdfast.name        not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  asked_at        timestamptz          not null default clock_timestamp(),
  done_at         timestamptz,
  primary key (schedule_id, idempotency_key)
);
create index schedule_backfills_due on holdfast.schedule_backfills (schedule_id) where done_at is null;

-- What became of each planned time, and of each start that somebody asked for.
create table holdfast.schedule_occurrences (
  occurrence_id    holdfast.occurrence_id primary key,
  schedule_id      text                   not null references holdfast.schedules,
  tenant_id        holdfast.name          not null,
  planned_at       timestamptz            not null,
  source           text                   not null check (source in ('tick', 'run_now')),
  -- Of the definition that ran, or would have.
  schedule_version integer                not null,
  state            text                   not null check (state in ('started', 'queued', 'skipped', 'missed', 'refused')),
  reason           holdfast.name,
  -- The run, or the message that waits for its turn, on account of which it was skipped or queued.
  blocked_by       text,
  run_id           text                   references holdfast.runs,
  message_id       text                   references holdfast.thread_messages,
  -- Of a start that somebody asked for.
  asked_by         holdfast.actor,
  idempotency_key  holdfast.request_key,
  created_at       timestamptz            not null default clock_timestamp(),
  decided_at       timestamptz,
  -- It may still be under way; looked at again before the next is judged.
  open             boolean                not null default false,
  unique (schedule_id, source, planned_at),
  constraint started_iff_made check ((state = 'started') = (run_id is not null or message_id is not null)),
  constraint made_once check (run_id is null or message_id is null),
  constraint reason_unless_started check ((state in ('skipped', 'missed', 'refused')) = (reason is not null)),
  constraint decided_iff_not_queued check ((state = 'queued') = (decided_at is null)),
  constraint asked_iff_run_now check (
    (source = 'run_now') = (asked_by is not null) and (source = 'run_now') = (idempotency_key is not null)),
  constraint open_while_started check (not open or state = 'started')
);
create unique index schedule_occurrences_asked on holdfast.schedule_occurrences (schedule_id, idempotency_key)
  where idempotency_key is not null;
create index schedule_occurrences_open on holdfast.schedule_occurrences (schedule_id) where open;
create index schedule_occurrences_queued on holdfast.schedule_occurrences (schedule_id, planned_at) where state = 'queued';
create trigger no_delete before delete on holdfast.schedule_occurrences for each row execute function holdfast.refuse_change();

-- What became no run reaches a person (SPEC 10): an outbox row like that of an event, of no run.
create function holdfast.tell_occurrence() returns trigger language plpgsql as $$
declare
  v_kind constant text := 'schedule.' || new.state;
begin
  insert into holdfast.webhook_deliveries (delivery_id, endpoint_id, tenant_id, kind, payload, next_attempt_at)
    select holdfast.new_delivery_id(), endpoint_id, tenant_id, v_kind, jsonb_build_object(
        'type', v_kind, 'timestamp', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'data', jsonb_strip_nulls(jsonb_build_object('schedule_id', new.schedule_id, 'occurrence_id', new.occurrence_id,
          'planned_at', new.planned_at, 'reason', new.reason, 'blocked_by', new.blocked_by)),
        'links', jsonb_build_object('schedule', '/v1/schedules/' || new.schedule_id,
                                    'occurrences', '/v1/schedules/' || new.schedule_id || '/occurrences')), clock_timestamp()
      from holdfast.webhook_endpoints
     where tenant_id = new.tenant_id and state = 'active' and v_kind = any (kinds);
  return null;
end $$;
create trigger tell_occurrence after insert or update of state on holdfast.schedule_occurrences for each row
  when (new.state in ('skipped', 'missed', 'refused')) execute function holdfast.tell_occurrence();

-- Makes a schedule, or changes one: its definition, a pause, its end. `p_change`: kind, and with a definition its members.
create function holdfast.change_schedule(
  p_tenant text, p_schedule text, p_actor text, p_roles text[], p_expected integer, p_change jsonb, p_endpoint text,
  p_key text, p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  s holdfast.schedules;
  k holdfast.schedule_changes;
  d constant jsonb := p_change -> 'definition';
  v_kind constant text := p_change ->> 'kind';
  v_authority text;
  v_same boolean := false;
begin
  perform pg_advisory_xact_lock(hashtextextended('holdfast.schedules/' || p_tenant || '/' || p_endpoint || '/' || p_key, 0));
  select * into k from holdfast.schedule_changes
   where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind', case when k.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end,
                              'schedule_id', k.schedule_id);
  end if;
  if v_kind <> 'created' then
    select * into s from holdfast.schedules
     where schedule_id = p_schedule and tenant_id = p_tenant and deleted_at is null for update;
    if not found then return jsonb_build_object('kind', 'schedule_not_found'); end if;
  end if;
  v_authority := case when 'operator' = any (p_roles) then 'operator'
                      when 'requester' = any (p_roles) and (v_kind = 'created' or s.defined_by = p_actor) then 'requester' end;
  if v_authority is null then return jsonb_build_object('kind', 'role_required'); end if;
  if p_expected <> s.version then
    return jsonb_build_object('kind', 'schedule_version_conflict', 'version', s.version);
  end if;
  if d is not null then
    if not exists (select from holdfast.agents where agent = d ->> 'agent') then
      return jsonb_build_object('kind', 'agent_not_found');
    end if;
    if d ->> 'thread_id' is not null and not exists (
         select from holdfast.threads where thread_id = d ->> 'thread_id' and tenant_id = p_tenant) then
      return jsonb_build_object('kind', 'thread_not_found');
    end if;
    if d ->> 'thread_id' is not null and not exists (
         select from holdfast.threads where thread_id = d ->> 'thread_id' and agent = d ->> 'agent') then
      return jsonb_build_object('kind', 'thread_agent_mismatch');
    end if;
    if exists (select from holdfast.schedules where tenant_id = p_tenant and name = d ->> 'name' and deleted_at is null
                  and schedule_id <> p_schedule) then
      return jsonb_build_object('kind', 'schedule_name_taken');
    end if;
  end if;
  case v_kind
    when 'created' then
      insert into holdfast.schedules (schedule_id, tenant_id, name, agent, thread_id, input, contract, timing, overlap,
                                      catch_up_seconds, task_queue, defined_by)
        values (p_schedule, p_tenant, d ->> 'name', d ->> 'agent', d ->> 'thread_id', d -> 'input', d -> 'contract',
                d -> 'timing', d ->> 'overlap', (d ->> 'catch_up_seconds')::int, p_change ->> 'task_queue', p_actor)
        returning * into s;
    when 'changed' then
      update holdfast.schedules set name = d ->> 'name', agent = d ->> 'agent', thread_id = d ->> 'thread_id',
             input = d -> 'input', contract = d -> 'contract', timing = d -> 'timing', overlap = d ->> 'overlap',
             catch_up_seconds = (d ->> 'catch_up_seconds')::int, defined_by = p_actor,
             -- Times of the rule before are no times of this one.
             watched_until = case when timing = d -> 'timing' then watched_until else clock_timestamp() end
       where schedule_id = p_schedule;
    when 'paused' then
      v_same := s.paused_at is not null;
      if not v_same then
        update holdfast.schedules set paused_at = clock_timestamp() where schedule_id = p_schedule returning * into s;
        insert into holdfast.schedule_pauses (schedule_id, from_at) values (p_schedule, s.paused_at);
      end if;
    when 'resumed' then
      v_same := s.paused_at is null;
      update holdfast.schedules set paused_at = null where schedule_id = p_schedule and not v_same;
      update holdfast.schedule_pauses set to_at = clock_timestamp() where schedule_id = p_schedule and to_at is null;
    when 'deleted' then
      update holdfast.schedules set deleted_at = clock_timestamp(), next_at = null where schedule_id = p_schedule;
      update holdfast.schedule_occurrences set state = 'skipped', reason = 'schedule_deleted', decided_at = clock_timestamp()
       where schedule_id = p_schedule and state = 'queued';
  end case;
  if v_kind <> 'created' and not v_same then
    update holdfast.schedules set version = version + 1, changed_at = clock_timestamp() where schedule_id = p_schedule
      returning * into s;
  end if;
  insert into holdfast.schedule_changes (schedule_id, version, tenant_id, kind, actor_id, authority, definition, endpoint,
                                         idempotency_key, request_sha256, changed)
    values (p_schedule, s.version, p_tenant, v_kind, p_actor, v_authority, d, p_endpoint, p_key, p_request_sha256, not v_same);
  return jsonb_build_object('kind', case when v_same then 'same' else 'done' end, 'schedule_id', p_schedule);
end $$;

-- What an occurrence makes of those before it: the rules of Temporal by their names.
create function holdfast.judge_overlap(p_rule text, p_active boolean, p_queued integer) returns text
language sql immutable as $$
  select case
    when p_rule = 'allow_all' or not p_active and p_queued = 0 then 'starts'
    when p_rule = 'skip' then 'skips'
    when p_rule = 'buffer_one' and p_queued > 0 then 'is_one_too_many'
    when p_rule = 'buffer_all' and p_queued >= 100 then 'is_one_too_many'
    when p_rule = 'cancel_other' then 'cancels'
    else 'queues'
  end
$$;

-- Whether what an occurrence made has not ended: its run, or its message while that has none.
create function holdfast.is_under_way(o holdfast.schedule_occurrences) returns boolean language sql stable as $$
  select exists (select from holdfast.runs where run_id = o.run_id and ended_at is null)
      or exists (
        select from holdfast.thread_messages m left join holdfast.runs r on r.run_id = m.run_id
         where m.message_id = o.message_id and (m.state = 'queued' or m.state = 'delivered' and r.ended_at is null))
$$;

-- What of the schedule is under way now, waits included: the id of the run, or of the message that has no run yet. Null:
-- nothing. The caller holds the schedule's lock.
create function holdfast.occurrence_under_way(p_schedule text) returns text language plpgsql as $$
begin
  update holdfast.schedule_occurrences o set open = false
   where o.schedule_id = p_schedule and o.open and not holdfast.is_under_way(o);
  return (select coalesce(o.run_id, m.run_id, o.message_id)
            from holdfast.schedule_occurrences o left join holdfast.thread_messages m on m.message_id = o.message_id
           where o.schedule_id = p_schedule and o.open order by o.planned_at desc limit 1);
end $$;

-- Why an occurrence cannot become a run as it stands; null when it can.
create function holdfast.occurrence_fault(p_run jsonb) returns text language sql immutable as $$
  select case when p_run ->> 'agent_version' is null then 'agent_not_found'
              when (p_run ->> 'budget_unmet')::boolean then 'budget_unmet' end
$$;

-- Makes the run of an occurrence, or the message that will have one. Its requester is who defined the schedule. One that
-- cannot become a run is refused, and told, instead of being tried for ever.
create function holdfast.start_occurrence(s holdfast.schedules, p_occurrence text, p_run jsonb) returns void
language plpgsql as $$
declare
  v_posted jsonb;
  v_message constant text := 'msg_' || substr(p_occurrence, 5);
  v_kind text;
begin
  if s.thread_id is null then
    perform holdfast.insert_run(s.tenant_id, s.defined_by, p_run);
    update holdfast.schedule_occurrences set state = 'started', open = true, run_id = p_run ->> 'run_id',
           decided_at = clock_timestamp(), schedule_version = s.version
     where occurrence_id = p_occurrence;
    return;
  end if;
  v_posted := holdfast.post_message(s.tenant_id, s.thread_id, s.defined_by, array['requester'], 'enqueue',
    'holdfast:schedule', p_occurrence, encode(sha256(convert_to(p_occurrence, 'UTF8')), 'hex'), v_message, p_run);
  v_kind := v_posted ->> 'kind';
  update holdfast.schedule_occurrences set decided_at = clock_timestamp(), schedule_version = s.version,
         state = case when v_kind = 'posted' then 'started' else 'refused' end, open = v_kind = 'posted',
         message_id = case when v_kind = 'posted' then v_message end,
         reason = case when v_kind = 'posted' then null
                       when v_kind in ('thread_archived', 'thread_full') then v_kind else 'thread_unusable' end
   where occurrence_id = p_occurrence;
exception when integrity_constraint_violation or data_exception then
  update holdfast.schedule_occurrences set state = 'refused', reason = 'not_admitted', decided_at = clock_timestamp()
   where occurrence_id = p_occurrence;
end $$;

-- Takes back what a schedule said to threads and that has no run yet. Runs are locked before their threads, so that the
-- caller has cancelled those.
create function holdfast.take_back_messages(p_schedule text) returns void language plpgsql as $$
declare
  v_thread text;
begin
  for v_thread in select distinct m.thread_id
                    from holdfast.schedule_occurrences o join holdfast.thread_messages m using (message_id)
                   where o.schedule_id = p_schedule and o.open and m.state = 'queued' order by 1 loop
    perform from holdfast.threads where thread_id = v_thread for no key update;
    update holdfast.thread_messages m set state = 'superseded', code = 'schedule_overlap', decided_at = clock_timestamp()
      from holdfast.schedule_occurrences o
     where o.schedule_id = p_schedule and o.open and m.message_id = o.message_id and m.thread_id = v_thread
       and m.state = 'queued';
  end loop;
end $$;

-- One planned time, or one start that somebody asks for: judged once, whoever asks again. `p_run` was made of the definition
-- of `p_version`; of another one it is made anew. A start that is asked for is planned for now (`p_planned` is null).
create function holdfast.decide_occurrence(
  p_schedule text, p_occurrence text, p_planned timestamptz, p_source text, p_asked_by text, p_key text, p_version integer,
  p_run jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  s holdfast.schedules;
  o holdfast.schedule_occurrences;
  v_active text;
  v_queued integer;
  v_fault constant text := holdfast.occurrence_fault(p_run);
  v_paused boolean;
  v_verdict text;
  v_run text;
  v_id text := p_occurrence;
  -- Asked for afterwards: a pause does not hold it, and what was missed may come after all.
  v_backfilled constant boolean := p_source = 'tick' and exists (
    select from holdfast.schedule_backfills where schedule_id = p_schedule and p_planned between from_at and to_at);
begin
  select * into s from holdfast.schedules where schedule_id = p_schedule for update;
  select * into o from holdfast.schedule_occurrences where schedule_id = p_schedule and source = p_source
     and case p_source when 'tick' then planned_at = p_planned else idempotency_key = p_key end;
  if found then
    if not v_backfilled or not (o.state = 'missed' or coalesce(o.reason = 'schedule_paused', false)) then
      return jsonb_build_object('kind', 'known', 'occurrence_id', o.occurrence_id);
    end if;
    v_id := o.occurrence_id;
  end if;
  if s.schedule_id is null or s.deleted_at is not null then return jsonb_build_object('kind', 'gone'); end if;
  if s.version <> p_version then return jsonb_build_object('kind', 'changed'); end if;

  v_paused := p_source = 'tick' and not v_backfilled and exists (
      select from holdfast.schedule_pauses where schedule_id = p_schedule and from_at <= p_planned
         and (to_at is null or p_planned < to_at));
  v_active := holdfast.occurrence_under_way(p_schedule);
  select count(*) into v_queued from holdfast.schedule_occurrences where schedule_id = p_schedule and state = 'queued';
  v_verdict := case when v_paused then 'paused' when v_fault is not null then 'refused'
                    else holdfast.judge_overlap(s.overlap, v_active is not null, v_queued) end;

  if v_verdict = 'cancels' then
    update holdfast.schedule_occurrences set state = 'skipped', reason = 'superseded', blocked_by = v_id,
           decided_at = clock_timestamp()
     where schedule_id = p_schedule and state = 'queued';
    for v_run in select coalesce(c.run_id, m.run_id) from holdfast.schedule_occurrences c
                   left join holdfast.thread_messages m on m.message_id = c.message_id
                  where c.schedule_id = p_schedule and c.open and coalesce(c.run_id, m.run_id) is not null order by 1 loop
      perform holdfast.submit_command(holdfast.new_command_id(), s.tenant_id, v_run, 'cancel',
        jsonb_build_object('reason_code', 'schedule_overlap'), s.defined_by, 'requester', null, 'holdfast:schedule',
        v_id || v_run, encode(sha256(convert_to(v_id || v_run, 'UTF8')), 'hex'));
    end loop;
    perform holdfast.take_back_messages(p_schedule);
  end if;

  insert into holdfast.schedule_occurrences (occurrence_id, schedule_id, tenant_id, planned_at, source, schedule_version,
                                             state, reason, blocked_by, asked_by, idempotency_key, decided_at)
    values (v_id, p_schedule, s.tenant_id, coalesce(p_planned, clock_timestamp()), p_source, s.version,
      case when v_verdict in ('starts', 'queues', 'cancels') then 'queued' when v_verdict = 'refused' then 'refused'
           else 'skipped' end,
      case v_verdict when 'paused' then 'schedule_paused' when 'refused' then v_fault when 'skips' then 'overlap'
                     when 'is_one_too_many' then 'buffer_full' end,
      case when v_verdict in ('skips', 'queues', 'cancels', 'is_one_too_many') then v_active end,
      p_asked_by, p_key, case when v_verdict not in ('starts', 'queues', 'cancels') then clock_timestamp() end)
    on conflict (schedule_id, source, planned_at) do update set schedule_version = excluded.schedule_version,
      state = excluded.state, reason = excluded.reason, blocked_by = excluded.blocked_by, decided_at = excluded.decided_at;
  if v_verdict = 'starts' then
    perform holdfast.start_occurrence(s, v_id, p_run);
  end if;
  return jsonb_build_object('kind', 'decided', 'occurrence_id', v_id);
end $$;

-- Schedules whose oldest queued occurrence may start now.
create function holdfast.queued_occurrences() returns table (schedule_id text, occurrence_id text)
language plpgsql security definer set search_path = holdfast, pg_temp as $$
#variable_conflict use_column
declare
  v record;
begin
  for v in select distinct on (o.schedule_id) o.schedule_id, o.occurrence_id from holdfast.schedule_occurrences o
            where o.state = 'queued' order by o.schedule_id, o.planned_at, o.occurrence_id loop
    -- Looks only: the start judges again, under the lock.
    if not exists (select from holdfast.schedule_occurrences o
                    where o.schedule_id = v.schedule_id and o.open and holdfast.is_under_way(o)) then
      schedule_id := v.schedule_id; occurrence_id := v.occurrence_id;
      return next;
    end if;
  end loop;
end $$;

-- Starts a queued occurrence once nothing of its schedule is under way.
create function holdfast.start_queued(p_schedule text, p_occurrence text, p_version integer, p_run jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  s holdfast.schedules;
  v_fault constant text := holdfast.occurrence_fault(p_run);
begin
  select * into strict s from holdfast.schedules where schedule_id = p_schedule for update;
  if not exists (select from holdfast.schedule_occurrences where occurrence_id = p_occurrence and state = 'queued') then
    return jsonb_build_object('kind', 'known');
  end if;
  if s.version <> p_version then return jsonb_build_object('kind', 'changed'); end if;
  if holdfast.occurrence_under_way(p_schedule) is not null then return jsonb_build_object('kind', 'waits'); end if;
  if v_fault is not null then
    update holdfast.schedule_occurrences set state = 'refused', reason = v_fault, decided_at = clock_timestamp()
     where occurrence_id = p_occurrence;
  else
    perform holdfast.start_occurrence(s, p_occurrence, p_run);
  end if;
  return jsonb_build_object('kind', 'decided');
end $$;

-- Temporal has this version; or said what is wrong with it.
create function holdfast.confirm_schedule(p_schedule text, p_version integer, p_problem text, p_next timestamptz) returns void
language sql security definer set search_path = holdfast, pg_temp as $$
  update holdfast.schedules set synced_version = p_version, sync_problem = p_problem, next_at = p_next
   where schedule_id = p_schedule and version >= p_version
$$;

-- Temporal does not know the schedule any more: it is told again.
create function holdfast.forget_schedule_sync(p_schedule text) returns void
language sql security definer set search_path = holdfast, pg_temp as $$
  update holdfast.schedules set synced_version = 0 where schedule_id = p_schedule
$$;

-- The planned times up to `p_until` were these. One that nothing was seen of is missed: written down, and told.
create function holdfast.record_watch(
  p_schedule text, p_version integer, p_times timestamptz[], p_ids text[], p_until timestamptz, p_next timestamptz)
returns integer language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  s holdfast.schedules;
  v_missed integer;
begin
  select * into strict s from holdfast.schedules where schedule_id = p_schedule for update;
  -- Changed since Temporal was asked: what it said was of another rule.
  if s.version <> p_version or s.deleted_at is not null then return 0; end if;
  insert into holdfast.schedule_occurrences (occurrence_id, schedule_id, tenant_id, planned_at, source, schedule_version,
                                             state, reason, decided_at)
    select t.id, p_schedule, s.tenant_id, t.planned, 'tick', s.version, 'missed', 'window_passed', clock_timestamp()
      from unnest(p_times, p_ids) as t (planned, id)
     where t.planned >= s.watched_until and t.planned < p_until
       and not exists (select from holdfast.schedule_pauses p where p.schedule_id = p_schedule and p.from_at <= t.planned
                          and (p.to_at is null or t.planned < p.to_at))
    on conflict (schedule_id, source, planned_at) do nothing;
  get diagnostics v_missed = row_count;
  update holdfast.schedules set watched_until = greatest(watched_until, p_until), next_at = p_next
   where schedule_id = p_schedule;
  return v_missed;
end $$;

-- Asks for the planned times of a stretch of the past.
create function holdfast.ask_backfill(
  p_tenant text, p_schedule text, p_actor text, p_roles text[], p_from timestamptz, p_to timestamptz, p_key text,
  p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  s holdfast.schedules;
  v_known text;
begin
  select * into s from holdfast.schedules
   where schedule_id = p_schedule and tenant_id = p_tenant and deleted_at is null for update;
  if not found then return jsonb_build_object('kind', 'schedule_not_found'); end if;
  select request_sha256 into v_known from holdfast.schedule_backfills
   where schedule_id = p_schedule and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind', case when v_known = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  if not 'operator' = any (p_roles) then return jsonb_build_object('kind', 'role_required'); end if;
  insert into holdfast.schedule_backfills (schedule_id, from_at, to_at, actor_id, authority, idempotency_key, request_sha256)
    values (p_schedule, p_from, p_to, p_actor, 'operator', p_key, p_request_sha256);
  return jsonb_build_object('kind', 'done');
end $$;

create function holdfast.confirm_backfill(p_schedule text, p_key text) returns void
language sql security definer set search_path = holdfast, pg_temp as $$
  update holdfast.schedule_backfills set done_at = clock_timestamp()
   where schedule_id = p_schedule and idempotency_key = p_key and done_at is null
$$;

grant select on holdfast.schedules, holdfast.schedule_changes, holdfast.schedule_pauses, holdfast.schedule_backfills,
  holdfast.schedule_occurrences to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.change_schedule, holdfast.decide_occurrence, holdfast.queued_occurrences,
  holdfast.start_queued, holdfast.confirm_schedule, holdfast.forget_schedule_sync, holdfast.record_watch,
  holdfast.ask_backfill, holdfast.confirm_backfill to holdfast_app;
