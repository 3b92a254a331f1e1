import type { EffectClass, EffectOutcome } from '../domain/effect-classes.js';
import type { CloseReason, Cooling, EffectStanding, Held, Trail } from '../domain/protocol.js';
import { coolingOf, notBeforeOf } from './cooldowns.js';
import { callFunction, type Db, jsonb } from './database.js';
import type { NeededApproval } from './approvals.js';
import type { StepPlace } from './model-calls.js';
import type { Speaker } from './trail.js';

/** The place of one call: with the run it names the logical effect. */
export interface CallPlace extends StepPlace {
  readonly slot: number;
}

/** The one permission to dispatch: of any number of callers at most one holds it for a fencing token. */
export interface ClaimedEffect {
  readonly kind: 'claimed';
  readonly effectId: string;
  readonly tenantId: string;
  readonly attemptId: string;
  readonly attempt: number;
  readonly fencingToken: number;
  readonly tool: string;
  readonly toolVersion: string;
  readonly effectClass: EffectClass;
  /** RFC 8785 text. */
  readonly arguments: string;
  readonly idempotencyKey: string;
  readonly callId: string;
  readonly toolSeconds: number;
}

/** The intent is written and a person must approve it; `needed` is null while an approval is open already. */
export interface ApprovalRequired {
  readonly kind: 'approval_required';
  readonly needed: NeededApproval | null;
}

const CLAIM = {
  name: 'ledger/claim-effect',
  text: 'select holdfast.claim_effect($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) as answer',
};

/**
 * Commits the trail, writes the intent when there is none, and claims the dispatch, in one round trip (SPEC 3.1).
 *
 * Call it again with the same `attemptId` when the acknowledgement was lost: the attempt that holds the claim gets
 * it again, and nobody else does.
 *
 * @returns `claimed`; or the effect's standing when it needs no dispatch or must not have one
 * @throws a refusal: `run_ended`, `unknown_execution`, `lost_ownership`, `out_of_step`, `key_conflict`
 */
export async function claimEffect(
  db: Db,
  speaker: Speaker,
  place: CallPlace,
  claim: {
    readonly trail: Trail;
    readonly redo: number;
    readonly attemptId: string;
    readonly worker: string;
    /** Added to the tool's time-out: what the claim and the receipt may take. */
    readonly leaseMarginMs: number;
  },
): Promise<ClaimedEffect | EffectStanding | Cooling | Held | ApprovalRequired> {
  const a = await callFunction(db, CLAIM, [
    speaker.runId,
    speaker.execution,
    claim.trail.from,
    jsonb(claim.trail.entries),
    place.turn,
    place.step,
    place.slot,
    claim.redo,
    claim.attemptId,
    claim.worker,
    claim.leaseMarginMs,
  ]);
  switch (a['kind']) {
    case 'claimed':
      return {
        kind: 'claimed',
        effectId: a['effect_id'] as string,
        tenantId: a['tenant_id'] as string,
        attemptId: a['attempt_id'] as string,
        attempt: a['attempt'] as number,
        fencingToken: a['fencing_token'] as number,
        tool: a['tool'] as string,
        toolVersion: a['tool_version'] as string,
        effectClass: a['effect_class'] as EffectClass,
        arguments: a['arguments'] as string,
        idempotencyKey: a['idempotency_key'] as string,
        callId: a['call_id'] as string,
        toolSeconds: a['tool_seconds'] as number,
      };
    case 'effect':
      return standing(a);
    case 'cooling':
      return coolingOf(a);
    case 'approval_required':
      return { kind: 'approval_required', needed: (a['needed'] ?? null) as NeededApproval | null };
    default:
      return a as unknown as Held;
  }
}

/** The one mapper from the ledger's standing to the protocol's. */
export function standing(a: Record<string, unknown>): EffectStanding {
  const orNull = <T>(name: string): T | null => (a[name] ?? null) as T | null;
  return {
    kind: 'effect',
    state: a['state'] as EffectStanding['state'],
    effectClass: a['effect_class'] as EffectClass,
    redo: a['redo'] as number,
    attempt: a['attempt'] as number,
    attemptsMax: a['attempts_max'] as number,
    seriesMsLeft: a['series_ms_left'] as number,
    outcome: orNull('outcome'),
    retryAfterMs: orNull('retry_after_ms'),
    retryAfterMaxMs: a['retry_after_max_ms'] as number,
    ...notBeforeOf(a),
    onExhausted: a['on_exhausted'] as EffectStanding['onExhausted'],
    next: orNull('next'),
    leaseMsLeft: orNull('lease_ms_left'),
    queryWaitMs: orNull('query_wait_ms'),
  };
}

