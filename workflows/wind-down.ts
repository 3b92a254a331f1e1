import type { RunState } from '../shared/domain/run-machine.js';
import { querySeries } from './reconcile.js';
import type { Run } from './run.js';
import { examine } from './settle-call.js';

/**
 * Carries out a cancel (SPEC 4): nothing new begins, calls in flight were aborted, and the run ends `cancelled` only
 * when the outside truth of every effect is known. What nobody can know is waited for, as ever.
 */
export async function windDown(run: Run): Promise<RunState> {
  run.beginWindDown();
  const { unknown, openChildren = 0 } = await run.look();
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

/** The ledger has cancelled the children with the run; it ends after them (SPEC 4). */
async function childrenEnd(run: Run): Promise<void> {
  let view = await run.look();
  while (view.openChildren !== undefined) {
    if (run.isLarge) await run.continueAsNew();
    view = await run.waitForNews(null);
  }
}

/** Through `needs_reconciliation` and `reconciling` until nothing is unknown; the run rests in `reconciling` then. */
async function findOut(run: Run): Promise<void> {
  if (run.state === 'reconciling') run.move('inconclusive', 'inconclusive');
  run.move('outcome_unknown', 'outcome_unknown');
  for (;;) {
    run.move('reconcile', 'status_query');
    const { unknown } = await run.look();
    for (const { step, slot } of unknown) {
      run.step = step;
      // A dispatch that nobody reports on any more is unknown from here on.
      await examine(run, slot);
      await querySeries(run, slot);
    }
    const left = await run.look();
    if (left.unknown.length === 0) return;
    run.move('inconclusive', 'inconclusive');
    await run.waitForNews(null);
  }
}
