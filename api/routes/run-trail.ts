import { z } from 'zod';
import type { JsonValue } from '../../shared/domain/json.js';
import { listEffects } from '../../shared/ledger/reads/read-effects.js';
import { readEventPage, readRunHead } from '../../shared/ledger/reads/read-events.js';
import { listMessages, listTransitions } from '../../shared/ledger/reads/read-trail.js';
import { decodeCursor, decodeSequence, encodeCursor } from '../cursor.js';
import { refuseGone } from '../events-gone.js';
import { defineRoute, reply } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { PageQuery } from '../views/common.js';
import {
  EffectListView,
  RunEventListView,
  TranscriptView,
  TransitionListView,
} from '../views/trail-views.js';

const PAGE_BYTES_MAX = 1_048_576;
const ERRORS_OF_A_LIST = [
  'invalid_request',
  'run_not_found',
  'cursor_invalid',
  'rate_limited',
  'ledger_unavailable',
] as const;
const SEQUENCE_CURSOR = 'The cursor is the sequence of the last row seen.';
// What a fork inherits stands at turn 0, at steps up to 0.
const Place = z.int32();

/** GET /v1/runs/{run_id}/transitions: every move of the run in both regions, chained by digest. */
export const listTransitionsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/transitions',
    operationId: 'listTransitions',
    summary: "List a run's transitions in order",
    description: SEQUENCE_CURSOR,
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: TransitionListView } },
    errors: ERRORS_OF_A_LIST,
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const head = foundOf(await readRunHead(pool, key), key);
    const after = decodeSequence(input.query.cursor, head.stateVersion);
    const transitions = await listTransitions(pool, key, { after, limit: input.query.limit });
    const last = transitions.at(-1)?.seq ?? after;
    const next = last < head.stateVersion ? String(last) : null;
    return reply(200, { transitions, next_cursor: next });
  },
);

/** GET /v1/runs/{run_id}/events: the durable trace, page by page; the stream is a view of the same rows. */
export const listEventsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/events',
    operationId: 'listEvents',
    summary: "List a run's events in order",
    description: `${SEQUENCE_CURSOR} It is the same number that the stream uses as event id.`,
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: RunEventListView } },
    errors: ['events_gone', ...ERRORS_OF_A_LIST],
  },
  async (input, deps) => {
    const key = runKeyOf(input);
    // Sequences have no upper end before the head is known, and the page brings the head along.
    const after = decodeSequence(input.query.cursor, Number.MAX_SAFE_INTEGER);
    const page = { after, limit: input.query.limit, bytesMax: PAGE_BYTES_MAX };
    const { head, events } = foundOf(await readEventPage(deps.pool, key, page), key);
    decodeSequence(input.query.cursor, head.eventSeq);
    await refuseGone(deps, key, head, after);
    const last = events.at(-1)?.seq ?? after;
    return reply(200, {
      events: events.map(({ seq, type, at, dataText }) => ({
        run_id: key.runId,
        ...{ seq, type, at },
        data: JSON.parse(dataText) as JsonValue,
      })),
      next_cursor: last < head.eventSeq ? String(last) : null,
    });
  },
);

/** GET /v1/runs/{run_id}/effects: what the run did to the outside, with intents, attempts and receipts. */
export const listEffectsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/effects',
    operationId: 'listEffects',
    summary: "List a run's effects in the order they were asked for",
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: EffectListView } },
    errors: ERRORS_OF_A_LIST,
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const scope = { list: 'effects', tenant: key.tenantId, run: key.runId };
    const { cursor, limit } = input.query;
    const place = z.tuple([Place, Place, Place, Place]);
    const after = cursor === undefined ? ([-1, 0, 0, 0] as const) : decodeCursor(scope, cursor, place);
    foundOf(await readRunHead(pool, key), key);
    const effects = await listEffects(pool, key, { after, limit });
    const last = effects.length < limit ? undefined : effects.at(-1);
    const next =
      last === undefined ? null : encodeCursor(scope, [last.turn, last.step, last.slot, last.redo]);
    return reply(200, { effects, next_cursor: next });
  },
);

/** GET /v1/runs/{run_id}/transcript: what the next prompt is made of. */
export const readTranscriptRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/transcript',
    operationId: 'readTranscript',
    summary: "Read a run's transcript in order",
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: TranscriptView } },
    errors: ERRORS_OF_A_LIST,
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const scope = { list: 'transcript', tenant: key.tenantId, run: key.runId };
    const { cursor, limit } = input.query;
    const place = z.tuple([Place, Place, Place]);
    const after = cursor === undefined ? ([-1, 0, 0] as const) : decodeCursor(scope, cursor, place);
    foundOf(await readRunHead(pool, key), key);
    const messages = await listMessages(pool, key, { after, limit });
    const last = messages.length < limit ? undefined : messages.at(-1);
    const next = last === undefined ? null : encodeCursor(scope, [last.turn, last.step, last.position]);
    return reply(200, { messages, next_cursor: next });
  },
);
