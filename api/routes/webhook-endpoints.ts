import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import { WEBHOOK_KINDS } from '../../shared/domain/webhooks.js';
import { newId } from '../../shared/ledger/new-id.js';
import {
  listWebhookEndpoints,
  readWebhookEndpoint,
  type WebhookEndpointRecord,
} from '../../shared/ledger/reads/list-webhooks.js';
import { createWebhookEndpoint, disableWebhookEndpoint } from '../../shared/ledger/webhooks.js';
import { webhookUrlProblem, type WebhookUrlProblem } from '../../shared/process/webhook-address.js';
import { newWebhookSecret } from '../../shared/process/webhook-secrets.js';
import { byId, readPage } from '../cursor.js';
import type { ApiDeps, Identity } from '../deps.js';
import { requireRole } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { PageQuery } from '../views/common.js';
import {
  NewWebhookEndpointView,
  WebhookEndpointListView,
  WebhookEndpointView,
} from '../views/webhook-views.js';

/** Who may send the tenant's news elsewhere, and see where they go. */
export const requireWebhookRole = (identity: Identity): void =>
  void requireRole(identity, ['operator', 'admin'], 'see or change webhooks');

const CreateEndpoint = z
  .strictObject({
    url: z.string().min(1).max(2_000),
    kinds: z
      .array(z.enum(WEBHOOK_KINDS))
      .min(1)
      .max(WEBHOOK_KINDS.length)
      .refine((kinds) => new Set(kinds).size === kinds.length, { error: 'must name no kind twice' })
      .meta({ description: 'What it is told.' }),
  })
  .meta({ id: 'CreateWebhookEndpoint' });

