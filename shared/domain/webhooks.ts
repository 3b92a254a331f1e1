/**
 * What a webhook can tell (SPEC 6), as `type` of its body. An event of a run becomes one by
 * `holdfast.webhook_kind` in 0015_webhooks.sql; a test compares the two.
 */
export const WEBHOOK_KINDS = [
  'interrupt.opened',
  'interrupt.decided',
  'interrupt.expired',
  'interrupt.withdrawn',
  'run.completed',
  'run.compensated',
  'run.failed',
  'run.cancelled',
  'run.needs_reconciliation',
  'reconciliation.overdue',
  'schedule.skipped',
  'schedule.missed',
  'schedule.refused',
] as const;
export type WebhookKind = (typeof WEBHOOK_KINDS)[number];

/** Where a delivery stands. `dead`: its last try failed; `dropped`: its endpoint was disabled first. */
export const DELIVERY_STATES = ['pending', 'delivered', 'dead', 'dropped'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];

/** How one try at sending ended. `lost`: its worker did not come back, and the receiver may have been told. */
export const DELIVERY_OUTCOMES = ['delivered', 'failed', 'gone', 'lost'] as const;
export type DeliveryOutcome = (typeof DELIVERY_OUTCOMES)[number];
