-- Webhooks from an outbox (SPEC 6): a delivery is a row of the transaction that writes the event it tells, so that
-- neither exists without the other. A worker sends it afterwards, at least once, in the order of its run. What is told is
-- ids, states and links, never content.

create domain holdfast.webhook_endpoint_id as text check (
  length(value) = 36 and starts_with(value, 'whe_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.webhook_delivery_id as text check (
  length(value) = 36 and starts_with(value, 'whd_') and translate(substr(value, 5), '0123456789abcdef', '') = '');

create table holdfast.webhook_endpoints (
  endpoint_id     holdfast.webhook_endpoint_id primary key,
  tenant_id       holdfast.name                not null,
  url             text                         not null check (char_length(url) between 1 and 2000),
  kinds           text[]                       not null check (cardinality(kinds) between 1 and 50),
  state           text                         not null default 'active' check (state in ('active', 'disabled')),
  -- `person`: somebody disabled it; `gone`: it answered 410.
  disabled_by     text                         check (disabled_by in ('person', 'gone')),
  disabled_at     timestamptz,
  -- Encrypted with a key that is in no database (docs/decisions/0008); the id names which one.
  secret_key_id   text                         not null check (secret_key_id ~ '^[0-9a-f]{8}$'),
  secret_sealed   bytea                        not null,
  created_by      holdfast.actor               not null,
  created_at      timestamptz                  not null default clock_timestamp(),
  idempotency_key holdfast.request_key         not null,
  request_sha256  holdfast.sha256              not null,
  unique (tenant_id, idempotency_key),
  constraint disabled_has_its_marks check (
    (state = 'disabled') = (disabled_at is not null) and (state = 'disabled') = (disabled_by is not null))
);
create index webhook_endpoints_by_tenant on holdfast.webhook_endpoints (tenant_id, endpoint_id);
create index webhook_endpoints_active on holdfast.webhook_endpoints (tenant_id) where state = 'active';

create table holdfast.webhook_deliveries (
  -- The webhook-id that the receiver deduplicates by: the same for every try and every replay.
  delivery_id     holdfast.webhook_delivery_id primary key,
  endpoint_id     text                         not null references holdfast.webhook_endpoints,
  tenant_id       text                         not null,
  -- Null for a test that somebody asked for.
  run_id          text                         references holdfast.runs,
  event_seq       bigint,
  kind            holdfast.name                not null,
  payload         jsonb                        not null,
  -- `dead`: the last try failed; `dropped`: its endpoint was disabled first.
  state           text                         not null default 'pending'
    check (state in ('pending', 'delivered', 'dead', 'dropped')),
  -- Tries in all, and those of the series under way that the receiver or the network failed.
  attempts        integer                      not null default 0,
  failures        integer                      not null default 0,
  replays         integer                      not null default 0,
  next_attempt_at timestamptz,
  lease_until     timestamptz,
  created_at      timestamptz                  not null default clock_timestamp(),
  settled_at      timestamptz,
  unique (endpoint_id, run_id, event_seq),
  constraint next_iff_pending check ((state = 'pending') = (next_attempt_at is not null)),
  constraint settled_iff_not_pending check ((state = 'pending') = (settled_at is null)),
  constraint lease_only_while_pending check (lease_until is null or state = 'pending'),
  constraint event_iff_run check ((run_id is null) = (event_seq is null))
) with (fillfactor = 70);
create index webhook_deliveries_by_endpoint on holdfast.webhook_deliveries (endpoint_id, delivery_id);
create index webhook_deliveries_pending on holdfast.webhook_deliveries (endpoint_id, run_id, event_seq)
  where state = 'pending';
create index webhook_deliveries_by_run on holdfast.webhook_deliveries (run_id);

-- One try at sending, opened before a byte leaves.
create table holdfast.webhook_attempts (
  delivery_id text        not null references holdfast.webhook_deliveries,
  attempt     integer     not null,
  tenant_id   text        not null,
  worker      text        not null,
  started_at  timestamptz not null default clock_timestamp(),
  ended_at    timestamptz,
  -- `lost`: the worker did not come back; the receiver may have been told.
  outcome     text        check (outcome in ('delivered', 'failed', 'gone', 'lost')),
  http_status integer     check (http_status between 100 and 999),
  reason      holdfast.text_200,
  primary key (delivery_id, attempt),
  constraint ended_iff_outcome check ((outcome is null) = (ended_at is null))
);

create trigger no_delete before delete on holdfast.webhook_endpoints for each row execute function holdfast.refuse_change();
create trigger no_delete before delete on holdfast.webhook_deliveries for each row execute function holdfast.refuse_change();
create trigger ended_stays before update or delete on holdfast.webhook_attempts
  for each row when (old.outcome is not null) execute function holdfast.refuse_change();

-- The kind of webhook that an event is, or null: shared/domain/webhooks.ts lists the same, and a test compares.
create function holdfast.webhook_kind(p_type text, p_data jsonb) returns text language sql immutable as $$
  select case
    when p_type in ('interrupt.opened', 'interrupt.decided', 'interrupt.expired', 'interrupt.withdrawn',
                    'reconciliation.overdue') then p_type
    when p_type = 'run.transition' and p_data ->> 'region' = 'run' and p_data ->> 'to' in (
      'completed', 'compensated', 'failed', 'cancelled', 'needs_reconciliation') then 'run.' || (p_data ->> 'to')
  end
$$;

-- Sortable by its time and unlike any other.
create function holdfast.new_delivery_id() returns text language sql volatile as $$
  select 'whd_' || lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
         || substr(replace(gen_random_uuid()::text, '-', ''), 14)
$$;

-- What a receiver is told: the members of the event that are ids, enums, numbers and times. Nothing that a person, a model
-- or a tool wrote is among them.
create function holdfast.webhook_payload(p_kind text, p_run text, p_seq bigint, p_at timestamptz, p_data jsonb)
returns jsonb language sql stable as $$
  select jsonb_build_object(
    'type', p_kind,
    'timestamp', to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
    'data', jsonb_strip_nulls(jsonb_build_object(
      'run_id', p_run, 'event_seq', p_seq,
      'interrupt_id', p_data -> 'interrupt_id', 'interrupt_kind', case when p_kind like 'interrupt.%' then p_data -> 'kind' end,
      'asks', p_data -> 'asks',
      'interrupt_state', case when p_kind like 'interrupt.%' then coalesce(p_data -> 'state',
        to_jsonb(case p_kind when 'interrupt.opened' then 'open' else substr(p_kind, 11) end)) end,
      'decision', p_data -> 'decision', 'effect_id', p_data -> 'effect_id', 'expires_at', p_data -> 'expires_at',
      'deadline_at', p_data -> 'deadline_at',
      'state', case when p_kind like 'run.%' then p_data -> 'to' end,
      'reason', case when p_kind like 'run.%' then p_data -> 'reason' end, 'state_version', p_data -> 'state_version')),
    -- Paths of the API, so that what is signed is the same wherever the API is reached.
    'links', jsonb_strip_nulls(jsonb_build_object(
      'run', '/v1/runs/' || p_run, 'story', '/v1/runs/' || p_run || '/story',
      'interrupt', '/v1/interrupts/' || (p_data ->> 'interrupt_id'),
      'reconciliation', case when p_kind = 'reconciliation.overdue' or p_data ->> 'kind' = 'reconciliation'
        then '/v1/reconciliations/' || (p_data ->> 'effect_id') end)))
$$;

-- The outbox rows of one event: one for each active endpoint of the tenant that asked for its kind.
create function holdfast.tell_webhooks() returns trigger language plpgsql as $$
declare
  v_kind constant text := holdfast.webhook_kind(new.type, new.data);
begin
  insert into holdfast.webhook_deliveries (delivery_id, endpoint_id, tenant_id, run_id, event_seq, kind, payload, next_attempt_at)
    select holdfast.new_delivery_id(), endpoint_id, tenant_id, new.run_id, new.seq, v_kind,
           holdfast.webhook_payload(v_kind, new.run_id, new.seq, new.created_at, new.data), clock_timestamp()
      from holdfast.webhook_endpoints
     where tenant_id = new.tenant_id and state = 'active' and v_kind = any (kinds);
  return null;
end $$;

-- The condition is judged without calling anything, so that the many events that are no webhook cost nothing.
create trigger tell_webhooks after insert on holdfast.run_events for each row
  when (new.type in ('interrupt.opened', 'interrupt.decided', 'interrupt.expired', 'interrupt.withdrawn', 'reconciliation.overdue')
        or new.type = 'run.transition' and new.data ->> 'to' in (
          'completed', 'compensated', 'failed', 'cancelled', 'needs_reconciliation'))
  execute function holdfast.tell_webhooks();

-- Stores an endpoint, or answers with the one that this key made.
create function holdfast.create_webhook_endpoint(
  p_endpoint text, p_tenant text, p_url text, p_kinds text[], p_key_id text, p_sealed bytea, p_actor text, p_key text,
  p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  n holdfast.webhook_endpoints;
begin
  insert into holdfast.webhook_endpoints (endpoint_id, tenant_id, url, kinds, secret_key_id, secret_sealed, created_by,
                                          idempotency_key, request_sha256)
    values (p_endpoint, p_tenant, p_url, p_kinds, p_key_id, p_sealed, p_actor, p_key, p_request_sha256)
    on conflict (tenant_id, idempotency_key) do nothing;
  if found then
    return jsonb_build_object('kind', 'created', 'endpoint_id', p_endpoint);
  end if;
  select * into n from holdfast.webhook_endpoints where tenant_id = p_tenant and idempotency_key = p_key;
  return jsonb_build_object('endpoint_id', n.endpoint_id,
    'kind', case when n.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end);
end $$;

-- Nothing is sent to a disabled endpoint any more; what it was still owed is dropped, and says so.
create function holdfast.disable_endpoint(p_endpoint text, p_by text) returns void language plpgsql as $$
begin
  update holdfast.webhook_endpoints set state = 'disabled', disabled_by = p_by, disabled_at = clock_timestamp()
   where endpoint_id = p_endpoint and state = 'active';
  update holdfast.webhook_deliveries set state = 'dropped', settled_at = clock_timestamp(), next_attempt_at = null,
         lease_until = null
   where endpoint_id = p_endpoint and state = 'pending';
end $$;

create function holdfast.disable_webhook_endpoint(p_tenant text, p_endpoint text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
begin
  perform from holdfast.webhook_endpoints where endpoint_id = p_endpoint and tenant_id = p_tenant for update;
  if not found then
    return jsonb_build_object('kind', 'endpoint_not_found');
  end if;
  perform holdfast.disable_endpoint(p_endpoint, 'person');
  return jsonb_build_object('kind', 'disabled');
end $$;

-- One message of no run, for whoever wants to see that an endpoint is reached.
create function holdfast.test_webhook_endpoint(p_tenant text, p_endpoint text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  n holdfast.webhook_endpoints;
  v_id constant text := holdfast.new_delivery_id();
begin
  select * into n from holdfast.webhook_endpoints where endpoint_id = p_endpoint and tenant_id = p_tenant for share;
  if not found then
    return jsonb_build_object('kind', 'endpoint_not_found');
  end if;
  if n.state = 'disabled' then
    return jsonb_build_object('kind', 'endpoint_disabled');
  end if;
  insert into holdfast.webhook_deliveries (delivery_id, endpoint_id, tenant_id, kind, payload, next_attempt_at)
    values (v_id, p_endpoint, p_tenant, 'webhook.test', jsonb_build_object('type', 'webhook.test',
      'timestamp', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
      'data', jsonb_build_object('endpoint_id', p_endpoint), 'links', '{}'::jsonb), clock_timestamp());
  return jsonb_build_object('kind', 'queued', 'delivery_id', v_id);
end $$;

-- Sends a message again under its own id, in a series of its own. One that is still being tried needs none.
create function holdfast.replay_webhook(p_tenant text, p_delivery text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  d holdfast.webhook_deliveries;
begin
  select * into d from holdfast.webhook_deliveries where delivery_id = p_delivery and tenant_id = p_tenant;
  if not found then
    return jsonb_build_object('kind', 'delivery_not_found');
  end if;
  -- The endpoint first, as where it is disabled: one order of locks.
  perform from holdfast.webhook_endpoints where endpoint_id = d.endpoint_id and state = 'active' for share;
  if not found then
    return jsonb_build_object('kind', 'endpoint_disabled', 'endpoint_id', d.endpoint_id);
  end if;
  update holdfast.webhook_deliveries set state = 'pending', failures = 0, replays = replays + 1, settled_at = null,
         next_attempt_at = clock_timestamp()
   where delivery_id = p_delivery and state <> 'pending';
  return jsonb_build_object('kind', case when found then 'queued' else 'pending' end);
end $$;

-- Hands out messages that are due to one worker, at most `p_limit` and at most `p_each` at a time for one endpoint. Of
-- any number of workers one gets a message, until its lease is over: a worker that died is not waited for, so a receiver
-- may be told twice and never not at all. A message waits for the earlier ones of its run.
create function holdfast.lease_webhooks(p_worker text, p_limit integer, p_each integer, p_lease_seconds integer)
returns table (delivery_id text, attempt integer, endpoint_id text, url text, secret_key_id text, secret_sealed bytea, body text)
language plpgsql security definer set search_path = holdfast, pg_temp as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := clock_timestamp();
  v_id text;
begin
  for v_id in
    select d.delivery_id from holdfast.webhook_endpoints n
     cross join lateral (
       select w.delivery_id from holdfast.webhook_deliveries w
        where w.endpoint_id = n.endpoint_id and w.state = 'pending' and w.next_attempt_at <= v_now
          and (w.lease_until is null or w.lease_until <= v_now)
          and not exists (select from holdfast.webhook_deliveries p
                           where p.endpoint_id = w.endpoint_id and p.run_id = w.run_id and p.state = 'pending'
                             and p.event_seq < w.event_seq)
        order by w.next_attempt_at, w.delivery_id
        limit greatest(0, p_each - (select count(*) from holdfast.webhook_deliveries b
                                     where b.endpoint_id = n.endpoint_id and b.state = 'pending' and b.lease_until > v_now))
     ) due
      join holdfast.webhook_deliveries d on d.delivery_id = due.delivery_id
     where n.state = 'active'
       -- Judged again once the row is locked: another worker may have had it meanwhile.
       and d.state = 'pending' and d.next_attempt_at <= v_now and (d.lease_until is null or d.lease_until <= v_now)
     limit p_limit
       for update of d skip locked
  loop
    update holdfast.webhook_attempts a set outcome = 'lost', reason = 'worker_lost', ended_at = clock_timestamp()
     where a.delivery_id = v_id and a.outcome is null;
    update holdfast.webhook_deliveries d set attempts = d.attempts + 1,
           lease_until = clock_timestamp() + make_interval(secs => p_lease_seconds)
     where d.delivery_id = v_id;
    return query
      with opened as (
        insert into holdfast.webhook_attempts (delivery_id, attempt, tenant_id, worker)
          select d.delivery_id, d.attempts, d.tenant_id, p_worker from holdfast.webhook_deliveries d where d.delivery_id = v_id
          returning attempt)
      select d.delivery_id::text, o.attempt, n.endpoint_id::text, n.url, n.secret_key_id, n.secret_sealed, d.payload::text
        from opened o, holdfast.webhook_deliveries d join holdfast.webhook_endpoints n using (endpoint_id)
       where d.delivery_id = v_id;
  end loop;
end $$;

-- Seconds to wait after the n-th failed try, as the Standard Webhooks guide says; null when it was the last.
create function holdfast.webhook_backoff(p_failures integer) returns integer language sql immutable as $$
  select (array[5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400])[p_failures]
$$;

-- Ends a try. One whose lease was given to another says nothing any more.
create function holdfast.finish_webhook(
  p_delivery text, p_attempt integer, p_outcome text, p_status integer, p_reason text, p_retry_after_seconds integer)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  d holdfast.webhook_deliveries;
  v_wait integer;
begin
  perform from holdfast.webhook_endpoints n join holdfast.webhook_deliveries w using (endpoint_id)
    where w.delivery_id = p_delivery for update of n;
  select * into d from holdfast.webhook_deliveries where delivery_id = p_delivery for update;
  update holdfast.webhook_attempts set outcome = p_outcome, http_status = p_status, reason = p_reason,
         ended_at = clock_timestamp()
   where delivery_id = p_delivery and attempt = p_attempt and outcome is null;
  -- Disabled meanwhile, or in other hands: the try is written down and decides nothing.
  if not found or d.state <> 'pending' or d.attempts <> p_attempt then
    return jsonb_build_object('state', d.state);
  end if;
  v_wait := case when p_outcome = 'failed' then holdfast.webhook_backoff(d.failures + 1) end;
  update holdfast.webhook_deliveries set
    lease_until = null,
    failures = failures + (p_outcome = 'failed')::int,
    state = case when p_outcome = 'delivered' then 'delivered' when v_wait is null then 'dead' else 'pending' end,
    settled_at = case when v_wait is null then clock_timestamp() end,
    -- Up to a fifth later, so that what failed together does not come back together.
    next_attempt_at = case when v_wait is not null then clock_timestamp() + make_interval(
      secs => greatest(v_wait * (1 + random() * 0.2), least(coalesce(p_retry_after_seconds, 0), 86400))) end
   where delivery_id = p_delivery returning * into d;
  if p_outcome = 'gone' then
    perform holdfast.disable_endpoint(d.endpoint_id, 'gone');
  end if;
  return jsonb_build_object('state', d.state);
end $$;

grant select on holdfast.webhook_endpoints, holdfast.webhook_deliveries, holdfast.webhook_attempts to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.create_webhook_endpoint, holdfast.disable_webhook_endpoint,
  holdfast.test_webhook_endpoint, holdfast.replay_webhook, holdfast.lease_webhooks, holdfast.finish_webhook
to holdfast_app;
