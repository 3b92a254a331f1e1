import type { DeliveryOutcome, DeliveryState, WebhookKind } from '../../domain/webhooks.js';
import type { JsonValue } from '../../domain/json.js';
import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull, jsonTime, jsonTimeOrNull } from './row-values.js';

/** Where webhooks go. The secret never leaves the ledger by a read. */
export interface WebhookEndpointRecord {
  readonly endpoint_id: string;
  readonly url: string;
  readonly kinds: readonly WebhookKind[];
  readonly state: 'active' | 'disabled';
  /** `gone`: it answered 410. */
  readonly disabled_by: 'person' | 'gone' | null;
  readonly disabled_at: string | null;
  /** Which key seals the secret. */
  readonly secret_key_id: string;
  readonly created_by: string;
  readonly created_at: string;
  /** Messages by where they stand. */
  readonly deliveries: Readonly<Partial<Record<DeliveryState, number>>>;
  /** When the message that waits longest was written; null where none waits. */
  readonly oldest_pending_at: string | null;
}

const ENDPOINT_COLUMNS = `
           n.endpoint_id, n.url, n.kinds, n.state, n.disabled_by, n.disabled_at, n.secret_key_id, n.created_by, n.created_at,
           (select coalesce(jsonb_object_agg(c.state, c.count), '{}') from (
              select d.state, count(*) from holdfast.webhook_deliveries d
               where d.endpoint_id = n.endpoint_id group by d.state) c) as deliveries,
           (select min(d.created_at) from holdfast.webhook_deliveries d
             where d.endpoint_id = n.endpoint_id and d.state = 'pending') as oldest_pending_at`;

const LIST_ENDPOINTS = {
  name: 'reads/webhook-endpoints',
  text: `
    select ${ENDPOINT_COLUMNS} from holdfast.webhook_endpoints n
     where n.tenant_id = $1 and n.endpoint_id > $2
     order by n.endpoint_id
     limit $3`,
};

/** The tenant's endpoints after the id `after` ('' for the first), oldest first, at most `limit`. */
export async function listWebhookEndpoints(
  db: Db,
  tenantId: string,
  page: { readonly after: string; readonly limit: number },
): Promise<WebhookEndpointRecord[]> {
  const values = [tenantId, page.after, page.limit];
  const { rows } = await db.query<EndpointRow>({ ...LIST_ENDPOINTS, values });
  return rows.map(endpointOf);
}

const READ_ENDPOINT = {
  name: 'reads/webhook-endpoint',
  text: `select ${ENDPOINT_COLUMNS} from holdfast.webhook_endpoints n where n.endpoint_id = $1 and n.tenant_id = $2`,
};

/** One endpoint, or null when this tenant has no such. */
export async function readWebhookEndpoint(
  db: Db,
  tenantId: string,
  endpointId: string,
): Promise<WebhookEndpointRecord | null> {
  const { rows } = await db.query<EndpointRow>({ ...READ_ENDPOINT, values: [endpointId, tenantId] });
  return rows[0] === undefined ? null : endpointOf(rows[0]);
}

/** One message with its tries. */
export interface WebhookDeliveryRecord {
  /** The `webhook-id` header, the same for every try. */
  readonly delivery_id: string;
  readonly endpoint_id: string;
  readonly kind: string;
  /** Null for a test. */
  readonly run_id: string | null;
  readonly event_seq: number | null;
  readonly state: DeliveryState;
  /** What is signed and sent. */
  readonly payload: JsonValue;
  readonly attempts: number;
  /** Failed tries of the series under way. */
  readonly failures: number;
  readonly replays: number;
  readonly next_attempt_at: string | null;
  readonly created_at: string;
  readonly settled_at: string | null;
  /** The newest 100, in order. */
  readonly attempt_list: readonly WebhookAttemptRecord[];
}

