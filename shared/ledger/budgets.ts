import { type BudgetLimits, budgetLines } from '../domain/budgets.js';
import type { JsonValue } from '../domain/json.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';

/** Over which time a tenant's budget counts: for ever, or each day by itself, in UTC. */
export const BUDGET_WINDOWS = ['total', 'day'] as const;
export type BudgetWindow = (typeof BUDGET_WINDOWS)[number];

export interface SetTenantBudget {
  readonly tenantId: string;
  readonly actorId: string;
  readonly authority: string;
  readonly window: BudgetWindow;
  /** All limits of the tenant from now on; a line that is left out limits nothing any more. */
  readonly limits: BudgetLimits;
  readonly endpoint: string;
  readonly idempotencyKey: string;
}

const SET_TENANT = {
  name: 'ledger/set-tenant-budget',
  text: 'select holdfast.set_tenant_budget($1, $2, $3, $4, $5, $6, $7, $8) as answer',
};

const RELEASE = {
  name: 'ledger/release-tenant-waits',
  text: 'select holdfast.release_tenant_waits($1)',
};

/**
 * Sets what all runs of a tenant together may spend. Runs that wait over it are told to look again.
 *
 * @returns `replayed` when an earlier request with this key set the same, `reused` when it set something else
 */
export async function setTenantBudget(db: Db, set: SetTenantBudget): Promise<'set' | 'replayed' | 'reused'> {
  const lines = budgetLines(set.limits);
  const answer = await callFunction(db, SET_TENANT, [
    set.tenantId,
    set.actorId,
    set.authority,
    set.window,
    jsonb(lines),
    set.endpoint,
    set.idempotencyKey,
    digestOf({ window: set.window, lines: lines as unknown as JsonValue }),
  ]);
  const kind = answer['kind'] as 'set' | 'replayed' | 'reused';
  // Also of a replay: the process that set it may have died before this.
  if (kind !== 'reused') await db.query({ ...RELEASE, values: [set.tenantId] });
  return kind;
}
