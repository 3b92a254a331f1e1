-- Model calls and effects: intents, attempts, receipts, and what settles an unknown outcome (SPEC 3).

create domain holdfast.model_call_state as text check (value in ('calling', 'answered', 'abandoned'));
create domain holdfast.model_outcome as text check (value in ('answered', 'failed', 'lost'));
create domain holdfast.effect_class as text check (value in ('read', 'keyed', 'queryable', 'opaque'));
create domain holdfast.effect_state as text check (value in (
  'intended', 'dispatching', 'succeeded', 'rejected', 'unknown', 'committed', 'not_committed',
  'denied', 'withdrawn', 'superseded'));
create domain holdfast.effect_outcome as text check (value in (
  'succeeded', 'rejected', 'not_sent', 'throttled', 'in_progress', 'unknown', 'lost'));
create domain holdfast.receipt_status as text check (value in (
  'succeeded', 'rejected', 'committed', 'not_committed'));
create domain holdfast.receipt_source as text check (value in ('response', 'probe', 'late_receipt', 'person'));

-- One logical model call: run, turn, step. Its committed response is returned on any replay.
create table holdfast.model_calls (
  run_id             text                      not null references holdfast.runs,
  turn               integer                   not null,
  step               integer                   not null,
  tenant_id          text                      not null,
  state              holdfast.model_call_state not null default 'calling',
  -- Fencing token: the number of the newest attempt. Only that attempt may commit a response.
  attempts           integer                   not null default 0,
  -- Attempts that no worker reported the end of; infrastructure counts apart from the series.
  lost_attempts      integer                   not null default 0,
  attempts_max       integer                   not null,
  series_deadline_at timestamptz               not null,
  -- The response as JSON text: shared/domain/models.ts `ModelResponse`. Not jsonb, since a tool call is kept exactly as
  -- the model wrote it, and that may be what jsonb refuses.
  response           text,
  stop_reason        text,
  -- The tool calls read from the response, slot by slot, with the tool versions in force then.
  plan               jsonb,
  -- What of the transcript was left out of the prompt for its length; null where it was whole.
  left_out           jsonb,
  created_at         timestamptz               not null default now(),
  answered_at        timestamptz,
  primary key (run_id, turn, step),
  constraint answered_iff_response check (
    (state = 'answered') = (response is not null) and (state = 'answered') = (plan is not null)),
  constraint answered_iff_time check ((state = 'answered') = (answered_at is not null))
) with (fillfactor = 70);

create table holdfast.model_attempts (
  run_id         text                   not null,
  turn           integer                not null,
  step           integer                not null,
  attempt        integer                not null,
  attempt_id     holdfast.attempt_id    not null unique,
  tenant_id      text                   not null,
  epoch          integer                not null,
  execution      text                   not null,
  worker         text                   not null,
  started_at     timestamptz            not null default clock_timestamp(),
  ended_at       timestamptz,
  outcome        holdfast.model_outcome,
  reason         text,
  detail         holdfast.text_2000,
  request_sha256 text,
  request_id     text,
  input_tokens   bigint                 not null default 0,
  output_tokens  bigint                 not null default 0,
  primary key (run_id, turn, step, attempt),
  foreign key (run_id, turn, step) references holdfast.model_calls,
  constraint ended_iff_outcome check ((outcome is null) = (ended_at is null))
);

