import { z } from 'zod';
import { RunContract } from '../../shared/domain/contract.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { listThreads } from '../../shared/ledger/reads/read-threads.js';
import { archiveThread, createThread } from '../../shared/ledger/threads.js';
import { agentNotFound } from '../admission-errors.js';
import { byId, readPage } from '../cursor.js';
import { roleRequired } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { foundThread, threadNotFound } from '../thread-key.js';
import { PageQuery } from '../views/common.js';
import { Policy, ThreadListView, ThreadView } from '../views/thread-views.js';

const CreateThread = z
  .strictObject({
    agent: z
      .string()
      .min(1)
      .max(64)
      .meta({ description: 'One of GET /v1/agents; of every run of the thread.' }),
    policy: Policy.default('enqueue').meta({
      description: 'What a message makes of a run in progress, unless it says otherwise.',
    }),
    contract: RunContract,
  })
  .meta({ id: 'CreateThread' });

/** POST /v1/threads: a conversation, before anything is said. */
export const createThreadRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/threads',
    operationId: 'createThread',
    summary: 'Create a thread',
    description:
      'Starts nothing: a run begins with a message. The contract is what its runs are admitted under, unless a message ' +
      'brings its own.',
    authenticated: true,
    idempotent: true,
    body: CreateThread,
    faultCode: (at) => (at.startsWith('body/contract') ? 'contract_invalid' : 'invalid_request'),
    replies: {
      201: { description: 'Made.', body: ThreadView, headers: { Location: 'The thread.' } },
      200: {
        description: 'Made by an earlier request with this key; the thread as it is now.',
        body: ThreadView,
        headers: { Location: 'The thread.', 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'contract_invalid',
      'idempotency_key_reused',
      'agent_not_found',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ body, identity, idempotencyKey }, { pool }) => {
    const { tenantId, actorId } = identity;
    const endpoint = 'POST /v1/threads';
    const created = await createThread(pool, { tenantId, actorId, endpoint, idempotencyKey, ...body });
    if (created.kind === 'agent_not_found') throw agentNotFound(body.agent);
    if (created.kind === 'reused') {
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key made ${created.threadId} with another body. Nothing was done: send a new key, or that body.`,
        { extensions: { thread_id: created.threadId } },
      );
    }
    const thread = await foundThread(pool, tenantId, created.threadId);
    const headers = { location: `/v1/threads/${thread.thread_id}` };
    return created.kind === 'created'
      ? reply(201, thread, headers)
      : reply(200, thread, { ...headers, 'idempotent-replayed': 'true' });
  },
);

/** GET /v1/threads: the tenant's threads, newest first. */
export const listThreadsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/threads',
    operationId: 'listThreads',
    summary: 'List threads, newest first',
    authenticated: true,
    query: z.strictObject({
      agent: z
        .string()
        .regex(/^[ -~]{1,64}$/, { error: 'must be 1 to 64 printable ASCII characters' })
        .optional(),
      archived: z.enum(['true', 'false']).optional(),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: ThreadListView } },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    const { tenantId } = identity;
    const archived = query.archived === undefined ? null : query.archived === 'true';
    const filters = { agent: query.agent ?? null, archived };
    const scope = { list: 'threads', tenant: tenantId, ...filters };
    const { rows, next } = await readPage(scope, query, byId('thr', 'thread_id'), (before) =>
      listThreads(pool, tenantId, filters, { before, limit: query.limit }),
    );
    return reply(200, { threads: rows, next_cursor: next });
  },
);

/** GET /v1/threads/{thread_id}: the thread as the ledger knows it now. */
export const readThreadRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/threads/{thread_id}',
    operationId: 'readThread',
    summary: 'Read a thread',
    description:
      'Starts nothing and keeps nothing alive. Who holds it (`runtime`), its `turn`, whether it is `archived` and how ' +
      'fresh all that is (`freshness`) are four facts: none follows from another.',
    authenticated: true,
    replies: { 200: { description: 'The thread.', body: ThreadView } },
    errors: ['thread_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) =>
    reply(200, await foundThread(pool, identity.tenantId, params.thread_id)),
);

function archiving(archived: boolean) {
  const act = archived ? 'archive' : 'unarchive';
  return defineRoute(
    {
      method: 'post',
      path: `/v1/threads/{thread_id}/${act}`,
      operationId: `${act}Thread`,
      summary: archived ? 'Archive a thread' : 'Take a thread out of the archive',
      description: archived
        ? 'From now on messages to it are refused. A run in progress goes on, and so do messages that were accepted ' +
          'before. Again does nothing. Takes the role operator; a requester may archive what they created.'
        : 'It takes messages again. Again does nothing. Takes the role operator; a requester may do so with what they created.',
      authenticated: true,
      replies: { 200: { description: 'Done; the thread as it is now.', body: ThreadView } },
      errors: ['thread_not_found', 'role_required', 'rate_limited', 'ledger_unavailable'],
    },
    async ({ params, identity }, { pool }) => {
      const { tenantId, actorId, roles } = identity;
      const threadId = (params as { readonly thread_id: string }).thread_id;
      if (!isId('thr', threadId)) throw threadNotFound(threadId);
      const { kind } = await archiveThread(pool, { tenantId, threadId, actorId, roles, archived });
      if (kind === 'role_required') {
        throw roleRequired(`${act} this thread`, ['operator', 'requester (of one’s own thread)']);
      }
      return reply(200, await foundThread(pool, tenantId, threadId));
    },
  );
}

/** POST /v1/threads/{thread_id}/archive: it takes no messages any more. */
export const archiveThreadRoute = archiving(true);
/** POST /v1/threads/{thread_id}/unarchive: it takes messages again. */
export const unarchiveThreadRoute = archiving(false);
