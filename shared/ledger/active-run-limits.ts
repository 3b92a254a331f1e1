import { callFunction, type Db } from './database.js';
import { digestOf } from './digest.js';

export interface SetActiveRunLimit {
  readonly tenantId: string;
  readonly actorId: string;
  readonly authority: string;
  /** Null: all runs of the tenant together. */
  readonly agent: string | null;
  /** Runs under way at once; null lifts the limit. */
  readonly activeMax: number | null;
  readonly endpoint: string;
  readonly idempotencyKey: string;
}

const SET = {
  name: 'ledger/set-active-run-limit',
  text: 'select holdfast.set_active_run_limit($1, $2, $3, $4, $5, $6, $7, $8) as answer',
};

/**
 * Sets how many runs of a tenant, or of one of its agents, may be under way at once. Runs that are under way already go on;
 * what it holds back stays admitted and starts as others end.
 *
 * @returns `replayed` when an earlier request with this key set the same, `reused` when it set something else
 */
export async function setActiveRunLimit(
  db: Db,
  set: SetActiveRunLimit,
): Promise<'set' | 'replayed' | 'reused'> {
  const { agent, activeMax } = set;
  const answer = await callFunction(db, SET, [
    set.tenantId,
    set.actorId,
    set.authority,
    agent,
    activeMax,
    set.endpoint,
    set.idempotencyKey,
    digestOf({ agent, activeMax }),
  ]);
  return answer['kind'] as 'set' | 'replayed' | 'reused';
}
