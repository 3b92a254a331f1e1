/**
 * When a stopped operation is tried again (SPEC 3.5). Pure: the workflow hands in what the ledger says and a random
 * number, and writes the decision down before it waits.
 */

/** `limit`: the target asks to come later. `transient`: a fault that passes. `in_progress`: it works on our key. */
export type RetryKind = 'limit' | 'transient' | 'in_progress';

const MINUTE_MS = 60_000;
const LIMIT_WAITS_MS = [2 * MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS, 15 * MINUTE_MS] as const;
const TRANSIENT_BASE_MS = 500;
const TRANSIENT_CAP_MS = 60_000;
const IN_PROGRESS_CAP_MS = 15_000;

export interface RetryQuestion {
  readonly kind: RetryKind;
  /** Attempts made so far, those lost to infrastructure not counted. */
  readonly attempt: number;
  readonly attemptsMax: number;
  /** Until the series' deadline, written down with its first attempt. */
  readonly seriesMsLeft: number;
  /** The target's Retry-After in milliseconds, or null. */
  readonly retryAfterMs: number | null;
  /** A longer Retry-After ends the series. */
  readonly retryAfterMaxMs: number;
  /** The run's turn among all that wait for the same target; 0 where none wait. */
  readonly notBeforeMs?: number | undefined;
  /** In [0, 1): spreads runs that stopped together. */
  readonly random: number;
}

export type RetryDecision =
  | { readonly kind: 'wait'; readonly waitMs: number }
  | { readonly kind: 'exhausted'; readonly why: 'attempts' | 'deadline' | 'retry_after_too_long' };

/**
 * The latest of the backoff, the target's Retry-After and the run's turn; a deadline before eligibility ends the series.
 */
export function decideRetry(question: RetryQuestion): RetryDecision {
  if (question.attempt >= question.attemptsMax) return { kind: 'exhausted', why: 'attempts' };
  const retryAfterMs = question.retryAfterMs ?? 0;
  if (retryAfterMs > question.retryAfterMaxMs) return { kind: 'exhausted', why: 'retry_after_too_long' };
  const waitMs = Math.ceil(Math.max(backoffMs(question), retryAfterMs, question.notBeforeMs ?? 0));
  if (waitMs >= question.seriesMsLeft) return { kind: 'exhausted', why: 'deadline' };
  return { kind: 'wait', waitMs };
}

function backoffMs({ kind, attempt, random }: RetryQuestion): number {
  const nth = Math.max(attempt, 1) - 1;
  switch (kind) {
    case 'limit':
      // Never early: jitter only adds, up to a tenth.
      return LIMIT_WAITS_MS[Math.min(nth, LIMIT_WAITS_MS.length - 1)]! * (1 + random / 10);
    case 'transient':
      return jittered(TRANSIENT_BASE_MS, TRANSIENT_CAP_MS, nth, random);
    case 'in_progress':
      return jittered(TRANSIENT_BASE_MS, IN_PROGRESS_CAP_MS, nth, random);
  }
}

/** Between half of the exponential step and all of it. */
function jittered(baseMs: number, capMs: number, nth: number, random: number): number {
  return Math.min(baseMs * 2 ** Math.min(nth, 20), capMs) * (0.5 + random / 2);
}
