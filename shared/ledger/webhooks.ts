import { comparableActor } from '../domain/actors.js';
import type { WebhookKind } from '../domain/webhooks.js';
import type { DeliveryOutcome, DeliveryState } from '../domain/webhooks.js';
import { callFunction, type Db } from './database.js';
import { digestOf } from './digest.js';

export interface NewWebhookEndpoint {
  readonly endpointId: string;
  readonly tenantId: string;
  readonly url: string;
  readonly kinds: readonly WebhookKind[];
  /** The secret, encrypted; which key opens it. */
  readonly secret: { readonly keyId: string; readonly sealed: Uint8Array };
  readonly actorId: string;
  readonly idempotencyKey: string;
}

/** `replayed`: this key made `endpointId` before; `reused`: it did so with another URL, kinds or actor. */
export interface CreatedEndpoint {
  readonly kind: 'created' | 'replayed' | 'reused';
  readonly endpointId: string;
}

const CREATE = {
  name: 'ledger/create-webhook-endpoint',
  text: 'select holdfast.create_webhook_endpoint($1, $2, $3, $4, $5, $6, $7, $8, $9) as answer',
};

/** Stores an endpoint. From its commit on, every event of its kinds has an outbox row. */
export async function createWebhookEndpoint(db: Db, endpoint: NewWebhookEndpoint): Promise<CreatedEndpoint> {
  const { url, kinds, actorId } = endpoint;
  const answer = await callFunction(db, CREATE, [
    ...[endpoint.endpointId, endpoint.tenantId, url, kinds],
    ...[endpoint.secret.keyId, Buffer.from(endpoint.secret.sealed)],
    ...[
      actorId,
      endpoint.idempotencyKey,
      digestOf({ url, kinds: [...kinds], actorId: comparableActor(actorId) }),
    ],
  ]);
  return { kind: answer['kind'] as CreatedEndpoint['kind'], endpointId: answer['endpoint_id'] as string };
}

const DISABLE = {
  name: 'ledger/disable-webhook-endpoint',
  text: 'select holdfast.disable_webhook_endpoint($1, $2) as answer',
};

/** Disables an endpoint for good and drops what it is still owed. Again does nothing. */
export async function disableWebhookEndpoint(
  db: Db,
  tenantId: string,
  endpointId: string,
): Promise<'disabled' | 'endpoint_not_found'> {
  const answer = await callFunction(db, DISABLE, [tenantId, endpointId]);
  return answer['kind'] as 'disabled' | 'endpoint_not_found';
}

const TEST = {
  name: 'ledger/test-webhook-endpoint',
  text: 'select holdfast.test_webhook_endpoint($1, $2) as answer',
};

/** Queues one `webhook.test` message for an endpoint. */
export async function testWebhookEndpoint(
  db: Db,
  tenantId: string,
  endpointId: string,
): Promise<
  | { readonly kind: 'queued'; readonly deliveryId: string }
  | { readonly kind: 'endpoint_not_found' | 'endpoint_disabled' }
> {
  const answer = await callFunction(db, TEST, [tenantId, endpointId]);
  return answer['kind'] === 'queued'
    ? { kind: 'queued', deliveryId: answer['delivery_id'] as string }
    : { kind: answer['kind'] as 'endpoint_not_found' | 'endpoint_disabled' };
}

const REPLAY = {
  name: 'ledger/replay-webhook',
  text: 'select holdfast.replay_webhook($1, $2) as answer',
};

/** Sends a settled message again under its own id. `pending`: it is being tried anyway. */
export async function replayWebhook(
  db: Db,
  tenantId: string,
  deliveryId: string,
): Promise<'queued' | 'pending' | 'delivery_not_found' | 'endpoint_disabled'> {
  const answer = await callFunction(db, REPLAY, [tenantId, deliveryId]);
  return answer['kind'] as 'queued' | 'pending' | 'delivery_not_found' | 'endpoint_disabled';
}

/** The right to send one message until the lease is over. */
export interface LeasedWebhook {
  /** The `webhook-id` that the receiver deduplicates by. */
  readonly deliveryId: string;
  readonly attempt: number;
  readonly endpointId: string;
  readonly url: string;
  readonly secret: { readonly keyId: string; readonly sealed: Buffer };
  /** The very bytes that are signed and sent. */
  readonly body: string;
}

const LEASE = {
  name: 'ledger/lease-webhooks',
  text: `select delivery_id as "deliveryId", attempt, endpoint_id as "endpointId", url, secret_key_id as "keyId",
                secret_sealed as sealed, body from holdfast.lease_webhooks($1, $2, $3, $4)`,
};

/**
 * Takes messages that are due, at most `limit`, and at most `perEndpoint` at once for one endpoint. No other worker gets
 * them for `leaseSeconds`; a message waits for the earlier ones of its run.
 */
export async function leaseWebhooks(
  db: Db,
  lease: {
    readonly worker: string;
    readonly limit: number;
    readonly perEndpoint: number;
    readonly leaseSeconds: number;
  },
): Promise<LeasedWebhook[]> {
  const { rows } = await db.query<
    Omit<LeasedWebhook, 'secret'> & { readonly keyId: string; readonly sealed: Buffer }
  >({ ...LEASE, values: [lease.worker, lease.limit, lease.perEndpoint, lease.leaseSeconds] });
  return rows.map(({ keyId, sealed, ...row }) => ({ ...row, secret: { keyId, sealed } }));
}

/** How one try at sending ended. */
export interface WebhookResult {
  readonly outcome: Exclude<DeliveryOutcome, 'lost'>;
  readonly httpStatus: number | null;
  readonly reason: string | null;
  readonly retryAfterSeconds: number | null;
}

const FINISH = {
  name: 'ledger/finish-webhook',
  text: 'select holdfast.finish_webhook($1, $2, $3, $4, $5, $6) as answer',
};

/** Ends a try: delivered, to be tried again later, or given up. Safe to repeat; a try whose lease is over decides nothing. */
export async function finishWebhook(
  db: Db,
  leased: Pick<LeasedWebhook, 'deliveryId' | 'attempt'>,
  result: WebhookResult,
): Promise<DeliveryState> {
  const answer = await callFunction(db, FINISH, [
    ...[leased.deliveryId, leased.attempt, result.outcome, result.httpStatus],
    ...[result.reason?.slice(0, 200) ?? null, result.retryAfterSeconds],
  ]);
  return answer['state'] as DeliveryState;
}