-- One intended outside consequence, under one key for ever (SPEC 3.1).
create table holdfast.effects (
  effect_id                  holdfast.effect_id    primary key,
  state                      holdfast.effect_state not null default 'intended',
  tenant_id                  text                  not null,
  run_id                     text                  not null references holdfast.runs,
  turn                       integer               not null,
  step                       integer               not null,
  slot                       integer               not null,
  -- 0 for the first; a redo of what was settled as not committed counts up, under a key of its own.
  redo                       integer               not null default 0,
  supersedes                 text                  references holdfast.effects,
  -- The effect that this one undoes (SPEC 3.7). Its place is that of the call it undoes, a thousand slots on.
  compensates                text                  references holdfast.effects,
  call_id                    text                  not null,
  tool                       text                  not null,
  tool_version               text                  not null,
  effect_class               holdfast.effect_class not null,
  namespace                  text                  not null,
  idempotency_key            holdfast.effect_key   not null,
  -- RFC 8785 text, exactly what is dispatched; a reuse of the key with other arguments is told by the digest.
  arguments                  text                  not null,
  arguments_sha256           holdfast.sha256       not null,
  -- Key window, query rules, time-out: the tool's declaration when the call was planned.
  policy                     jsonb                 not null,
  requested_by               text                  not null,

  fencing_token              integer               not null default 0,
  attempts                   integer               not null default 0,
  lost_attempts              integer               not null default 0,
  resends                    integer               not null default 0,
  attempts_max               integer               not null,
  series_deadline_at         timestamptz           not null,
  created_at                 timestamptz           not null default now(),
  first_dispatched_at        timestamptz,
  last_dispatched_at         timestamptz,
  settled_at                 timestamptz,
  -- Who must settle it, by when: present exactly while nobody knows (SPEC 3.6).
  reconciliation_owner       text,
  reconciliation_deadline_at timestamptz,
  unknown_at                 timestamptz,

  unique (namespace, idempotency_key),
  unique (run_id, turn, step, slot, redo),
  constraint settled_at_iff_settled check (
    (state in ('succeeded', 'rejected', 'committed', 'not_committed', 'denied', 'withdrawn', 'superseded'))
      = (settled_at is not null)),
  constraint unknown_has_an_owner check (
    (state = 'unknown') = (unknown_at is not null)
    and (state = 'unknown') = (reconciliation_owner is not null)
    and (state = 'unknown') = (reconciliation_deadline_at is not null)),
  constraint dispatched_iff_attempted check ((attempts = 0) = (first_dispatched_at is null)),
  constraint outcome_needs_dispatch check (
    state in ('intended', 'denied', 'withdrawn', 'superseded') or attempts > 0),
  constraint redo_iff_supersedes check ((redo = 0) = (supersedes is null)),
  constraint compensation_has_its_slot check ((slot >= 1000) = (compensates is not null))
) with (fillfactor = 60);
create index effects_open on holdfast.effects (run_id) where state in ('intended', 'dispatching', 'unknown');
-- One compensation at a time for one effect.
create unique index effects_compensation on holdfast.effects (compensates)
  where compensates is not null and state not in ('rejected', 'not_committed', 'denied', 'withdrawn', 'superseded');
create index effects_by_compensates on holdfast.effects (compensates, redo desc) where compensates is not null;
create index effects_unknown on holdfast.effects (tenant_id, reconciliation_deadline_at) where state = 'unknown';

-- One try at dispatching an effect, opened by the claim before anything leaves.
create table holdfast.attempts (
  attempt_id     holdfast.attempt_id     primary key,
  effect_id      text                    not null references holdfast.effects,
  attempt        integer                 not null,
  fencing_token  integer                 not null,
  tenant_id      text                    not null,
  run_id         text                    not null,
  epoch          integer                 not null,
  execution      text                    not null,
  worker         text                    not null,
  lease_until    timestamptz             not null,
  started_at     timestamptz             not null default clock_timestamp(),
  ended_at       timestamptz,
  outcome        holdfast.effect_outcome,
  reason         holdfast.text_200,
  retry_after_ms bigint,
  -- What an unclear answer looked like, for the person who settles it.
  evidence       bytea,
  evidence_type  text,
  unique (effect_id, attempt),
  unique (effect_id, fencing_token),
  constraint ended_iff_outcome check ((outcome is null) = (ended_at is null))
) with (fillfactor = 70);

-- The proof that settles an effect: one at most, never changed.
create table holdfast.receipts (
  effect_id     text                    primary key references holdfast.effects,
  attempt_id    text                    references holdfast.attempts,
  tenant_id     text                    not null,
  run_id        text                    not null,
  epoch         integer                 not null,
  status        holdfast.receipt_status not null,
  source        holdfast.receipt_source not null,
  reference     holdfast.text_1000,
  target_status holdfast.text_200,
  -- Raw bytes: a target may send NUL or ill-formed text, and the receipt must still be written.
  body          bytea                   not null,
  body_sha256   holdfast.sha256         not null,
  content_type  holdfast.text_200,
  truncated     boolean                 not null,
  recorded_at   timestamptz             not null default clock_timestamp(),
  constraint response_has_its_attempt check ((source in ('response', 'late_receipt')) = (attempt_id is not null)),
  -- What an attempt reports in time settles by itself; everything else is a reconciliation.
  constraint status_iff_source check ((status in ('succeeded', 'rejected')) = (source = 'response'))
);

