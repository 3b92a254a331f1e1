import type { TickActivities } from '../shared/domain/protocol.js';
import { decideOccurrence } from '../shared/ledger/schedules.js';
import type { ActivityDeps } from './deps.js';

/** The ledger's step of a tick: what became of this planned time. Safe to repeat. */
export function createDecideOccurrence({ db, log }: ActivityDeps): TickActivities['decideOccurrence'] {
  return async ({ scheduleId, plannedAt }) => {
    const { kind } = await decideOccurrence(db, scheduleId, { source: 'tick', plannedAt });
    if (kind === 'gone') log.info({ scheduleId, plannedAt }, 'a tick of a schedule that was deleted');
    return { kind };
  };
}
