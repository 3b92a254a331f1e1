import type { LimitCode } from './budgets.js';
import type { EffectClass, EffectOutcome } from './effect-classes.js';
import type { EffectState } from './effect-machine.js';
import type { ModelFailureReason, ModelStopReason } from './models.js';
import type { ControlState, RunState, TransitionReason } from './run-machine.js';

/**
 * What crosses Temporal: names, inputs and answers of the workflow, its activities and signals. Ids, digests,
 * counters and enums only, at most 1 KiB a payload; prompts, arguments and results stay in Postgres (SPEC intro).
 */

export const WORKFLOW_TYPE = 'agentRun';

/** Sent without content: something about the run changed in the ledger; look again. */
export const NUDGE_SIGNAL = 'nudge';

/** Search attributes that the set-up registers; all of type Keyword. */
export const SEARCH_ATTRIBUTES = {
  state: 'HoldfastState',
  tenant: 'HoldfastTenant',
  agent: 'HoldfastAgent',
  job: 'HoldfastJob',
} as const;

/** What a Temporal schedule starts at each planned time: it only tells the ledger that the time has come. */
export const TICK_WORKFLOW_TYPE = 'scheduleTick';

export const TICK_INPUT_VERSION = 1;

/** The input of a tick, the same each time; the planned time is in the execution's search attributes. */
export interface TickInput {
  readonly version: typeof TICK_INPUT_VERSION;
  readonly scheduleId: string;
}

/** The search attribute in which Temporal says for when it planned a scheduled execution. */
export const PLANNED_TIME_ATTRIBUTE = 'TemporalScheduledStartTime';

/** What a tick came to: `known` was judged before, `gone` has no schedule any more. */
export interface TickResult {
  readonly kind: 'decided' | 'known' | 'gone';
}

/** The ledger's step of a tick. May be repeated: a planned time is judged once. */
export interface TickActivities {
  decideOccurrence(input: { readonly scheduleId: string; readonly plannedAt: string }): Promise<TickResult>;
}

export const RUN_INPUT_VERSION = 1;

/** The workflow's input. It carries no state: an execution that continues reads its place from the ledger. */
export interface RunInput {
  readonly version: typeof RUN_INPUT_VERSION;
  readonly runId: string;
  /** How many executions of this run came before by continue-as-new. */
  readonly continued: number;
  /** The pinned model is declared short: its calls take the fast lane. */
  readonly modelIsShort: boolean;
  readonly settings: {
    /** An activity that is silent for longer is taken for lost. */
    readonly heartbeatSeconds: number;
    /** History events after which the run continues as new. */
    readonly historyEventsMax: number;
    /** Where the API shows runs, for links in the Temporal Web UI; empty for none. */
    readonly apiUrl: string;
  };
}

/** The workflow's result: where the run stands in the ledger. */
export interface RunResult {
  readonly state: RunState | 'lost_ownership';
}

/** What the workflow decided and has not committed yet; rides along with the next ledger write (SPEC 4). */
export type TrailEntry =
  | { readonly kind: 'move'; readonly to: RunState; readonly reason: TransitionReason }
  | { readonly kind: 'control'; readonly to: ControlState; readonly reason: TransitionReason }
  | {
      readonly kind: 'retry';
      readonly turn: number;
      readonly step: number;
      /** Absent when the operation is a model call. */
      readonly slot?: number;
      readonly reason: string;
      readonly action: 'retry' | 'ask_again' | 'ask_person' | 'give_up';
      readonly attempt: number;
      readonly attemptsMax: number;
      /** Present exactly when the operation is tried again. */
      readonly waitMs?: number;
      readonly retryAfterSeconds?: number;
    }
  | { readonly kind: 'warning'; readonly code: string };

export interface Trail {
  /** Position of the first entry in the run's whole trail, from 1. */
  readonly from: number;
  readonly entries: readonly TrailEntry[];
}

interface AtStep {
  readonly runId: string;
  readonly turn: number;
  /** Counts over the whole run, from 1. */
  readonly step: number;
  readonly trail: Trail;
}
export type ThinkInput = AtStep;
export interface ActInput extends AtStep {
  readonly slot: number;
  /** 0, or the number of the redo that supersedes an effect settled as not committed. */
  readonly redo: number;
}
export interface EffectInput extends AtStep {
  readonly slot: number;
}
export interface CloseInput extends EffectInput {
  readonly state: 'denied' | 'withdrawn';
  /** Why, as the model is told it: a key of `CLOSE_TEXTS` in activities/ledger-steps.ts. */
  readonly why: CloseReason;
}
export const CLOSE_REASONS = ['retries_exhausted', 'not_committed', 'approval_expired', 'lost_read'] as const;
export type CloseReason = (typeof CLOSE_REASONS)[number];
export interface CommitInput {
  readonly runId: string;
  readonly trail: Trail;
}

