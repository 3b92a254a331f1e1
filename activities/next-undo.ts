import { compensationArguments } from '../shared/domain/compensation.js';
import type { JsonObject } from '../shared/domain/json.js';
import type { CommitInput, NextUndo, Refused } from '../shared/domain/protocol.js';
import { canonicalJson, parseStrictJson } from '../shared/domain/strict-json.js';
import { intendUndo, nextUndo, type UndoToPlan } from '../shared/ledger/compensation.js';
import { sha256 } from '../shared/ledger/digest.js';
import type { ActivityDeps } from './deps.js';
import { inScope, orRefused } from './scope.js';

/** What a run undoes next; where it is a tool's to undo, the intent stands in the ledger when this returns. */
export function createNextUndo(deps: ActivityDeps) {
  return (input: CommitInput): Promise<NextUndo | Refused> =>
    inScope('nextUndo', input.runId, deps, (scope) =>
      orRefused(async () => {
        await deps.reach('undo.before_next');
        for (;;) {
          const next = await nextUndo(deps.db, scope, input.trail);
          if (next.kind !== 'plan') return next;
          await deps.reach('undo.before_intent');
          await intendUndo(deps.db, scope, next.effectId, intentOf(next));
          await deps.reach('undo.after_intent');
        }
      }),
    );
}

/** Made of what the ledger keeps for ever, so that every repetition makes the same. */
function intentOf(plan: UndoToPlan): { readonly arguments: string; readonly argumentsSha256: string } | null {
  const parsed = parseStrictJson(plan.arguments);
  if (!parsed.ok) throw new Error(`bug: the stored arguments of ${plan.effectId} are no JSON`);
  const { reference, idempotencyKey } = plan;
  const undone = { arguments: parsed.value as JsonObject, reference, idempotencyKey };
  const made = compensationArguments(plan.rule, undone);
  if (made === undefined) return null;
  const text = canonicalJson(made);
  return { arguments: text, argumentsSha256: sha256(text) };
}
