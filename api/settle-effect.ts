import type { Pool } from 'pg';
import { z } from 'zod';
import { HoldfastError } from '../shared/domain/errors.js';
import { isId } from '../shared/domain/ids.js';
import { excerpt } from '../shared/domain/json-rules.js';
import {
  type ReconciliationRecord,
  readReconciliation,
} from '../shared/ledger/reads/list-reconciliations.js';
import { settleByPerson, type SettlementRefusal } from '../shared/ledger/settlement.js';
import type { Identity } from './deps.js';
import { requireRole } from './identity.js';

const Note = z
  .string()
  .min(1)
  .max(4_000)
  .regex(/\S/, { error: 'must say why you are sure' })
  .meta({ description: 'Why you are sure.' });

const reference = (description: string) =>
  z.string().min(1).max(1_000).regex(/\S/, { error: 'must name what was done' }).meta({ description });

/** A person's word on an effect, as a request says it. */
export const SettleEffect = z
  .discriminatedUnion('decided', [
    z.strictObject({
      decided: z.literal('committed'),
      reference: reference('The outside name of what was done.'),
      note: Note,
    }),
    z.strictObject({ decided: z.literal('not_committed'), note: Note }),
    z.strictObject({
      decided: z.literal('compensated'),
      reference: reference('The outside name of what undid it.'),
      note: Note,
    }),
    z.strictObject({ decided: z.literal('left'), note: Note }),
  ])
  .meta({ id: 'SettleEffect' });

/** A word on an effect, at the desk or as the answer to the wait over it. */
export interface SettleRequest {
  readonly effectId: string;
  /** The wait that it answers, where it came as an answer. */
  readonly interruptId?: string;
  readonly said: z.output<typeof SettleEffect>;
  readonly idempotencyKey: string;
}

/** The codes with which `settleEffect` refuses, beside those of every write. */
export const SETTLE_ERRORS = [
  'role_required',
  'effect_not_found',
  'idempotency_key_reused',
  'already_settled',
  'not_unknown',
  'word_not_asked',
  'second_person_needed',
  'words_differ',
] as const;

/**
 * One person's word on an effect, in the same way wherever it is said: the effect as it is now, and whether this key had
 * said so before.
 *
 * @throws HoldfastError of `SETTLE_ERRORS`, and `interrupt_withdrawn` where the wait named is over
 */
export async function settleEffect(
  pool: Pool,
  identity: Identity,
  { effectId, interruptId, said, idempotencyKey }: SettleRequest,
): Promise<{ readonly item: ReconciliationRecord; readonly replayed: boolean }> {
  const { tenantId, actorId } = identity;
  const authority = requireRole(identity, ['operator', 'admin'], 'settle an effect');
  if (!isId('eff', effectId)) throw effectNotFound(effectId);
  const settled = await settleByPerson(pool, {
    ...{ tenantId, effectId, actorId, authority, idempotencyKey },
    ...(interruptId === undefined ? {} : { interruptId }),
    decided: said.decided,
    reference: 'reference' in said ? said.reference : null,
    note: said.note,
  });
  if (settled.kind === 'effect_not_found') throw effectNotFound(effectId);
  const item = await readReconciliation(pool, tenantId, effectId);
  switch (settled.kind) {
    case 'settled':
    case 'first_word':
    case 'replayed':
      if (item === null) throw new Error(`bug: ${effectId} cannot be read`);
      return { item, replayed: settled.kind === 'replayed' };
    default:
      throw refusalOf(settled.kind, { id: effectId, state: settled.state, item, said, interruptId });
  }
}

interface Refused {
  readonly id: string;
  readonly state: string;
  readonly item: ReconciliationRecord | null;
  readonly said: SettleRequest['said'];
  readonly interruptId: string | undefined;
}

function refusalOf(kind: SettlementRefusal, { id, state, item, said, interruptId }: Refused): HoldfastError {
  const stands = item?.waiting?.first_word ?? null;
  const extensions = {
    effect_id: id,
    effect_state: state,
    ...(stands === null ? {} : { first_word: { ...stands }, your_word: { ...said } }),
  };
  switch (kind) {
    case 'reused':
      return new HoldfastError(
        'idempotency_key_reused',
        `This key settled ${id} in other words. Nothing was changed: read what stands.`,
        { extensions },
      );
    case 'already_settled':
      return new HoldfastError(
        'already_settled',
        `Effect ${id} is ${item?.undo?.state ?? state}, settled by ` +
          `${item?.undo?.actor_id ?? item?.settlement?.actor_id ?? 'somebody else'}, and stays so. ` +
          'Read the settlement; when it is wrong, mend the outside world by a new run.',
        { extensions },
      );
    case 'not_unknown':
      return new HoldfastError(
        'not_unknown',
        state === 'unknown'
          ? `Effect ${id} is unknown, but its run still finds out by itself. Settle it once the run needs you.`
          : `Effect ${id} is ${state}: there is nothing to settle.`,
        { extensions },
      );
    case 'word_not_asked':
      return new HoldfastError(
        'word_not_asked',
        item?.waiting?.about === 'undo'
          ? `That effect ${id} happened is known. Say whether it is undone: compensated, or left as it is.`
          : `Nobody knows yet whether effect ${id} happened. Say that first: committed, not_committed or compensated.`,
        { extensions },
      );
    case 'second_person_needed':
      return new HoldfastError(
        'second_person_needed',
        `You have said so of ${id} already. Its contract wants the same word of another person.`,
        { extensions },
      );
    case 'interrupt_withdrawn':
      return new HoldfastError(
        'interrupt_withdrawn',
        `${interruptId ?? 'The wait'} is over: its run went on to find out by itself what became of ${id}. Nothing was ` +
          'settled. GET /v1/interrupts lists who is waited for now.',
        { extensions },
      );
    case 'words_differ':
      return new HoldfastError(
        'words_differ',
        `${stands?.actor_id ?? 'Somebody'} said ${stands?.decided ?? 'something else'} of ${id}, and you say ` +
          `${said.decided}. Nothing was settled: agree on what happened; whoever was wrong sends their word anew.`,
        { extensions },
      );
  }
}

/** The one answer for an effect that is not there, is another tenant's, or was never in doubt. */
export function effectNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'effect_not_found',
    `There is no effect ${excerpt(id, 60)} to reconcile. GET /v1/reconciliations lists those there are.`,
  );
}
