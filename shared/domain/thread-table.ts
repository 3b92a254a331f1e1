import { type ControlState, isTerminal, RUN_STATES, type RunState } from './run-machine.js';

/**
 * What a message makes of a thread with a run in progress (SPEC 5), as data: every policy by every state. The ledger
 * judges by the same table (`holdfast.judge_message`; a test compares); docs/thread-table.json and docs/thread-table.md
 * are made from it.
 */

export const DOUBLE_TEXTING = ['enqueue', 'reject', 'interrupt', 'rollback', 'steer'] as const;
export type DoubleTexting = (typeof DOUBLE_TEXTING)[number];

/**
 * `starts`: no run is in progress, and it begins one. `waits`: its turn comes after the run. `stops`: the run is
 * cancelled, what it produced stays, and this is next. `rolls_back`: likewise, and the run's input and output leave the
 * transcript. `joins`: the run takes it up at its next model call. `thread_busy`: refused.
 */
export const MESSAGE_VERDICTS = ['starts', 'waits', 'stops', 'rolls_back', 'joins', 'thread_busy'] as const;
export type MessageVerdict = (typeof MESSAGE_VERDICTS)[number];

/** What became of a message that was accepted. */
export const MESSAGE_STATES = ['queued', 'delivered', 'rolled_back', 'superseded', 'undelivered'] as const;
export type MessageState = (typeof MESSAGE_STATES)[number];

/**
 * The verdict on a message of `policy` for a thread whose newest run is in `state` with `control`. `undoes`: that run is
 * undoing what it did, wherever it stands. Pure.
 */
export function judgeMessage(
  policy: DoubleTexting,
  state: RunState,
  control: ControlState = 'active',
  undoes = false,
): MessageVerdict {
  if (isTerminal(state)) return 'starts';
  switch (policy) {
    case 'enqueue':
      return 'waits';
    case 'reject':
      return 'thread_busy';
    case 'interrupt':
      return 'stops';
    case 'rollback':
      return 'rolls_back';
    case 'steer': {
      // Such a run asks its model nothing more.
      const isOver = state === 'compensating' || state === 'cancelling';
      return isOver || undoes || control === 'cancel_requested' ? 'waits' : 'joins';
    }
  }
}

/** What an accepted message does to the run that it meets. */
export type RunTreatment =
  /** Nothing. */
  | 'goes_on'
  /** Nobody began it: it ends at once, and the message is delivered in the same transaction. */
  | 'ends_at_once'
  /** It is cancelled at its next safe point; calls in flight are aborted and their outcome is found out. */
  | 'is_cancelled'
  /** It ends `cancelled` from its wait; what was asked of people is withdrawn. */
  | 'leaves_its_wait'
  /** The truth about its effects is found out first, then it ends. */
  | 'finds_out_first'
  /** It comes to its end already. */
  | 'is_ending'
  | 'none';

/** What becomes of a run in `state` for a message with this verdict. Pure. */
export function treatmentBy(verdict: MessageVerdict, state: RunState): RunTreatment {
  if (verdict === 'starts') return 'none';
  if (verdict !== 'stops' && verdict !== 'rolls_back') return 'goes_on';
  switch (state) {
    case 'admitted':
      return 'ends_at_once';
    case 'waiting_for_input':
    case 'awaiting_approval':
      return 'leaves_its_wait';
    case 'needs_reconciliation':
    case 'reconciling':
      return 'finds_out_first';
    case 'compensating':
    case 'cancelling':
      return 'is_ending';
    default:
      return 'is_cancelled';
  }
}

/** One cell of the exported table. */
export interface ThreadCell {
  readonly policy: DoubleTexting;
  readonly state: RunState;
  readonly verdict: MessageVerdict;
  /** While a cancel of the run is in force, or it undoes what it did. */
  readonly verdictUnderCancel: MessageVerdict;
  readonly run: RunTreatment;
}

/** Every policy by every state, in table order: docs/thread-table.json. */
export function threadTable(): ThreadCell[] {
  return DOUBLE_TEXTING.flatMap((policy) =>
    RUN_STATES.map((state) => {
      const verdict = judgeMessage(policy, state);
      const verdictUnderCancel = judgeMessage(policy, state, 'cancel_requested');
      return { policy, state, verdict, verdictUnderCancel, run: treatmentBy(verdict, state) };
    }),
  );
}
