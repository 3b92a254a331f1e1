import { z } from 'zod';
import { type ErrorCode, HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import { newId } from '../../shared/ledger/new-id.js';
import {
  listSchedules,
  readSchedule,
  type ScheduleRecord,
} from '../../shared/ledger/reads/list-schedules.js';
import {
  changeSchedule,
  type ScheduleChange,
  type ScheduleChanged,
  type ScheduleDefinition,
} from '../../shared/ledger/schedules.js';
import { byId, readPage } from '../cursor.js';
import type { ApiDeps, Identity } from '../deps.js';
import { roleRequired } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { PageQuery } from '../views/common.js';
import { ScheduleDefinitionBody, ScheduleListView, ScheduleView } from '../views/schedule-views.js';

const DEFINITION_ERRORS = [
  'schedule_name_taken',
  'thread_not_found',
  'thread_agent_mismatch',
  'agent_not_found',
] as const satisfies readonly ErrorCode[];

const ENDING_ERRORS = ['rate_limited', 'ledger_unavailable'] as const satisfies readonly ErrorCode[];

const CreateSchedule = ScheduleDefinitionBody.meta({ id: 'CreateSchedule' });

/** POST /v1/schedules: makes a schedule. */
export const createScheduleRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/schedules',
    operationId: 'createSchedule',
    summary: 'Make a schedule',
    description:
      'Temporal keeps its time; the ledger judges each planned time. What becomes no run (skipped, missed, refused) is an ' +
      'occurrence all the same, and a webhook. Takes requester or operator, who is the requester of its runs.',
    authenticated: true,
    idempotent: true,
    body: CreateSchedule,
    faultCode: (at) => (at.startsWith('body/contract') ? 'contract_invalid' : 'invalid_request'),
    replies: {
      201: { description: 'Made.', body: ScheduleView, headers: { Location: 'The schedule.' } },
      200: {
        description: 'Made by an earlier request with this key; the schedule as it is now.',
        body: ScheduleView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'contract_invalid',
      'role_required',
      'idempotency_key_reused',
      ...DEFINITION_ERRORS,
      ...ENDING_ERRORS,
    ],
  },
  async ({ body, identity, idempotencyKey }, deps) => {
    const changed = await changeSchedule(deps.pool, {
      ...{ ...identity, idempotencyKey, endpoint: 'POST /v1/schedules', scheduleId: newId('sch') },
      expectedVersion: null,
      change: { kind: 'created', definition: definitionOf(body), taskQueue: deps.taskQueue },
    });
    const schedule = await outcomeOf(deps, identity, changed, '', 'make a schedule');
    if (changed.kind === 'replayed') return reply(200, schedule, { 'idempotent-replayed': 'true' });
    return reply(201, schedule, { location: `/v1/schedules/${schedule.schedule_id}` });
  },
);

/** GET /v1/schedules: the schedules of the tenant. */
export const listSchedulesRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/schedules',
    operationId: 'listSchedules',
    summary: 'List schedules, oldest first',
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: ScheduleListView } },
    errors: ['invalid_request', 'cursor_invalid', ...ENDING_ERRORS],
  },
  async ({ query, identity }, { pool }) => {
    const scope = { list: 'schedules', tenant: identity.tenantId };
    const { rows, next } = await readPage(scope, query, byId('sch', 'schedule_id'), (after) =>
      listSchedules(pool, identity.tenantId, { after: after ?? '', limit: query.limit }),
    );
    return reply(200, { schedules: rows, next_cursor: next });
  },
);

/** GET /v1/schedules/{schedule_id}: one schedule. */
export const readScheduleRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/schedules/{schedule_id}',
    operationId: 'readSchedule',
    summary: 'Read a schedule',
    authenticated: true,
    replies: { 200: { description: 'The schedule as it is now.', body: ScheduleView } },
    errors: ['schedule_not_found', ...ENDING_ERRORS],
  },
  async ({ params, identity }, { pool }) =>
    reply(200, await foundSchedule(pool, identity, params.schedule_id)),
);

