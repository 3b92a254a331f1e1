import { z } from 'zod';
import { DELIVERY_OUTCOMES, DELIVERY_STATES, WEBHOOK_KINDS } from '../../shared/domain/webhooks.js';
import { AnyJson, NextCursor, Time } from './common.js';

const endpoint = {
  endpoint_id: z.string(),
  url: z.string(),
  kinds: z.array(z.enum(WEBHOOK_KINDS)).readonly(),
  state: z.enum(['active', 'disabled']),
  disabled_by: z.enum(['person', 'gone']).nullable().meta({ description: '`gone`: it answered 410.' }),
  disabled_at: Time.nullable(),
  secret_key_id: z.string().meta({ description: 'Which of the operator’s keys seals the secret.' }),
  created_by: z.string(),
  created_at: Time,
  deliveries: z
    .partialRecord(z.enum(DELIVERY_STATES), z.int())
    .meta({ description: 'Messages by where they stand.' }),
  oldest_pending_at: Time.nullable(),
};

/** Where webhooks go. */
export const WebhookEndpointView = z.strictObject(endpoint).meta({ id: 'WebhookEndpoint' });

/** A new endpoint, with its secret for the only time. */
export const NewWebhookEndpointView = z
  .strictObject({
    ...endpoint,
    secret: z.string().nullable().meta({
      description: 'Shown once: null where an earlier request with this key made the endpoint.',
    }),
  })
  .meta({ id: 'NewWebhookEndpoint' });

/** A page of endpoints, oldest first. */
export const WebhookEndpointListView = z
  .strictObject({ endpoints: z.array(WebhookEndpointView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'WebhookEndpointList' });

/** One message with its tries. */
export const WebhookDeliveryView = z
  .strictObject({
    delivery_id: z.string().meta({ description: 'The `webhook-id` header, the same for every try.' }),
    endpoint_id: z.string(),
    kind: z.string(),
    run_id: z.string().nullable().meta({ description: 'Null for a test.' }),
    event_seq: z.int().nullable(),
    state: z.enum(DELIVERY_STATES).meta({
      description:
        '`dead`: its last try failed; `dropped`: its endpoint was disabled first. Both can be replayed.',
    }),
    payload: AnyJson,
    attempts: z.int(),
    failures: z.int().meta({ description: 'Failed tries of the series under way.' }),
    replays: z.int(),
    next_attempt_at: Time.nullable(),
    created_at: Time,
    settled_at: Time.nullable(),
    attempt_list: z
      .array(
        z.strictObject({
          attempt: z.int(),
          worker: z.string(),
          started_at: Time,
          ended_at: Time.nullable(),
          outcome: z.enum(DELIVERY_OUTCOMES).nullable().meta({
            description:
              '`lost`: its worker did not come back, and the receiver may have been told. Null: under way.',
          }),
          http_status: z.int().nullable(),
          reason: z.string().nullable(),
        }),
      )
      .readonly()
      .meta({ description: 'The newest 100, in order.' }),
  })
  .meta({ id: 'WebhookDelivery' });

/** A page of messages, newest first. */
export const WebhookDeliveryListView = z
  .strictObject({ deliveries: z.array(WebhookDeliveryView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'WebhookDeliveryList' });
