/**
 * Named places where an activity can be cut off: a crash there would leave the ledger, Temporal and the world saying
 * different things. Production passes `noFaults`; tests pass a plan (SPEC 3.1).
 */
export const FAULT_POINTS = [
  /** Nothing is written for this attempt. */
  'act.before_claim',
  /** Intent and claim are durable, nothing has left. */
  'act.after_claim',
  /** The target has answered, and only this process knows. */
  'act.after_call',
  /** The receipt is durable, Temporal does not know. */
  'act.after_settle',
  'think.before_claim',
  'think.after_claim',
  'think.after_answer',
  'think.after_commit',
  'query.before_begin',
  'query.after_begin',
  'query.after_probe',
  'query.after_record',
  /** A run undoes what it did: before it asks what is next, and on both sides of the compensation's intent. */
  'undo.before_next',
  'undo.before_intent',
  'undo.after_intent',
  'child.before_start',
  /** The child run is admitted, or its result written, and Temporal does not know. */
  'child.after_start',
] as const;
export type FaultPoint = (typeof FAULT_POINTS)[number];

export type ReachFaultPoint = (point: FaultPoint) => Promise<void>;

export const noFaults: ReachFaultPoint = () => Promise.resolve();