/** The ledger refused: nothing was written. */
export type Refused =
  /** The ledger stands elsewhere than this execution believes; take over and resume from there. */
  | { readonly kind: 'out_of_step' }
  /** Another execution owns the run for good. */
  | { readonly kind: 'lost_ownership' }
  | { readonly kind: 'run_ended' }
  /** The run's contract has it undo what it did before it fails. */
  | { readonly kind: 'must_compensate' };

/** A limit or a control request stands in the way; the trail was committed. */
export type Held =
  | {
      readonly kind: 'limit';
      readonly limit: LimitCode;
      /**
       * What follows, by the run's contract (SPEC 4.3). `ask`: a person was asked, and the same call comes again when
       * they have answered. `finish`: the model is called once more, without tools.
       */
      readonly way: 'fail' | 'ask' | 'finish';
    }
  | { readonly kind: 'control'; readonly control: ControlState };

/**
 * What the call goes to has asked somebody to come later, and it is not this run's turn yet (SPEC 3.5). Nothing was
 * opened and no attempt is counted; the trail was committed.
 */
export interface Cooling {
  readonly kind: 'cooling';
  readonly waitMs: number;
  /** Attempts made so far. */
  readonly attempt: number;
  readonly attemptsMax: number;
  /** Until the end of the series, or of the run where no attempt was made yet. */
  readonly seriesMsLeft: number;
}

export interface PlannedSlot {
  readonly slot: number;
  readonly parallel: boolean;
  /** A person must approve it before it is dispatched. */
  readonly gated: boolean;
  /** It takes the fast lane: the tool is declared short. */
  readonly short: boolean;
}

/** A call that another agent answers, in a run of its own. */
export interface ChildSlot {
  readonly slot: number;
  readonly parallel: boolean;
}

export type ThinkAnswer =
  | {
      readonly kind: 'answered';
      readonly calls: readonly PlannedSlot[];
      /** Slots of the calls that ask a person, in order; absent where none does. */
      readonly asks?: readonly number[];
      /** The calls that start a child run, in order; absent where none does. */
      readonly children?: readonly ChildSlot[];
      /** Calls that were answered with an error result instead of being planned. */
      readonly refused: number;
      readonly stopReason: ModelStopReason;
      /** The run's state after the commit: `completed` when this answer ended the run. */
      readonly state: RunState;
    }
  | {
      readonly kind: 'failed';
      readonly reason: ModelFailureReason;
      readonly attempt: number;
      readonly attemptsMax: number;
      readonly seriesMsLeft: number;
      readonly retryAfterMs: number | null;
      readonly retryAfterMaxMs: number;
      /** The run's turn in the cool-down that it met; absent where there is none. */
      readonly notBeforeMs?: number;
    }
  | { readonly kind: 'exhausted' }
  /** Only a person can mend what stopped the call, and nobody has said anything yet. */
  | { readonly kind: 'person_needed' }
  /** They gave it up, or nobody answered in time. */
  | { readonly kind: 'given_up' }
  /** Another attempt holds the call now. */
  | { readonly kind: 'late' }
  | { readonly kind: 'agent_unavailable' }
  | Cooling
  | Held
  | Refused;

/** Where an effect stands in the ledger. */
export interface EffectStanding {
  readonly kind: 'effect';
  readonly state: EffectState;
  readonly effectClass: EffectClass;
  readonly redo: number;
  /** Attempts made, lost ones not counted. */
  readonly attempt: number;
  readonly attemptsMax: number;
  readonly seriesMsLeft: number;
  /** Of the last attempt; `lost` where no worker reported one. */
  readonly outcome: EffectOutcome | 'lost' | null;
  readonly retryAfterMs: number | null;
  readonly retryAfterMaxMs: number;
  /** After a stop: the run's turn in the cool-down that it met; absent where there is none. */
  readonly notBeforeMs?: number;
  readonly onExhausted: 'tell_model' | 'fail';
  /** What an `unknown` or `not_committed` effect comes to next; null in every other state. */
  readonly next:
    'resend' | 'give_up' | 'late_receipt' | 'query' | 'person' | 'redo' | 'tell_model' | 'fail' | null;
  /** While `dispatching`: how long the attempt that holds it may still take. */
  readonly leaseMsLeft: number | null;
  /** After a status query: how long to wait before the next. */
  readonly queryWaitMs: number | null;
}

export type ActAnswer =
  | EffectStanding
  /** The intent is written; without an approval it is never claimed. */
  | { readonly kind: 'approval_required' }
  | { readonly kind: 'key_conflict' }
  | Cooling
  | Held
  | Refused;
