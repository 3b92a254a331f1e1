import type { Cooling } from '../shared/domain/protocol.js';
import type { Run } from './run.js';

/**
 * Waits in `retry_wait` for the run's turn at a target that asked to come later (SPEC 3.5), holding no worker. News ends
 * the wait: the claim comes again and says whether the turn has come.
 *
 * @returns false, at once, where the turn comes after the end of the series or of the run
 */
export async function waitForTurn(run: Run, cooling: Cooling, slot?: number): Promise<boolean> {
  const { waitMs, seriesMsLeft, attempt, attemptsMax } = cooling;
  const row = {
    kind: 'retry' as const,
    ...{ turn: run.turn, step: run.step, ...(slot === undefined ? {} : { slot }) },
    ...{ reason: 'cooling_down', attempt, attemptsMax },
  };
  if (waitMs >= seriesMsLeft) {
    if (slot === undefined) run.note({ ...row, action: 'give_up' });
    return false;
  }
  // A run that undoes waits where it stands: `retry_wait` leads back to work.
  if (!run.undoes) run.move('wait_retry', 'cooling_down');
  run.note({ ...row, action: 'retry', waitMs });
  await run.waitForNews(waitMs);
  if (!run.undoes) run.move('retry_due', 'retry_due');
  return true;
}
