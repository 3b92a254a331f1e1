import { z } from 'zod';
import { readStory } from '../../shared/ledger/reads/read-story.js';
import { decodeCursor, encodeCursor } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { PageQuery } from '../views/common.js';
import { StoryView } from '../views/story-views.js';

const Place = z.tuple([
  z.iso.datetime({ precision: 6 }).refine((text) => !text.startsWith('0000')),
  z.int().min(0).max(1_000),
  z.string().max(500),
]);

/** GET /v1/runs/{run_id}/story: what happened, by whom and why, and what the end means. */
export const readStoryRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/story',
    operationId: 'readStory',
    summary: "Read a run's story",
    description:
      'Made from transitions, attempts, receipts, commands, waits, decisions and reconciliations alone, so it stands ' +
      'without the feed. `end`, `effects`, `actors` and `chain` are of the whole run on every page.',
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page of it.', body: StoryView } },
    errors: ['invalid_request', 'run_not_found', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const { cursor, limit } = input.query;
    const scope = { list: 'story', tenant: key.tenantId, run: key.runId };
    const after = cursor === undefined ? null : decodeCursor(scope, cursor, Place);
    const { story, last } = foundOf(await readStory(pool, key, { after, limit }), key);
    return reply(200, { ...story, next_cursor: last === null ? null : encodeCursor(scope, [...last]) });
  },
);