/** What one attempt came to, with everything that is kept of it. */
export interface EffectSettlement {
  readonly outcome: EffectOutcome;
  /** A short code for an unclear or refused ending; null where the outcome says it all. */
  readonly reason: string | null;
  /** The outside name of what was done. */
  readonly reference: string | null;
  /** The target's own status, such as an HTTP status. */
  readonly targetStatus: string | null;
  readonly body: Uint8Array;
  readonly bodySha256: string;
  readonly contentType: string | null;
  readonly truncated: boolean;
  /** What the model is told; storable text. */
  readonly resultText: string;
  readonly retryAfterMs: number | null;
}

const SETTLE = {
  name: 'ledger/settle-effect',
  text: `select holdfast.settle_effect($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as answer`,
};

/**
 * Ends an attempt: receipt and settled state, or release, or unknown, under the attempt's own token. Safe to repeat.
 * What comes without the right to settle is kept as a late receipt and changes no state.
 */
export async function settleEffect(
  db: Db,
  execution: string,
  claim: Pick<ClaimedEffect, 'attemptId' | 'fencingToken'>,
  settlement: EffectSettlement,
): Promise<EffectStanding> {
  const a = await callFunction(db, SETTLE, [
    execution,
    claim.attemptId,
    claim.fencingToken,
    settlement.outcome,
    settlement.reason?.slice(0, 200) ?? null,
    settlement.reference?.slice(0, 1_000) ?? null,
    settlement.targetStatus?.slice(0, 200) ?? null,
    Buffer.from(settlement.body),
    settlement.bodySha256,
    settlement.contentType?.slice(0, 200) ?? null,
    settlement.truncated,
    settlement.resultText,
    settlement.retryAfterMs,
  ]);
  return standing(a);
}

const EXAMINE = {
  name: 'ledger/examine-effect',
  text: 'select holdfast.examine_effect($1, $2, $3, $4, $5, $6, $7) as answer',
};

/**
 * What became of an effect whose activity ended without an answer. A dispatch that nobody reports on becomes
 * `unknown` here, and its attempt is shut out. Dispatches nothing. Safe to repeat.
 */
export async function examineEffect(
  db: Db,
  speaker: Speaker,
  place: CallPlace,
  trail: Trail,
): Promise<EffectStanding | { readonly kind: 'absent' }> {
  const a = await callFunction(db, EXAMINE, [
    speaker.runId,
    speaker.execution,
    trail.from,
    jsonb(trail.entries),
    place.turn,
    place.step,
    place.slot,
  ]);
  return a['kind'] === 'absent' ? { kind: 'absent' } : standing(a);
}

/** What the model is told of a call that ends without an answer of its target. */
export const CLOSE_TEXTS: Readonly<Record<CloseReason, string>> = {
  retries_exhausted:
    'Not done: the target could not be reached or asked to come later, and the retries are used up. Nothing was sent that could have had an effect.',
  not_committed: 'Not done: it was found out that the target never committed this call.',
  approval_expired: 'Not done: the approval that this call needs was not given in time.',
  lost_read: 'No answer: the read did not come back, and the retries are used up.',
};

const CLOSE = {
  name: 'ledger/close-effect',
  text: 'select holdfast.close_effect($1, $2, $3, $4, $5, $6, $7, $8, $9) as answer',
};

/** Ends an effect that was never dispatched, or leaves one settled as not committed at that, and tells the model. */
export async function closeEffect(
  db: Db,
  speaker: Speaker,
  place: CallPlace,
  close: { readonly trail: Trail; readonly state: 'denied' | 'withdrawn'; readonly why: CloseReason },
): Promise<EffectStanding> {
  const a = await callFunction(db, CLOSE, [
    speaker.runId,
    speaker.execution,
    close.trail.from,
    jsonb(close.trail.entries),
    place.turn,
    place.step,
    place.slot,
    close.state,
    CLOSE_TEXTS[close.why],
  ]);
  return standing(a);
}

const APPEND_PROGRESS = {
  name: 'ledger/append-progress',
  text: 'select holdfast.append_progress($1, $2, $3, $4, $5) as heard',
};

/** Tells what a tool says of its call while it works. @returns false when the attempt is not heard any more */
export async function appendProgress(
  db: Db,
  speaker: { readonly runId: string; readonly execution: string },
  claim: Pick<ClaimedEffect, 'effectId' | 'fencingToken'>,
  progress: { readonly message: string | null; readonly done: number | null; readonly total: number | null },
): Promise<boolean> {
  const { rows } = await db.query<{ heard: boolean }>({
    ...APPEND_PROGRESS,
    values: [speaker.runId, speaker.execution, claim.effectId, claim.fencingToken, jsonb(progress)],
  });
  return rows[0]?.heard === true;
}
