import type { AgentManifest } from '../shared/domain/agents.js';
import type { JsonObject } from '../shared/domain/json.js';
import { MODEL_FAILURES, type ModelOutcome } from '../shared/domain/models.js';
import {
  type InputWait,
  MODEL_WAIT_ROLE,
  MODEL_WAIT_SCHEMA,
  type QuestionManifest,
} from '../shared/domain/questions.js';
import { canonicalJson } from '../shared/domain/strict-json.js';
import { digestOf, sha256 } from '../shared/ledger/digest.js';
import type { ClaimedModelCall } from '../shared/ledger/model-calls.js';
import { storableText } from './models/storable-text.js';

/** Of which run and agent a wait is. */
export type WaitOrigin = Pick<ClaimedModelCall, 'tenantId' | 'agent' | 'agentVersion'> & {
  readonly runId: string;
};

/** What a person is shown of a question: the operator's declaration, and the model's words as its arguments. */
export function questionWait(
  origin: WaitOrigin,
  question: QuestionManifest,
  args: { readonly value: JsonObject; readonly canonical: string },
): InputWait {
  const { name, version, description, answerSchema, role, onExpiry } = question;
  return waitOf(
    {
      ...scopeOf(origin, 'question'),
      ...{ tool: name, tool_version: version, description },
      ...{ arguments: args.value, arguments_sha256: sha256(args.canonical) },
    },
    { answerSchema, role, onExpiry },
  );
}

/**
 * Whom to ask about a model call that failed for a reason only a person can mend (SPEC 3.5), or undefined where the
 * failure is another. Runs that stop over the same account have the same tool, version and arguments.
 */
export function modelFailureWait(
  origin: WaitOrigin,
  { model }: AgentManifest,
  attempt: number,
  outcome: Extract<ModelOutcome, { kind: 'failed' }>,
): InputWait | undefined {
  if (MODEL_FAILURES[outcome.reason] !== 'needs_person') return undefined;
  const args = {
    reason: outcome.reason,
    provider: model.provider,
    model: model.model,
    base_url: model.baseUrl,
    api_key_env: model.apiKeyEnv,
  };
  return waitOf(
    {
      ...scopeOf(origin, 'model_call'),
      // No tool has a slash in its name.
      ...{ tool: `model/${model.name}`, tool_version: origin.agentVersion },
      ...{ arguments: args, arguments_sha256: sha256(canonicalJson(args)) },
      ...{ attempt, detail: storable(outcome.detail), request_id: storable(outcome.requestId ?? '') },
    },
    { answerSchema: MODEL_WAIT_SCHEMA, role: MODEL_WAIT_ROLE, onExpiry: 'fail' },
  );
}

function scopeOf(origin: WaitOrigin, asks: 'question' | 'model_call'): JsonObject {
  const { tenantId, runId, agent, agentVersion } = origin;
  return { asks, tenant_id: tenantId, run_id: runId, agent, agent_version: agentVersion };
}

function waitOf(scope: JsonObject, rules: Pick<InputWait, 'answerSchema' | 'role' | 'onExpiry'>): InputWait {
  return { scope, scopeSha256: digestOf(scope), ...rules };
}

/** A provider's words must never keep a wait from being opened. */
function storable(text: string): string {
  return storableText(text.slice(0, 1_000));
}
