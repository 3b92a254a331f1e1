/**
 * What a run may do, as data (SPEC 2). The workflow, the ledger, the API, the docs and the tests read these two
 * tables; nothing else decides what is legal. The ledger holds the same edges in `holdfast.legal_transitions`.
 */

export const RUN_STATES = [
  'admitted',
  'running',
  'waiting_for_input',
  'awaiting_approval',
  'retry_wait',
  'compensating',
  'cancelling',
  'needs_reconciliation',
  'reconciling',
  'completed',
  'compensated',
  'failed',
  'cancelled',
] as const;
export type RunState = (typeof RUN_STATES)[number];

export const RUN_EVENTS = [
  'start',
  'ask_input',
  'input_received',
  'ask_approval',
  'approval_closed',
  'wait_retry',
  'retry_due',
  'outcome_unknown',
  'reconcile',
  'settled',
  'inconclusive',
  'compensate',
  'compensation_done',
  'cancel',
  'wound_down',
  'complete',
  'fail',
] as const;
export type RunEvent = (typeof RUN_EVENTS)[number];

export const CONTROL_STATES = [
  'active',
  'pause_requested',
  'pausing',
  'paused',
  'resume_requested',
  'claiming',
  'cancel_requested',
] as const;
export type ControlState = (typeof CONTROL_STATES)[number];

export const CONTROL_EVENTS = [
  'request_pause',
  'begin_pause',
  'drained',
  'request_resume',
  'begin_claim',
  'claimed',
  'request_cancel',
  'cancel_entered',
] as const;
export type ControlEvent = (typeof CONTROL_EVENTS)[number];

/** One edge. `extension` says in a few words why a real run needs an edge that the classic machine lacks. */
export interface Move<S extends string> {
  readonly to: S;
  readonly extension?: string;
}
type Table<S extends string, E extends string> = Readonly<Record<S, { readonly [Event in E]?: Move<S> }>>;

export const RUN_MOVES: Table<RunState, RunEvent> = {
  admitted: {
    start: { to: 'running' },
    cancel: { to: 'cancelled', extension: 'an admission is withdrawn before anything ran' },
    fail: { to: 'failed', extension: 'its workflow ended before anything ran' },
  },
  running: {
    complete: { to: 'completed' },
    ask_input: { to: 'waiting_for_input' },
    ask_approval: { to: 'awaiting_approval' },
    wait_retry: { to: 'retry_wait' },
    compensate: { to: 'compensating' },
    cancel: { to: 'cancelling' },
    outcome_unknown: { to: 'needs_reconciliation' },
    fail: { to: 'failed', extension: 'a failure that no retry can mend' },
  },
  waiting_for_input: {
    input_received: { to: 'running' },
    complete: { to: 'completed' },
    cancel: { to: 'cancelled' },
    compensate: { to: 'compensating', extension: 'a cancel that asks to compensate meets a waiting run' },
  },
  awaiting_approval: {
    approval_closed: { to: 'running' },
    cancel: { to: 'cancelled' },
    compensate: { to: 'compensating', extension: 'a cancel that asks to compensate meets a waiting run' },
  },
  retry_wait: {
    retry_due: { to: 'running' },
    fail: { to: 'failed' },
    cancel: { to: 'cancelling', extension: 'a cancel meets a run between two attempts' },
    compensate: { to: 'compensating', extension: 'a cancel that asks to compensate meets a waiting run' },
  },
  compensating: {
    compensation_done: { to: 'compensated' },
    fail: { to: 'failed' },
    outcome_unknown: { to: 'needs_reconciliation' },
  },
  cancelling: {
    wound_down: { to: 'cancelled' },
    outcome_unknown: { to: 'needs_reconciliation' },
  },
  // Left by looking only: a cancel that arrives here is kept and decides which way out of `reconciling` is taken.
  needs_reconciliation: {
    reconcile: { to: 'reconciling' },
  },
  reconciling: {
    complete: { to: 'completed' },
    compensation_done: { to: 'compensated' },
    fail: { to: 'failed' },
    wound_down: { to: 'cancelled' },
    settled: { to: 'running', extension: 'the effect is settled and the job goes on' },
    compensate: { to: 'compensating', extension: 'the settled effect is to be undone' },
    inconclusive: { to: 'needs_reconciliation', extension: 'no evidence settles it yet; a person must' },
  },
  completed: {},
  compensated: {},
  failed: {},
  cancelled: {},
};

export const CONTROL_MOVES: Table<ControlState, ControlEvent> = {
  active: { request_pause: { to: 'pause_requested' }, request_cancel: { to: 'cancel_requested' } },
  pause_requested: { begin_pause: { to: 'pausing' }, request_cancel: { to: 'cancel_requested' } },
  pausing: { drained: { to: 'paused' }, request_cancel: { to: 'cancel_requested' } },
  paused: { request_resume: { to: 'resume_requested' }, request_cancel: { to: 'cancel_requested' } },
  resume_requested: { begin_claim: { to: 'claiming' }, request_cancel: { to: 'cancel_requested' } },
  claiming: { claimed: { to: 'active' }, request_cancel: { to: 'cancel_requested' } },
  // Stands until the run itself enters `cancelling` (or ends): then the run region carries the cancel.
  cancel_requested: { cancel_entered: { to: 'active' } },
};

