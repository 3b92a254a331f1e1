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
  const { unknown, compensate: undo } = await run.look();
  if (undo && run.state !== 'admitted') return await undoAll(run);
  if (unknown.length > 0 && (run.state === 'awaiting_approval' || run.state === 'waiting_for_input')) {
    // A wait ends `cancelled` at once; with something unknown beside it, it goes the long way.
    run.move(run.state === 'waiting_for_input' ? 'input_received' : 'approval_closed', 'cancel_requested');
  }
  if (run.state !== 'cancelling' && run.state !== 'needs_reconciliation' && run.state !== 'reconciling') {
    // While something is to be found out the control region keeps the cancel: whoever takes over must know of it.
    if (unknown.length === 0) run.note({ kind: 'control', to: 'active', reason: 'cancel_requested' });
    run.move('cancel', 'cancel_requested');
    await run.flush();
  }
  if (run.state === 'cancelled') return run.state;
  if (run.state === 'cancelling' && unknown.length === 0) {
    run.move('wound_down', 'wound_down');
    await run.flush();
    return run.state;
  }
  await findOut(run);
  run.move('wound_down', 'wound_down');
  await run.flush();
  return run.state;
}

/** The cancel asks that what happened be undone. */
async function undoAll(run: Run): Promise<RunState> {
  // While something is to be found out the control region keeps the cancel: whoever takes over must know of it.
  if (run.state === 'needs_reconciliation' || run.state === 'reconciling') await findOut(run);
  run.note({ kind: 'control', to: 'active', reason: 'cancel_requested' });
  run.move('compensate', 'cancel_requested');
  return await compensate(run);
}
