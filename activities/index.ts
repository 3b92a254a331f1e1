import type { LedgerActivities, RunActivities, TickActivities } from '../shared/domain/protocol.js';
import { createAct } from './act.js';
import { createDecideOccurrence } from './decide-occurrence.js';
import type { ActivityDeps } from './deps.js';
import { createLedgerSteps } from './ledger-steps.js';
import { createQueryEffect } from './query-effect.js';
import { createThink } from './think.js';

/** Every activity of a run and of a schedule's tick, over what the worker hands in. */
export function createActivities(deps: ActivityDeps): RunActivities & LedgerActivities & TickActivities {
  return {
    think: createThink(deps),
    act: createAct(deps),
    queryEffect: createQueryEffect(deps),
    ...createLedgerSteps(deps),
    decideOccurrence: createDecideOccurrence(deps),
  };
}
