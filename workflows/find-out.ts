import { querySeries } from './reconcile.js';
import type { Run } from './run.js';
import { examine } from './settle-call.js';

/** Through `needs_reconciliation` and `reconciling` until nothing is unknown; the run rests in `reconciling` then. */
export async function findOut(run: Run): Promise<void> {
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
