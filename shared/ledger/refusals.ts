/**
 * What the ledger's functions refuse, by SQLSTATE. A refusal rolls its call back: nothing was written. The codes are
 * raised in shared/ledger/migrations/0003_trail.sql and after.
 */
export const REFUSALS = {
  HF001: 'run_not_found',
  HF002: 'run_ended',
  HF003: 'unknown_execution',
  HF004: 'lost_ownership',
  HF005: 'out_of_step',
  HF006: 'illegal_move',
  HF007: 'effect_not_found',
  HF008: 'lost_takeover',
  HF009: 'key_taken',
  HF010: 'key_conflict',
  HF011: 'scope_mismatch',
  HF012: 'must_compensate',
} as const;
export type Refusal = (typeof REFUSALS)[keyof typeof REFUSALS];

/** The refusal that a failed ledger call stands for, or undefined when the error is something else. */
export function refusalOf(error: unknown): Refusal | undefined {
  const code = sqlStateOf(error);
  return code !== undefined && code in REFUSALS ? REFUSALS[code as keyof typeof REFUSALS] : undefined;
}

/**
 * The SQLSTATE that Postgres answered with, or undefined when it did not answer. Every SQLSTATE has a digit, and the
 * system's own `EPIPE` has none.
 */
export function sqlStateOf(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null || !('code' in error)) return undefined;
  return typeof error.code === 'string' && /^(?=.*\d)[0-9A-Z]{5}$/.test(error.code) ? error.code : undefined;
}

/** Classes of SQLSTATE that speak of the server's health, not of the call: the same call may do later. */
const PASSING_CLASSES = ['08', '40', '53', '55', '57', '58'];
/** Raised by pg itself, or by the socket under it, when no answer came. */
const CONNECTION_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
]);

/**
 * Whether the ledger could not be asked, or could not say what it did. What was sent may have been committed: read
 * again by key before acting (SPEC 3.1.4).
 */
export function isLedgerUnavailable(error: unknown): boolean {
  const state = sqlStateOf(error);
  if (state !== undefined) return state === '25006' || PASSING_CLASSES.includes(state.slice(0, 2));
  if (!(error instanceof Error)) return false;
  const code = (error as { code?: unknown }).code;
  if (typeof code === 'string' && CONNECTION_CODES.has(code)) return true;
  return /Connection terminated|timeout exceeded when trying to connect|Query read timeout|not queryable|Client was closed/i.test(
    error.message,
  );
}
