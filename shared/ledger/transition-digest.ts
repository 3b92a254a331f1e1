import { sha256 } from './digest.js';

/** One row of `holdfast.transitions`, its time as text, since a Date would lose the microseconds. */
export interface TransitionRecord {
  readonly seq: number;
  readonly tenantId: string;
  readonly region: 'run' | 'control';
  /** Null for the admission alone. */
  readonly from: string | null;
  readonly to: string;
  readonly reason: string;
  readonly actorId: string;
  readonly epoch: number;
  /** UTC with six digits of a second: `2026-01-01T00:00:00.000000Z`. */
  readonly at: string;
  readonly prevDigest: string;
  readonly digest: string;
}

/**
 * The digest that a transition of this content has: lower-case hex SHA-256 over its fields and the digest of the row
 * before. `holdfast.transition_digest` in 0003_trail.sql computes the same; a test compares.
 *
 * Only the actor is free text, and it stands between fields of a closed form, so no two rows share a text.
 */
export function transitionDigest(runId: string, row: Omit<TransitionRecord, 'digest' | 'tenantId'>): string {
  const fields = [
    row.prevDigest,
    runId,
    row.seq,
    row.region,
    row.from ?? '',
    row.to,
    row.reason,
    row.actorId,
  ];
  return sha256([...fields, row.epoch, row.at].join('|'));
}
