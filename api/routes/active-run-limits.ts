import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { setActiveRunLimit } from '../../shared/ledger/active-run-limits.js';
import { listActiveRunLimits } from '../../shared/ledger/reads/list-active-run-limits.js';
import { requireRole } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { ActiveRunLimitList } from '../views/active-run-limit-views.js';

const ENDPOINT = 'PUT /v1/active-run-limits';

const PutActiveRunLimit = z
  .strictObject({
    agent: z.string().min(1).max(64).nullable().default(null).meta({
      description: 'The agent whose runs are limited; null: all runs of the tenant together.',
    }),
    active_max: z.int().min(0).max(1_000_000).nullable().meta({
      description: 'Runs under way at once; 0 starts nothing new; null lifts the limit.',
    }),
  })
  .meta({ id: 'PutActiveRunLimit' });

/** PUT /v1/active-run-limits: how many runs may be under way at once. */
export const putActiveRunLimitRoute = defineRoute(
  {
    method: 'put',
    path: '/v1/active-run-limits',
    operationId: 'putActiveRunLimit',
    summary: 'Limit how many runs are under way at once',
    description:
      'Of the tenant, or of one of its agents. A run counts from its start to its end, also while it waits for somebody; child ' +
      'runs do not count and are never held back. What is held back stays `admitted` and starts as others end. Takes admin.',
    authenticated: true,
    idempotent: true,
    body: PutActiveRunLimit,
    replies: {
      200: {
        description: 'Set, by this request or by an earlier one with this key; all limits as they are now.',
        body: ActiveRunLimitList,
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
    const authority = requireRole(identity, ['admin'], 'limit the active runs of the tenant');
    const set = await setActiveRunLimit(pool, {
      ...{ tenantId, actorId, authority, idempotencyKey, endpoint: ENDPOINT },
      agent: body.agent,
      activeMax: body.active_max,
    });
    if (set === 'reused') {
      throw new HoldfastError(
        'idempotency_key_reused',
        'This key set another limit. Nothing was done: send a new key, or that body.',
      );
    }
    const headers = set === 'replayed' ? { 'idempotent-replayed': 'true' } : {};
    return reply(200, { items: await listActiveRunLimits(pool, tenantId) }, headers);
  },
);

/** GET /v1/active-run-limits: the limits, with what counts against them and what waits. */
export const listActiveRunLimitsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/active-run-limits',
    operationId: 'listActiveRunLimits',
    summary: 'Read the limits on active runs',
    description: 'Takes the role admin, operator or auditor.',
    authenticated: true,
    replies: { 200: { description: 'The limits as they are now.', body: ActiveRunLimitList } },
    errors: ['role_required', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ identity }, { pool }) => {
    requireRole(identity, ['admin', 'operator', 'auditor'], 'read the limits on active runs');
    return reply(200, { items: await listActiveRunLimits(pool, identity.tenantId) });
  },
);
