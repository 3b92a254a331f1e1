-- Cool-downs (SPEC 3.5): what asked one run to come later asks all of them. A claim that meets one opens nothing and is
-- told when its turn is; turns come one after another, so that what waited together does not leave together. A
-- cool-down is of a model or of a tool's namespace, and so of every tenant. Lock order: the run, the cool-down, budgets.

create domain holdfast.cooldown_id as text check (
  length(value) = 36 and starts_with(value, 'cdn_') and translate(substr(value, 5), '0123456789abcdef', '') = '');

create table holdfast.cooldowns (
  cooldown_id       holdfast.cooldown_id primary key,
  kind              text                 not null check (kind in ('model', 'tool')),
  -- Provider, base URL and model, or a tool's namespace.
  target            text                 not null check (length(target) between 1 and 1000),
  -- What the newest stop was that moved the end.
  reason            text                 not null check (reason in ('rate_limited', 'overloaded', 'throttled')),
  -- The target's own word in milliseconds, capped by nothing; null where it said none.
  said_ms           bigint               check (said_ms >= 0),
  detail            holdfast.text_2000,
  stops             integer              not null default 1 check (stops > 0),
  since             timestamptz          not null default clock_timestamp(),
  until_at          timestamptz          not null,
  -- The turn that was given last.
  last_slot_at      timestamptz          not null,
  -- A person's word that it is over; the runs that wait still go one after another.
  cleared_at        timestamptz,
  cleared_by        holdfast.actor,
  cleared_authority holdfast.name,
  cleared_tenant    holdfast.name,
  ended_at          timestamptz,
  -- `success`: the target answered again, and no turn was left. `stop`: it stopped somebody after a person's word.
  ended_by          text                 check (ended_by in ('success', 'stop')),
  constraint ended_iff_by check ((ended_at is null) = (ended_by is null)),
  constraint cleared_iff_by check (num_nulls(cleared_at, cleared_by, cleared_authority, cleared_tenant) in (0, 4))
) with (fillfactor = 50);
-- One at a time for a target; all that a claim looks at.
create unique index cooldowns_open on holdfast.cooldowns (target, kind) where ended_at is null;
create trigger no_delete before delete on holdfast.cooldowns for each row execute function holdfast.refuse_change();

alter table holdfast.runs
  -- What its model calls go to, as cool-downs name it; null where nothing is shared.
  add column model_target text,
  -- The cool-down that was met last; only then has a success anything to end.
  add column cooldown_id text references holdfast.cooldowns,
  -- The run's turn. Past, or null: it waits for none.
  add column cooldown_slot_at timestamptz,
  add constraint slot_is_of_a_cooldown check (cooldown_slot_at is null or cooldown_id is not null);
create index runs_cooling on holdfast.runs (cooldown_id) where cooldown_slot_at is not null;

-- A script answers each run by itself: nothing that it says concerns another.
create function holdfast.model_target(p_manifest jsonb) returns text language sql immutable as $$
  select case when p_manifest #>> '{model,provider}' <> 'scripted' then left(concat_ws(' ',
    p_manifest #>> '{model,provider}', p_manifest #>> '{model,baseUrl}', p_manifest #>> '{model,model}'), 1000) end
$$;

create function holdfast.set_model_target() returns trigger language plpgsql as $$
begin
  select holdfast.model_target(manifest) into new.model_target from holdfast.agent_versions
   where agent = new.agent and agent_version = new.agent_version;
  return new;
end $$;
create trigger set_model_target before insert on holdfast.runs
  for each row execute function holdfast.set_model_target();
update holdfast.runs r set model_target = holdfast.model_target(v.manifest)
  from holdfast.agent_versions v where v.agent = r.agent and v.agent_version = r.agent_version and r.ended_at is null;

-- Between two turns.
create function holdfast.cooldown_spacing() returns interval language sql immutable as $$
  select interval '250 milliseconds'
$$;

-- A UUIDv7 under the prefix, like shared/ledger/new-id.ts.
create function holdfast.new_cooldown_id() returns text language sql volatile as $$
  select 'cdn' || substr(holdfast.new_interrupt_id(), 4)
$$;

