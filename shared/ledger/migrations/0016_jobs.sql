-- A job is accepted apart from its runs (SPEC 4.3): `completed` says that the process ended, and whoever the contract names
-- says whether that is what was wanted. One word a job, and it is the last.

create table holdfast.job_acceptances (
  job_id          text                 primary key references holdfast.jobs,
  tenant_id       text                 not null,
  decision        text                 not null check (decision in ('accepted', 'rejected')),
  -- What was looked at: names, outside references, digests.
  evidence        jsonb                not null check (jsonb_typeof(evidence) = 'array'),
  note            text                 not null check (char_length(note) <= 4000),
  actor_id        holdfast.actor       not null,
  -- The role by which they may, or `named`: the contract names this very actor.
  authority       holdfast.name        not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  decided_at      timestamptz          not null default clock_timestamp(),
  constraint accepted_on_evidence check (decision = 'rejected' or evidence <> '[]')
);
create trigger append_only before update or delete on holdfast.job_acceptances
  for each row execute function holdfast.refuse_change();
create trigger never_emptied before truncate on holdfast.job_acceptances
  for each statement execute function holdfast.refuse_change();

-- One person's word on a job. Of any number at once, each is judged after the one before, under the job's lock.
create function holdfast.judge_job(
  p_tenant text, p_job text, p_actor text, p_roles text[], p_all_roles text[], p_decision text, p_evidence jsonb,
  p_note text, p_key text, p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  j holdfast.jobs;
  a holdfast.job_acceptances;
  -- Names are compared in one form, those of roles too: nobody gets past by another spelling.
  v_named text;
  v_actor constant text := holdfast.canonical_actor(p_actor);
  v_authority text;
  v_refusal text;
begin
  select * into j from holdfast.jobs where job_id = p_job and tenant_id = p_tenant for no key update;
  if not found then
    return jsonb_build_object('kind', 'job_not_found');
  end if;
  select * into a from holdfast.job_acceptances where job_id = p_job;
  if a.idempotency_key = p_key then
    return jsonb_build_object('kind', case when a.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end);
  end if;
  -- What is the name of a role is that role: an actor cannot take its rights by calling themselves so.
  v_named := holdfast.canonical_actor(j.accepted_by);
  v_authority := case
    when v_named = any (p_all_roles) then case when v_named = any (p_roles) then v_named end
    when v_named = v_actor then 'named' end;
  v_refusal := case
    when v_authority is null then 'role_required'
    when exists (select from holdfast.runs where job_id = p_job and holdfast.canonical_actor(actor_id) = v_actor
                  and (contract #>> '{acceptance,not_requester}')::boolean) then 'self_approval'
    when a.job_id is not null then 'job_decided'
    when not exists (select from holdfast.runs where job_id = p_job and ended_at is not null)
      or exists (select from holdfast.runs where job_id = p_job and ended_at is null) then 'job_not_ended'
  end;
  if v_refusal is not null then
    return jsonb_build_object('kind', 'refused', 'code', v_refusal);
  end if;
  insert into holdfast.job_acceptances (job_id, tenant_id, decision, evidence, note, actor_id, authority, idempotency_key,
                                        request_sha256)
    values (p_job, p_tenant, p_decision, p_evidence, p_note, v_actor, v_authority, p_key, p_request_sha256);
  return jsonb_build_object('kind', 'decided');
end $$;

grant select on holdfast.job_acceptances to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.judge_job to holdfast_app;