/** Events that may arrive twice, or late, and change nothing. What is in neither table is refused. */
export const RUN_ABSORBED: Readonly<Record<RunState, readonly RunEvent[]>> = {
  admitted: [],
  running: ['start', 'input_received', 'approval_closed', 'retry_due', 'settled'],
  waiting_for_input: ['ask_input'],
  awaiting_approval: ['ask_approval'],
  retry_wait: ['wait_retry'],
  compensating: ['compensate', 'cancel'],
  cancelling: ['cancel'],
  needs_reconciliation: ['outcome_unknown', 'inconclusive', 'cancel', 'compensate'],
  reconciling: ['reconcile', 'cancel'],
  completed: ['complete'],
  compensated: ['compensation_done'],
  failed: ['fail'],
  cancelled: ['cancel', 'wound_down'],
};

export const CONTROL_ABSORBED: Readonly<Record<ControlState, readonly ControlEvent[]>> = {
  active: ['request_resume', 'claimed', 'cancel_entered'],
  pause_requested: ['request_pause'],
  pausing: ['request_pause', 'begin_pause'],
  paused: ['request_pause', 'drained'],
  resume_requested: ['request_resume'],
  claiming: ['request_resume', 'begin_claim'],
  cancel_requested: ['request_cancel'],
};

/** Why a transition happened: a closed list, stored with every transition row and shown to operators. */
export const TRANSITION_REASONS = [
  'admitted',
  'run_started',
  'answer_final',
  'input_needed',
  'input_received',
  'input_expired',
  'approval_needed',
  'approval_decided',
  'approval_expired',
  'transient_fault',
  'limit_stop',
  'cooling_down',
  'in_progress_at_target',
  'retry_due',
  'retries_exhausted',
  'outcome_unknown',
  'key_conflict',
  'late_receipt',
  'status_query',
  'person_settled',
  'settled_committed',
  'settled_not_committed',
  'inconclusive',
  'pause_requested',
  'drained',
  'resume_requested',
  'resume_claimed',
  'cancel_requested',
  'schedule_overlap',
  'message_interrupts',
  'message_rolls_back',
  'wound_down',
  'compensation_needed',
  'compensation_done',
  'compensation_failed',
  'undo_needs_person',
  'model_failed',
  'model_output_truncated',
  'model_content_refused',
  'provider_needs_person',
  'tool_failed',
  'limit_steps',
  'limit_tool_calls',
  'limit_wall_clock',
  'limit_tokens',
  'limit_cost',
  'limit_effects',
  'answer_at_limit',
  'budget_needed',
  'agent_unavailable',
  'snapshot_incompatible',
  'taken_over',
  'workflow_terminated',
  'workflow_failed',
  'workflow_timed_out',
  'workflow_cancelled',
  'workflow_completed_early',
  'workflow_vanished',
  'internal_error',
] as const;
export type TransitionReason = (typeof TRANSITION_REASONS)[number];

/** The answer of the pure step. `refused` carries the code that the API answers with. */
export type Step<S extends string> =
  | { readonly kind: 'moved'; readonly from: S; readonly to: S }
  | { readonly kind: 'same'; readonly state: S }
  | { readonly kind: 'refused'; readonly code: 'run_ended' | 'event_not_allowed'; readonly state: S };

/** Whether nothing leaves the state. */
export function isTerminal(state: RunState): boolean {
  return Object.keys(RUN_MOVES[state]).length === 0;
}

/** What `event` makes of a run in `state`. Pure. */
export function step(state: RunState, event: RunEvent): Step<RunState> {
  const move = RUN_MOVES[state][event];
  if (move !== undefined) return { kind: 'moved', from: state, to: move.to };
  if (RUN_ABSORBED[state].includes(event)) return { kind: 'same', state };
  return { kind: 'refused', code: isTerminal(state) ? 'run_ended' : 'event_not_allowed', state };
}

/** What `event` makes of the control region in `state`. Pure. */
export function stepControl(state: ControlState, event: ControlEvent): Step<ControlState> {
  const move = CONTROL_MOVES[state][event];
  if (move !== undefined) return { kind: 'moved', from: state, to: move.to };
  if (CONTROL_ABSORBED[state].includes(event)) return { kind: 'same', state };
  return { kind: 'refused', code: 'event_not_allowed', state };
}

/** One line of the exported table (docs/run-machine.json). */
export interface EdgeRow {
  readonly region: 'run' | 'control';
  readonly from: string;
  readonly event: string;
  readonly to: string;
  readonly extension: string | null;
}

/** Every edge of both regions, in table order: the export, the diagram and the ledger's seed are made from it. */
export function edges(): EdgeRow[] {
  const rowsOf = (region: 'run' | 'control', table: Table<string, string>): EdgeRow[] =>
    Object.entries(table).flatMap(([from, row]) =>
      Object.entries(row).flatMap(([event, move]) =>
        move === undefined ? [] : [{ region, from, event, to: move.to, extension: move.extension ?? null }],
      ),
    );
  return [...rowsOf('run', RUN_MOVES), ...rowsOf('control', CONTROL_MOVES)];
}

/** The run machine as a Mermaid state diagram; docs/run-machine.md holds it and a test compares. */
export function toMermaid(region: 'run' | 'control'): string {
  const lines = edges()
    .filter((edge) => edge.region === region)
    .map(
      ({ from, event, to, extension }) => `  ${from} --> ${to}: ${event}${extension === null ? '' : ' *'}`,
    );
  const ends = region === 'run' ? RUN_STATES.filter(isTerminal).map((state) => `  ${state} --> [*]`) : [];
  const first = region === 'run' ? 'admitted' : 'active';
  return ['stateDiagram-v2', `  [*] --> ${first}`, ...lines, ...ends].join('\n');
}
