import type { JsonObject } from '../domain/json.js';
import type { NextUndo, Trail } from '../domain/protocol.js';
import { callFunction, type Db, jsonb } from './database.js';
import type { Speaker } from './trail.js';

/** An effect whose compensation has no intent yet, with all that its arguments are made of. */
export interface UndoToPlan {
  readonly kind: 'plan';
  readonly effectId: string;
  /** RFC 8785 text. */
  readonly arguments: string;
  /** The outside name of what was done, from its receipt. */
  readonly reference: string | null;
  readonly idempotencyKey: string;
  readonly rule: JsonObject | null;
}

const NEXT = { name: 'ledger/next-undo', text: 'select holdfast.next_undo($1, $2, $3, $4) as answer' };

/**
 * Commits the trail and says what is undone next (SPEC 3.7): backwards, the newest first. What no tool can undo is
 * handed to a person here. Safe to repeat.
 *
 * @throws a refusal: `out_of_step` when nothing is being undone, and those of every commit
 */
export async function nextUndo(
  db: Db,
  { runId, execution }: Speaker,
  trail: Trail,
): Promise<NextUndo | UndoToPlan> {
  const a = await callFunction(db, NEXT, [runId, execution, trail.from, jsonb(trail.entries)]);
  if (a['kind'] !== 'plan') return a as unknown as NextUndo;
  return {
    kind: 'plan',
    effectId: a['effect_id'] as string,
    arguments: a['arguments'] as string,
    reference: (a['reference'] ?? null) as string | null,
    idempotencyKey: a['idempotency_key'] as string,
    rule: (a['rule'] ?? null) as JsonObject | null,
  };
}

const INTEND = {
  name: 'ledger/intend-undo',
  text: 'select holdfast.intend_undo($1, $2, $3, $4, $5) as answer',
};

/** Writes the intent of a compensation, once; null says that its arguments cannot be made, and a person is asked. */
export async function intendUndo(
  db: Db,
  { runId, execution }: Speaker,
  effectId: string,
  intent: { readonly arguments: string; readonly argumentsSha256: string } | null,
): Promise<void> {
  await db.query({
    ...INTEND,
    values: [runId, execution, effectId, intent?.arguments ?? null, intent?.argumentsSha256 ?? null],
  });
}
