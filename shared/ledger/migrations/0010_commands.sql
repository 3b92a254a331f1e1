-- Commands (SPEC 4): one control request each, with its own fate. The row is the authority: it is stored, judged and
-- put in force in one transaction, under the run's row lock; the workflow is only told to look. So a command bites in
-- the claim itself before any message has arrived, and a message sent behind the ledger's back changes nothing.

create table holdfast.commands (
  command_id             holdfast.command_id  primary key,
  tenant_id              text                 not null,
  run_id                 text                 not null references holdfast.runs,
  kind                   text                 not null check (kind in ('pause', 'resume', 'cancel')),
  payload                jsonb                not null,
  actor_id               holdfast.actor       not null,
  -- The role that let the actor do it.
  authority              holdfast.name        not null,
  expected_state_version integer,
  endpoint               text                 not null,
  idempotency_key        holdfast.request_key not null,
  request_sha256         holdfast.sha256      not null,
  fate                   text                 not null check (fate in ('accepted', 'applied', 'rejected', 'expired')),
  -- Why it was rejected: a code of shared/domain/errors.ts.
  code                   text,
  -- What the run was when the command was judged.
  state                  text                 not null,
  control                text                 not null,
  created_at             timestamptz          not null default clock_timestamp(),
  decided_at             timestamptz,
  unique (tenant_id, endpoint, idempotency_key),
  constraint decided_iff_not_accepted check ((fate = 'accepted') = (decided_at is null)),
  constraint code_iff_rejected check ((fate in ('rejected', 'expired')) = (code is not null))
);
create index commands_by_run on holdfast.commands (run_id, created_at);
create index commands_open on holdfast.commands (created_at) where fate = 'accepted';

-- What a command makes of a run: the column `fate` of shared/domain/control-table.ts, whose test compares the two.
create function holdfast.judge_command(r holdfast.runs, p_kind text, p_compensate boolean default false) returns text
language sql immutable as $$
  select case
    when r.ended_at is not null then case
      when p_kind = 'cancel' and (r.state = 'compensated' or r.state = 'cancelled' and not p_compensate) then 'same'
      else 'run_ended' end
    when p_kind = 'cancel' then case
      -- What is being undone is stopped already, wherever it stands.
      when r.state = 'compensating' or r.compensation_cause is not null then 'same'
      when r.control = 'cancel_requested' or r.state = 'cancelling' then
        case when p_compensate then 'cancel_in_force' else 'same' end
      else 'accepted' end
    when r.control = 'cancel_requested' or r.state = 'cancelling' then 'cancel_in_force'
    when p_kind in ('change_budget', 'change_deadline') then 'applied'
    when p_kind = 'pause' then case
      when r.control = 'active' then 'accepted'
      when r.control in ('pause_requested', 'pausing', 'paused') then 'same' else 'resume_in_progress' end
    else case
      when r.control = 'paused' then 'accepted'
      when r.control in ('resume_requested', 'claiming') then 'resume_in_progress'
      when r.control in ('pause_requested', 'pausing') then 'pause_in_progress' else 'not_paused' end
  end
$$;

-- Stores a command, judges it and puts it in force. The same key answers with the same fate for ever.
create function holdfast.submit_command(
  p_command_id text, p_tenant text, p_run text, p_kind text, p_payload jsonb, p_actor text, p_authority text,
  p_expected integer, p_endpoint text, p_key text, p_request_sha256 text) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs;
  c holdfast.commands;
  v_verdict text;
  -- A cancel that a message of the run's thread brought says so (0021_threads.sql).
  v_reason text := coalesce(p_payload ->> 'reason_code', p_kind || '_requested');
