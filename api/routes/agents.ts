import { z } from 'zod';
import type { AgentRecord } from '../../shared/ledger/reads/list-agents.js';
import { listAgents } from '../../shared/ledger/reads/list-agents.js';
import { type Places, readPage } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { PageQuery } from '../views/common.js';
import { AgentListView } from '../views/trail-views.js';

const PLACES: Places<AgentRecord, string> = { schema: z.string().max(64), of: ({ agent }) => agent };

/**
 * GET /v1/agents: what runs can be started for. Instructions, addresses and names of secrets stay inside.
 */
export const listAgentsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/agents',
    operationId: 'listAgents',
    summary: 'List agents',
    description: 'The agents that a worker has registered, each with the version that a new run would pin.',
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: AgentListView } },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query }, { pool }) => {
    const scope = { list: 'agents' };
    const { rows, next } = await readPage(scope, query, PLACES, (after) =>
      listAgents(pool, { after: after ?? '', limit: query.limit }),
    );
    return reply(200, { agents: rows.map(viewOf), next_cursor: next });
  },
);

function viewOf({ agent, agent_version, manifest, updated_at }: AgentRecord) {
  const { model, limits, tools, questions = [] } = manifest;
  return {
    agent,
    agent_version,
    model: { provider: model.provider, model: model.model },
    limits: {
      steps_max: limits.stepsMax,
      tool_calls_max: limits.toolCallsMax,
      wall_clock_seconds_max: limits.wallClockSecondsMax,
    },
    tools: tools.map(({ name, version, description, effectClass, approval }) => ({
      ...{ name, version, description, approval },
      effect_class: effectClass,
    })),
    questions: questions.map(
      ({ name, version, description, answerSchema, role, expiresSeconds, onExpiry }) => ({
        ...{ name, version, description, answer_schema: answerSchema, required_role: role },
        ...{ expires_seconds: expiresSeconds, on_expiry: onExpiry },
      }),
    ),
    policy: (manifest.policy ?? []).map(({ name, sha256, when, role, quorum, expiresSeconds }) => ({
      ...{ name, sha256, when, role: role ?? 'approver', quorum },
      expires_seconds: expiresSeconds ?? null,
    })),
    updated_at,
  };
}
