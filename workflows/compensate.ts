import type { NextUndo } from '../shared/domain/protocol.js';
import type { RunState, TransitionReason } from '../shared/domain/run-machine.js';
import { ledger } from './activities.js';
import { findOut } from './find-out.js';
import type { Run } from './run.js';
import { settleCall } from './settle-call.js';

/**
 * Undoes what the run did (SPEC 3.7): backwards, each effect by one of its own, which is dispatched, retried and
 * reconciled like any other. The ledger says what is next, so an execution that takes over goes on where the last one
 * stood. What no tool can undo waits for a person in `needs_reconciliation`.
 */
export async function compensate(run: Run): Promise<RunState> {
  run.beginUndo();
  // Taken over while something was being found out.
  if (run.state === 'reconciling') run.move('inconclusive', 'taken_over');
  let back: TransitionReason = 'taken_over';
  for (;;) {
    if (run.isLarge) await run.continueAsNew();
    const next = await run.trail.ride<NextUndo>((trail) => ledger.nextUndo({ runId: run.id, trail }));
    switch (next.kind) {
      case 'person':
        run.move('outcome_unknown', 'undo_needs_person');
        await run.waitForNews(null);
        back = 'person_settled';
        break;
      case 'doubt':
        await findOut(run);
        back = 'compensation_needed';
        break;
      case 'call':
        backToCompensating(run, back);
        run.turn = next.turn;
        run.step = next.step;
        await settleCall(run, { slot: next.slot, ...ALONE }, undefined, () => Promise.resolve());
        run.stepUndone();
        break;
      case 'done':
        backToCompensating(run, back);
        // Somebody may have asked for a pause meanwhile.
        await run.obey();
        if (next.left === 0) run.move('compensation_done', 'compensation_done');
        else run.move('fail', 'compensation_failed');
        await run.flush();
        return run.state;
    }
  }
}

/** Compensations run one after the other; what they undo may be of any length, so they take the normal lane. */
const ALONE = { parallel: false, gated: false, short: false } as const;

/** From wherever something was found out or a person was waited for. */
function backToCompensating(run: Run, reason: TransitionReason): void {
  if (run.state === 'needs_reconciliation') run.move('reconcile', reason);
  if (run.state === 'reconciling') run.move('compensate', reason);
}