/** Where a question stands: `unanswered` also fails the run, by the question's own rule. */
export type AskAnswer = { readonly kind: 'open' | 'settled' | 'unanswered' } | Held;
/** Where the child of a call stands: not over, or over and its result with the model. */
export type ChildAnswer = { readonly kind: 'open' | 'settled' } | Held;
export type ExamineAnswer = EffectStanding | { readonly kind: 'absent' } | Refused;
export type CommitAnswer = { readonly kind: 'committed'; readonly state: RunState } | Refused;

/** `blocked`: what the run has pinned is not all there; the ledger says what is missing, and nothing moved. */
export type ResumeAnswer = CommitAnswer | { readonly kind: 'blocked' };

export interface ResumePoint {
  readonly kind: 'resume';
  readonly state: RunState;
  readonly control: ControlState;
  readonly turn: number;
  readonly step: number;
  readonly trailPosition: number;
  /** Effects whose outcome nobody knows yet. */
  readonly unknown: readonly { readonly turn: number; readonly step: number; readonly slot: number }[];
  /** Until a run in `retry_wait` may try again; 0 in every other state. */
  readonly retryMsLeft: number;
  /** What the run did is being undone, wherever it stands. */
  readonly undoes: boolean;
}
export type TakeOverAnswer = ResumePoint | { readonly kind: 'lost_ownership' };

/** What a run that undoes what it did does next (SPEC 3.7). */
export type NextUndo =
  /** This compensation, to its end; it has its intent. */
  | { readonly kind: 'call'; readonly turn: number; readonly step: number; readonly slot: number }
  /** Nothing: a person is waited for. */
  | { readonly kind: 'person' }
  /** Finding out what became of what the run had in flight. */
  | { readonly kind: 'doubt' }
  /** All is undone but what people left as it is. */
  | { readonly kind: 'done'; readonly left: number };

/** What a waiting workflow must know of its run when it is nudged. */
export interface LookAnswer {
  readonly kind: 'look';
  readonly state: RunState;
  readonly control: ControlState;
  /** Approvals that nobody has decided and that have not expired. */
  readonly openApprovals: number;
  /** Until the first of them expires; null when there is none. */
  readonly nextExpiryMs: number | null;
  /** The same of waits for a person's input. */
  readonly openInputs: number;
  readonly nextInputExpiryMs: number | null;
  /** One ran out, and that has not been taken up yet. */
  readonly inputExpired: boolean;
  /** Children that end with this run and have not ended; absent where there are none. */
  readonly openChildren?: number;
  /** Those of them that are still coming to rest under this run's pause; absent where there are none. */
  readonly drainingChildren?: number;
  /** The cancel in force asks for compensation. */
  readonly compensate: boolean;
  readonly unknown: ResumePoint['unknown'];
}

/** What the workflow may ask of the world; activities/ implements it, workflows/ proxies it. */
export interface RunActivities {
  /** One model call: claim, request, response. */
  think(input: ThinkInput): Promise<ThinkAnswer>;
  /** One attempt at one effect: intent and claim, dispatch, receipt. */
  act(input: ActInput): Promise<ActAnswer>;
  /** One status query about an unknown effect, or its settlement from a late receipt. */
  queryEffect(input: EffectInput): Promise<ExamineAnswer>;
}

/** Steps that touch the ledger only; the workflow runs them as local activities. */
export interface LedgerActivities {
  commitTrail(input: CommitInput): Promise<CommitAnswer>;
  /** What became of an effect whose activity ended without an answer. */
  examineEffect(input: EffectInput): Promise<ExamineAnswer>;
  /** Ends an effect that was never dispatched and tells the model why. */
  closeEffect(input: CloseInput): Promise<ExamineAnswer>;
  /** Opens the wait of a question, or gives its call the result when that wait is over. */
  askQuestion(input: EffectInput): Promise<AskAnswer | Refused>;
  /** Admits the child run of a call, or gives the call its result when that run has ended. */
  startChild(input: EffectInput): Promise<ChildAnswer | Refused>;
  /** How the run stands now; reads only. `position` as in `Trail`: entries known to be durable; null beside the run's own loop. */
  look(input: { readonly runId: string; readonly position: number | null }): Promise<LookAnswer | Refused>;
  /** What is undone next, with its intent written. */
  nextUndo(input: CommitInput): Promise<NextUndo | Refused>;
  /** Re-claims a run whose resume was asked for, under a new epoch, where all that it has pinned is there. */
  claimResume(input: CommitInput): Promise<ResumeAnswer>;
  /** Takes the run for this execution, if Temporal says it is the open one. */
  takeOver(input: { readonly runId: string; readonly continued: boolean }): Promise<TakeOverAnswer>;
}