create function holdfast.ms_until(p_at timestamptz) returns bigint language plpgsql stable strict as $$
begin
  return greatest(1, ceil(extract(epoch from p_at - clock_timestamp()) * 1000));
end $$;

-- Takes the next turn of a cool-down, whose row the caller has locked, for the run.
create function holdfast.take_slot(r holdfast.runs, c holdfast.cooldowns, p_now timestamptz) returns timestamptz
language plpgsql as $$
declare
  v_slot constant timestamptz := greatest(p_now, c.until_at, c.last_slot_at + holdfast.cooldown_spacing());
begin
  -- Its turn stands where it is no later. A person's word may bring it forward.
  if r.cooldown_id = c.cooldown_id and r.cooldown_slot_at >= c.until_at and r.cooldown_slot_at <= v_slot then
    return r.cooldown_slot_at;
  end if;
  update holdfast.cooldowns set last_slot_at = v_slot where cooldown_id = c.cooldown_id;
  update holdfast.runs set cooldown_id = c.cooldown_id, cooldown_slot_at = v_slot where run_id = r.run_id;
  return v_slot;
end $$;

-- Looked at by every claim, after all that forbids and before anything is reserved: when the run's turn is, or null
-- where nothing is in its way.
create function holdfast.cooldown_turn(r holdfast.runs, p_kind text, p_target text) returns timestamptz
language plpgsql as $$
declare
  c holdfast.cooldowns;
  v_now timestamptz;
  v_slot timestamptz;
begin
  select * into c from holdfast.cooldowns where target = p_target and kind = p_kind and ended_at is null for update;
  if not found then return null; end if;
  v_now := clock_timestamp();
  v_slot := holdfast.take_slot(r, c, v_now);
  if v_slot > v_now then return v_slot; end if;
  -- Used: what comes again takes another.
  update holdfast.runs set cooldown_slot_at = null where run_id = r.run_id;
  return null;
end $$;

-- A target asked this run to come later: everybody hears of it. The end is the later of what is known and of the target's
-- word, which the contract caps; a model that says nothing is left alone as long as the first wait of a limit stop
-- (shared/domain/retry-policy.ts). Answers with the run's own turn.
create function holdfast.meet_stop(
  r holdfast.runs, p_kind text, p_target text, p_reason text, p_said_ms bigint, p_detail text) returns timestamptz
