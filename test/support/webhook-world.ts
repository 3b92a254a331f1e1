import { randomBytes, randomUUID } from 'node:crypto';
import { WEBHOOK_KINDS, type WebhookKind } from '../../shared/domain/webhooks.js';
import type { Db } from '../../shared/ledger/database.js';
import { newId } from '../../shared/ledger/new-id.js';
import {
  createWebhookEndpoint,
  disableWebhookEndpoint,
  finishWebhook,
  leaseWebhooks,
  testWebhookEndpoint,
} from '../../shared/ledger/webhooks.js';
import { parseAllowEntry, type AllowEntry } from '../../shared/process/address-guard.js';
import { createLogger } from '../../shared/process/log.js';
import { createWebhookGuard } from '../../shared/process/webhook-address.js';
import { createSecretKeys, newWebhookSecret } from '../../shared/process/webhook-secrets.js';
import { createDeliverer, type Deliverer, type DelivererDeps } from '../../workers/deliverer.js';
import { bringRunTo } from './ledger-run.js';
import type { LedgerView } from './ledger-view.js';
import type { LedgerWorld } from './ledger-world.js';

/** The key of every process of a test, as HOLDFAST_SECRET_KEY says it. */
export const SECRET_KEY = randomBytes(32).toString('base64');
export const keys = createSecretKeys([Buffer.from(SECRET_KEY, 'base64')]);

export function allowPlace(text: string): AllowEntry {
  const entry = parseAllowEntry(text);
  if (typeof entry === 'string') throw new Error(entry);
  return entry;
}

export interface Endpoint {
  readonly endpointId: string;
  readonly secret: string;
}

/** An endpoint that is told of every kind unless told otherwise. */
export async function newEndpoint(
  db: Db,
  url: string,
  options: { readonly kinds?: readonly WebhookKind[]; readonly tenantId?: string } = {},
): Promise<Endpoint> {
  const endpointId = newId('whe');
  const secret = newWebhookSecret();
  await createWebhookEndpoint(db, {
    ...{ endpointId, url, kinds: options.kinds ?? WEBHOOK_KINDS, tenantId: options.tenantId ?? 'default' },
    ...{ secret: keys.seal(secret, endpointId), actorId: 'user:olga', idempotencyKey: randomUUID() },
  });
  return { endpointId, secret };
}

/** A deliverer of this process that may reach 127.0.0.1. */
export function newDeliverer(db: Db, changes: Partial<DelivererDeps> = {}): Deliverer {
  return createDeliverer({
    ...{
      db,
      keys,
      guard: createWebhookGuard([allowPlace('127.0.0.1:*')]),
      workerName: `test:${randomUUID()}`,
    },
    log: createLogger({ name: 'test', level: 'fatal' }),
    ...changes,
  });
}

/** Sends until nothing is due. */
export async function deliverAll(deliverer: Deliverer): Promise<void> {
  while ((await deliverer.round()) > 0) await deliverer.settled();
}

export interface DeliveryRow {
  readonly delivery_id: string;
  readonly endpoint_id: string;
  readonly kind: string;
  readonly state: string;
  readonly attempts: number;
  readonly failures: number;
  readonly payload: { readonly data: Record<string, unknown> };
  /** Seconds until the next try; null where none comes. */
  readonly wait: number | null;
}

/** What an endpoint is told, in the order in which it was written. */
export async function deliveriesOf(view: LedgerView, { endpointId }: Endpoint): Promise<DeliveryRow[]> {
  return await view.rows<DeliveryRow>(
    `select *, extract(epoch from next_attempt_at - clock_timestamp())::float8 as wait
       from holdfast.webhook_deliveries where endpoint_id = $1 order by run_id, event_seq`,
    endpointId,
  );
}

/** Makes everything that waits of an endpoint due, and every lease of it over, as if the time had gone by. */
export async function makeDue(view: LedgerView, { endpointId }: Endpoint): Promise<void> {
  await view.rows(
    `update holdfast.webhook_deliveries set next_attempt_at = clock_timestamp() - interval '1 second',
            lease_until = clock_timestamp() - interval '1 second'
      where endpoint_id = $1 and state = 'pending'`,
    endpointId,
  );
}

/** An endpoint that is disabled; and one that is active, with messages that wait, are on their way and were taken. */
export async function addWebhooks(ledger: LedgerWorld): Promise<void> {
  const disabled = await newEndpoint(ledger.db, 'https://example.com/old');
  await disableWebhookEndpoint(ledger.db, 'default', disabled.endpointId);
  const active = await newEndpoint(ledger.db, 'https://example.com/hook');
  for (let n = 0; n < 3; n += 1) await testWebhookEndpoint(ledger.db, 'default', active.endpointId);
  await bringRunTo(await ledger.newRun(), 'failed');
  const lease = { worker: 'test:1', limit: 2, perEndpoint: 2, leaseSeconds: 600 };
  const [taken] = await leaseWebhooks(ledger.db, lease);
  await finishWebhook(ledger.db, taken!, {
    ...{ outcome: 'delivered', httpStatus: 200, reason: null, retryAfterSeconds: null },
  });
}