const ChangeSchedule = ScheduleDefinitionBody.extend({
  expected_version: z.int().min(1).meta({ description: 'The `version` that the change was made of.' }),
}).meta({ id: 'ChangeSchedule' });

/** PUT /v1/schedules/{schedule_id}: replaces the definition of a schedule. */
export const changeScheduleRoute = defineRoute(
  {
    method: 'put',
    path: '/v1/schedules/{schedule_id}',
    operationId: 'changeSchedule',
    summary: 'Replace the definition of a schedule',
    description:
      'A run under way keeps the definition it began with; what starts later has this one, also what is queued now. A pause ' +
      'stays. Takes operator, or the requester who defined it.',
    authenticated: true,
    idempotent: true,
    body: ChangeSchedule,
    faultCode: (at) => (at.startsWith('body/contract') ? 'contract_invalid' : 'invalid_request'),
    replies: {
      200: { description: 'Changed, by this request or one before with this key.', body: ScheduleView },
    },
    errors: [
      ...WRITE_ERRORS,
      'contract_invalid',
      'role_required',
      'schedule_not_found',
      'schedule_version_conflict',
      'idempotency_key_reused',
      ...DEFINITION_ERRORS,
      ...ENDING_ERRORS,
    ],
  },
  async ({ params, body, identity, idempotencyKey }, deps) => {
    const { expected_version: expectedVersion, ...definition } = body;
    const id = params.schedule_id;
    const changed = await change(deps, identity, id, {
      ...{ endpoint: `PUT /v1/schedules/${id}`, idempotencyKey, expectedVersion },
      change: { kind: 'changed', definition: definitionOf(definition) },
    });
    return reply(200, await outcomeOf(deps, identity, changed, id, 'change this schedule'));
  },
);

const ORDERS = {
  pause: { kind: 'paused', summary: 'Pause a schedule: its planned times pass without a run' },
  resume: { kind: 'resumed', summary: 'Resume a schedule: from the next planned time on' },
} as const;

const orderRoute = (order: keyof typeof ORDERS) =>
  defineRoute(
    {
      method: 'post',
      path: `/v1/schedules/{schedule_id}/${order}`,
      operationId: `${order}Schedule`,
      summary: ORDERS[order].summary,
      description:
        'Holds at once, whatever Temporal has heard of it. What runs goes on; what is queued starts in its turn. Again ' +
        'changes nothing. Takes operator, or the requester who defined it.',
      authenticated: true,
      idempotent: true,
      replies: { 200: { description: 'The schedule as it is now.', body: ScheduleView } },
      errors: [
        'idempotency_key_missing',
        'idempotency_key_invalid',
        'role_required',
        'schedule_not_found',
        'idempotency_key_reused',
        ...ENDING_ERRORS,
      ],
    },
    async ({ params, identity, idempotencyKey }, deps) => {
      const id = params.schedule_id;
      const changed = await change(deps, identity, id, {
        ...{ endpoint: `POST /v1/schedules/${id}/${order}`, idempotencyKey, expectedVersion: null },
        change: { kind: ORDERS[order].kind },
      });
      return reply(200, await outcomeOf(deps, identity, changed, id, `${order} this schedule`));
    },
  );

/** POST /v1/schedules/{schedule_id}/pause */
export const pauseScheduleRoute = orderRoute('pause');
/** POST /v1/schedules/{schedule_id}/resume */
export const resumeScheduleRoute = orderRoute('resume');

