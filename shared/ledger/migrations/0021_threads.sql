-- Threads (SPEC 5): a conversation and its runs, one active at a time. What a message makes of a thread with a run in
-- progress is judged here, under the thread's lock, whatever route it came by.
--
-- Locks: the run, then its thread, then messages. The end of a run holds its row and comes for the thread; so a message
-- that must touch a run takes that first, and looks again where the thread has moved on meanwhile.

create domain holdfast.thread_id as text check (
  length(value) = 36 and starts_with(value, 'thr_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.message_id as text check (
  length(value) = 36 and starts_with(value, 'msg_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.double_texting as text check (value in ('enqueue', 'reject', 'interrupt', 'rollback', 'steer'));

create table holdfast.threads (
  thread_id   holdfast.thread_id      primary key,
  tenant_id   holdfast.name           not null,
  agent       text                    not null references holdfast.agents,
  -- For messages that bring none of their own.
  policy      holdfast.double_texting not null,
  contract    jsonb                   not null,
  created_by  holdfast.actor          not null,
  created_at  timestamptz             not null default clock_timestamp(),
  archived_at timestamptz,
  archived_by holdfast.actor,
  -- How many messages and runs it has had: both are numbered without gaps.
  message_seq integer                 not null default 0,
  run_seq     integer                 not null default 0,
  updated_at  timestamptz             not null default clock_timestamp(),
  constraint archived_by_somebody check ((archived_at is null) = (archived_by is null))
) with (fillfactor = 70);
create index threads_by_tenant on holdfast.threads (tenant_id, thread_id desc);

-- Each message and what became of it. `admission` is the run that it makes, whole and checked when it was accepted, so
-- that its turn needs nobody but the transaction that ends the run before it.
create table holdfast.thread_messages (
  message_id holdfast.message_id     primary key,
  thread_id  text                    not null references holdfast.threads,
  seq        integer                 not null check (seq > 0),
  tenant_id  holdfast.name           not null,
  actor_id   holdfast.actor          not null,
  text       text                    not null,
  policy     holdfast.double_texting not null,
  -- What it was judged to do: shared/domain/thread-table.ts.
  verdict    text                    not null check (verdict in ('starts', 'waits', 'stops', 'rolls_back', 'joins')),
  state      text                    not null default 'queued'
               check (state in ('queued', 'delivered', 'rolled_back', 'superseded', 'undelivered')),
  -- Why nobody will read it.
  code       holdfast.name,
  -- The run that worked when it came. No foreign key: checking it would lock that row out of order.
  met_run_id holdfast.run_id,
  -- The run that it was given to, and the step at which, where that was in progress.
  run_id     text                    references holdfast.runs,
  step       integer                 check (step > 1),
  admission  jsonb                   not null,
  created_at timestamptz             not null default clock_timestamp(),
  decided_at timestamptz,
  unique (thread_id, seq),
  constraint run_iff_delivered check ((state in ('delivered', 'rolled_back')) = (run_id is not null)),
  constraint decided_iff_not_queued check ((state = 'queued') = (decided_at is null)),
  constraint code_iff_unread check ((state in ('superseded', 'undelivered')) = (code is not null)),
  constraint met_iff_not_first check ((verdict = 'starts') = (met_run_id is null)),
  constraint joined_what_it_met check (step is null or (verdict = 'joins' and run_id = met_run_id))
) with (fillfactor = 70);
create index thread_messages_queued on holdfast.thread_messages (thread_id, seq) where state = 'queued';
create index thread_messages_joining on holdfast.thread_messages (met_run_id, seq)
  where state = 'queued' and verdict = 'joins';
create index thread_messages_by_run on holdfast.thread_messages (run_id);

create trigger never_read_again before update or delete on holdfast.thread_messages
  for each row when (old.state in ('rolled_back', 'superseded', 'undelivered')) execute function holdfast.refuse_change();
create trigger no_delete before delete on holdfast.thread_messages
  for each row execute function holdfast.refuse_change();
create trigger no_delete before delete on holdfast.threads for each row execute function holdfast.refuse_change();

alter table holdfast.runs
  alter column thread_id type holdfast.thread_id,
  add foreign key (thread_id) references holdfast.threads,
  -- Its place among the runs of its thread, from 1.
  add column thread_place integer check (thread_place > 0),
  -- The message that took its input and output out of the transcript.
  add column rolled_back_by text references holdfast.thread_messages,
  add constraint place_iff_thread check ((thread_id is null) = (thread_place is null)),
  add constraint rolled_back_on_a_thread check (rolled_back_by is null or thread_id is not null);
create unique index runs_one_active_a_thread on holdfast.runs (thread_id) where ended_at is null and thread_id is not null;
create unique index runs_by_thread on holdfast.runs (thread_id, thread_place) where thread_id is not null;

alter table holdfast.api_requests
  add column message_id text references holdfast.thread_messages,
  add column thread_id  text references holdfast.threads,
  add constraint made_one_thing check (num_nonnulls(run_id, message_id, thread_id) = 1);

-- What this key made before, or null.
create function holdfast.known_request(p_tenant text, p_endpoint text, p_key text, p_request_sha256 text) returns jsonb
language sql stable as $$
  select jsonb_build_object('kind', case when request_sha256 = p_request_sha256 then 'replayed' else 'reused' end,
    'run_id', run_id, 'message_id', message_id, 'thread_id', thread_id)
    from holdfast.api_requests where tenant_id = p_tenant and endpoint = p_endpoint and idempotency_key = p_key
$$;

create function holdfast.create_thread(
  p_tenant text, p_actor text, p_endpoint text, p_key text, p_request_sha256 text, p_thread_id text, p_agent text,
  p_policy text, p_contract jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  v_known jsonb := holdfast.known_request(p_tenant, p_endpoint, p_key, p_request_sha256);
begin
  if v_known is not null then return v_known; end if;
  if not exists (select from holdfast.agents where agent = p_agent) then
    return jsonb_build_object('kind', 'agent_not_found');
  end if;
  insert into holdfast.threads (thread_id, tenant_id, agent, policy, contract, created_by)
    values (p_thread_id, p_tenant, p_agent, p_policy, p_contract, p_actor);
  insert into holdfast.api_requests (tenant_id, endpoint, idempotency_key, request_sha256, thread_id)
    values (p_tenant, p_endpoint, p_key, p_request_sha256, p_thread_id) on conflict do nothing;
  if not found then
    raise exception 'key_taken' using errcode = 'HF009';
  end if;
  return jsonb_build_object('kind', 'created', 'thread_id', p_thread_id);
end $$;

-- Archives a thread, or takes that back. An archived one accepts nothing; what it has accepted goes its way. Again
-- changes nothing.
create function holdfast.archive_thread(p_tenant text, p_thread text, p_actor text, p_roles text[], p_archived boolean)
returns jsonb language plpgsql security definer set search_path = holdfast, pg_temp as $$
declare
  t holdfast.threads;
begin
  select * into t from holdfast.threads where thread_id = p_thread and tenant_id = p_tenant for no key update;
  if not found then
    return jsonb_build_object('kind', 'thread_not_found');
  end if;
  if not ('operator' = any (p_roles) or ('requester' = any (p_roles) and t.created_by = p_actor)) then
    return jsonb_build_object('kind', 'role_required');
  end if;
  if (t.archived_at is not null) <> p_archived then
    update holdfast.threads set archived_at = case when p_archived then clock_timestamp() end,
           archived_by = case when p_archived then p_actor end, updated_at = clock_timestamp()
     where thread_id = p_thread;
  end if;
  return jsonb_build_object('kind', 'done');
end $$;

-- What a message makes of the run in progress: the verdicts of shared/domain/thread-table.ts, whose test compares.
create function holdfast.judge_message(p_policy text, p_state text, p_control text, p_undoes boolean) returns text
language sql immutable as $$
  select case
    when p_state is null or p_state in ('completed', 'compensated', 'failed', 'cancelled') then 'starts'
    when p_policy = 'enqueue' then 'waits'
    when p_policy = 'reject' then 'thread_busy'
    when p_policy = 'interrupt' then 'stops'
    when p_policy = 'rollback' then 'rolls_back'
    -- A run that winds down or undoes what it did asks its model nothing more.
    when p_state in ('compensating', 'cancelling') or p_control = 'cancel_requested' or p_undoes then 'waits'
    else 'joins'
  end
$$;

-- Messages that may wait on one thread.
create function holdfast.messages_waiting_max() returns integer language sql immutable as $$ select 100 $$;

-- Accepts one message, or refuses it and changes nothing. The one door for whatever carries input to a thread.
create function holdfast.post_message(
  p_tenant text, p_thread text, p_actor text, p_roles text[], p_policy text, p_endpoint text, p_key text,
  p_request_sha256 text, p_message_id text, p_run jsonb) returns jsonb
language plpgsql security definer set search_path = holdfast, pg_temp as $$
begin
  for v_try in 1..50 loop
    begin
      return holdfast.take_message(p_tenant, p_thread, p_actor, p_roles, p_policy, p_endpoint, p_key, p_request_sha256,
                                   p_message_id, p_run);
    exception when serialization_failure then
      -- The run that it met has ended, or another began: what was locked is free again, and is looked at anew.
      if v_try = 50 then raise; end if;
    end;
  end loop;
end $$;

create function holdfast.take_message(
  p_tenant text, p_thread text, p_actor text, p_roles text[], p_policy text, p_endpoint text, p_key text,
  p_request_sha256 text, p_message_id text, p_run jsonb) returns jsonb
language plpgsql as $$
declare
  v_known jsonb := holdfast.known_request(p_tenant, p_endpoint, p_key, p_request_sha256);
  t holdfast.threads;
  r holdfast.runs;
  m holdfast.thread_messages;
  v_policy text;
  v_refusal text;
  v_verdict text;
  v_authority text;
begin
  if v_known is not null then return v_known; end if;
  select * into t from holdfast.threads where thread_id = p_thread and tenant_id = p_tenant;
  if not found then
    return jsonb_build_object('kind', 'thread_not_found');
  end if;
  v_policy := coalesce(p_policy, t.policy);
  if v_policy in ('interrupt', 'rollback') then
    select * into r from holdfast.runs where thread_id = p_thread and ended_at is null for update;
  end if;
  select * into t from holdfast.threads where thread_id = p_thread for no key update;
  v_known := holdfast.known_request(p_tenant, p_endpoint, p_key, p_request_sha256);
  if v_known is not null then return v_known; end if;
  if v_policy not in ('interrupt', 'rollback') then
    select * into r from holdfast.runs where thread_id = p_thread and ended_at is null;
  elsif r.run_id is distinct from (select run_id from holdfast.runs where thread_id = p_thread and ended_at is null) then
    raise exception 'the thread % has moved on', p_thread using errcode = 'serialization_failure';
  end if;

  v_verdict := holdfast.judge_message(v_policy, r.state, r.control, r.compensation_cause is not null);
  v_authority := case when 'operator' = any (p_roles) then 'operator'
                      when 'requester' = any (p_roles) and r.actor_id = p_actor then 'requester' end;
  v_refusal := case
    when t.archived_at is not null then 'thread_archived'
    when p_run ->> 'agent' <> t.agent then 'agent_mismatch'
    when p_run ->> 'agent_version' is null then 'agent_not_found'
    when (p_run ->> 'budget_unmet')::boolean then 'budget_unmet'
    when v_verdict = 'thread_busy' then 'thread_busy'
    when v_verdict in ('stops', 'rolls_back') and v_authority is null then 'role_required'
    -- What a run is told is its requester's word: an approver who steered it would approve what they asked for.
    when v_verdict = 'joins' and r.actor_id <> p_actor then 'role_required'
    when v_verdict <> 'starts' and (select count(*) from holdfast.thread_messages
           where thread_id = p_thread and state = 'queued') >= holdfast.messages_waiting_max() then 'thread_full'
  end;
  if v_refusal is not null then
    return jsonb_build_object('kind', v_refusal, 'run_id', r.run_id);
  end if;

  update holdfast.threads set message_seq = message_seq + 1, updated_at = clock_timestamp()
   where thread_id = p_thread returning * into t;
  insert into holdfast.thread_messages (message_id, thread_id, seq, tenant_id, actor_id, text, policy, verdict, met_run_id,
                                        admission)
    values (p_message_id, p_thread, t.message_seq, p_tenant, p_actor, p_run ->> 'input_text', v_policy, v_verdict, r.run_id,
            p_run - 'input_text')
    returning * into m;
  insert into holdfast.api_requests (tenant_id, endpoint, idempotency_key, request_sha256, message_id)
    values (p_tenant, p_endpoint, p_key, p_request_sha256, p_message_id) on conflict do nothing;
  if not found then
    raise exception 'key_taken' using errcode = 'HF009';
  end if;
  if v_verdict = 'starts' then
    perform holdfast.deliver_message(m);
  elsif v_verdict in ('stops', 'rolls_back') then
    perform holdfast.stop_for_message(m, v_authority);
  end if;
  return jsonb_build_object('kind', 'posted', 'message_id', p_message_id);
end $$;

-- Stops the run in progress in favour of a message, by the right of whoever sent it. The newest such message goes next:
-- an earlier one that waits for the same end is superseded. What only waits for its turn keeps it.
create function holdfast.stop_for_message(m holdfast.thread_messages, p_authority text) returns void
language plpgsql as $$
begin
  update holdfast.thread_messages set state = 'superseded', code = 'newer_message', decided_at = clock_timestamp()
   where thread_id = m.thread_id and state = 'queued' and verdict in ('stops', 'rolls_back') and message_id <> m.message_id;
  if m.verdict = 'rolls_back' then
    update holdfast.runs set rolled_back_by = m.message_id where run_id = m.met_run_id and rolled_back_by is null;
  end if;
  -- A run that nobody began ends here at once, and this very message is delivered by its end.
  perform holdfast.submit_command(holdfast.new_command_id(), m.tenant_id, m.met_run_id, 'cancel', jsonb_build_object(
      'message_id', m.message_id,
      'reason_code', case m.verdict when 'rolls_back' then 'message_rolls_back' else 'message_interrupts' end),
    m.actor_id, p_authority, null, 'holdfast:thread', m.message_id,
    encode(sha256(convert_to(m.message_id, 'UTF8')), 'hex'));
end $$;

-- Makes the message's run, the next of its thread. The caller holds the thread's lock, and no run is active.
create function holdfast.deliver_message(m holdfast.thread_messages) returns void language plpgsql as $$
declare
  t holdfast.threads;
begin
  update holdfast.threads set run_seq = run_seq + 1, updated_at = clock_timestamp() where thread_id = m.thread_id
    returning * into t;
  perform holdfast.insert_run(m.tenant_id, m.actor_id, m.admission || jsonb_build_object(
    'thread_id', m.thread_id, 'thread_place', t.run_seq, 'input_text', m.text) || holdfast.memory_of(m.thread_id));
  update holdfast.thread_messages set state = 'delivered', run_id = m.admission ->> 'run_id', decided_at = clock_timestamp()
   where message_id = m.message_id;
end $$;

-- The end of a run gives the thread to the next message, in the transaction that ends it, whoever that is: the workflow,
-- a command, the sweeper. First what stopped the run, then the others in their order. A message that cannot become a run
-- is reported, and keeps neither the end nor those behind it.
create function holdfast.end_turn() returns trigger language plpgsql as $$
declare
  m holdfast.thread_messages;
begin
  perform 1 from holdfast.threads where thread_id = new.thread_id for no key update;
  if new.rolled_back_by is not null then
    update holdfast.thread_messages set state = 'rolled_back', decided_at = clock_timestamp()
     where run_id = new.run_id and state = 'delivered';
  end if;
  for m in select * from holdfast.thread_messages where thread_id = new.thread_id and state = 'queued'
            order by (verdict in ('stops', 'rolls_back')) desc, seq loop
    begin
      perform holdfast.deliver_message(m);
      return null;
    exception when integrity_constraint_violation or data_exception then
      update holdfast.thread_messages set state = 'undelivered', code = 'not_admitted', decided_at = clock_timestamp()
       where message_id = m.message_id;
    end;
  end loop;
  update holdfast.threads set updated_at = clock_timestamp() where thread_id = new.thread_id;
  return null;
end $$;
create trigger end_turn after update on holdfast.runs
  for each row when (new.thread_id is not null and old.ended_at is null and new.ended_at is not null)
  execute function holdfast.end_turn();

-- The next model call takes up what was sent to the run meanwhile: one message of the user, after the results of the
-- step before. What comes to the first call waits for the second.
create function holdfast.take_up_messages(r holdfast.runs, p_turn integer, p_step integer) returns holdfast.runs
language plpgsql as $$
declare
  v record;
begin
  if exists (select from holdfast.messages where run_id = r.run_id and turn = p_turn and step = p_step and position = 0) then
    return r;
  end if;
  with taken as (
    update holdfast.thread_messages set state = 'delivered', run_id = r.run_id, step = p_step,
           decided_at = clock_timestamp()
     where met_run_id = r.run_id and state = 'queued' and verdict = 'joins' returning seq, message_id, text)
  select string_agg(text, E'\n\n' order by seq) as text, jsonb_agg(message_id order by seq) as ids into v from taken;
  if v.ids is null then return r; end if;
  insert into holdfast.messages (run_id, turn, step, position, tenant_id, role, content, as_of)
    values (r.run_id, p_turn, p_step, 0, r.tenant_id, 'user', jsonb_build_object('text', v.text, 'messageIds', v.ids),
            r.event_seq + 1);
  return holdfast.append_event(r, 'thread.joined', jsonb_build_object(
    'thread_id', r.thread_id, 'turn', p_turn, 'step', p_step, 'message_ids', v.ids));
end $$;

-- What the model is told of a call that its run left without a result: what became of it, as the ledger knows it now.
create function holdfast.missing_result(p_run text, p_turn integer, p_step integer, p_call jsonb) returns jsonb
language sql stable as $$
  select jsonb_build_object('callId', p_call ->> 'callId', 'toolName', p_call ->> 'toolName',
    'isError', coalesce(e.state, '') not in ('succeeded', 'committed'), 'text', case
      when e.state in ('succeeded', 'committed') then
        'Done. That was found out when the run had been stopped; it is not to be done again.'
      when e.state = 'not_committed' and e.effect_class = 'read' then
        'Stopped: the run was stopped before this call had an answer. It has changed nothing.'
      when e.state = 'not_committed' then 'Not done: it was found out that this call changed nothing.'
      when e.state = 'rejected' then 'Refused by the target: nothing was done.'
      when p_call ->> 'kind' = 'planned' then 'Not run: the run was stopped before this call was made.'
      else 'Stopped: the run ended before this call had an answer.' end)
    from (select) as one
    left join holdfast.newest_effect(p_run, p_turn, p_step, (p_call ->> 'slot')::int) e on true
$$;

-- Whether what an effect did has been taken back, by a tool or by a person.
create function holdfast.is_undone(p_effect text) returns boolean language sql stable as $$
  select exists (select from holdfast.effects where compensates = p_effect and state in ('succeeded', 'committed'))
      or exists (select from holdfast.undos where effect_id = p_effect and state = 'compensated')
$$;

-- Whether the effect of a call was undone.
create function holdfast.was_undone(p_run text, p_turn integer, p_step integer, p_slot integer) returns boolean
language sql stable as $$
  select exists (
    select from holdfast.effects e where e.run_id = p_run and e.turn = p_turn and e.step = p_step and e.slot = p_slot
       and holdfast.is_undone(e.effect_id))
$$;

-- What the earlier runs of the thread left, in order, without those that were rolled back; each call with its result.
-- Fixed while the run works: they have all ended.
create function holdfast.thread_history(r holdfast.runs) returns jsonb language sql stable as $$
  with earlier as (
    select run_id, thread_place, compensation_cause is not null as undoes from holdfast.runs
     where thread_id = r.thread_id and thread_place < r.thread_place and rolled_back_by is null
  ), said as (
    select e.thread_place, m.step, m.position, m.role::text,
           case when e.undoes and m.role = 'tool' and holdfast.was_undone(m.run_id, m.turn, m.step, m.position - 2)
             then m.content || jsonb_build_object('text', (m.content ->> 'text') || E'\n[This was undone afterwards.]')
             else m.content end as content
      from earlier e join holdfast.messages m using (run_id)
    union all
    select e.thread_place, c.step, (p ->> 'slot')::int + 2, 'tool', holdfast.missing_result(c.run_id, c.turn, c.step, p)
      from earlier e join holdfast.model_calls c using (run_id), jsonb_array_elements(c.plan) as p
     where not holdfast.has_result(c.run_id, c.turn, c.step, (p ->> 'slot')::int)
  )
  select coalesce(jsonb_agg(jsonb_build_object('step', 0, 'position', n, 'role', role, 'content', content) order by n), '[]')
    from (select *, row_number() over (order by thread_place, step, position) - 1 as n from said) as numbered
$$;

-- Bytes that a run's thread adds to its next prompt and that are no messages of the run yet: before its first answer what
-- the thread said before, as much of it as is shown; and what joins the run in that very call.
create function holdfast.thread_adds(r holdfast.runs, p_manifest jsonb, p_answered boolean) returns numeric
language sql stable as $$
  select case when p_answered then 0 else least(octet_length(holdfast.thread_history(r)::text),
           -- A character of the limit is of three bytes at most.
           3 * (p_manifest #>> '{context,charactersMax}')::numeric) end
       + case when r.step = 0 or r.finishing is not null or exists (
           select from holdfast.model_calls where run_id = r.run_id and turn = r.turn and step = r.step and state = 'calling')
         then 0 else coalesce((select sum(octet_length(text) + 2) from holdfast.thread_messages
           where met_run_id = r.run_id and state = 'queued' and verdict = 'joins'), 0) end
$$;

grant select on holdfast.threads, holdfast.thread_messages to holdfast_app;
revoke execute on all functions in schema holdfast from public;
grant execute on function holdfast.create_thread, holdfast.archive_thread, holdfast.post_message to holdfast_app;
