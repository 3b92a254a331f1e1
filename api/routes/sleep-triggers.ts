import { z } from 'zod';
import { RunContract } from '../../shared/domain/contract.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import { listSleepTriggers } from '../../shared/ledger/reads/read-memory.js';
import { setSleepTrigger } from '../../shared/ledger/sleep.js';
import { agentNotFound, budgetUnmet } from '../admission-errors.js';
import { requireRole } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { SleepTriggerList } from '../views/memory-views.js';

const ENDPOINT = 'PUT /v1/sleep-triggers';
const AgentName = z.string().min(1).max(64);

const PutSleepTrigger = z
  .strictObject({
    agent: AgentName.meta({ description: 'Whose threads.' }),
    sleeper: z
      .strictObject({
        agent: AgentName.meta({ description: 'Who consolidates them.' }),
        idle_seconds: z
          .int()
          .min(1)
          .max(30 * 86_400)
          .default(600)
          .meta({ description: 'How long nothing must have been said or done in a thread.' }),
        contract: RunContract.omit({ priority: true }).meta({
          description:
            'Of each sleep-time run, its own limits and budget with it. Its priority is 5, the lowest.',
        }),
      })
      .nullable()
      .meta({ description: 'Null: nobody does any more.' }),
  })
  .meta({ id: 'PutSleepTrigger' });

/** PUT /v1/sleep-triggers: who consolidates the idle threads of an agent. */
export const putSleepTriggerRoute = defineRoute(
  {
    method: 'put',
    path: '/v1/sleep-triggers',
    operationId: 'putSleepTrigger',
    summary: 'Say who consolidates the idle threads of an agent',
    description:
      'A thread of the agent that has something new, and has had nothing else for `idle_seconds`, gets one sleep-time run: once ' +
      'for each idle period. It is a run of its own, with the lowest priority, and holds up no message. Whoever sets the trigger ' +
      'is its requester. Takes operator.',
    authenticated: true,
    idempotent: true,
    body: PutSleepTrigger,
    faultCode: (at) => (at.startsWith('body/sleeper/contract') ? 'contract_invalid' : 'invalid_request'),
    replies: {
      200: {
        description: 'Set, by this request or by an earlier one with this key; all triggers as they are now.',
        body: SleepTriggerList,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'contract_invalid',
      'role_required',
      'agent_not_found',
      'idempotency_key_reused',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ body, identity, idempotencyKey }, { pool, taskQueue }) => {
    const { tenantId, actorId } = identity;
    const authority = requireRole(identity, ['operator'], 'say who consolidates idle threads');
    const { agent, sleeper } = body;
    const set = await setSleepTrigger(pool, {
      ...{ tenantId, actorId, authority, idempotencyKey, endpoint: ENDPOINT, agent },
      sleeper:
        sleeper === null
          ? null
          : {
              ...{ agent: sleeper.agent, idleSeconds: sleeper.idle_seconds, taskQueue },
              contract: { ...sleeper.contract, priority: 5 },
            },
    });
    switch (set.kind) {
      case 'agent_not_found':
        throw agentNotFound(set.agent, set.agent === agent ? 'body/agent' : 'body/sleeper/agent');
      case 'budget_unmet':
        throw budgetUnmet(sleeper?.agent ?? agent, {
          ...set.fault,
          at: set.fault.at.replace('body/contract', 'body/sleeper/contract'),
        });
      case 'reused':
        throw new HoldfastError(
          'idempotency_key_reused',
          'This key set another trigger. Nothing was done: send a new key, or that body.',
        );
      case 'set':
      case 'replayed': {
        const headers = set.kind === 'replayed' ? { 'idempotent-replayed': 'true' } : {};
        return reply(200, { items: await listSleepTriggers(pool, tenantId) }, headers);
      }
    }
  },
);

/** GET /v1/sleep-triggers: the triggers in force. */
export const listSleepTriggersRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/sleep-triggers',
    operationId: 'listSleepTriggers',
    summary: 'Read who consolidates idle threads',
    authenticated: true,
    replies: { 200: { description: 'The triggers as they are now.', body: SleepTriggerList } },
    errors: ['rate_limited', 'ledger_unavailable'],
  },
  async ({ identity }, { pool }) => reply(200, { items: await listSleepTriggers(pool, identity.tenantId) }),
);
