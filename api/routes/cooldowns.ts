import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import { clearCooldown } from '../../shared/ledger/cooldowns.js';
import {
  COOLDOWN_KINDS,
  COOLDOWN_STATES,
  type CooldownFilters,
  listCooldowns,
  readCooldown,
} from '../../shared/ledger/reads/list-cooldowns.js';
import { byId, readPage } from '../cursor.js';
import { requireRole } from '../identity.js';
import { defineRoute, reply } from '../route.js';
import { PageQuery } from '../views/common.js';
import { CooldownListView, CooldownView } from '../views/cooldown-views.js';

/** GET /v1/cooldowns: which models and tools asked to come later, and who waits for them. */
export const listCooldownsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/cooldowns',
    operationId: 'listCooldowns',
    summary: 'List cool-downs of models and tools, newest first',
    description:
      'A model or tool that asks one run to come later asks all of them, of every tenant. They wait in `retry_wait` ' +
      'with no attempt counted and go on one after another. Takes the role operator, admin or auditor.',
    authenticated: true,
    query: z.strictObject({
      state: z.enum([...COOLDOWN_STATES, 'open', 'any']).default('open'),
      kind: z.enum(COOLDOWN_KINDS).optional(),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: CooldownListView } },
    errors: ['invalid_request', 'role_required', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    requireRole(identity, ['operator', 'admin', 'auditor'], 'list cool-downs');
    const filters: CooldownFilters = {
      state: query.state === 'any' ? null : query.state,
      kind: query.kind ?? null,
    };
    const scope = { list: 'cooldowns', tenant: identity.tenantId, ...filters };
    const { rows, next } = await readPage(scope, query, byId('cdn', 'cooldown_id'), (after) =>
      listCooldowns(pool, identity.tenantId, filters, { after: after ?? '', limit: query.limit }),
    );
    return reply(200, { cooldowns: rows, next_cursor: next });
  },
);

/** DELETE /v1/cooldowns/{cooldown_id}: a person's word that a model or tool may be asked again. */
export const clearCooldownRoute = defineRoute(
  {
    method: 'delete',
    path: '/v1/cooldowns/{cooldown_id}',
    operationId: 'clearCooldown',
    summary: 'Say that a model or tool may be asked again',
    description:
      'Takes the role operator or admin. The runs that wait look again at once and go one after another; those that ' +
      'were stopped themselves wait out their own series. The row stays, with who said it; sent again it changes nothing.',
    authenticated: true,
    replies: { 200: { description: 'Cleared or over, now or before.', body: CooldownView } },
    errors: ['role_required', 'cooldown_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) => {
    const { cooldown_id: id } = params;
    const { tenantId, actorId } = identity;
    const authority = requireRole(identity, ['operator', 'admin'], 'clear a cool-down');
    if (!isId('cdn', id)) throw cooldownNotFound(id);
    const kind = await clearCooldown(pool, { tenantId, actorId, authority }, id);
    const cooldown = await readCooldown(pool, tenantId, id);
    if (kind === 'cooldown_not_found' || cooldown === null) throw cooldownNotFound(id);
    return reply(200, cooldown);
  },
);

function cooldownNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'cooldown_not_found',
    `There is no cool-down ${excerpt(id, 60)}. GET /v1/cooldowns lists those that are open.`,
  );
}
