-- What people asked for and were refused (SPEC 11): one row each, by whom, at which door and why, so that "who tried" is
-- answered without any process's log. What was done stands in the tables of what it did.

create table holdfast.refusals (
  -- The X-Request-Id of the answer; sorts by its time.
  request_id  holdfast.text_200    primary key,
  tenant_id   holdfast.name        not null,
  actor_id    holdfast.actor       not null,
  roles       text[]               not null,
  -- The route with its parameters' names, and what they were.
  route       holdfast.text_200    not null,
  params      jsonb                not null,
  code        holdfast.name        not null,
  http_status integer              not null check (http_status between 400 and 499),
  created_at  timestamptz          not null default clock_timestamp()
);
create index refusals_by_tenant on holdfast.refusals (tenant_id, request_id desc);
create trigger append_only before update or delete on holdfast.refusals
  for each row execute function holdfast.refuse_change();
create trigger never_emptied before truncate on holdfast.refusals
  for each statement execute function holdfast.refuse_change();

-- Safe to repeat: a request is refused once.
create function holdfast.record_refusal(
  p_tenant text, p_actor text, p_roles text[], p_route text, p_params jsonb, p_code text, p_status integer, p_request text)
returns void language sql security definer set search_path = holdfast, pg_temp as $$
  insert into holdfast.refusals (request_id, tenant_id, actor_id, roles, route, params, code, http_status)
    values (p_request, p_tenant, p_actor, p_roles, p_route, p_params, p_code, p_status)
    on conflict (request_id) do nothing
$$;

grant select on holdfast.refusals to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.record_refusal to holdfast_app;
