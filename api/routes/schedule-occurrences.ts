import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { idSchema } from '../../shared/domain/ids.js';
import { OCCURRENCE_STATES } from '../../shared/domain/schedules.js';
import {
  listOccurrences,
  type OccurrenceRecord,
  readOccurrence,
} from '../../shared/ledger/reads/list-schedules.js';
import { askBackfill, decideOccurrence } from '../../shared/ledger/schedules.js';
import { readPage } from '../cursor.js';
import { requireRole, roleRequired } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { PageQuery, Time } from '../views/common.js';
import { OccurrenceListView, OccurrenceView, ScheduleView } from '../views/schedule-views.js';
import { foundSchedule, scheduleNotFound } from './schedules.js';

const PLACES = {
  schema: z.tuple([z.iso.datetime().refine((text) => !text.startsWith('0000')), idSchema('occ')]),
  of: ({ planned_at, occurrence_id }: OccurrenceRecord): [string, string] => [planned_at, occurrence_id],
};

/** GET /v1/schedules/{schedule_id}/occurrences: what became of each planned time. */
export const listOccurrencesRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/schedules/{schedule_id}/occurrences',
    operationId: 'listOccurrences',
    summary: 'List what became of each planned time, newest first',
    authenticated: true,
    query: z.strictObject({ state: z.enum(OCCURRENCE_STATES).optional(), ...PageQuery }),
    replies: { 200: { description: 'One page.', body: OccurrenceListView } },
    errors: ['invalid_request', 'cursor_invalid', 'schedule_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, query, identity }, { pool }) => {
    const { schedule_id: scheduleId } = await foundSchedule(pool, identity, params.schedule_id);
    const { limit, state = null } = query;
    const { tenantId } = identity;
    const scope = { list: 'occurrences', tenant: tenantId, schedule: scheduleId, state };
    const { rows, next } = await readPage(scope, query, PLACES, (after) =>
      listOccurrences(pool, { tenantId, scheduleId }, state, { after, limit }),
    );
    return reply(200, { occurrences: rows, next_cursor: next });
  },
);

/** POST /v1/schedules/{schedule_id}/occurrences: runs a schedule now, by its own rules. */
export const runScheduleNowRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/schedules/{schedule_id}/occurrences',
    operationId: 'runScheduleNow',
    summary: 'Run a schedule now, under its overlap rule',
    description:
      'An occurrence outside the plan, judged as any other: it starts, waits, or is skipped, and the answer says which. Also of a ' +
      'paused schedule. Takes operator or requester; the requester of the run is who defined the schedule.',
    authenticated: true,
    idempotent: true,
    replies: {
      201: { description: 'Judged by this request.', body: OccurrenceView },
      200: {
        description: 'Judged by an earlier request with this key; the occurrence as it is now.',
        body: OccurrenceView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      'idempotency_key_missing',
      'idempotency_key_invalid',
      'role_required',
      'schedule_not_found',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, identity, idempotencyKey }, { pool }) => {
    requireRole(identity, ['operator', 'requester'], 'run a schedule');
    const { schedule_id: scheduleId } = await foundSchedule(pool, identity, params.schedule_id);
    const { tenantId, actorId } = identity;
    const decided = await decideOccurrence(pool, scheduleId, { source: 'run_now', actorId, idempotencyKey });
    if (decided.kind === 'gone') throw scheduleNotFound(scheduleId);
    const occurrence = await readOccurrence(pool, { tenantId, scheduleId }, decided.occurrenceId);
    if (occurrence === null) throw scheduleNotFound(scheduleId);
    if (decided.kind === 'decided') return reply(201, occurrence);
    return reply(200, occurrence, { 'idempotent-replayed': 'true' });
  },
);

/** The longest stretch that is asked for at once: one that is asked for by mistake is a flood of runs. */
const STRETCH_DAYS_MAX = 31;

const BackfillSchedule = z
  .strictObject({ from: Time, to: Time })
  .refine(({ from }) => Date.parse(from) >= 0, { error: 'must not be before 1970', path: ['from'] })
  .refine(({ from, to }) => Date.parse(from) < Date.parse(to), { error: 'must be after from', path: ['to'] })
  .refine(({ from, to }) => Date.parse(to) - Date.parse(from) <= STRETCH_DAYS_MAX * 86_400_000, {
    error: `must be at most ${STRETCH_DAYS_MAX} days after from`,
    path: ['to'],
  })
  .refine(({ to }) => Date.parse(to) <= Date.now() + 60_000, {
    error: 'must not be in the future',
    path: ['to'],
  })
  .meta({ id: 'BackfillSchedule' });

/** To the millisecond, as it was compared. */
const inMilliseconds = (time: string): string => new Date(time).toISOString();

/** POST /v1/schedules/{schedule_id}/backfills: asks for planned times of the past. */
export const backfillScheduleRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/schedules/{schedule_id}/backfills',
    operationId: 'backfillSchedule',
    summary: 'Ask for the planned times of a stretch of the past',
    description:
      'Each comes as an occurrence with its own planned time, under the overlap rule; those that became runs already do not ' +
      'come again. What was missed, or passed in a pause, comes after all. At most 31 days at once. Takes operator.',
    authenticated: true,
    idempotent: true,
    body: BackfillSchedule,
    replies: { 200: { description: 'Asked for; the schedule as it is now.', body: ScheduleView } },
    errors: [
      ...WRITE_ERRORS,
      'role_required',
      'schedule_not_found',
      'idempotency_key_reused',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, body, identity, idempotencyKey }, { pool }) => {
    const { schedule_id: scheduleId } = await foundSchedule(pool, identity, params.schedule_id);
    const stretch = { from: inMilliseconds(body.from), to: inMilliseconds(body.to) };
    const asked = await askBackfill(pool, { ...identity, ...stretch, idempotencyKey, scheduleId });
    if (asked === 'role_required') throw roleRequired('ask for planned times of the past', ['operator']);
    if (asked === 'schedule_not_found') throw scheduleNotFound(scheduleId);
    if (asked === 'reused') {
      throw new HoldfastError(
        'idempotency_key_reused',
        'This key asked for another stretch. Nothing was done: send a new key, or that body.',
      );
    }
    return reply(200, await foundSchedule(pool, identity, scheduleId));
  },
);
