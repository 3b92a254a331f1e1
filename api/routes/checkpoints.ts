import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import {
  type CheckpointRecord,
  listCheckpoints,
  readCheckpoint,
} from '../../shared/ledger/reads/read-checkpoints.js';
import { readRunHead } from '../../shared/ledger/reads/read-events.js';
import { readPage } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { CheckpointListView, CheckpointView } from '../views/checkpoint-views.js';
import { PageQuery } from '../views/common.js';

const PLACES = {
  schema: z.int().min(0),
  of: ({ committed }: CheckpointRecord) => committed.event_seq,
};

/** GET /v1/runs/{run_id}/checkpoints: the recovery points of a run, oldest first. */
export const listCheckpointsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/checkpoints',
    operationId: 'listCheckpoints',
    summary: "List a run's checkpoints, oldest first",
    description:
      'One at every boundary that the ledger committed: each can be forked (POST /v1/runs/{run_id}/forks) as long as it ' +
      'validates. Told from the record, so that it says the same at every read.',
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: CheckpointListView } },
    errors: ['invalid_request', 'run_not_found', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const scope = { list: 'checkpoints', tenant: key.tenantId, run: key.runId };
    const { rows, next } = await readPage(scope, input.query, PLACES, async (after) => {
      foundOf(await readRunHead(pool, key), key);
      return await listCheckpoints(pool, key, { after: after ?? 0, limit: input.query.limit });
    });
    return reply(200, { checkpoints: rows, next_cursor: next });
  },
);

/** GET /v1/checkpoints/{checkpoint_id}: one recovery point. */
export const readCheckpointRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/checkpoints/{checkpoint_id}',
    operationId: 'readCheckpoint',
    summary: 'Read a checkpoint and its validation',
    authenticated: true,
    replies: { 200: { description: 'The checkpoint.', body: CheckpointView } },
    errors: ['checkpoint_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) => {
    const { checkpoint_id: id } = params;
    const checkpoint = isId('ckp', id) ? await readCheckpoint(pool, identity.tenantId, id) : null;
    if (checkpoint === null) throw checkpointNotFound(id);
    return reply(200, checkpoint);
  },
);

/** The one answer for a checkpoint that is not there, is another tenant's, or could never be. */
export function checkpointNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'checkpoint_not_found',
    `There is no checkpoint ${excerpt(id, 60)}. GET /v1/runs/{run_id}/checkpoints lists those of a run.`,
  );
}
