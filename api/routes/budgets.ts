import { z } from 'zod';
import { BudgetLimits } from '../../shared/domain/budgets.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import { BUDGET_WINDOWS, setTenantBudget } from '../../shared/ledger/budgets.js';
import { readTenantBudget } from '../../shared/ledger/reads/read-budgets.js';
import { requireRole } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { TenantBudgetView } from '../views/budget-views.js';

const ENDPOINT = 'PUT /v1/budgets/tenant';

const PutTenantBudget = z
  .strictObject({
    window: z.enum(BUDGET_WINDOWS).default('total').meta({
      description: '`day` counts each day by itself, in UTC. Another window than before counts anew.',
    }),
    limits: BudgetLimits.meta({
      description: 'All limits from now on: what is left out is counted on, and limits nothing any more.',
    }),
  })
  .meta({ id: 'PutTenantBudget' });

/** PUT /v1/budgets/tenant: what all runs of the tenant together may spend. */
export const putTenantBudgetRoute = defineRoute(
  {
    method: 'put',
    path: '/v1/budgets/tenant',
    operationId: 'putTenantBudget',
    summary: 'Set the budget of the tenant',
    description:
      'In force for the next claim of every run. What was used before a limit was first set is not counted. A limit below ' +
      'what is used already lets nothing more go, and takes nothing back. Runs that wait over it look again. Takes admin.',
    authenticated: true,
    idempotent: true,
    body: PutTenantBudget,
    replies: {
      200: {
        description: 'Set, by this request or by an earlier one with this key; the budget as it is now.',
        body: TenantBudgetView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'role_required',
      'idempotency_key_reused',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ body, identity, idempotencyKey }, { pool }) => {
    const { tenantId, actorId } = identity;
    const authority = requireRole(identity, ['admin'], 'set the budget of the tenant');
    const set = await setTenantBudget(pool, {
      ...{ tenantId, actorId, authority, idempotencyKey, endpoint: ENDPOINT },
      ...body,
    });
    if (set === 'reused') {
      throw new HoldfastError(
        'idempotency_key_reused',
        'This key set the budget to something else. Nothing was done: send a new key, or that body.',
      );
    }
    const budget = await readTenantBudget(pool, tenantId);
    const headers = set === 'replayed' ? { 'idempotent-replayed': 'true' } : {};
    return reply(200, budget, headers);
  },
);

/** GET /v1/budgets/tenant: what all runs of the tenant together may spend, and have. */
export const readTenantBudgetRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/budgets/tenant',
    operationId: 'readTenantBudget',
    summary: 'Read the budget of the tenant',
    description: 'Takes the role admin, operator or auditor.',
    authenticated: true,
    replies: { 200: { description: 'The budget as it is now.', body: TenantBudgetView } },
    errors: ['role_required', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ identity }, { pool }) => {
    requireRole(identity, ['admin', 'operator', 'auditor'], 'read the budget of the tenant');
    return reply(200, await readTenantBudget(pool, identity.tenantId));
  },
);