export interface WebhookAttemptRecord {
  readonly attempt: number;
  readonly worker: string;
  readonly started_at: string;
  readonly ended_at: string | null;
  /** Null while it is on its way. */
  readonly outcome: DeliveryOutcome | null;
  readonly http_status: number | null;
  readonly reason: string | null;
}

const DELIVERY_COLUMNS = `
           d.delivery_id, d.endpoint_id, d.kind, d.run_id, d.event_seq, d.state, d.payload, d.attempts, d.failures,
           d.replays, d.next_attempt_at, d.created_at, d.settled_at,
           (select coalesce(jsonb_agg(to_jsonb(a) order by a.attempt), '[]') from (
              select attempt, worker, started_at, ended_at, outcome, http_status, reason
                from holdfast.webhook_attempts where delivery_id = d.delivery_id order by attempt desc limit 100) a
           ) as attempt_list`;

const LIST_DELIVERIES = {
  name: 'reads/webhook-deliveries',
  text: `
    select ${DELIVERY_COLUMNS} from holdfast.webhook_deliveries d
     where d.endpoint_id = $1 and d.tenant_id = $2 and d.delivery_id < $3 and ($4::text is null or d.state = $4)
     order by d.delivery_id desc
     limit $5`,
};

/** Above every delivery id. */
export const NEWEST_DELIVERY = 'whe';

/** Messages of an endpoint before the id `before`, newest first, at most `limit`. */
export async function listWebhookDeliveries(
  db: Db,
  tenantId: string,
  endpointId: string,
  page: { readonly before: string; readonly state: DeliveryState | null; readonly limit: number },
): Promise<WebhookDeliveryRecord[]> {
  const values = [endpointId, tenantId, page.before, page.state, page.limit];
  const { rows } = await db.query<DeliveryRow>({ ...LIST_DELIVERIES, values });
  return rows.map(deliveryOf);
}

const READ_DELIVERY = {
  name: 'reads/webhook-delivery',
  text: `select ${DELIVERY_COLUMNS} from holdfast.webhook_deliveries d where d.delivery_id = $1 and d.tenant_id = $2`,
};

/** One message, or null when this tenant has no such. */
export async function readWebhookDelivery(
  db: Db,
  tenantId: string,
  deliveryId: string,
): Promise<WebhookDeliveryRecord | null> {
  const { rows } = await db.query<DeliveryRow>({ ...READ_DELIVERY, values: [deliveryId, tenantId] });
  return rows[0] === undefined ? null : deliveryOf(rows[0]);
}

type EndpointTimes = 'disabled_at' | 'created_at' | 'oldest_pending_at';
type EndpointRow = Omit<WebhookEndpointRecord, EndpointTimes> & {
  readonly disabled_at: Date | null;
  readonly created_at: Date;
  readonly oldest_pending_at: Date | null;
};
type DeliveryTimes = 'next_attempt_at' | 'created_at' | 'settled_at';
type DeliveryRow = Omit<WebhookDeliveryRecord, DeliveryTimes | 'event_seq'> & {
  readonly event_seq: string | null;
  readonly next_attempt_at: Date | null;
  readonly created_at: Date;
  readonly settled_at: Date | null;
};

function endpointOf(row: EndpointRow): WebhookEndpointRecord {
  return {
    ...row,
    disabled_at: isoTimeOrNull(row.disabled_at),
    created_at: isoTime(row.created_at),
    oldest_pending_at: isoTimeOrNull(row.oldest_pending_at),
  };
}

function deliveryOf(row: DeliveryRow): WebhookDeliveryRecord {
  return {
    ...row,
    event_seq: row.event_seq === null ? null : Number(row.event_seq),
    next_attempt_at: isoTimeOrNull(row.next_attempt_at),
    created_at: isoTime(row.created_at),
    settled_at: isoTimeOrNull(row.settled_at),
    attempt_list: row.attempt_list.map((attempt) => ({
      ...attempt,
      started_at: jsonTime(attempt.started_at),
      ended_at: jsonTimeOrNull(attempt.ended_at),
    })),
  };
}
