import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import { DELIVERY_STATES } from '../../shared/domain/webhooks.js';
import {
  listWebhookDeliveries,
  NEWEST_DELIVERY,
  readWebhookDelivery,
  type WebhookDeliveryRecord,
} from '../../shared/ledger/reads/list-webhooks.js';
import { replayWebhook, testWebhookEndpoint } from '../../shared/ledger/webhooks.js';
import { byId, readPage } from '../cursor.js';
import type { ApiDeps } from '../deps.js';
import { defineRoute, reply } from '../route.js';
import { PageQuery } from '../views/common.js';
import { WebhookDeliveryListView, WebhookDeliveryView } from '../views/webhook-views.js';
import { foundEndpoint, requireWebhookRole } from './webhook-endpoints.js';

/** GET /v1/webhook-endpoints/{endpoint_id}/deliveries: what it was told, try by try. */
export const listWebhookDeliveriesRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/webhook-endpoints/{endpoint_id}/deliveries',
    operationId: 'listWebhookDeliveries',
    summary: 'List the messages of a webhook endpoint, newest first',
    description: 'Takes the role operator or admin.',
    authenticated: true,
    query: z.strictObject({ state: z.enum(DELIVERY_STATES).optional(), ...PageQuery }),
    replies: { 200: { description: 'One page.', body: WebhookDeliveryListView } },
    errors: [
      'invalid_request',
      'role_required',
      'webhook_endpoint_not_found',
      'cursor_invalid',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, query, identity }, deps) => {
    requireWebhookRole(identity);
    const { tenantId } = identity;
    const { endpoint_id: id } = await foundEndpoint(deps, tenantId, params.endpoint_id);
    const { limit, state = null } = query;
    const scope = { list: 'webhook-deliveries', tenant: tenantId, endpoint: id, state };
    const { rows, next } = await readPage(scope, query, byId('whd', 'delivery_id'), (before) =>
      listWebhookDeliveries(deps.pool, tenantId, id, { before: before ?? NEWEST_DELIVERY, state, limit }),
    );
    return reply(200, { deliveries: rows, next_cursor: next });
  },
);

/** POST /v1/webhook-endpoints/{endpoint_id}/test: one message, to see whether it arrives. */
export const testWebhookEndpointRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/webhook-endpoints/{endpoint_id}/test',
    operationId: 'testWebhookEndpoint',
    summary: 'Send a test message to a webhook endpoint',
    description: 'Of type `webhook.test`; look at the deliveries for what became of it. Takes no body.',
    authenticated: true,
    replies: { 202: { description: 'Queued.', body: WebhookDeliveryView } },
    errors: [
      'role_required',
      'webhook_endpoint_not_found',
      'webhook_endpoint_disabled',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, identity }, deps) => {
    requireWebhookRole(identity);
    const { tenantId } = identity;
    const { endpoint_id: id } = await foundEndpoint(deps, tenantId, params.endpoint_id);
    const tested = await testWebhookEndpoint(deps.pool, tenantId, id);
    if (tested.kind !== 'queued') throw endpointDisabled(id);
    return reply(202, await foundDelivery(deps, tenantId, tested.deliveryId));
  },
);

/** POST /v1/webhook-deliveries/{delivery_id}/replay: the same message again, under the same id. */
export const replayWebhookRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/webhook-deliveries/{delivery_id}/replay',
    operationId: 'replayWebhook',
    summary: 'Send a message again',
    description:
      'Under its own `webhook-id`, so that a receiver which has it knows it; in a new series of tries. One that is being ' +
      'tried anyway is left as it is, so this may be sent again at will. Takes no body and the role operator or admin.',
    authenticated: true,
    replies: { 202: { description: 'On its way.', body: WebhookDeliveryView } },
    errors: [
      'role_required',
      'webhook_delivery_not_found',
      'webhook_endpoint_disabled',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, identity }, deps) => {
    requireWebhookRole(identity);
    const { tenantId } = identity;
    const { delivery_id: id, endpoint_id } = await foundDelivery(deps, tenantId, params.delivery_id);
    const replayed = await replayWebhook(deps.pool, tenantId, id);
    if (replayed === 'endpoint_disabled') throw endpointDisabled(endpoint_id);
    return reply(202, await foundDelivery(deps, tenantId, id));
  },
);

function endpointDisabled(id: string): HoldfastError {
  return new HoldfastError(
    'webhook_endpoint_disabled',
    `Webhook endpoint ${id} is disabled, so nothing is sent there. Make a new one for its URL.`,
    { extensions: { endpoint_id: id } },
  );
}

async function foundDelivery(
  { pool }: ApiDeps,
  tenantId: string,
  id: string,
): Promise<WebhookDeliveryRecord> {
  const delivery = isId('whd', id) ? await readWebhookDelivery(pool, tenantId, id) : null;
  if (delivery !== null) return delivery;
  throw new HoldfastError(
    'webhook_delivery_not_found',
    `There is no webhook delivery ${excerpt(id, 60)}. GET /v1/webhook-endpoints/{endpoint_id}/deliveries lists them.`,
  );
}