/** DELETE /v1/schedules/{schedule_id}: ends a schedule. */
export const deleteScheduleRoute = defineRoute(
  {
    method: 'delete',
    path: '/v1/schedules/{schedule_id}',
    operationId: 'deleteSchedule',
    summary: 'End a schedule; its occurrences stay readable',
    description:
      'What runs goes on; what is queued is skipped. Takes operator, or the requester who defined it.',
    authenticated: true,
    replies: { 200: { description: 'The schedule, deleted now or before.', body: ScheduleView } },
    errors: ['role_required', 'schedule_not_found', ...ENDING_ERRORS],
  },
  async ({ params, identity }, deps) => {
    const id = params.schedule_id;
    const found = await foundSchedule(deps.pool, identity, id);
    if (found.deleted_at !== null) return reply(200, found);
    const changed = await change(deps, identity, id, {
      ...{ endpoint: `DELETE /v1/schedules/${id}`, idempotencyKey: 'delete', expectedVersion: null },
      change: { kind: 'deleted' },
    });
    return reply(200, await outcomeOf(deps, identity, changed, id, 'delete this schedule'));
  },
);

/** The schedule that a path names. @throws HoldfastError `schedule_not_found` where this tenant has no such one */
export async function foundSchedule(
  pool: ApiDeps['pool'],
  { tenantId }: Identity,
  scheduleId: string,
): Promise<ScheduleRecord> {
  const schedule = isId('sch', scheduleId) ? await readSchedule(pool, tenantId, scheduleId) : null;
  if (schedule === null) throw scheduleNotFound(scheduleId);
  return schedule;
}

/** The one answer for a schedule that is not there, was deleted, or is another tenant's. */
export function scheduleNotFound(scheduleId: string): HoldfastError {
  return new HoldfastError(
    'schedule_not_found',
    `There is no schedule ${excerpt(scheduleId, 60)}. GET /v1/schedules lists those there are.`,
  );
}

async function change(
  { pool }: ApiDeps,
  identity: Identity,
  scheduleId: string,
  order: {
    readonly endpoint: string;
    readonly idempotencyKey: string;
    readonly expectedVersion: number | null;
    readonly change: ScheduleChange;
  },
): Promise<ScheduleChanged> {
  if (!isId('sch', scheduleId)) throw scheduleNotFound(scheduleId);
  return await changeSchedule(pool, { ...identity, scheduleId, ...order });
}

function definitionOf(body: z.output<typeof ScheduleDefinitionBody>): ScheduleDefinition {
  const { thread, ...definition } = body;
  return { ...definition, thread_id: thread };
}

/** The schedule after a change. @throws HoldfastError for one that was refused; nothing was written then */
async function outcomeOf(
  { pool }: ApiDeps,
  identity: Identity,
  changed: ScheduleChanged,
  scheduleId: string,
  act: string,
): Promise<ScheduleRecord> {
  switch (changed.kind) {
    case 'done':
    case 'same':
    case 'replayed':
      return await foundSchedule(pool, identity, changed.scheduleId);
    case 'reused':
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key changed ${changed.scheduleId} in another way. Nothing was done: send a new key, or that body.`,
        { extensions: { schedule_id: changed.scheduleId } },
      );
    case 'role_required':
      throw roleRequired(act, ['operator', 'requester']);
    case 'schedule_not_found':
      throw scheduleNotFound(scheduleId);
    case 'schedule_version_conflict':
      throw new HoldfastError(
        'schedule_version_conflict',
        `The schedule is at version ${changed.version} by now. Read it again and send the change for that version.`,
        { extensions: { version: changed.version } },
      );
    case 'schedule_name_taken':
      throw refused('schedule_name_taken', 'body/name', 'is the name of another schedule of yours');
    case 'agent_not_found':
      throw refused('agent_not_found', 'body/agent', 'is no agent that a worker has registered');
    case 'thread_not_found':
      throw refused('thread_not_found', 'body/thread', 'is no thread of yours');
    case 'thread_agent_mismatch':
      throw refused('thread_agent_mismatch', 'body/thread', 'is a thread of another agent');
  }
}

function refused(code: ErrorCode, at: string, problem: string): HoldfastError {
  return new HoldfastError(code, `${at} ${problem}. Nothing was changed.`, { errors: [{ at, problem }] });
}