-- Evidence, never authority (SPEC 3.4): an answer that came after its attempt had lost the right to settle.
create table holdfast.late_receipts (
  attempt_id    text               primary key references holdfast.attempts,
  effect_id     text               not null references holdfast.effects,
  tenant_id     text               not null,
  run_id        text               not null,
  outcome       text               not null,
  reference     holdfast.text_1000,
  target_status holdfast.text_200,
  body          bytea              not null,
  body_sha256   text               not null,
  content_type  holdfast.text_200,
  truncated     boolean            not null,
  result_text   text               not null,
  recorded_at   timestamptz        not null default clock_timestamp()
);
create index late_receipts_by_effect on holdfast.late_receipts (effect_id);

-- What a target said of a key, answer by answer.
create table holdfast.status_queries (
  effect_id text               not null references holdfast.effects,
  query     integer            not null,
  tenant_id text               not null,
  run_id    text               not null,
  answer    text               not null check (answer in ('found', 'absent', 'inconclusive')),
  -- Before the settling time an `absent` says nothing.
  counts    boolean            not null,
  reason    holdfast.text_200,
  reference holdfast.text_1000,
  body      bytea,
  asked_at  timestamptz        not null default clock_timestamp(),
  primary key (effect_id, query)
);

-- The settlement of an unknown outcome, with actor and evidence.
create table holdfast.reconciliations (
  effect_id  text        primary key references holdfast.effects,
  tenant_id  text        not null,
  run_id     text        not null,
  decided    text        not null check (decided in ('committed', 'not_committed', 'compensated')),
  -- `class`: a read commits nothing, whatever became of the request.
  source     text        not null check (source in ('late_receipt', 'probe', 'person', 'class')),
  evidence   jsonb       not null,
  actor_id   text        not null,
  note       text        not null check (char_length(note) between 1 and 4000),
  decided_at timestamptz not null default clock_timestamp()
);

create function holdfast.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'append_only: % rows of holdfast.% are never changed or deleted', tg_op, tg_table_name
    using errcode = 'restrict_violation';
end $$;

do $$
declare
  v_table text;
begin
  foreach v_table in array array['transitions', 'run_events', 'messages', 'retries', 'receipts', 'late_receipts',
    'status_queries', 'reconciliations', 'run_executions', 'api_requests', 'agent_versions'] loop
    execute format('create trigger append_only before update or delete on holdfast.%I
      for each row execute function holdfast.refuse_change()', v_table);
    -- Row triggers do not see a truncate.
    execute format('create trigger never_emptied before truncate on holdfast.%I
      for each statement execute function holdfast.refuse_change()', v_table);
  end loop;
end $$;

-- A settled effect stays as it was settled: what became of the outside world is never rewritten (SPEC 3.3).
create function holdfast.guard_effect() returns trigger language plpgsql as $$
begin
  raise exception 'effect_settled: effect % is % and stays so', old.effect_id, old.state
    using errcode = 'restrict_violation';
end $$;
create trigger guard_effect before update or delete on holdfast.effects
  for each row when (old.settled_at is not null) execute function holdfast.guard_effect();

-- Whether a person is waited for who undoes something (0014_compensation.sql).
create function holdfast.waits_for_undo(p_run text) returns boolean language plpgsql stable as $$
begin
  return exists (select from holdfast.undos where run_id = p_run and state = 'waiting');
end $$;

-- Terminal states absorb, and no run ends over an effect nobody has settled: the database refuses it too (SPEC 2).
create function holdfast.guard_run() returns trigger language plpgsql as $$
begin
  if old.ended_at is not null and (new.state, new.ended_at, new.state_version) is distinct from
                                  (old.state, old.ended_at, old.state_version) then
    raise exception 'run_ended: run % ended as % and stays so', old.run_id, old.state
      using errcode = 'restrict_violation';
  end if;
  if new.ended_at is not null and old.ended_at is null and (exists (
       select from holdfast.effects where run_id = new.run_id and state in ('intended', 'dispatching', 'unknown'))
       or holdfast.waits_for_undo(new.run_id)) then
    raise exception 'unresolved_effects: run % cannot end as % while an effect is unresolved', old.run_id, new.state
      using errcode = 'restrict_violation';
  end if;
  if new.state = 'completed' and old.ended_at is null and exists (
       select from holdfast.interrupts where run_id = new.run_id and state in ('open', 'approved')) then
    raise exception 'open_interrupts: run % cannot complete while somebody is waited for', old.run_id
      using errcode = 'restrict_violation';
  end if;
  return new;
end $$;
create trigger guard_run before update on holdfast.runs
  for each row when (old.ended_at is not null or new.ended_at is not null)
  execute function holdfast.guard_run();