language plpgsql as $$
declare
  c holdfast.cooldowns;
  v_now constant timestamptz := clock_timestamp();
  v_until constant timestamptz := v_now + interval '1 millisecond' * least(
    coalesce(p_said_ms, 120000), (r.contract #>> '{retry,retry_after_seconds_max}')::bigint * 1000);
begin
  if p_target is null then return null; end if;
  update holdfast.cooldowns set ended_at = v_now, ended_by = 'stop'
   where target = p_target and kind = p_kind and ended_at is null and cleared_at is not null;
  insert into holdfast.cooldowns as k (cooldown_id, kind, target, reason, said_ms, detail, since, until_at, last_slot_at)
    values (holdfast.new_cooldown_id(), p_kind, p_target, p_reason, p_said_ms, p_detail, v_now, v_until, v_now)
    on conflict (target, kind) where ended_at is null do update set
      stops = k.stops + 1,
      until_at = greatest(k.until_at, v_until),
      reason = case when v_until > k.until_at then p_reason else k.reason end,
      said_ms = case when v_until > k.until_at then p_said_ms else k.said_ms end,
      detail = case when v_until > k.until_at then p_detail else k.detail end
    returning * into c;
  return holdfast.take_slot(r, c, v_now);
end $$;

-- A target that answered this run is well again. Called where the run has met a cool-down alone; one in which somebody
-- still has a turn to come stays, and spaces them.
create function holdfast.ease_cooldown(r holdfast.runs, p_kind text, p_target text) returns void
language plpgsql as $$
declare
  v_now constant timestamptz := clock_timestamp();
begin
  update holdfast.cooldowns set ended_at = v_now, ended_by = 'success'
   where cooldown_id = r.cooldown_id and kind = p_kind and target = p_target and ended_at is null
     and until_at <= v_now and last_slot_at <= v_now;
end $$;

-- What a claim answers that has to wait for its turn. `p_deadline` is that of the series, null where none has begun. What
-- undoes has a whole series still, and ends with it alone: a run whose time is over must clean up yet.
create function holdfast.cooling_answer(
  r holdfast.runs, p_slot timestamptz, p_attempt integer, p_attempts_max integer, p_deadline timestamptz) returns jsonb
language plpgsql as $$
begin
  return jsonb_build_object('kind', 'cooling',
    'wait_ms', holdfast.ms_until(p_slot),
    'attempt', p_attempt, 'attempts_max', p_attempts_max,
    'series_ms_left', floor(extract(epoch from case when r.state = 'compensating' then coalesce(p_deadline,
        clock_timestamp() + make_interval(secs => (r.contract #>> '{retry,series_seconds_max}')::int))
      else least(p_deadline, r.deadline_at) end - clock_timestamp()) * 1000)::bigint);
end $$;

-- A person says that it is over. Whoever waits looks again, and goes in turns all the same.
create function holdfast.clear_cooldown(p_tenant text, p_actor text, p_authority text, p_cooldown text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  c holdfast.cooldowns;
  v_now timestamptz;
begin
  select * into c from holdfast.cooldowns where cooldown_id = p_cooldown for update;
  if not found then return jsonb_build_object('kind', 'cooldown_not_found'); end if;
  v_now := clock_timestamp();
  if c.ended_at is not null or c.cleared_at is not null or c.until_at <= v_now and c.last_slot_at <= v_now then
    return jsonb_build_object('kind', 'same');
  end if;
  update holdfast.cooldowns set until_at = least(until_at, v_now), last_slot_at = v_now, cleared_at = v_now,
         cleared_by = p_actor, cleared_authority = p_authority, cleared_tenant = p_tenant
   where cooldown_id = p_cooldown;
  perform pg_notify('holdfast_nudge', run_id) from holdfast.runs
    where cooldown_id = p_cooldown and cooldown_slot_at > v_now and ended_at is null;
  return jsonb_build_object('kind', 'cleared');
end $$;

-- A resume looks again at what the run has pinned, in the process that holds it: the agent version, every tool in its
-- version, every secret by name. What is missing is kept here, and the run stays where it is until it is there.
create table holdfast.resume_blocks (
  run_id     text        primary key references holdfast.runs,
  tenant_id  text        not null,
  worker     text        not null,
  -- Codes and names: never a secret's value.
  faults     jsonb       not null check (jsonb_typeof(faults) = 'array' and jsonb_array_length(faults) > 0),
  checks     integer     not null default 1 check (checks > 0),
  since      timestamptz not null default clock_timestamp(),
  checked_at timestamptz not null default clock_timestamp(),
  cleared_at timestamptz
);
create trigger no_delete before delete on holdfast.resume_blocks
  for each row execute function holdfast.refuse_change();

create function holdfast.block_resume(
  p_run text, p_execution text, p_from bigint, p_trail jsonb, p_worker text, p_faults jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
  b holdfast.resume_blocks;
begin
  if r.control = 'resume_requested' then
    select * into b from holdfast.resume_blocks where run_id = p_run and cleared_at is null;
    insert into holdfast.resume_blocks as k (run_id, tenant_id, worker, faults)
      values (p_run, r.tenant_id, p_worker, p_faults)
      on conflict (run_id) do update set worker = p_worker, faults = p_faults, checked_at = clock_timestamp(),
        checks = case when k.cleared_at is null then k.checks + 1 else 1 end,
        since = case when k.cleared_at is null then k.since else clock_timestamp() end, cleared_at = null;
    if b.faults is distinct from p_faults then
      r := holdfast.append_event(r, 'run.resume_blocked', jsonb_build_object('worker', p_worker, 'faults', p_faults));
    end if;
  end if;
  perform holdfast.save_run(r);
  return jsonb_build_object('state', r.state, 'control', r.control);
end $$;

create function holdfast.unblock_resume(p_run text) returns void language sql as $$
  update holdfast.resume_blocks set cleared_at = clock_timestamp() where run_id = p_run and cleared_at is null
$$;

-- Series are listed across runs.
create index retries_by_tenant on holdfast.retries (tenant_id, run_id desc, trail_seq desc);

grant select on holdfast.cooldowns, holdfast.resume_blocks to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.clear_cooldown, holdfast.block_resume to holdfast_app;
