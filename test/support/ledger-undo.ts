import type { NextUndo, TrailEntry } from '../../shared/domain/protocol.js';
import { intendUndo, nextUndo, type UndoToPlan } from '../../shared/ledger/compensation.js';
import { sha256 } from '../../shared/ledger/digest.js';
import type { LedgerCall } from './ledger-call.js';
import type { LedgerRun } from './ledger-run.js';

/** Of a call's policy: a tool that its target can be asked about undoes it. */
export const UNDOABLE = {
  compensation: {
    tool: 'tool_undo',
    toolVersion: 'b'.repeat(64),
    effectClass: 'queryable',
    namespace: 'tool_undo',
    timeoutSeconds: 30,
    keyed: null,
    query: { settlingSeconds: 0, equalAnswers: 1, intervalSeconds: 1, queriesMax: 4 },
    arguments: null,
  },
} as const;

/** The move with which a run begins to undo what it did. */
export const UNDO: TrailEntry = { kind: 'move', to: 'compensating', reason: 'cancel_requested' };

export async function next(
  run: LedgerRun,
  ...entries: readonly TrailEntry[]
): Promise<NextUndo | UndoToPlan> {
  return await nextUndo(run.world.db, run, run.trail(...entries));
}

/** Writes the intent of the compensation of an effect, as the activity does. */
export async function intend(
  run: LedgerRun,
  effectId: string,
  text: string | null = '{"undo":true}',
): Promise<void> {
  const intent = text === null ? null : { arguments: text, argumentsSha256: sha256(text) };
  await intendUndo(run.world.db, run, effectId, intent);
}

/** The compensation of a call that happened, with its intent; its run is `compensating`. */
export async function intended(call: LedgerCall): Promise<LedgerCall> {
  await call.attempt('succeeded');
  await next(call.run, UNDO);
  await intend(call.run, (await call.effect()).effect_id);
  return undoOf(call);
}

/** The place of a call's compensation. */
function undoOf(call: LedgerCall): LedgerCall {
  return call.run.call(call.place.slot + 1_000, call.place.step);
}
