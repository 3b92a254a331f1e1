import type { RunState } from '../shared/domain/run-machine.js';
import { compensate } from './compensate.js';
import { findOut } from './find-out.js';
import type { Run } from './run.js';

/**
 * Carries out a cancel (SPEC 4): nothing new begins, calls in flight were aborted, and the run ends `cancelled` only
 * when the outside truth of every effect is known. What nobody can know is waited for, as ever.
 */
export async function windDown(run: Run): Promise<RunState> {
  run.beginWindDown();
  const { unknown, compensate: undo, openChildren = 0 } = await run.look();
  if (undo && run.state !== 'admitted') return await undoAll(run, openChildren);
  if (
    unknown.length + openChildren > 0 &&
    (run.state === 'awaiting_approval' || run.state === 'waiting_for_input')
  ) {
    // A wait ends `cancelled` at once; with something unknown or a child beside it, it goes the long way.
    run.move(run.state === 'waiting_for_input' ? 'input_received' : 'approval_closed', 'cancel_requested');
  }
  if (run.state !== 'cancelling' && run.state !== 'needs_reconciliation' && run.state !== 'reconciling') {
    // While something is to be found out the control region keeps the cancel: whoever takes over must know of it.
    if (unknown.length === 0) run.note({ kind: 'control', to: 'active', reason: 'cancel_requested' });
    run.move('cancel', 'cancel_requested');
    await run.flush();
  }
  if (run.state === 'cancelled') return run.state;
  if (run.state !== 'cancelling' || unknown.length > 0) await findOut(run);
  if (openChildren > 0) await childrenEnd(run);
  run.move('wound_down', 'wound_down');
  await run.flush();
  return run.state;
}

/** The cancel asks that what happened be undone, after the children have ended. */
async function undoAll(run: Run, openChildren: number): Promise<RunState> {
  // While something is to be found out the control region keeps the cancel: whoever takes over must know of it.
  if (run.state === 'needs_reconciliation' || run.state === 'reconciling') await findOut(run);
  if (openChildren > 0) await childrenEnd(run);
  run.note({ kind: 'control', to: 'active', reason: 'cancel_requested' });
  run.move('compensate', 'cancel_requested');
  return await compensate(run);
}

/** The ledger has cancelled the children with the run; it ends after them (SPEC 4). */
async function childrenEnd(run: Run): Promise<void> {
  let view = await run.look();
  while (view.openChildren !== undefined) {
    if (run.isLarge) await run.continueAsNew();
    view = await run.waitForNews(null);
  }
}
