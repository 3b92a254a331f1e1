import { z } from 'zod';
import { RunContract } from '../../shared/domain/contract.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import { idSchema } from '../../shared/domain/ids.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { admitRun } from '../../shared/ledger/admission.js';
import { readRun } from '../../shared/ledger/reads/read-run.js';
import { postMessage } from '../../shared/ledger/threads.js';
import { readMessage } from '../../shared/ledger/reads/read-messages.js';
import { agentNotFound, budgetUnmet } from '../admission-errors.js';
import type { ApiDeps } from '../deps.js';
import { defineRoute, reply } from '../route.js';
import { foundOf } from '../run-key.js';
import { acceptedOf, MESSAGE_ERRORS } from '../thread-key.js';
import { RunView } from '../views/run-views.js';
import { Policy, ThreadMessageView } from '../views/thread-views.js';

/** Names the key space of this route: a key used here says nothing about any other route. */
const ENDPOINT = 'POST /v1/runs';

// The strict reader has made sure of JSON already; this only says that the member must be there.
const Input = z
  .custom<JsonValue>((value) => value !== undefined, { error: 'is missing: give any JSON value' })
  .meta({ override: {}, description: 'What the run works on: any JSON, shown to the model.' });

const StartRun = z
  .strictObject({
    agent: z.string().min(1).max(64).meta({ description: 'One of GET /v1/agents.' }),
    input: Input,
    contract: RunContract,
    thread: idSchema('thr').optional().meta({ description: 'The thread that the input is a message to.' }),
    policy: Policy.optional().meta({ description: 'With a thread alone, in place of its own policy.' }),
  })
  .refine(({ thread, policy }) => thread !== undefined || policy === undefined, {
    path: ['policy'],
    error: 'belongs to a thread',
  })
  .meta({ id: 'StartRun' });

/**
 * POST /v1/runs: admits a run, or answers with the run that this key admitted before. Temporal is not
 * asked.
 */
export const startRun = defineRoute(
  {
    method: 'post',
    path: '/v1/runs',
    operationId: 'startRun',
    summary: 'Admit a run',
    description:
      'Writes the run to the ledger, whether Temporal is up or not; a worker starts it. The same ' +
      'Idempotency-Key with the same body (in any order of keys) answers with the same run for ever and' +
      ' starts nothing. With `thread` the input is a message to it, and its policy decides what that makes of a run in ' +
      'progress, as in POST /v1/threads/{thread_id}/messages.',
    authenticated: true,
    idempotent: true,
    body: StartRun,
    faultCode: (at) => (at.startsWith('body/contract') ? 'contract_invalid' : 'invalid_request'),
    replies: {
      201: { description: 'Admitted by this request.', body: RunView, headers: { Location: 'The run.' } },
      200: {
        description: 'Admitted by an earlier request with this key; the run as it is now.',
        body: RunView,
        headers: { Location: 'The run.', 'Idempotent-Replayed': '`true`' },
      },
      202: {
        description:
          'A message to a thread that has no run yet: accepted, by this request or an earlier one with its key.',
        body: ThreadMessageView,
        headers: { Location: 'The message.', 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: MESSAGE_ERRORS,
  },
  async (input, deps) => {
    const { body, idempotencyKey, identity } = input;
    const { pool, taskQueue } = deps;
    const { agent, contract, thread: threadId, policy = null } = body;
    if (threadId !== undefined) {
      const posted = await postMessage(pool, {
        ...{ ...identity, threadId, agent, contract, policy, taskQueue, idempotencyKey, endpoint: ENDPOINT },
        input: body.input,
      });
      return await answerOf(deps, identity.tenantId, acceptedOf(posted, { threadId, agent }));
    }
    const admitted = await admitRun(pool, {
      ...identity,
      ...{ agent, contract, input: body.input, idempotencyKey, taskQueue },
      endpoint: ENDPOINT,
    });
    if (admitted.kind === 'agent_not_found') throw agentNotFound(body.agent);
    if (admitted.kind === 'budget_unmet') throw budgetUnmet(body.agent, admitted.fault);
    if (admitted.kind === 'reused') {
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key admitted ${admitted.runId} with another body. Nothing was started: send a new key, or ` +
          'that body.',
        { extensions: { run_id: admitted.runId } },
      );
    }
    const key = { tenantId: identity.tenantId, runId: admitted.runId };
    const run = foundOf(await readRun(pool, key), key);
    const headers = { location: `/v1/runs/${admitted.runId}` };
    return admitted.kind === 'admitted'
      ? reply(201, run, headers)
      : reply(200, run, { ...headers, 'idempotent-replayed': 'true' });
  },
);

/** The run that a message to a thread was given to, or the message where it has none yet. */
async function answerOf(
  { pool }: ApiDeps,
  tenantId: string,
  { messageId, isReplay }: ReturnType<typeof acceptedOf>,
) {
  const message = await readMessage(pool, tenantId, messageId);
  if (message === null) throw new Error(`bug: ${messageId} was accepted and is not there`);
  const replayed = isReplay ? { 'idempotent-replayed': 'true' } : {};
  if (message.run === null) {
    const location = `/v1/threads/${message.thread_id}/messages/${messageId}`;
    return reply(202, message, { location, ...replayed });
  }
  const key = { tenantId, runId: message.run.run_id };
  const headers = { location: `/v1/runs/${key.runId}`, ...replayed };
  const run = foundOf(await readRun(pool, key), key);
  return isReplay ? reply(200, run, headers) : reply(201, run, headers);
}
