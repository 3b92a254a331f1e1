import { z } from 'zod';
import { RunContract } from '../../shared/domain/contract.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { admitRun } from '../../shared/ledger/admission.js';
import { readRun } from '../../shared/ledger/reads/read-run.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { foundOf } from '../run-key.js';
import { RunView } from '../views/run-views.js';

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
      ' starts nothing.',
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
  async ({ body, idempotencyKey, identity }, { pool, taskQueue }) => {
    const admitted = await admitRun(pool, {
      ...identity,
      ...body,
      idempotencyKey,
      endpoint: ENDPOINT,
      taskQueue,
    });
    if (admitted.kind === 'agent_not_found') {
      throw new HoldfastError(
        'agent_not_found',
        `No worker has registered an agent "${body.agent}". GET /v1/agents lists those there are.`,
        { errors: [{ at: 'body/agent', problem: 'no such agent' }] },
      );
    }
    if (admitted.kind === 'budget_unmet') {
      const { at, problem } = admitted.fault;
      throw new HoldfastError(
        'contract_invalid',
        `The budget limits what agent "${body.agent}" does not have: ${at} ${problem}. Nothing was started.`,
        { errors: [admitted.fault] },
      );
    }
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
