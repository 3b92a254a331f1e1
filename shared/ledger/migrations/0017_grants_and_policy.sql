-- The rest of approvals (SPEC 4.1): who may decide and whether they still may, what a policy asks for, an approval of
-- changed arguments, and standing grants that stand in for an approval within their bounds.

-- The one form in which actors are compared, as shared/domain/actors.ts makes it.
create function holdfast.canonical_actor(p_text text) returns text language sql immutable parallel safe as $$
  select lower(btrim(normalize(p_text, NFKC), E' \t\n\r\f\v'))
$$;

create domain holdfast.role as text check (
  value in ('requester', 'approver', 'operator', 'releaser', 'auditor', 'admin'));
create domain holdfast.role_grant_id as text check (
  length(value) = 36 and starts_with(value, 'rgr_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.standing_grant_id as text check (
  length(value) = 36 and starts_with(value, 'sgr_') and translate(substr(value, 5), '0123456789abcdef', '') = '');

-- Who may act in which role. As soon as a tenant has one row for a role, live or revoked, these rows alone say who has
-- it: the last one to be revoked leaves nobody, never everybody.
create table holdfast.role_grants (
  role_grant_id   holdfast.role_grant_id primary key,
  tenant_id       holdfast.name          not null,
  actor_id        holdfast.actor         not null,
  role            holdfast.role          not null,
  granted_by      holdfast.actor         not null,
  -- Null where the ledger wrote the row beside another.
  idempotency_key holdfast.request_key,
  request_sha256  holdfast.sha256        not null,
  created_at      timestamptz            not null default clock_timestamp(),
  revoked_at      timestamptz,
  revoked_by      holdfast.actor,
  unique (tenant_id, idempotency_key),
  constraint grantee_is_canonical check (actor_id = holdfast.canonical_actor(actor_id)),
  constraint role_revoked_iff_by check ((revoked_at is null) = (revoked_by is null))
);
create unique index role_grants_live on holdfast.role_grants (tenant_id, role, actor_id) where revoked_at is null;
create index role_grants_by_role on holdfast.role_grants (tenant_id, role);
create trigger no_delete before delete on holdfast.role_grants for each row execute function holdfast.refuse_change();

-- Whether the ledger is the authority for a role and says that this actor does not have it.
create function holdfast.lacks_role(p_tenant text, p_actor text, p_role text) returns boolean
language sql stable as $$
  select coalesce(bool_and(not (revoked_at is null and actor_id = holdfast.canonical_actor(p_actor))), false)
    from holdfast.role_grants where tenant_id = p_tenant and role = p_role
$$;

-- Grants a role. The first row for `admin` comes with one for whoever gives it: a slip of the pen locks nobody out.
create function holdfast.grant_role(
  p_id text, p_own_id text, p_tenant text, p_by text, p_authority text, p_actor text, p_role text, p_key text,
  p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  g holdfast.role_grants;
  v_by constant text := holdfast.canonical_actor(p_by);
  v_actor constant text := holdfast.canonical_actor(p_actor);
begin
  -- One after the other in a tenant, so that the first of a role and the last of it are told apart.
  perform pg_advisory_xact_lock(hashtextextended('holdfast.role_grants/' || p_tenant, 0));
  select * into g from holdfast.role_grants where tenant_id = p_tenant and idempotency_key = p_key;
  if found then
    return jsonb_build_object('role_grant_id', g.role_grant_id,
      'kind', case when g.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  if p_authority <> 'admin' or holdfast.lacks_role(p_tenant, v_by, 'admin') then
    return jsonb_build_object('kind', 'role_required');
  end if;
  select * into g from holdfast.role_grants
   where tenant_id = p_tenant and role = p_role and actor_id = v_actor and revoked_at is null;
  if found then
    return jsonb_build_object('kind', 'held', 'role_grant_id', g.role_grant_id);
  end if;
  if p_role = 'admin' and v_by <> v_actor
     and not exists (select from holdfast.role_grants where tenant_id = p_tenant and role = 'admin') then
    insert into holdfast.role_grants (role_grant_id, tenant_id, actor_id, role, granted_by, request_sha256)
      values (p_own_id, p_tenant, v_by, 'admin', v_by, p_request_sha256);
  end if;
  insert into holdfast.role_grants (role_grant_id, tenant_id, actor_id, role, granted_by, idempotency_key, request_sha256)
    values (p_id, p_tenant, v_actor, p_role, v_by, p_key, p_request_sha256);
  return jsonb_build_object('kind', 'granted', 'role_grant_id', p_id);
end $$;

-- Takes a role back, for good: another grant is another row. Somebody must stay who can grant.
create function holdfast.revoke_role(p_tenant text, p_id text, p_by text, p_authority text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  g holdfast.role_grants;
begin
  perform pg_advisory_xact_lock(hashtextextended('holdfast.role_grants/' || p_tenant, 0));
  select * into g from holdfast.role_grants where role_grant_id = p_id and tenant_id = p_tenant;
  if not found then
    return jsonb_build_object('kind', 'role_grant_not_found');
  end if;
  if p_authority <> 'admin' or holdfast.lacks_role(p_tenant, p_by, 'admin') then
    return jsonb_build_object('kind', 'role_required');
  end if;
  if g.revoked_at is not null then
    return jsonb_build_object('kind', 'revoked');
  end if;
  if g.role = 'admin' and not exists (
       select from holdfast.role_grants
        where tenant_id = p_tenant and role = 'admin' and revoked_at is null and role_grant_id <> p_id) then
    return jsonb_build_object('kind', 'last_admin');
  end if;
  update holdfast.role_grants set revoked_at = clock_timestamp(), revoked_by = holdfast.canonical_actor(p_by)
   where role_grant_id = p_id;
  return jsonb_build_object('kind', 'revoked');
end $$;

-- What an approval of this effect takes: the policy in force when the call was planned, then the contract.
create function holdfast.approval_terms(r holdfast.runs, e holdfast.effects) returns jsonb language sql stable as $$
  select jsonb_build_object(
    'role', coalesce(e.policy #>> '{asked,role}', r.contract #>> array['effects', e.tool, 'approver_role'], 'approver'),
    'quorum', greatest((e.policy #>> '{asked,quorum}')::int, (r.contract #>> array['effects', e.tool, 'quorum'])::int, 1),
    'rules', coalesce(e.policy #> '{asked,rules}', '[]'),
    'expires_at', least(r.deadline_at, clock_timestamp() + make_interval(secs => least(
      (e.policy #>> '{asked,expiresSeconds}')::int, (r.contract #>> '{timeouts,approval_seconds}')::int))))
$$;

-- What a person must see before the effect may go, as shared/ledger/approvals.ts makes a scope of it.
create function holdfast.needed_approval(r holdfast.runs, e holdfast.effects) returns jsonb language sql stable as $$
  select jsonb_build_object(
    'effect_id', e.effect_id, 'tenant_id', e.tenant_id, 'tool', e.tool, 'tool_version', e.tool_version,
    'namespace', e.namespace, 'effect_class', e.effect_class, 'arguments', e.arguments,
    'arguments_sha256', e.arguments_sha256, 'requested_by', e.requested_by, 'agent', r.agent,
    'agent_version', r.agent_version) || holdfast.approval_terms(r, e)
$$;

-- How many have approved who may still: the word of somebody who lost the role since counts no more.
create function holdfast.counted_approvals(p_interrupt text) returns integer
language sql stable security definer set search_path = holdfast, pg_temp as $$
  select count(*)::int from holdfast.decisions d join holdfast.interrupts i using (interrupt_id)
   where d.interrupt_id = p_interrupt and d.decision = 'approve'
     and not holdfast.lacks_role(i.tenant_id, d.actor_id, i.required_role)
$$;

-- The first of those whose approval made up the quorum and who has lost the role since; null when all have it still.
create function holdfast.lapsed_approver(i holdfast.interrupts) returns text language sql stable as $$
  select d.actor_id from holdfast.decisions d
   where d.interrupt_id = i.interrupt_id and d.decision = 'approve'
     and holdfast.lacks_role(i.tenant_id, d.actor_id, i.required_role)
     and holdfast.counted_approvals(i.interrupt_id) < i.quorum
   order by d.created_at limit 1
$$;

-- Why a word on a wait is not taken, at one instant; null when it is. One rule for every kind of word.
create function holdfast.decision_refusal(
  r holdfast.runs, i holdfast.interrupts, p_actor text, p_authority text, p_decision text, p_scope_sha256 text,
  p_at timestamptz) returns text
language sql stable as $$
  select case
    when i.kind <> 'approval' then 'decision_mismatch'
    when i.state = 'withdrawn' then holdfast.why_withdrawn(r)
    when i.state = 'expired' or (i.state in ('open', 'approved') and p_at >= i.expires_at) then 'interrupt_expired'
    when p_decision = 'revoke' and i.state <> 'approved' then 'not_revocable'
    when p_decision <> 'revoke' and i.state <> 'open' then 'interrupt_decided'
    when p_authority <> i.required_role or holdfast.lacks_role(i.tenant_id, p_actor, i.required_role) then 'role_required'
    when holdfast.canonical_actor(p_actor) = holdfast.canonical_actor(i.requested_by) then 'self_approval'
    when p_scope_sha256 <> i.scope_sha256 then 'scope_changed'
    when exists (select from holdfast.decisions where interrupt_id = i.interrupt_id
                  and actor_id = holdfast.canonical_actor(p_actor) and decision = p_decision) then 'interrupt_decided'
    when r.ended_at is not null or r.control = 'cancel_requested' then holdfast.why_withdrawn(r)
  end
$$;

-- Keeps that somebody tried. The feed of a run ends with the run.
create function holdfast.refuse_decision(
  r holdfast.runs, i holdfast.interrupts, p_actor text, p_decision text, p_code text) returns jsonb
language plpgsql as $$
begin
  if r.ended_at is null then
    r := holdfast.append_event(r, 'interrupt.decision_refused', jsonb_build_object(
      'interrupt_id', i.interrupt_id, 'actor_id', p_actor, 'decision', p_decision, 'code', p_code));
    perform holdfast.save_run(r);
  end if;
  return jsonb_build_object('kind', 'refused', 'code', p_code);
end $$;

-- Writes down a word that is taken, and what it makes of the wait. Whoever is waiting is told.
create function holdfast.record_decision(
  r holdfast.runs, i holdfast.interrupts, p_actor text, p_authority text, p_decision text, p_note text,
  p_endpoint text, p_key text, p_request_sha256 text, p_at timestamptz) returns jsonb
language plpgsql as $$
declare
  v_actor constant text := holdfast.canonical_actor(p_actor);
  v_approvals integer;
  v_state text;
begin
  insert into holdfast.decisions (interrupt_id, actor_id, tenant_id, decision, authority, scope_sha256, note, endpoint,
                                  idempotency_key, request_sha256)
    values (i.interrupt_id, v_actor, i.tenant_id, p_decision, p_authority, i.scope_sha256, p_note, p_endpoint, p_key,
            p_request_sha256);
  v_approvals := holdfast.counted_approvals(i.interrupt_id);
  v_state := case p_decision when 'deny' then 'denied' when 'revoke' then 'revoked'
    else case when v_approvals >= i.quorum then 'approved' else 'open' end end;
  update holdfast.interrupts set state = v_state,
         decided_at = case when v_state = 'open' then null else coalesce(decided_at, p_at) end
   where interrupt_id = i.interrupt_id;
  r := holdfast.append_event(r, 'interrupt.decided', jsonb_build_object(
    'interrupt_id', i.interrupt_id, 'kind', i.kind, 'effect_id', i.effect_id, 'decision', p_decision, 'state', v_state,
    'actor_id', v_actor, 'approvals', v_approvals, 'quorum', i.quorum));
  perform holdfast.save_run(r);
  perform pg_notify('holdfast_events', r.run_id);
  if v_state <> 'open' then perform pg_notify('holdfast_nudge', r.run_id); end if;
  return jsonb_build_object('kind', 'decided', 'state', v_state, 'interrupt_id', i.interrupt_id);
end $$;

-- An approval of changed arguments closes the wait for the old ones and opens another: both stay.
alter table holdfast.interrupts add column supersedes text references holdfast.interrupts;
create unique index interrupts_superseded_once on holdfast.interrupts (supersedes) where supersedes is not null;

-- What an editor's word would be about: the call as it stands, under the name that its successor would have. Decides
-- nothing: whether it may be changed is judged when it is.
create function holdfast.begin_edit(p_tenant text, p_interrupt text) returns jsonb
language plpgsql stable security definer set search_path = holdfast, pg_temp as $$
declare
  i holdfast.interrupts;
  r holdfast.runs;
  e holdfast.effects;
begin
  select * into i from holdfast.interrupts where interrupt_id = p_interrupt and tenant_id = p_tenant and kind = 'approval';
  if not found then
    return jsonb_build_object('kind', 'interrupt_not_found');
  end if;
  select * into r from holdfast.runs where run_id = i.run_id;
  select * into e from holdfast.effects where effect_id = i.effect_id;
  return holdfast.needed_approval(r, e) || jsonb_build_object(
    'kind', 'editable', 'run_id', r.run_id, 'supersedes', e.effect_id, 'policy', e.policy,
    'asked_at', clock_timestamp(),
    'effect_id', holdfast.effect_id(e.run_id, e.turn, e.step, e.slot, e.redo + 1),
    'role', i.required_role, 'quorum', i.quorum, 'expires_at', i.expires_at);
end $$;

-- One person's word on a call with other arguments than were asked about: the old intent is superseded, a new one with
-- a key of its own takes its place, and the word is an approval of that one's digest. All of it or none.
create function holdfast.approve_edited(
  p_tenant text, p_interrupt text, p_actor text, p_authority text, p_roles text[], p_scope_sha256 text, p_note text,
  p_endpoint text, p_key text, p_request_sha256 text, p_edit jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  h constant holdfast.heard_word := holdfast.hear_word(p_tenant, p_interrupt, p_endpoint, p_key, p_request_sha256);
  i constant holdfast.interrupts := h.i;
  r holdfast.runs := h.r;
  n holdfast.interrupts;
  e holdfast.effects;
  s holdfast.effects;
  v_at timestamptz;
  v_refusal text;
  v_role constant text := p_edit ->> 'role';
begin
  if h.answer is not null then return h.answer; end if;
  select * into e from holdfast.effects where effect_id = i.effect_id for update;
  v_at := clock_timestamp();
  v_refusal := coalesce(
    -- Not `approve`: whoever approved the call as it was may still change it, and then approves that.
    holdfast.decision_refusal(r, i, p_actor, p_authority, 'edit', p_scope_sha256, v_at),
    -- What the new arguments ask for may be more than the old ones did.
    case when not v_role = any (p_roles) or holdfast.lacks_role(p_tenant, p_actor, v_role) then 'role_required'
         when e.state <> 'intended' or e.attempts > 0 then 'interrupt_decided' end);
  if v_refusal is not null then
    return holdfast.refuse_decision(r, i, p_actor, 'approve', v_refusal);
  end if;

  update holdfast.interrupts set state = 'superseded', decided_at = v_at where interrupt_id = i.interrupt_id;
  update holdfast.effects set state = 'superseded', settled_at = v_at where effect_id = e.effect_id;
  r := holdfast.append_event(r, 'interrupt.superseded', jsonb_build_object(
    'interrupt_id', i.interrupt_id, 'kind', i.kind, 'effect_id', e.effect_id, 'reason', 'edited',
    'actor_id', holdfast.canonical_actor(p_actor)));
  r := holdfast.append_event(r, 'effect.closed', jsonb_build_object(
    'effect_id', e.effect_id, 'tool', e.tool, 'turn', e.turn, 'step', e.step, 'slot', e.slot, 'state', 'superseded',
    'reason', 'edited'));
  s := holdfast.intend_effect(r, holdfast.plan_of(e) || jsonb_build_object(
    'arguments', p_edit ->> 'arguments', 'argumentsSha256', p_edit ->> 'arguments_sha256',
    'policy', p_edit -> 'policy'), e.turn, e.step, e.redo + 1, e.effect_id);
  perform holdfast.check_scope(s, p_edit -> 'scope');
  if s.arguments_sha256 <> encode(sha256(convert_to(s.arguments, 'UTF8')), 'hex')
     or s.policy ->> 'approval' <> 'required' or (p_edit ->> 'expires_at')::timestamptz > i.expires_at
     or (p_edit ->> 'quorum')::int < i.quorum then
    raise exception 'scope_mismatch: the edit of % asks for less than the call did', e.effect_id using errcode = 'HF011';
  end if;
  insert into holdfast.interrupts (interrupt_id, kind, tenant_id, run_id, turn, step, slot, effect_id, requested_by,
      scope, scope_sha256, answer_schema, required_role, quorum, expires_at, on_expiry, supersedes)
    values (p_edit ->> 'interrupt_id', 'approval', s.tenant_id, s.run_id, s.turn, s.step, s.slot, s.effect_id,
      s.requested_by, p_edit -> 'scope', p_edit ->> 'scope_sha256', i.answer_schema, v_role,
      (p_edit ->> 'quorum')::int, (p_edit ->> 'expires_at')::timestamptz, i.on_expiry, i.interrupt_id)
    returning * into n;
  r := holdfast.append_event(r, 'interrupt.opened', jsonb_build_object(
    'interrupt_id', n.interrupt_id, 'kind', 'approval', 'effect_id', s.effect_id, 'tool', s.tool, 'step', s.step,
    'slot', s.slot, 'scope_sha256', n.scope_sha256, 'expires_at', n.expires_at, 'supersedes', i.interrupt_id));
  return holdfast.record_decision(r, n, p_actor, v_role, 'approve', p_note, p_endpoint, p_key, p_request_sha256, v_at);
end $$;

-- The plan of a call as its effect holds it, so that a redo does what the effect before it was to do.
create function holdfast.plan_of(e holdfast.effects) returns jsonb language sql stable as $$
  select jsonb_build_object('slot', e.slot, 'callId', e.call_id, 'toolName', e.tool, 'toolVersion', e.tool_version,
    'effectClass', e.effect_class, 'namespace', e.namespace, 'arguments', e.arguments,
    'argumentsSha256', e.arguments_sha256, 'policy', e.policy)
$$;

-- What is shown is what will run: a scope that is not that of its effect is refused.
create function holdfast.check_scope(e holdfast.effects, p_scope jsonb) returns void language plpgsql as $$
begin
  if (p_scope ->> 'arguments_sha256', p_scope ->> 'effect_id', p_scope ->> 'tool', p_scope ->> 'tool_version',
      p_scope ->> 'run_id', p_scope ->> 'tenant_id', p_scope ->> 'target')
     is distinct from (e.arguments_sha256, e.effect_id, e.tool, e.tool_version, e.run_id, e.tenant_id, e.namespace)
     or p_scope -> 'arguments' is distinct from e.arguments::jsonb then
    raise exception 'scope_mismatch: the scope is not that of %', e.effect_id using errcode = 'HF011';
  end if;
end $$;

-- Told with the result of a call whose arguments a person changed, since the model believes what it wrote.
create function holdfast.edit_note(p_run text, p_turn integer, p_step integer, p_slot integer) returns text
language plpgsql stable as $$
declare
  e holdfast.effects;
begin
  if not exists (select from holdfast.effects where run_id = p_run and turn = p_turn and step = p_step
                    and slot = p_slot and state = 'superseded') then
    return '';
  end if;
  e := holdfast.newest_effect(p_run, p_turn, p_step, p_slot);
  return 'A person changed the arguments of this call before approving it. They are now: '
    || left(e.arguments, 4000) || case when length(e.arguments) > 4000 then ' [cut]' else '' end || E'\n\n';
end $$;

-- A yes given beforehand, within bounds (SPEC 4.1): one tool in one version, arguments within limits, a count, an end.
-- The claim uses it in place of an approval that nobody was asked for yet, and writes down for what.
create table holdfast.standing_grants (
  standing_grant_id holdfast.standing_grant_id primary key,
  tenant_id         holdfast.name              not null,
  -- Null for every agent of the tenant.
  agent             holdfast.name,
  tool              holdfast.name              not null,
  tool_version      holdfast.sha256            not null,
  -- [{"at": JSON pointer, "path": its tokens, and one of "equals", "one_of", "maximum", "minimum"}], all of which hold.
  constraints       jsonb                      not null,
  uses_max          integer                    not null check (uses_max between 1 and 10000),
  uses              integer                    not null default 0,
  granted_by        holdfast.actor             not null,
  -- The role that lets them approve: a call that takes another is asked about.
  authority         holdfast.role              not null,
  note              text                       not null check (char_length(note) between 1 and 4000),
  idempotency_key   holdfast.request_key       not null,
  request_sha256    holdfast.sha256            not null,
  created_at        timestamptz                not null default clock_timestamp(),
  expires_at        timestamptz                not null,
  revoked_at        timestamptz,
  revoked_by        holdfast.actor,
  unique (tenant_id, idempotency_key),
  constraint grant_is_bounded check (case when jsonb_typeof(constraints) = 'array'
    then jsonb_array_length(constraints) between 1 and 20 else false end),
  constraint used_within_count check (uses between 0 and uses_max),
  constraint grant_ends_in_a_year check (expires_at > created_at and expires_at <= created_at + interval '366 days'),
  constraint grant_revoked_iff_by check ((revoked_at is null) = (revoked_by is null))
);
create index standing_grants_live on holdfast.standing_grants (tenant_id, tool, tool_version) where revoked_at is null;
create trigger no_delete before delete on holdfast.standing_grants
  for each row execute function holdfast.refuse_change();

create table holdfast.standing_grant_uses (
  effect_id         text        primary key references holdfast.effects,
  standing_grant_id text        not null references holdfast.standing_grants,
  use               integer     not null check (use > 0),
  tenant_id         text        not null,
  run_id            text        not null references holdfast.runs,
  arguments_sha256  text        not null,
  used_at           timestamptz not null default clock_timestamp(),
  unique (standing_grant_id, use)
);
create index standing_grant_uses_by_run on holdfast.standing_grant_uses (run_id);
create trigger append_only before update or delete on holdfast.standing_grant_uses
  for each row execute function holdfast.refuse_change();
create trigger never_emptied before truncate on holdfast.standing_grant_uses
  for each statement execute function holdfast.refuse_change();

-- The value that a JSON pointer's tokens lead to, or null where there is none.
create function holdfast.value_at(p_value jsonb, p_path jsonb) returns jsonb language plpgsql immutable as $$
declare
  v jsonb := p_value;
  t text;
begin
  for t in select token from jsonb_array_elements_text(p_path) with ordinality as tokens (token, n) order by n loop
    v := case jsonb_typeof(v)
      when 'object' then v -> t
      when 'array' then case when t ~ '^(0|[1-9][0-9]{0,8})$' then v -> t::int end end;
  end loop;
  return v;
end $$;

-- Whether arguments keep within every constraint. What cannot be compared is outside.
create function holdfast.arguments_within(p_arguments jsonb, p_constraints jsonb) returns boolean
language sql immutable as $$
  select bool_and(coalesce(case
      when c ? 'equals' then v = c -> 'equals'
      when c ? 'one_of' then exists (select from jsonb_array_elements(c -> 'one_of') as o where o = v)
      when jsonb_typeof(v) <> 'number' then false
      when c ? 'maximum' then (v #>> '{}')::numeric <= (c ->> 'maximum')::numeric
      when c ? 'minimum' then (v #>> '{}')::numeric >= (c ->> 'minimum')::numeric end, false))
    from jsonb_array_elements(p_constraints) as constraints (c),
         lateral (select holdfast.value_at(p_arguments, c -> 'path')) as found (v)
$$;

-- Whether a grant stands in for the approval of an effect now. Its giver must have the role still, and never be the one
-- who asked for the run; one person's grant is no quorum.
create function holdfast.grant_covers(g holdfast.standing_grants, r holdfast.runs, e holdfast.effects)
returns boolean language sql stable as $$
  select g.tenant_id = e.tenant_id and g.tool = e.tool and g.tool_version = e.tool_version
     and coalesce(g.agent, r.agent) = r.agent
     and g.revoked_at is null and g.uses < g.uses_max and clock_timestamp() < g.expires_at
     and holdfast.canonical_actor(g.granted_by) <> holdfast.canonical_actor(e.requested_by)
     and (holdfast.approval_terms(r, e) ->> 'quorum')::int = 1
     and holdfast.approval_terms(r, e) ->> 'role' = g.authority
     and not holdfast.lacks_role(g.tenant_id, g.granted_by, g.authority)
     and e.arguments_sha256 = encode(sha256(convert_to(e.arguments, 'UTF8')), 'hex')
     and holdfast.arguments_within(e.arguments::jsonb, g.constraints)
$$;

-- The grant that ends first of those that cover the effect, locked so that its last use is used once; null for none.
create function holdfast.usable_grant(r holdfast.runs, e holdfast.effects) returns text language plpgsql as $$
declare
  v_id text;
  g holdfast.standing_grants;
begin
  for v_id in select o.standing_grant_id from holdfast.standing_grants o
               where o.tenant_id = e.tenant_id and o.tool = e.tool and o.tool_version = e.tool_version
                 and o.revoked_at is null and holdfast.grant_covers(o, r, e)
               order by o.expires_at, o.standing_grant_id loop
    -- Another claim may have used it up, or somebody revoked it, while we waited for the row.
    select * into g from holdfast.standing_grants o
     where o.standing_grant_id = v_id and o.revoked_at is null and o.uses < o.uses_max for update;
    if found and holdfast.grant_covers(g, r, e) then return v_id; end if;
  end loop;
  return null;
end $$;

-- Uses up what lets an effect go: its own approval, or one use of a standing grant. Called by the claim, for what leaves.
create function holdfast.use_approval(r holdfast.runs, e holdfast.effects, p_approval jsonb) returns holdfast.runs
language plpgsql as $$
declare
  g holdfast.standing_grants;
begin
  if p_approval ->> 'kind' = 'ready' then
    update holdfast.interrupts set state = 'consumed', consumed_at = clock_timestamp(), consumed_by = e.effect_id
     where interrupt_id = p_approval ->> 'interrupt_id';
    return holdfast.append_event(r, 'interrupt.consumed', jsonb_build_object(
      'interrupt_id', p_approval ->> 'interrupt_id', 'effect_id', e.effect_id));
  end if;
  update holdfast.standing_grants set uses = uses + 1
   where standing_grant_id = p_approval ->> 'standing_grant_id' returning * into g;
  insert into holdfast.standing_grant_uses (effect_id, standing_grant_id, use, tenant_id, run_id, arguments_sha256)
    values (e.effect_id, g.standing_grant_id, g.uses, e.tenant_id, e.run_id, e.arguments_sha256);
  return holdfast.append_event(r, 'standing_grant.used', jsonb_build_object(
    'standing_grant_id', g.standing_grant_id, 'effect_id', e.effect_id, 'tool', e.tool, 'turn', e.turn, 'step', e.step,
    'slot', e.slot, 'granted_by', g.granted_by, 'use', g.uses, 'uses_max', g.uses_max));
end $$;

create function holdfast.give_standing_grant(
  p_id text, p_tenant text, p_actor text, p_authority text, p_grant jsonb, p_key text, p_request_sha256 text)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  g holdfast.standing_grants;
  v_at constant timestamptz := clock_timestamp();
begin
  perform pg_advisory_xact_lock(hashtextextended('holdfast.standing_grants/' || p_tenant || '/' || p_key, 0));
  select * into g from holdfast.standing_grants where tenant_id = p_tenant and idempotency_key = p_key;
  if found then
    return jsonb_build_object('standing_grant_id', g.standing_grant_id,
      'kind', case when g.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  if p_authority <> 'approver' or holdfast.lacks_role(p_tenant, p_actor, p_authority) then
    return jsonb_build_object('kind', 'role_required');
  end if;
  if (p_grant ->> 'expires_at')::timestamptz not between v_at and v_at + interval '366 days' then
    return jsonb_build_object('kind', 'expiry_out_of_range');
  end if;
  insert into holdfast.standing_grants (standing_grant_id, tenant_id, agent, tool, tool_version, constraints, uses_max,
      granted_by, authority, note, idempotency_key, request_sha256, created_at, expires_at)
    values (p_id, p_tenant, p_grant ->> 'agent', p_grant ->> 'tool', p_grant ->> 'tool_version',
      p_grant -> 'constraints', (p_grant ->> 'uses_max')::int, holdfast.canonical_actor(p_actor), p_authority,
      p_grant ->> 'note', p_key, p_request_sha256, v_at, (p_grant ->> 'expires_at')::timestamptz);
  return jsonb_build_object('kind', 'given', 'standing_grant_id', p_id);
end $$;

-- Takes a grant back. Whoever may approve, or stop a run, may: less is never dangerous.
create function holdfast.revoke_standing_grant(p_tenant text, p_id text, p_actor text, p_authority text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  g holdfast.standing_grants;
begin
  select * into g from holdfast.standing_grants where standing_grant_id = p_id and tenant_id = p_tenant for update;
  if not found then
    return jsonb_build_object('kind', 'standing_grant_not_found');
  end if;
  if p_authority not in ('approver', 'operator', 'admin') or holdfast.lacks_role(p_tenant, p_actor, p_authority) then
    return jsonb_build_object('kind', 'role_required');
  end if;
  update holdfast.standing_grants set revoked_at = clock_timestamp(), revoked_by = holdfast.canonical_actor(p_actor)
   where standing_grant_id = p_id and revoked_at is null;
  return jsonb_build_object('kind', 'revoked');
end $$;

grant select on holdfast.role_grants, holdfast.standing_grants, holdfast.standing_grant_uses to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.grant_role, holdfast.revoke_role, holdfast.counted_approvals, holdfast.begin_edit,
  holdfast.approve_edited, holdfast.give_standing_grant, holdfast.revoke_standing_grant to holdfast_app;
