import { z } from 'zod';
import { RunContract } from '../../shared/domain/contract.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import {
  listThreadMessages,
  readMessage,
  type ThreadMessageRecord,
} from '../../shared/ledger/reads/read-messages.js';
import { postMessage } from '../../shared/ledger/threads.js';
import { decodeSequence } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { acceptedOf, foundThread, MESSAGE_ERRORS } from '../thread-key.js';
import type { ApiDeps } from '../deps.js';
import { PageQuery } from '../views/common.js';
import { Policy, ThreadMessageListView, ThreadMessageView } from '../views/thread-views.js';

const PAGE_BYTES_MAX = 1_048_576;

const PostMessage = z
  .strictObject({
    text: z.string().min(1).meta({ description: 'What the model reads.' }),
    policy: Policy.optional().meta({ description: 'In place of the thread’s own.' }),
    contract: RunContract.optional().meta({
      description: 'In place of the thread’s, for the run that the message begins.',
    }),
  })
  .meta({ id: 'PostMessage' });

/** POST /v1/threads/{thread_id}/messages: something is said. */
export const postMessageRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/threads/{thread_id}/messages',
    operationId: 'postMessage',
    summary: 'Post a message to a thread',
    description:
      'Accepted in one transaction, or refused and nothing changed. It begins a run where none is in progress; otherwise ' +
      'its policy or else the thread’s says what it makes of that (docs/thread-table.md). The same Idempotency-Key with the ' +
      'same body answers with the same message for ever and delivers nothing again: a client that heard nothing sends it again. ' +
      'Keys of different threads are independent. To stop a run takes the role operator, or that the run is one’s own.',
    authenticated: true,
    idempotent: true,
    body: PostMessage,
    faultCode: (at) => (at.startsWith('body/contract') ? 'contract_invalid' : 'invalid_request'),
    replies: {
      201: {
        description: 'Accepted, and it has begun a run.',
        body: ThreadMessageView,
        headers: { Location: 'The message.' },
      },
      202: {
        description: 'Accepted; its turn comes.',
        body: ThreadMessageView,
        headers: { Location: 'The message.' },
      },
      200: {
        description: 'Accepted by an earlier request with this key; the message as it is now.',
        body: ThreadMessageView,
        headers: { Location: 'The message.', 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: MESSAGE_ERRORS,
  },
  async ({ params, body, identity, idempotencyKey }, deps) => {
    const { pool, taskQueue } = deps;
    const { tenantId, actorId, roles } = identity;
    const thread = await foundThread(pool, tenantId, params.thread_id);
    const { thread_id: threadId, agent } = thread;
    const posted = await postMessage(pool, {
      ...{ tenantId, threadId, actorId, roles, idempotencyKey, agent, taskQueue },
      endpoint: `POST /v1/threads/${threadId}/messages`,
      input: body.text,
      policy: body.policy ?? null,
      // The thread's was checked when it was made.
      contract: body.contract ?? (thread.contract as RunContract),
    });
    const { messageId, isReplay } = acceptedOf(posted, { threadId, agent });
    const message = await foundMessage(deps, tenantId, threadId, messageId);
    const headers = { location: `/v1/threads/${threadId}/messages/${messageId}` };
    if (isReplay) return reply(200, message, { ...headers, 'idempotent-replayed': 'true' });
    return message.state === 'queued' ? reply(202, message, headers) : reply(201, message, headers);
  },
);

/** GET /v1/threads/{thread_id}/messages: what was said, and what became of it. */
export const listMessagesRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/threads/{thread_id}/messages',
    operationId: 'listMessages',
    summary: 'List the messages of a thread in order',
    description:
      'Each with the run it was given to and what the model said last there. The cursor is the number of the last message ' +
      'seen. The whole exchange of a run is in GET /v1/runs/{run_id}/transcript.',
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: ThreadMessageListView } },
    errors: ['invalid_request', 'thread_not_found', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, query, identity }, { pool }) => {
    const { tenantId } = identity;
    const { thread_id: threadId, messages: said } = await foundThread(pool, tenantId, params.thread_id);
    const after = decodeSequence(query.cursor, said.total);
    const page = { after, limit: query.limit, bytesMax: PAGE_BYTES_MAX };
    const messages = await listThreadMessages(pool, tenantId, threadId, page);
    const last = messages.at(-1)?.seq ?? after;
    return reply(200, { messages, next_cursor: last < said.total ? String(last) : null });
  },
);

/** GET /v1/threads/{thread_id}/messages/{message_id}: one of them. */
export const readMessageRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/threads/{thread_id}/messages/{message_id}',
    operationId: 'readMessage',
    summary: 'Read a message and what became of it',
    authenticated: true,
    replies: { 200: { description: 'The message.', body: ThreadMessageView } },
    errors: ['message_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, deps) =>
    reply(200, await foundMessage(deps, identity.tenantId, params.thread_id, params.message_id)),
);

/** @throws HoldfastError `message_not_found` for one that is not there, or is of another thread or tenant */
async function foundMessage(
  { pool }: ApiDeps,
  tenantId: string,
  threadId: string,
  id: string,
): Promise<ThreadMessageRecord> {
  const message = isId('msg', id) ? await readMessage(pool, tenantId, id) : null;
  if (message?.thread_id === threadId) return message;
  throw new HoldfastError(
    'message_not_found',
    `There is no message ${excerpt(id, 60)} on ${excerpt(threadId, 60)}. GET the thread’s messages lists those there are.`,
  );
}
