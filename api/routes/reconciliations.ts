import { z } from 'zod';
import { idSchema, isId } from '../../shared/domain/ids.js';
import {
  listReconciliations,
  type ReconciliationFilters,
  readReconciliation,
} from '../../shared/ledger/reads/list-reconciliations.js';
import { decodeCursor, encodeCursor } from '../cursor.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { effectNotFound, SETTLE_ERRORS, settleEffect, SettleEffect } from '../settle-effect.js';
import { PageQuery } from '../views/common.js';
import { ReconciliationItemView, ReconciliationListView } from '../views/desk-views.js';

const Printable = (charactersMax: number) =>
  z.string().regex(new RegExp(`^[ -~]{1,${charactersMax}}$`), {
    error: `must be 1 to ${charactersMax} printable ASCII characters`,
  });

// In microseconds, as the ledger orders, and with a year that Postgres has.
const Place = z.tuple([
  z.iso.datetime({ precision: 6 }).refine((text) => !text.startsWith('0000')),
  idSchema('eff'),
]);

/** GET /v1/reconciliations: effects that wait for a person. */
export const listReconciliationsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/reconciliations',
    operationId: 'listReconciliations',
    summary: 'List effects that wait for a person, the most urgent first',
    description:
      'Open ones: effects that are `unknown` and on which their run rests, and those that no tool undid of a run that ' +
      'compensates. What a run can still find out by itself is not among them. `state=settled` lists those that were settled, the newest first.',
    authenticated: true,
    query: z.strictObject({
      state: z.enum(['open', 'settled']).default('open'),
      run_id: idSchema('run').optional(),
      agent: Printable(64).optional(),
      tool: Printable(64).optional(),
      owner: z
        .string()
        .min(1)
        .max(200)
        .regex(/^\P{Cc}*$/u, { error: 'must be printable' })
        .optional()
        .meta({
          override: { type: 'string', minLength: 1, maxLength: 200 },
        }),
      overdue: z.enum(['true', 'false']).optional().meta({ description: 'Past their deadline, or not.' }),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: ReconciliationListView } },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    const { tenantId } = identity;
    const { cursor, limit } = query;
    const filters: ReconciliationFilters = {
      state: query.state,
      runId: query.run_id ?? null,
      agent: query.agent ?? null,
      tool: query.tool ?? null,
      owner: query.owner ?? null,
      overdue: query.overdue === undefined ? null : query.overdue === 'true',
    };
    const scope = { list: 'reconciliations', tenant: tenantId, ...filters };
    const after = cursor === undefined ? null : decodeCursor(scope, cursor, Place);
    const { items, last } = await listReconciliations(pool, tenantId, filters, { after, limit });
    const next = last === null || items.length < limit ? null : encodeCursor(scope, [...last]);
    return reply(200, { reconciliations: items, next_cursor: next });
  },
);

/** GET /v1/reconciliations/{effect_id}: one of them, settled or not. */
export const readReconciliationRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/reconciliations/{effect_id}',
    operationId: 'readReconciliation',
    summary: 'Read an effect that a person is or was asked about, with the evidence',
    authenticated: true,
    replies: { 200: { description: 'The effect.', body: ReconciliationItemView } },
    errors: ['effect_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) => {
    const { effect_id: id } = params;
    const item = isId('eff', id) ? await readReconciliation(pool, identity.tenantId, id) : null;
    if (item === null) throw effectNotFound(id);
    return reply(200, item);
  },
);

/** POST /v1/reconciliations/{effect_id}/settle: a person's word on what no machine can find out. */
export const settleEffectRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/reconciliations/{effect_id}/settle',
    operationId: 'settleEffect',
    summary: 'Say what became of an effect',
    description:
      'Where the outcome is asked (`waiting.about`): `committed`, `not_committed`, or `compensated`, which says that it ' +
      'happened and that somebody undid it. Where no tool undid an effect of a run that compensates: `compensated`, or ' +
      '`left` as it is. The word stands for ever, with your name and note. The run goes on, ends, compensates or is ' +
      'cancelled, as its contract says; the model hears a fact. Where the contract wants two people, the first word is ' +
      'kept and shown (202), and the same word of another settles. Takes the role operator or admin. The wait over the ' +
      'effect among GET /v1/interrupts takes the same word as its answer.',
    authenticated: true,
    idempotent: true,
    body: SettleEffect,
    replies: {
      200: {
        description: 'Settled, by this request or by an earlier one with this key; the effect as it is now.',
        body: ReconciliationItemView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
      202: {
        description: 'Your word is kept, and another person must say the same.',
        body: ReconciliationItemView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [...WRITE_ERRORS, ...SETTLE_ERRORS, 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, body, identity, idempotencyKey }, { pool }) => {
    const { effect_id: id } = params;
    const { item, replayed } = await settleEffect(pool, identity, {
      effectId: id,
      said: body,
      idempotencyKey,
    });
    const headers = replayed ? { 'idempotent-replayed': 'true' } : {};
    // Where two must say the same, the item waits still.
    return item.waiting === null ? reply(200, item, headers) : reply(202, item, headers);
  },
);
