-- The run, its trail and its transcript. Temporal carries control; these tables carry content (SPEC intro).
--
-- The application never writes a table: it calls the functions of the later migrations, which run as the
-- owner. So "append-only" and "only legal moves" are grants and constraints, not habits.

create schema if not exists holdfast;

-- What one column may hold stands in domains: Postgres reads every check of a table again for each statement, and these
-- only where a value is made.
create domain holdfast.run_id as text check (
  length(value) = 36 and starts_with(value, 'run_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.job_id as text check (
  length(value) = 36 and starts_with(value, 'job_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.effect_id as text check (
  length(value) = 36 and starts_with(value, 'eff_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.attempt_id as text check (
  length(value) = 36 and starts_with(value, 'att_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.command_id as text check (
  length(value) = 36 and starts_with(value, 'cmd_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.interrupt_id as text check (
  length(value) = 36 and starts_with(value, 'int_') and translate(substr(value, 5), '0123456789abcdef', '') = '');
create domain holdfast.sha256 as text check (
  length(value) = 64 and translate(value, '0123456789abcdef', '') = '');
-- The digest of the transition before, empty before the first.
create domain holdfast.chain_digest as text check (
  value = '' or length(value) = 64 and translate(value, '0123456789abcdef', '') = '');
-- Printable ASCII: it travels in a header of the target's choice.
create domain holdfast.effect_key as text check (value ~ '^[!-~]{16,200}$');
create domain holdfast.request_key as text check (length(value) between 1 and 255);
create domain holdfast.name as text check (length(value) between 1 and 64);
create domain holdfast.actor as text check (length(value) between 1 and 200);
create domain holdfast.text_200 as text check (length(value) <= 200);
create domain holdfast.text_1000 as text check (length(value) <= 1000);
create domain holdfast.text_2000 as text check (length(value) <= 2000);

create domain holdfast.region as text check (value in ('run', 'control'));
create domain holdfast.run_state as text check (value in (
  'admitted', 'running', 'waiting_for_input', 'awaiting_approval', 'retry_wait', 'compensating', 'cancelling',
  'needs_reconciliation', 'reconciling', 'completed', 'compensated', 'failed', 'cancelled'));
create domain holdfast.control_state as text check (value in (
  'active', 'pause_requested', 'pausing', 'paused', 'resume_requested', 'claiming', 'cancel_requested'));
create domain holdfast.message_role as text check (value in ('user', 'assistant', 'tool'));

-- The edges of the run machine (SPEC 2), a copy of shared/domain/run-machine.ts; a test compares the two.
create table holdfast.legal_transitions (
  region     holdfast.region not null,
  from_state text            not null,
  to_state   text            not null,
  primary key (region, from_state, to_state)
);

insert into holdfast.legal_transitions (region, from_state, to_state) values
  ('run', 'admitted', 'running'), ('run', 'admitted', 'cancelled'), ('run', 'admitted', 'failed'),
  ('run', 'running', 'completed'), ('run', 'running', 'waiting_for_input'), ('run', 'running', 'awaiting_approval'),
  ('run', 'running', 'retry_wait'), ('run', 'running', 'compensating'), ('run', 'running', 'cancelling'),
  ('run', 'running', 'needs_reconciliation'), ('run', 'running', 'failed'),
  ('run', 'waiting_for_input', 'running'), ('run', 'waiting_for_input', 'completed'),
  ('run', 'waiting_for_input', 'cancelled'), ('run', 'waiting_for_input', 'compensating'),
  ('run', 'awaiting_approval', 'running'), ('run', 'awaiting_approval', 'cancelled'),
  ('run', 'awaiting_approval', 'compensating'),
  ('run', 'retry_wait', 'running'), ('run', 'retry_wait', 'failed'), ('run', 'retry_wait', 'cancelling'),
  ('run', 'retry_wait', 'compensating'),
  ('run', 'compensating', 'compensated'), ('run', 'compensating', 'failed'),
  ('run', 'compensating', 'needs_reconciliation'),
  ('run', 'cancelling', 'cancelled'), ('run', 'cancelling', 'needs_reconciliation'),
  ('run', 'needs_reconciliation', 'reconciling'),
  ('run', 'reconciling', 'completed'), ('run', 'reconciling', 'compensated'), ('run', 'reconciling', 'failed'),
  ('run', 'reconciling', 'cancelled'), ('run', 'reconciling', 'running'), ('run', 'reconciling', 'compensating'),
  ('run', 'reconciling', 'needs_reconciliation'),
  ('control', 'active', 'pause_requested'), ('control', 'active', 'cancel_requested'),
  ('control', 'pause_requested', 'pausing'), ('control', 'pause_requested', 'cancel_requested'),
  ('control', 'pausing', 'paused'), ('control', 'pausing', 'cancel_requested'),
  ('control', 'paused', 'resume_requested'), ('control', 'paused', 'cancel_requested'),
  ('control', 'resume_requested', 'claiming'), ('control', 'resume_requested', 'cancel_requested'),
  ('control', 'claiming', 'active'), ('control', 'claiming', 'cancel_requested'),
  ('control', 'cancel_requested', 'active');

-- Immutable content of an agent version, named by its digest (SPEC 7). Written by workers as they start.
create table holdfast.agent_versions (
  agent         holdfast.name   not null,
  agent_version holdfast.sha256 not null,
  manifest      jsonb           not null,
  created_at    timestamptz     not null default now(),
  primary key (agent, agent_version)
);

-- The pointer a new run resolves once.
create table holdfast.agents (
  agent         text        primary key,
  agent_version text        not null,
  updated_at    timestamptz not null default now(),
  foreign key (agent, agent_version) references holdfast.agent_versions
);

create table holdfast.jobs (
  job_id          holdfast.job_id primary key,
  tenant_id       holdfast.name   not null,
  objective       text            not null,
  acceptance_rule text            not null,
  accepted_by     text            not null,
  owner           text            not null,
  created_by      text            not null,
  created_at      timestamptz     not null default now()
);

create table holdfast.runs (
  run_id             holdfast.run_id        primary key,
  tenant_id          holdfast.name          not null,
  job_id             text                   not null references holdfast.jobs,
  thread_id          text,
  parent_run_id      text                   references holdfast.runs,
  -- The initiating identity: who asked for the run.
  actor_id           holdfast.actor         not null,
  agent              text                   not null,
  -- The versions in force for the whole life of the run (SPEC 7), next to `agent` because an operator asks for it first.
  agent_version      text                   not null,
  pins               jsonb                  not null,
  contract           jsonb                  not null,
  contract_sha256    holdfast.sha256        not null,
  input              jsonb                  not null,
  task_queue         text                   not null,

  state              holdfast.run_state     not null default 'admitted',
  control            holdfast.control_state not null default 'active',
  -- Sequence of the last transition of either region; what a command's "expected version" compares with.
  state_version      integer                not null default 0,
  last_digest        holdfast.chain_digest  not null default '',
  reason             text,
  -- Why what the run did is being undone, from the first move into `compensating` on (SPEC 3.7).
  compensation_cause text,
  -- Fences (SPEC 3.4): the Temporal execution that owns the run, and how often ownership changed hands.
  epoch              integer                not null default 0,
  owner_execution    text,
  -- How many trail entries of the workflow are durable; tells a repeated commit from a new one.
  trail_position     bigint                 not null default 0,
  event_seq          bigint                 not null default 0,

  turn               integer                not null default 1,
  step               integer                not null default 0,
  model_calls        integer                not null default 0,
  model_attempts     integer                not null default 0,
  tool_calls         integer                not null default 0,
  input_tokens       bigint                 not null default 0,
  output_tokens      bigint                 not null default 0,
  last_stop_reason   text,

  admitted_at        timestamptz            not null default now(),
  -- Temporal said yes to the start; null means the starter still owes it.
  start_confirmed_at timestamptz,
  started_at         timestamptz,
  deadline_at        timestamptz            not null,
  ended_at           timestamptz,
  updated_at         timestamptz            not null default now(),
  -- Last time the sweeper compared this run with Temporal.
  swept_at           timestamptz            not null default now(),

  constraint ended_at_iff_terminal
    check ((state in ('completed', 'compensated', 'failed', 'cancelled')) = (ended_at is not null)),
  constraint owner_iff_epoch check ((epoch = 0) = (owner_execution is null))
) with (fillfactor = 60);
create index runs_by_tenant on holdfast.runs (tenant_id, run_id desc);
create index runs_by_job on holdfast.runs (job_id);
create index runs_open on holdfast.runs (swept_at) where ended_at is null;
create index runs_unstarted on holdfast.runs (admitted_at) where state = 'admitted';

-- Which executions ever owned a run. One that stands here and is not the owner lost it for good.
create table holdfast.run_executions (
  run_id     text        not null references holdfast.runs,
  execution  text        not null,
  epoch      integer     not null,
  reason     text        not null check (reason in ('start', 'continued', 'reset', 'swept')),
  granted_at timestamptz not null default now(),
  primary key (run_id, epoch)
);
-- An execution owns a run once; the sweeper, which is none, as often as the run is orphaned.
create unique index run_executions_once on holdfast.run_executions (run_id, execution) where reason <> 'swept';

-- One start key, one run, for ever (SPEC 3.8). Independent per tenant and endpoint.
create table holdfast.api_requests (
  tenant_id       text                 not null,
  endpoint        text                 not null,
  idempotency_key holdfast.request_key not null,
  request_sha256  holdfast.sha256      not null,
  -- What it made: a run, or what 0021_threads.sql adds.
  run_id          text                 references holdfast.runs,
  created_at      timestamptz          not null default now(),
  primary key (tenant_id, endpoint, idempotency_key)
);

-- Every move in either region (SPEC 2): gapless, chained, immutable.
create table holdfast.transitions (
  run_id      text            not null references holdfast.runs,
  seq         integer         not null check (seq > 0),
  tenant_id   text            not null,
  region      holdfast.region not null,
  -- Null for the admission alone.
  from_state  text,
  to_state    text            not null,
  reason      holdfast.name   not null,
  actor_id    text            not null,
  epoch       integer         not null,
  created_at  timestamptz     not null,
  prev_digest text            not null,
  digest      holdfast.sha256 not null,
  primary key (run_id, seq),
  foreign key (region, from_state, to_state) references holdfast.legal_transitions,
  constraint first_is_the_admission check (
    (seq = 1) = (from_state is null) and (seq = 1) = (to_state = 'admitted') and (seq > 1 or region = 'run')),
  constraint chain_starts_once check ((seq = 1) = (prev_digest = ''))
);

-- The durable trace of a run (SPEC 6); the feed is a view of it.
create table holdfast.run_events (
  run_id     text          not null references holdfast.runs,
  seq        bigint        not null check (seq > 0),
  tenant_id  text          not null,
  type       holdfast.name not null,
  data       jsonb         not null,
  created_at timestamptz   not null default clock_timestamp(),
  primary key (run_id, seq)
);

-- The transcript: what the next prompt is made of. The place (turn, step, position) is deterministic, so no replay
-- can write a message twice: position 0 is the user's or the assistant's message, n + 1 the result of call slot n.
create table holdfast.messages (
  run_id     text                  not null references holdfast.runs,
  turn       integer               not null,
  step       integer               not null,
  position   integer               not null,
  tenant_id  text                  not null,
  role       holdfast.message_role not null,
  content    jsonb                 not null,
  -- The event that told of it, or the next one after it: a checkpoint at or after that event holds the message.
  as_of      bigint                not null,
  created_at timestamptz           not null default now(),
  primary key (run_id, turn, step, position)
);

-- Every stop of a retry series (SPEC 3.5): what stopped, why, what is done about it and when.
create table holdfast.retries (
  run_id              text        not null references holdfast.runs,
  trail_seq           bigint      not null,
  tenant_id           text        not null,
  turn                integer     not null,
  step                integer     not null,
  -- Null when the operation is a model call.
  slot                integer,
  effect_id           text,
  reason              text        not null,
  action              text        not null check (action in ('retry', 'ask_again', 'give_up', 'ask_person')),
  owner               text        not null,
  attempt             integer     not null,
  attempts_max        integer     not null,
  deadline_at         timestamptz not null,
  eligible_at         timestamptz,
  -- The target's own word, capped by nothing, so that a person can see it.
  retry_after_seconds bigint,
  created_at          timestamptz not null default now(),
  primary key (run_id, trail_seq),
  constraint eligible_iff_again check ((action in ('retry', 'ask_again')) = (eligible_at is not null))
);
