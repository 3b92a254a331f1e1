-- The run, its trail and its transcript. Temporal carries control; these tables carry content (SPEC intro).
--
-- The application never writes a table: it calls the functions of the later migrations, which run as the
-- owner. So "append-only" and "only legal moves" are grants and constraints, not habits.

create schema if not exists holdfast;

-- The edges of the run machine (SPEC 2), a copy of shared/domain/run-machine.ts; a test compares the two.
create table holdfast.legal_transitions (
  region     text not null check (region in ('run', 'control')),
  from_state text not null,
  to_state   text not null,
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
  agent         text        not null check (char_length(agent) between 1 and 64),
  agent_version text        not null check (agent_version ~ '^[0-9a-f]{64}$'),
  manifest      jsonb       not null,
  created_at    timestamptz not null default now(),
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
  job_id          text        primary key check (job_id ~ '^job_[0-9a-f]{32}$'),
  tenant_id       text        not null check (char_length(tenant_id) between 1 and 64),
  objective       text        not null,
  acceptance_rule text        not null,
  accepted_by     text        not null,
  owner           text        not null,
  created_by      text        not null,
  created_at      timestamptz not null default now()
);

create table holdfast.runs (
  run_id           text        primary key check (run_id ~ '^run_[0-9a-f]{32}$'),
  tenant_id        text        not null check (char_length(tenant_id) between 1 and 64),
  job_id           text        not null references holdfast.jobs,
  thread_id        text,
  parent_run_id    text        references holdfast.runs,
  -- The initiating identity: who asked for the run.
  actor_id         text        not null check (char_length(actor_id) between 1 and 200),
  agent            text        not null,
  -- The versions in force for the whole life of the run (SPEC 7), next to `agent` because an operator asks for it first.
  agent_version    text        not null,
  pins             jsonb       not null,
  contract         jsonb       not null,
  contract_sha256  text        not null check (contract_sha256 ~ '^[0-9a-f]{64}$'),
  input            jsonb       not null,
  task_queue       text        not null,

  state            text        not null default 'admitted' check (state in (
    'admitted', 'running', 'waiting_for_input', 'awaiting_approval', 'retry_wait', 'compensating', 'cancelling',
    'needs_reconciliation', 'reconciling', 'completed', 'compensated', 'failed', 'cancelled')),
  control          text        not null default 'active' check (control in (
    'active', 'pause_requested', 'pausing', 'paused', 'resume_requested', 'claiming', 'cancel_requested')),
  -- Sequence of the last transition of either region; what a command's "expected version" compares with.
  state_version    integer     not null default 0,
  last_digest      text        not null default '' check (last_digest ~ '^([0-9a-f]{64})?$'),
  reason           text,
  -- Fences (SPEC 3.4): the Temporal execution that owns the run, and how often ownership changed hands.
  epoch            integer     not null default 0,
  owner_execution  text,
  -- How many trail entries of the workflow are durable; tells a repeated commit from a new one.
  trail_position   bigint      not null default 0,
  event_seq        bigint      not null default 0,

  turn             integer     not null default 1,
  step             integer     not null default 0,
  model_calls      integer     not null default 0,
  model_attempts   integer     not null default 0,
  tool_calls       integer     not null default 0,
  input_tokens     bigint      not null default 0,
  output_tokens    bigint      not null default 0,
  last_stop_reason text,

  admitted_at      timestamptz not null default now(),
  -- Temporal said yes to the start; null means the starter still owes it.
  start_confirmed_at timestamptz,
  started_at       timestamptz,
  deadline_at      timestamptz not null,
  ended_at         timestamptz,
  updated_at       timestamptz not null default now(),
  -- Last time the sweeper compared this run with Temporal.
  swept_at         timestamptz not null default now(),

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
  tenant_id       text        not null,
  endpoint        text        not null,
  idempotency_key text        not null check (char_length(idempotency_key) between 1 and 255),
  request_sha256  text        not null check (request_sha256 ~ '^[0-9a-f]{64}$'),
  run_id          text        not null references holdfast.runs,
  created_at      timestamptz not null default now(),
  primary key (tenant_id, endpoint, idempotency_key)
);

-- Every move in either region (SPEC 2): gapless, chained, immutable.
create table holdfast.transitions (
  run_id      text        not null references holdfast.runs,
  seq         integer     not null check (seq > 0),
  tenant_id   text        not null,
  region      text        not null check (region in ('run', 'control')),
  -- Null for the admission alone.
  from_state  text,
  to_state    text        not null,
  reason      text        not null check (char_length(reason) between 1 and 64),
  actor_id    text        not null,
  epoch       integer     not null,
  created_at  timestamptz not null,
  prev_digest text        not null,
  digest      text        not null check (digest ~ '^[0-9a-f]{64}$'),
  primary key (run_id, seq),
  foreign key (region, from_state, to_state) references holdfast.legal_transitions,
  constraint first_is_the_admission check (
    (seq = 1) = (from_state is null) and (seq = 1) = (to_state = 'admitted') and (seq > 1 or region = 'run')),
  constraint chain_starts_once check ((seq = 1) = (prev_digest = ''))
);

-- The durable trace of a run (SPEC 6); the feed is a view of it.
create table holdfast.run_events (
  run_id     text        not null references holdfast.runs,
  seq        bigint      not null check (seq > 0),
  tenant_id  text        not null,
  type       text        not null check (char_length(type) between 1 and 64),
  data       jsonb       not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (run_id, seq)
);

-- The transcript: what the next prompt is made of. The place (turn, step, position) is deterministic, so no replay
-- can write a message twice: position 0 is the user's or the assistant's message, n + 1 the result of call slot n.
create table holdfast.messages (
  run_id     text        not null references holdfast.runs,
  turn       integer     not null,
  step       integer     not null,
  position   integer     not null,
  tenant_id  text        not null,
  role       text        not null check (role in ('user', 'assistant', 'tool')),
  content    jsonb       not null,
  created_at timestamptz not null default now(),
  primary key (run_id, turn, step, position)
);

-- Every stop of a retry series (SPEC 3.5): what stopped, why, what is done about it and when.
create table holdfast.retries (
  run_id      text        not null references holdfast.runs,
  trail_seq   bigint      not null,
  tenant_id   text        not null,
  turn        integer     not null,
  step        integer     not null,
  -- Null when the operation is a model call.
  slot        integer,
  effect_id   text,
  reason      text        not null,
  action      text        not null check (action in ('retry', 'ask_again', 'give_up', 'ask_person')),
  owner       text        not null,
  attempt     integer     not null,
  attempts_max integer    not null,
  deadline_at timestamptz not null,
  eligible_at timestamptz,
  -- The target's own word, capped by nothing, so that a person can see it.
  retry_after_seconds bigint,
  created_at  timestamptz not null default now(),
  primary key (run_id, trail_seq),
  constraint eligible_iff_again check ((action in ('retry', 'ask_again')) = (eligible_at is not null))
);
