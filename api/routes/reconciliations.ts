import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { idSchema, isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import {
  listReconciliations,
  type ReconciliationFilters,
  type ReconciliationRecord,
  readReconciliation,
} from '../../shared/ledger/reads/list-reconciliations.js';
import { settleByPerson, type SettlementRefusal } from '../../shared/ledger/settlement.js';
import { decodeCursor, encodeCursor } from '../cursor.js';
import { requireRole } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
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

const Note = z
  .string()
  .min(1)
  .max(4_000)
  .regex(/\S/, { error: 'must say why you are sure' })
  .meta({ description: 'Why you are sure.' });

const reference = (description: string) =>
  z.string().min(1).max(1_000).regex(/\S/, { error: 'must name what was done' }).meta({ description });

const SettleEffect = z
  .discriminatedUnion('decided', [
    z.strictObject({
      decided: z.literal('committed'),
      reference: reference('The outside name of what was done.'),
      note: Note,
    }),
    z.strictObject({ decided: z.literal('not_committed'), note: Note }),
    z.strictObject({
      decided: z.literal('compensated'),
      reference: reference('The outside name of what undid it.'),
      note: Note,
    }),
    z.strictObject({ decided: z.literal('left'), note: Note }),
  ])
  .meta({ id: 'SettleEffect' });

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
      'kept and shown (202), and the same word of another settles. Takes the role operator or admin.',
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
    errors: [
      ...WRITE_ERRORS,
      'role_required',
      'effect_not_found',
      'idempotency_key_reused',
      'already_settled',
      'not_unknown',
      'word_not_asked',
      'second_person_needed',
      'words_differ',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, body, identity, idempotencyKey }, { pool }) => {
    const { effect_id: id } = params;
    const { tenantId, actorId } = identity;
    const authority = requireRole(identity, ['operator', 'admin'], 'settle an effect');
    if (!isId('eff', id)) throw effectNotFound(id);
    const settled = await settleByPerson(pool, {
      ...{ tenantId, effectId: id, actorId, authority, idempotencyKey },
      decided: body.decided,
      reference: 'reference' in body ? body.reference : null,
      note: body.note,
    });
    if (settled.kind === 'effect_not_found') throw effectNotFound(id);
    const item = await readReconciliation(pool, tenantId, id);
    if (item === null && settled.kind !== 'not_unknown') throw new Error(`bug: ${id} cannot be read`);
    switch (settled.kind) {
      case 'settled':
      case 'first_word':
      case 'replayed': {
        if (item === null) throw effectNotFound(id);
        const headers = settled.kind === 'replayed' ? { 'idempotent-replayed': 'true' } : {};
        // Where two must say the same, the item waits still.
        return item.waiting === null ? reply(200, item, headers) : reply(202, item, headers);
      }
      default:
        throw refusalOf(settled.kind, { id, state: settled.state, item, said: body });
    }
  },
);

interface Refused {
  readonly id: string;
  readonly state: string;
  readonly item: ReconciliationRecord | null;
  readonly said: z.output<typeof SettleEffect>;
}

function refusalOf(kind: SettlementRefusal, { id, state, item, said }: Refused): HoldfastError {
  const stands = item?.waiting?.first_word ?? null;
  const extensions = {
    effect_id: id,
    effect_state: state,
    ...(stands === null ? {} : { first_word: { ...stands }, your_word: { ...said } }),
  };
  switch (kind) {
    case 'reused':
      return new HoldfastError(
        'idempotency_key_reused',
        `This key settled ${id} in other words. Nothing was changed: read what stands.`,
        { extensions },
      );
    case 'already_settled':
      return new HoldfastError(
        'already_settled',
        `Effect ${id} is ${item?.undo?.state ?? state}, settled by ` +
          `${item?.undo?.actor_id ?? item?.settlement?.actor_id ?? 'somebody else'}, and stays so. ` +
          'Read the settlement; when it is wrong, mend the outside world by a new run.',
        { extensions },
      );
    case 'not_unknown':
      return new HoldfastError(
        'not_unknown',
        state === 'unknown'
          ? `Effect ${id} is unknown, but its run still finds out by itself. Settle it once the run needs you.`
          : `Effect ${id} is ${state}: there is nothing to settle.`,
        { extensions },
      );
    case 'word_not_asked':
      return new HoldfastError(
        'word_not_asked',
        item?.waiting?.about === 'undo'
          ? `That effect ${id} happened is known. Say whether it is undone: compensated, or left as it is.`
          : `Nobody knows yet whether effect ${id} happened. Say that first: committed, not_committed or compensated.`,
        { extensions },
      );
    case 'second_person_needed':
      return new HoldfastError(
        'second_person_needed',
        `You have said so of ${id} already. Its contract wants the same word of another person.`,
        { extensions },
      );
    case 'words_differ':
      return new HoldfastError(
        'words_differ',
        `${stands?.actor_id ?? 'Somebody'} said ${stands?.decided ?? 'something else'} of ${id}, and you say ` +
          `${said.decided}. Nothing was settled: agree on what happened; whoever was wrong sends their word anew.`,
        { extensions },
      );
  }
}

function effectNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'effect_not_found',
    `There is no effect ${excerpt(id, 60)} to reconcile. GET /v1/reconciliations lists those there are.`,
  );
}
