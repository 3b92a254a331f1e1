import type { AgentManifest, ToolManifest } from '../shared/domain/agents.js';
import type { JsonValue } from '../shared/domain/json.js';
import type { AssistantPart, ModelResponse } from '../shared/domain/models.js';
import { type PlannedCall, readToolCalls } from '../shared/domain/tool-calls.js';
import { sha256 } from '../shared/ledger/digest.js';
import type { ClaimedModelCall, PlannedCallRow, RefusedCallRow } from '../shared/ledger/model-calls.js';
import { createArgumentsValidator } from './models/validate-arguments.js';

/** Tool calls of one answer that are run at most; the workflow's answer names each, and stays under 1 KiB. */
export const CALLS_PER_STEP_MAX = 16;

export interface Plan {
  readonly plan: readonly (PlannedCallRow | RefusedCallRow)[];
  /** The assistant's message, as the next prompt will hold it. */
  readonly assistant: { readonly parts: readonly AssistantPart[] };
  readonly refused: readonly { readonly slot: number; readonly code: string; readonly content: JsonValue }[];
}

/** Reads the tool calls of a response and pins, for each, the tool's declaration in force. Pure but for digests. */
export function planCalls(
  response: ModelResponse,
  manifest: AgentManifest,
  claim: Pick<ClaimedModelCall, 'effectRules' | 'toolCallsLeft'>,
  place: { readonly turn: number; readonly step: number; readonly usedCallIds: ReadonlySet<string> },
): Plan {
  const tools = new Map(manifest.tools.map((tool) => [tool.name, tool]));
  const calls = readToolCalls(response.parts, {
    tools,
    validate: createArgumentsValidator(tools),
    callIdPrefix: `call_t${place.turn}_s${place.step}`,
    usedCallIds: place.usedCallIds,
    callsMax: Math.max(0, Math.min(CALLS_PER_STEP_MAX, claim.toolCallsLeft)),
  });
  return {
    plan: calls.map((call) => rowOf(call, tools, claim.effectRules)),
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

function rowOf(
  call: PlannedCall,
  tools: ReadonlyMap<string, ToolManifest>,
  rules: ClaimedModelCall['effectRules'],
): PlannedCallRow | RefusedCallRow {
  const { slot, callId, toolName } = call;
  if (call.kind === 'refused') return { kind: 'refused', slot, callId, toolName, code: call.code };
  const tool = tools.get(toolName);
  if (tool === undefined) throw new Error(`bug: ${toolName} was planned and is no tool of the agent`);
  return {
    kind: 'planned',
    slot,
    callId,
    toolName,
    toolVersion: tool.version,
    effectClass: tool.effectClass,
    namespace: tool.namespace,
    parallel: tool.parallel,
    arguments: call.canonicalArguments,
    argumentsSha256: sha256(call.canonicalArguments),
    policy: {
      // The contract can ask for more care than the agent's file, never for less.
      approval: rules[toolName]?.approval ?? tool.approval,
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
