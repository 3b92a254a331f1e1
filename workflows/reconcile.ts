import type { EffectStanding, ExamineAnswer } from '../shared/domain/protocol.js';
import type { Run } from './run.js';

/**
 * Brings an unknown effect to a settlement, and the run through `needs_reconciliation` and `reconciling` (SPEC 3.6):
 * a late receipt, then status queries while the series allows, then a wait for evidence or a person. Never a guess,
 * and never another dispatch.
 */
export async function reconcile(run: Run, slot: number, effect: EffectStanding): Promise<EffectStanding> {
  run.move('outcome_unknown', 'outcome_unknown');
  let standing = effect;
  for (;;) {
    if (standing.next === 'person') await run.waitForNews(null);
    run.move('reconcile', standing.next === 'late_receipt' ? 'late_receipt' : 'status_query');
    standing = await querySeries(run, slot);
    if (standing.state !== 'unknown') break;
    run.move('inconclusive', 'inconclusive');
  }
  run.move(
    run.undoes ? 'compensate' : 'settled',
    standing.state === 'committed' ? 'settled_committed' : 'settled_not_committed',
  );
  return standing;
}

/** Asks until the effect is settled or no query is left. */
export async function querySeries(run: Run, slot: number): Promise<EffectStanding> {
  for (;;) {
    if (run.isLarge) await run.continueAsNew();
    const answer = await run.trail.ride<ExamineAnswer>((trail) =>
      run.queryEffect.executeWithOptions({ summary: `step ${run.step} call ${slot}` }, [
        { runId: run.id, turn: run.turn, step: run.step, slot, trail },
      ]),
    );
    if (answer.kind === 'absent') throw new Error('bug: an unknown effect has no row');
    if (answer.state !== 'unknown' || answer.next !== 'query') return answer;
    await run.waitFor(answer.queryWaitMs ?? 1_000);
  }
}
