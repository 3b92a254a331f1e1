import type { AgentManifest } from '../shared/domain/agents.js';
import { TASK_INPUT_SCHEMA } from '../shared/domain/delegates.js';
import type { JsonValue } from '../shared/domain/json.js';
import type { AssistantPart, ModelResponse, ToolSpec } from '../shared/domain/models.js';
import { approvalPolicy, askedOf } from '../shared/domain/policy.js';
import { QUESTION_INPUT_SCHEMA } from '../shared/domain/questions.js';
import { type PlannedCall, readToolCalls } from '../shared/domain/tool-calls.js';
import { sha256 } from '../shared/ledger/digest.js';
import type { ClaimedModelCall, PlanRow } from '../shared/ledger/model-calls.js';
import { questionWait } from './input-waits.js';
import { createArgumentsValidator } from '../shared/schema/compile-schema.js';

/** Tool calls of one answer that are run at most; the workflow's answer names each, and stays under 1 KiB. */
export const CALLS_PER_STEP_MAX = 16;

export interface Plan {
  readonly plan: readonly PlanRow[];
  /** The assistant's message, as the next prompt will hold it. */
  readonly assistant: { readonly parts: readonly AssistantPart[] };
  readonly refused: readonly { readonly slot: number; readonly code: string; readonly content: JsonValue }[];
}

/** What the model sees: the agent's tools, then its questions, then the agents that it may start. */
export function toolSpecs({ tools, questions = [], delegates = [] }: AgentManifest): ToolSpec[] {
  return [
    ...tools.map(({ name, description, inputSchema }) => ({ name, description, inputSchema })),
    ...questions.map(({ name, description }) => ({ name, description, inputSchema: QUESTION_INPUT_SCHEMA })),
    ...delegates.map(({ name, description }) => ({ name, description, inputSchema: TASK_INPUT_SCHEMA })),
  ];
}

/** Reads the tool calls of a response and pins, for each, the declaration in force. Pure but for digests. */
export function planCalls(
  response: ModelResponse,
  manifest: AgentManifest,
  claim: PlanClaim,
  place: {
    readonly runId: string;
    readonly turn: number;
    readonly step: number;
    readonly usedCallIds: ReadonlySet<string>;
  },
): Plan {
  const tools = new Map(toolSpecs(manifest).map((spec) => [spec.name, spec]));
  const calls = readToolCalls(response.parts, {
    tools,
    validate: createArgumentsValidator(tools),
    callIdPrefix: `call_t${place.turn}_s${place.step}`,
    usedCallIds: place.usedCallIds,
    callsMax: Math.max(0, Math.min(CALLS_PER_STEP_MAX, claim.toolCallsLeft)),
  });
  return {
    plan: calls.map((call) => rowOf(call, manifest, claim, place.runId)),
    assistant: { parts: assistantParts(response, calls) },
    refused: calls.flatMap((call) =>
      call.kind === 'refused'
        ? [
            {
              slot: call.slot,
              code: call.code,
              content: { callId: call.callId, toolName: call.toolName, text: call.message, isError: true },
            },
          ]
        : [],
    ),
  };
}

type PlanClaim = Pick<
  ClaimedModelCall,
  'effectRules' | 'toolCallsLeft' | 'tenantId' | 'agent' | 'agentVersion'
>;

function rowOf(call: PlannedCall, manifest: AgentManifest, claim: PlanClaim, runId: string): PlanRow {
  const { slot, callId, toolName } = call;
  if (call.kind === 'refused') return { kind: 'refused', slot, callId, toolName, code: call.code };
  const question = manifest.questions?.find(({ name }) => name === toolName);
  if (question !== undefined) {
    const args = { value: call.arguments, canonical: call.canonicalArguments };
    return {
      ...{ kind: 'question', slot, callId, toolName, toolVersion: question.version },
      ...questionWait({ ...claim, runId }, question, args),
      expiresSeconds: question.expiresSeconds,
    };
  }
  const delegate = manifest.delegates?.find(({ name }) => name === toolName);
  if (delegate !== undefined) {
    const { version: toolVersion, agent, parallel, onCancel, share } = delegate;
    const { task } = call.arguments;
    if (typeof task !== 'string')
      throw new Error(`bug: a task of ${toolName} passed its schema and is no text`);
    return { kind: 'delegate', slot, callId, toolName, toolVersion, agent, task, parallel, onCancel, share };
  }
  const tool = manifest.tools.find(({ name }) => name === toolName);
  if (tool === undefined) throw new Error(`bug: ${toolName} was planned and is no tool of the agent`);
  const { effectClass } = tool;
  const asked = askedOf(manifest.policy ?? [], {
    ...{ tenantId: claim.tenantId, tool: toolName, effectClass, arguments: call.arguments },
  });
  return {
    kind: 'planned',
    slot,
    callId,
    toolName,
    toolVersion: tool.version,
    effectClass,
    namespace: tool.namespace,
    parallel: tool.parallel,
    short: tool.short,
    arguments: call.canonicalArguments,
    argumentsSha256: sha256(call.canonicalArguments),
    policy: {
      // The contract and the policy can ask for more care than the agent's file, never for less.
      ...approvalPolicy(claim.effectRules[toolName]?.approval ?? tool.approval, asked),
      timeoutSeconds: tool.timeoutSeconds,
      keyed: tool.keyed,
      query: tool.query,
      compensation: tool.compensation === null ? null : { ...tool.compensation },
    },
  };
}

/** The response's parts in order, each raw call replaced by the call that the transcript keeps. */
function assistantParts(response: ModelResponse, calls: readonly PlannedCall[]): AssistantPart[] {
  let slot = 0;
  return response.parts.flatMap((part): AssistantPart[] => {
    if (part.type !== 'raw_tool_call') return [part];
    const call = calls[slot];
    slot += 1;
    if (call === undefined) throw new Error('bug: a tool call has no plan');
    return [
      {
        type: 'tool_call',
        callId: call.callId,
        toolName: call.toolName,
        arguments: call.arguments,
        ...(call.providerMetadata === undefined ? {} : { providerMetadata: call.providerMetadata }),
      },
    ];
  });
}
