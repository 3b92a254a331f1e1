import { z } from 'zod';
import { listRefusals } from '../../shared/ledger/refused-requests.js';
import { byId, readPage } from '../cursor.js';
import { requireRole } from '../identity.js';
import { defineRoute, reply } from '../route.js';
import { Actor, PageQuery } from '../views/common.js';
import { RefusalListView } from '../views/refusal-views.js';

/** GET /v1/refusals: who tried what and was refused. */
export const listRefusalsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/refusals',
    operationId: 'listRefusals',
    summary: 'List what people asked for and were refused, newest first',
    description: 'Of requests that would have changed something. Takes the role auditor or admin.',
    authenticated: true,
    query: z.strictObject({
      actor: Actor.optional(),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: RefusalListView } },
    errors: ['invalid_request', 'cursor_invalid', 'role_required', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    requireRole(identity, ['auditor', 'admin'], 'see what was refused');
    const { tenantId } = identity;
    const actorId = query.actor ?? null;
    const scope = { list: 'refusals', tenant: tenantId, actor: actorId };
    const { rows, next } = await readPage(scope, query, byId('req', 'request_id'), (before) =>
      listRefusals(pool, tenantId, { before, actorId, limit: query.limit }),
    );
    return reply(200, { refusals: rows, next_cursor: next });
  },
);
