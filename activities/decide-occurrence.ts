import type { TickActivities } from '../shared/domain/protocol.js';
import { decideOccurrence } from '../shared/ledger/schedules.js';
import type { ActivityDeps } from './deps.js';
import { codeOf } from './scope.js';

/** The ledger's step of a tick: what became of this planned time. Safe to repeat. */
export function createDecideOccurrence({
  db,
  log,
}: Pick<ActivityDeps, 'db' | 'log'>): TickActivities['decideOccurrence'] {
  return async ({ scheduleId, plannedAt }) => {
    try {
      const { kind } = await decideOccurrence(db, scheduleId, { source: 'tick', plannedAt });
      if (kind === 'gone') log.info({ scheduleId, plannedAt }, 'a tick of a schedule that was deleted');
      return { kind };
    } catch (error) {
      throw codeOf(error, log, { activity: 'decideOccurrence', scheduleId, plannedAt });
    }
  };
}
