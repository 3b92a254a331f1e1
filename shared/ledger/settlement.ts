import type { EffectState } from '../domain/effect-machine.js';
import { callFunction, type Db } from './database.js';
import { digestOf, sha256 } from './digest.js';

/** A person's word on an effect whose outcome nobody knows (SPEC 3.6). */
export interface NewSettlement {
  readonly tenantId: string;
  readonly effectId: string;
  readonly actorId: string;
  readonly authority: string;
  readonly decided: 'committed' | 'not_committed';
  /** The outside name of what was done; required for `committed`. */
  readonly reference: string | null;
  /** Why they are sure; never empty. */
  readonly note: string;
  readonly idempotencyKey: string;
}

/**
 * `settled` by this call; `replayed`: by an earlier one with this key; `reused`: this key settled it with other words;
 * `already_settled`: by another person, request or machine; `not_unknown`: there is nothing for a person to settle.
 */
export type Settled =
  | {
      readonly kind: 'settled' | 'replayed' | 'reused' | 'already_settled' | 'not_unknown';
      readonly state: EffectState;
    }
  | { readonly kind: 'effect_not_found' };

const SETTLE = {
  name: 'ledger/settle-by-person',
  text: 'select holdfast.settle_by_person($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) as answer',
};

const NOTHING_SHA256 = sha256('');

/** Settles an unknown effect. Two people at once: one settles, the other is told what stands. */
export async function settleByPerson(db: Db, settlement: NewSettlement): Promise<Settled> {
  const text =
    settlement.decided === 'committed'
      ? `Done: a person found that the target committed this call${settlement.reference === null ? '' : ` (${settlement.reference})`}.`
      : 'Not done: a person found that the target never committed this call.';
  const { effectId, actorId, decided, reference, note } = settlement;
  const answer = await callFunction(db, SETTLE, [
    settlement.tenantId,
    settlement.effectId,
    settlement.actorId,
    settlement.authority,
    settlement.decided,
    settlement.reference,
    settlement.note,
    text,
    NOTHING_SHA256,
    settlement.idempotencyKey,
    digestOf({ effectId, actorId, decided, reference, note }),
  ]);
  return answer as unknown as Settled;
}
