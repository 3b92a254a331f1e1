/** Where a checkpoint stands (SPEC 4.2). `verification_committed` is there for runs with a verifier; none is written yet. */
export const CHECKPOINT_BOUNDARIES = [
  'run_created',
  'model_response_committed',
  'pre_effect_intent_committed',
  'effect_settled',
  'interrupt_opened',
  'verification_committed',
  'control_applied',
  'run_terminal',
] as const;
export type CheckpointBoundary = (typeof CHECKPOINT_BOUNDARIES)[number];

/** Why a checkpoint does not validate. */
export const CHECKPOINT_FAULTS = [
  /** Its run was written under a schema that this build does not know. */
  'schema_unknown',
  /** The chain of transitions up to it does not hold. */
  'chain_broken',
  'events_missing',
  /** A whole step lacks its answer or a result. */
  'transcript_broken',
] as const;
export type CheckpointFault = (typeof CHECKPOINT_FAULTS)[number];

/**
 * How a fork's calls after the cut are answered. `simulate`: from the source's receipts or refused, and nothing is ever
 * sent. `reuse_if_identical`: from a receipt where there is one of the same call, else as in any run. `live`: as in any run.
 */
export const FORK_MODES = ['simulate', 'reuse_if_identical', 'live'] as const;
export type ForkMode = (typeof FORK_MODES)[number];

/** Why a fork is refused that a checkpoint which validates was asked for. */
export const FORK_DOUBTS = [
  /** Nobody knows what became of a call that had left and has no result at the checkpoint. */
  'effects_unresolved',
  /** Some calls of the step at the checkpoint had happened: a live fork would do them again. */
  'step_half_done',
] as const;
export type ForkDoubt = (typeof FORK_DOUBTS)[number];

/** Whether a fork keeps its source's agent version or takes the current one. */
export const FORK_PINS = ['keep', 'current'] as const;
export type ForkPins = (typeof FORK_PINS)[number];
