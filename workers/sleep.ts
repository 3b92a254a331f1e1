import type { Pool } from 'pg';
import { beginSleepRuns } from '../shared/ledger/sleep.js';
import type { Logger } from '../shared/process/log.js';

/** Threads that one round sees to at most: those that have been idle longest. */
const ROUND_MAX = 50;

/**
 * Begins what idle threads are due (SPEC 10): a run of its own for each, with the lowest priority, which the starter starts
 * like any other. Of any number of workers each may do it at once.
 */
export async function beginSleep({ db, log }: { readonly db: Pool; readonly log: Logger }): Promise<void> {
  for (const { threadId, kind } of await beginSleepRuns(db, ROUND_MAX)) {
    if (kind === 'agent_not_found' || kind === 'budget_unmet')
      log.warn({ threadId, kind }, 'the sleep-time run of a thread could not be made');
  }
}
