import { CONTROL_STATES, type ControlState, isTerminal, RUN_STATES, type RunState } from './run-machine.js';

/**
 * What a command makes of a run (SPEC 4), as data: every command by every state of both regions. The ledger judges by
 * the same table (`holdfast.judge_command`; a test compares), the API answers with its codes, docs/control-table.json
 * and docs/control-table.md are made from it.
 */

export const COMMAND_KINDS = ['pause', 'resume', 'cancel', 'change_budget', 'change_deadline'] as const;
export type CommandKind = (typeof COMMAND_KINDS)[number];

/**
 * `accepted`: in force from now on, applied by the run at its next safe point. `applied`: done at once, under the run's
 * lock. `same`: what it asks for is so already; nothing changes, and it counts as applied. Everything else refuses it, by
 * code.
 */
export const VERDICTS = [
  'accepted',
  'applied',
  'same',
  'run_ended',
  'cancel_in_force',
  'resume_in_progress',
  'pause_in_progress',
  'not_paused',
] as const;
export type Verdict = (typeof VERDICTS)[number];

/**
 * The verdict on `kind` for a run in `state` with `control`; `compensate` is a cancel's wish that what happened be undone.
 * The ledger knows a little more of a cancel: one that comes to a run which undoes what it did already is `same` wherever
 * the run stands, and so is one with `compensate` while another with `compensate` is in force. Pure.
 */
export function judgeCommand(
  kind: CommandKind,
  state: RunState,
  control: ControlState,
  compensate = false,
): Verdict {
  if (isTerminal(state)) return kind === 'cancel' && isStopped(state, compensate) ? 'same' : 'run_ended';
  switch (kind) {
    case 'cancel':
      if (state === 'compensating') return 'same';
      // A cancel that leaves what happened is in force, and is not changed into one that undoes it.
      if (control === 'cancel_requested' || state === 'cancelling')
        return compensate ? 'cancel_in_force' : 'same';
      return 'accepted';
    case 'pause':
      if (control === 'cancel_requested' || state === 'cancelling') return 'cancel_in_force';
      return PAUSE[control];
    case 'resume':
      if (control === 'cancel_requested' || state === 'cancelling') return 'cancel_in_force';
      return RESUME[control];
    case 'change_budget':
    case 'change_deadline':
      return control === 'cancel_requested' || state === 'cancelling' ? 'cancel_in_force' : 'applied';
  }
}

/** Whether a run has ended as a cancel would end it. */
function isStopped(state: RunState, compensate: boolean): boolean {
  return state === 'compensated' || (state === 'cancelled' && !compensate);
}

const PAUSE: Readonly<Record<Exclude<ControlState, 'cancel_requested'>, Verdict>> = {
  active: 'accepted',
  pause_requested: 'same',
  pausing: 'same',
  paused: 'same',
  resume_requested: 'resume_in_progress',
  claiming: 'resume_in_progress',
};

const RESUME: Readonly<Record<Exclude<ControlState, 'cancel_requested'>, Verdict>> = {
  active: 'not_paused',
  pause_requested: 'pause_in_progress',
  pausing: 'pause_in_progress',
  paused: 'accepted',
  resume_requested: 'resume_in_progress',
  claiming: 'resume_in_progress',
};

/** What a command in force does to a run's work, by state; the same whatever the control region says. */
export interface Treatment {
  /** Model calls and effects in flight. */
  readonly inFlight: 'settles' | 'is_aborted' | 'none';
  /** Timers and waits of the run. */
  readonly waits: 'go_on' | 'are_held' | 'end' | 'none';
  /** Interrupts that are open. */
  readonly interrupts: 'stay_open' | 'are_withdrawn' | 'are_superseded' | 'none';
}

/** What an accepted command does in each state that it can meet. */
export function treatmentOf(kind: CommandKind, state: RunState): Treatment {
  if (isTerminal(state)) return { inFlight: 'none', waits: 'none', interrupts: 'none' };
  const works = state === 'running' || state === 'compensating' || state === 'cancelling';
  switch (kind) {
    case 'pause':
      return { inFlight: works ? 'settles' : 'none', waits: 'are_held', interrupts: 'stay_open' };
    case 'resume':
      return { inFlight: 'none', waits: 'go_on', interrupts: 'stay_open' };
    case 'change_budget':
    case 'change_deadline':
      return {
        inFlight: works ? 'settles' : 'none',
        waits: 'go_on',
        // A wait over a budget is asked about anew, with the numbers of then, or not at all.
        interrupts: state === 'waiting_for_input' ? 'are_superseded' : 'stay_open',
      };
    case 'cancel':
      // What may have happened outside is still found out: a wait for the truth does not end.
      return state === 'needs_reconciliation' || state === 'reconciling'
        ? { inFlight: 'settles', waits: 'go_on', interrupts: 'stay_open' }
        : { inFlight: works ? 'is_aborted' : 'none', waits: 'end', interrupts: 'are_withdrawn' };
  }
}

/** One cell of the exported table. */
export interface ControlCell extends Treatment {
  readonly command: CommandKind;
  readonly state: RunState;
  readonly control: ControlState;
  readonly verdict: Verdict;
  /** Of a cancel with `compensate`; null for other commands. */
  readonly verdictWithCompensate: Verdict | null;
}

/** Every command by every pair of states, in table order: docs/control-table.json. */
export function controlTable(): ControlCell[] {
  return COMMAND_KINDS.flatMap((command) =>
    RUN_STATES.flatMap((state) =>
      CONTROL_STATES.map((control) => ({
        command,
        state,
        control,
        verdict: judgeCommand(command, state, control),
        verdictWithCompensate: command === 'cancel' ? judgeCommand(command, state, control, true) : null,
        ...treatmentOf(command, state),
      })),
    ),
  );
}
