import { comparableActor } from '../domain/actors.js';
import type { EffectState } from '../domain/effect-machine.js';
import { callFunction, type Db } from './database.js';
import { digestOf, sha256 } from './digest.js';

/** What a person may say of an effect. Not every word answers every question: see `decided` below. */
export const SETTLEMENT_WORDS = ['committed', 'not_committed', 'compensated', 'left'] as const;
export type SettlementWord = (typeof SETTLEMENT_WORDS)[number];

/** A person's word on an effect whose outcome nobody knows, or that no tool can undo (SPEC 3.6, 3.7). */
export interface NewSettlement {
  readonly tenantId: string;
  readonly effectId: string;
  /** The wait that the word is about; without it, whichever is open. */
  readonly interruptId?: string;
  readonly actorId: string;
  readonly authority: string;
  /**
   * Of an unknown outcome: `committed`, `not_committed`, or `compensated`: it happened and somebody undid it. Of an
   * effect that waits to be undone: `compensated`, or `left` as it is.
   */
  readonly decided: SettlementWord;
  /** The outside name of what was done, or of what undid it; required for `committed` and `compensated`. */
  readonly reference: string | null;
  /** Why they are sure; never empty. */
  readonly note: string;
  readonly idempotencyKey: string;
}

/**
 * `settled` by this call; `first_word`: kept, and another person must say the same; `replayed`: this key said it before;
 * `reused`: this key said something else; `already_settled`: by another person, request or machine; `not_unknown`: there is
 * nothing for a person to settle; `word_not_asked`: the word does not answer what is asked; `second_person_needed`: this
 * person has said it already; `words_differ`: another person said something else, which stands; `interrupt_withdrawn`: the
 * wait named is no longer the one that is open.
 */
export type Settled =
  | {
      readonly kind: 'settled' | 'first_word' | 'replayed' | SettlementRefusal;
      readonly state: EffectState;
    }
  | { readonly kind: 'effect_not_found' };
export type SettlementRefusal =
  | 'reused'
  | 'already_settled'
  | 'not_unknown'
  | 'word_not_asked'
  | 'second_person_needed'
  | 'words_differ'
  | 'interrupt_withdrawn';

const SETTLE = {
  name: 'ledger/settle-by-person',
  text: 'select holdfast.settle_by_person($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) as answer',
};

const NOTHING_SHA256 = sha256('');

/** What the model is told, as a fact. */
const TEXTS: Readonly<Record<SettlementWord, (reference: string) => string>> = {
  committed: (reference) => `Done: a person found that the target committed this call${reference}.`,
  not_committed: () => 'Not done: a person found that the target never committed this call.',
  compensated: (reference) =>
    `Done and undone: the target committed this call, and a person has undone it since${reference}. It does not stand.`,
  left: () => 'Done.',
};

/** Says what became of an effect. Two people at once: one settles, the other is told what stands. */
export async function settleByPerson(db: Db, settlement: NewSettlement): Promise<Settled> {
  const { effectId, actorId, decided, reference, note } = settlement;
  const answer = await callFunction(db, SETTLE, [
    settlement.tenantId,
    settlement.effectId,
    settlement.actorId,
    settlement.authority,
    settlement.decided,
    settlement.reference,
    settlement.note,
    TEXTS[decided](reference === null ? '' : ` (${reference})`),
    NOTHING_SHA256,
    settlement.idempotencyKey,
    digestOf({ effectId, actorId: comparableActor(actorId), decided, reference, note }),
    settlement.interruptId ?? null,
  ]);
  return answer as unknown as Settled;
}