begin
  select * into r from holdfast.runs where run_id = p_run and tenant_id = p_tenant for update;
  if not found then
    return jsonb_build_object('kind', 'run_not_found');
  end if;
  -- Under the run's lock two requests with one key come one after the other; a key belongs to one run by its endpoint.
  select * into c from holdfast.commands
   where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key;
  if found then
    return jsonb_build_object('kind', case when c.request_sha256 = p_request_sha256 then 'replayed' else 'reused' end,
                              'command_id', c.command_id);
  end if;
  v_verdict := case when p_expected is not null and p_expected <> r.state_version then 'state_version_conflict'
                    else holdfast.judge_command(r, p_kind, coalesce((p_payload ->> 'compensate')::boolean, false)) end;
  if v_verdict = 'applied' and holdfast.missing_line(r, p_payload -> 'lines') is not null then
    v_verdict := 'budget_not_set';
  end if;
  if v_verdict = 'cancel_in_force' and p_kind = 'cancel' and exists (
       select from holdfast.commands where run_id = p_run and kind = 'cancel' and fate = 'accepted'
          and (payload ->> 'compensate')::boolean) then
    v_verdict := 'same';
  end if;
  insert into holdfast.commands (command_id, tenant_id, run_id, kind, payload, actor_id, authority,
      expected_state_version, endpoint, idempotency_key, request_sha256, fate, code, state, control, decided_at)
    values (p_command_id, p_tenant, p_run, p_kind, p_payload, p_actor, p_authority, p_expected, p_endpoint, p_key,
      p_request_sha256,
      case when v_verdict = 'accepted' then 'accepted' when v_verdict in ('same', 'applied') then 'applied'
           else 'rejected' end,
      case when v_verdict in ('accepted', 'same', 'applied') then null else v_verdict end,
      r.state, r.control, case when v_verdict = 'accepted' then null else clock_timestamp() end);
  -- The feed of a run ends with the run; the row is there all the same.
  if r.ended_at is not null then
    return jsonb_build_object('kind', 'stored', 'command_id', p_command_id);
  end if;
  r := holdfast.append_event(r, 'command.' || case when v_verdict = 'accepted' then 'accepted'
         when v_verdict in ('same', 'applied') then 'applied' else 'rejected' end, jsonb_strip_nulls(jsonb_build_object('command_id', p_command_id, 'kind', p_kind,
         'actor_id', p_actor, 'authority', p_authority,
         'code', case when v_verdict in ('accepted', 'same', 'applied') then null else v_verdict end)));
  if v_verdict = 'applied' then r := holdfast.change_run(r, p_kind, p_payload); end if;
  if v_verdict = 'accepted' then
    if p_kind = 'cancel' and r.owner_execution is null then
      -- Nothing ran yet, and no workflow needs to be asked.
      r := holdfast.move_run(r, 'run', 'cancelled', v_reason, p_actor);
    else
      r := holdfast.move_run(r, 'control', case p_kind when 'pause' then 'pause_requested'
             when 'resume' then 'resume_requested' else 'cancel_requested' end, v_reason, p_actor);
      r := holdfast.command_children(r, p_kind, p_payload);
      perform pg_notify('holdfast_nudge', p_run);
    end if;
  end if;
  perform holdfast.save_run(r);
  perform pg_notify('holdfast_events', p_run);
  return jsonb_build_object('kind', 'stored', 'command_id', p_command_id);
end $$;

-- A move of the run decides the commands that asked for it. Called by move_run.
create function holdfast.decide_commands(r holdfast.runs, p_region text, p_from text, p_to text) returns holdfast.runs
language plpgsql as $$
declare
  c holdfast.commands;
  v_fate text;
begin
  if not exists (select from holdfast.commands where run_id = r.run_id and fate = 'accepted') then
    return r;
  end if;
  for c in select * from holdfast.commands where run_id = r.run_id and fate = 'accepted' order by created_at loop
    v_fate := case
      when p_region = 'control' and p_to = 'paused' and c.kind = 'pause' then 'applied'
      when p_region = 'control' and p_from = 'claiming' and p_to = 'active' and c.kind = 'resume' then 'applied'
      when p_region = 'run' and p_to in ('cancelling', 'cancelled', 'compensating') and c.kind = 'cancel' then 'applied'
      -- A pause or resume that a cancel or the end overtook.
      when p_region = 'control' and p_to = 'cancel_requested' and c.kind <> 'cancel' then 'expired'
      when r.ended_at is not null then 'expired'
    end;
    continue when v_fate is null;
    update holdfast.commands set fate = v_fate, decided_at = clock_timestamp(),
           code = case v_fate when 'expired' then case when r.ended_at is null then 'cancel_in_force' else 'run_ended' end end
     where command_id = c.command_id;
    r := holdfast.append_event(r, 'command.' || v_fate, jsonb_build_object('command_id', c.command_id, 'kind', c.kind));
  end loop;
  return r;
end $$;

-- Resume re-claims the run under a new epoch (SPEC 3.4): what an attempt of before the pause still says is late.
create function holdfast.claim_resume(p_run text, p_execution text, p_from bigint, p_trail jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  r holdfast.runs := holdfast.open_run(p_run, p_execution, p_from, p_trail);
begin
  if r.control = 'resume_requested' then
    r := holdfast.move_run(r, 'control', 'claiming', 'resume_requested', 'holdfast:workflow');
    r.epoch := r.epoch + 1;
    r := holdfast.append_event(r, 'run.resumed', jsonb_build_object('epoch', r.epoch));
    perform holdfast.unblock_resume(p_run);
    r := holdfast.move_run(r, 'control', 'active', 'resume_claimed', 'holdfast:workflow');
  end if;
  perform holdfast.save_run(r);
  return jsonb_build_object('state', r.state, 'control', r.control, 'epoch', r.epoch);
end $$;

create trigger no_delete before delete on holdfast.commands for each row execute function holdfast.refuse_change();

grant select on holdfast.commands to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.submit_command, holdfast.claim_resume to holdfast_app;
