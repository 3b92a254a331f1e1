import { z } from 'zod';
import { listMemories } from '../../shared/ledger/reads/read-memory.js';
import { readPage } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { foundThread } from '../thread-key.js';
import { PageQuery } from '../views/common.js';
import { MemoryListView } from '../views/memory-views.js';

/** GET /v1/threads/{thread_id}/memory: what is remembered of the conversation, and was. */
export const readMemoryRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/threads/{thread_id}/memory',
    operationId: 'readThreadMemory',
    summary: 'Read the memory of a thread, newest generation first',
    description:
      'Generations never change; each is made of the one before. A run reads the one that was the newest when it was made: ' +
      'its `memory`, and every `model.started` event, say which.',
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: MemoryListView } },
    errors: ['invalid_request', 'thread_not_found', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, query, identity }, { pool }) => {
    const { tenantId } = identity;
    const { thread_id: threadId } = await foundThread(pool, tenantId, params.thread_id);
    const { rows, next } = await readPage(
      { list: 'memory', tenant: tenantId, thread: threadId },
      query,
      { schema: z.int().min(1), of: ({ generation }: { readonly generation: number }) => generation },
      (before) => listMemories(pool, { tenantId, threadId }, { before, limit: query.limit }),
    );
    return reply(200, { generations: rows, next_cursor: next });
  },
);