/** POST /v1/webhook-endpoints: a place that is told what happens from now on. */
export const createWebhookEndpointRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/webhook-endpoints',
    operationId: 'createWebhookEndpoint',
    summary: 'Have events told to a URL',
    description:
      'Messages are signed by Standard Webhooks (`webhook-id`, `webhook-timestamp`, `webhook-signature`), come in the ' +
      'order of their run, at least once, and hold ids, states and links, no content. The secret is made here and shown ' +
      'once. Takes the role operator or admin.',
    authenticated: true,
    idempotent: true,
    body: CreateEndpoint,
    replies: {
      201: {
        description: 'Made; events from now on are told.',
        body: NewWebhookEndpointView,
        headers: { Location: 'The endpoint.' },
      },
      200: {
        description: 'Made by an earlier request with this key; its secret is not shown again.',
        body: NewWebhookEndpointView,
        headers: { Location: 'The endpoint.', 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'role_required',
      'webhook_url_refused',
      'secret_key_missing',
      'idempotency_key_reused',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ body, identity, idempotencyKey }, deps) => {
    requireWebhookRole(identity);
    const { pool } = deps;
    const { tenantId, actorId } = identity;
    const { keys, url } = sendable(deps, body.url);
    const secret = newWebhookSecret();
    const endpointId = newId('whe');
    const created = await createWebhookEndpoint(pool, {
      ...{ endpointId, tenantId, url, kinds: body.kinds, actorId, idempotencyKey },
      secret: keys.seal(secret, endpointId),
    });
    if (created.kind === 'reused') {
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key made ${created.endpointId} with another body. Nothing was done: send a new key, or that body.`,
        { extensions: { endpoint_id: created.endpointId } },
      );
    }
    const endpoint = await foundEndpoint(deps, tenantId, created.endpointId);
    const headers = { location: `/v1/webhook-endpoints/${endpoint.endpoint_id}` };
    return created.kind === 'created'
      ? reply(201, { ...endpoint, secret }, headers)
      : reply(200, { ...endpoint, secret: null }, { ...headers, 'idempotent-replayed': 'true' });
  },
);

/** @throws HoldfastError where no message could ever go to the URL, or none could be signed */
function sendable({ webhooks }: ApiDeps, url: string) {
  const problem = webhookUrlProblem(url, webhooks.allow);
  if (problem !== null) {
    throw new HoldfastError('webhook_url_refused', URL_PROBLEMS[problem], {
      errors: [{ at: 'body/url', problem: problem.replaceAll('_', ' ') }],
    });
  }
  if (webhooks.keys === null) {
    throw new HoldfastError(
      'secret_key_missing',
      'This API has no key to seal a signing secret with. Have its operator set HOLDFAST_SECRET_KEY, for workers too.',
    );
  }
  return { keys: webhooks.keys, url: new URL(url).href };
}

const URL_PROBLEMS: Readonly<Record<WebhookUrlProblem, string>> = {
  not_a_url: 'The url is no URL. Send one such as https://example.com/hooks.',
  not_https:
    'The url is not https. Send an https one, or have the operator allow the place by HOLDFAST_WEBHOOK_ALLOW.',
  has_credentials: 'The url holds a user or password. Leave them out: messages are signed.',
  address_not_allowed:
    'The url names a private address. Send a public one, or have the operator allow it by HOLDFAST_WEBHOOK_ALLOW.',
};

/** GET /v1/webhook-endpoints: where the tenant's events are told. */
export const listWebhookEndpointsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/webhook-endpoints',
    operationId: 'listWebhookEndpoints',
    summary: 'List webhook endpoints, oldest first',
    description: 'Disabled ones too. Takes the role operator or admin.',
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: WebhookEndpointListView } },
    errors: ['invalid_request', 'cursor_invalid', 'role_required', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    requireWebhookRole(identity);
    const scope = { list: 'webhook-endpoints', tenant: identity.tenantId };
    const { rows, next } = await readPage(scope, query, byId('whe', 'endpoint_id'), (after) =>
      listWebhookEndpoints(pool, identity.tenantId, { after: after ?? '', limit: query.limit }),
    );
    return reply(200, { endpoints: rows, next_cursor: next });
  },
);

/** GET /v1/webhook-endpoints/{endpoint_id}: one of them. */
export const readWebhookEndpointRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/webhook-endpoints/{endpoint_id}',
    operationId: 'readWebhookEndpoint',
    summary: 'Read a webhook endpoint with what it is owed',
    authenticated: true,
    replies: { 200: { description: 'The endpoint.', body: WebhookEndpointView } },
    errors: ['role_required', 'webhook_endpoint_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, deps) => {
    requireWebhookRole(identity);
    return reply(200, await foundEndpoint(deps, identity.tenantId, params.endpoint_id));
  },
);

/** DELETE /v1/webhook-endpoints/{endpoint_id}: nothing is sent there any more. */
export const disableWebhookEndpointRoute = defineRoute(
  {
    method: 'delete',
    path: '/v1/webhook-endpoints/{endpoint_id}',
    operationId: 'disableWebhookEndpoint',
    summary: 'Disable a webhook endpoint for good',
    description:
      'What it is still owed is dropped; the log of what was sent stays. Again does nothing. Takes the role operator or ' +
      'admin.',
    authenticated: true,
    replies: { 200: { description: 'Disabled; the endpoint as it is now.', body: WebhookEndpointView } },
    errors: ['role_required', 'webhook_endpoint_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, deps) => {
    requireWebhookRole(identity);
    const { endpoint_id: id } = params;
    if (isId('whe', id)) await disableWebhookEndpoint(deps.pool, identity.tenantId, id);
    return reply(200, await foundEndpoint(deps, identity.tenantId, id));
  },
);

/** @throws HoldfastError `webhook_endpoint_not_found` for one that is not there, is another tenant's, or could never be */
export async function foundEndpoint(
  { pool }: ApiDeps,
  tenantId: string,
  id: string,
): Promise<WebhookEndpointRecord> {
  const endpoint = isId('whe', id) ? await readWebhookEndpoint(pool, tenantId, id) : null;
  if (endpoint !== null) return endpoint;
  throw new HoldfastError(
    'webhook_endpoint_not_found',
    `There is no webhook endpoint ${excerpt(id, 60)}. GET /v1/webhook-endpoints lists those there are.`,
  );
}
