import type { LedgerView } from './ledger-view.js';

export { MOVABLE_CLOCK } from '../../workers/fixture/clock.js';

/** Sets the clock of a ledger that has `MOVABLE_CLOCK`. */
export async function setClock(world: Pick<LedgerView, 'rows'>, nowMs: number): Promise<void> {
  await world.rows('update test_clock.shift set by_ms = $1', Math.round(nowMs - Date.now()));
}
