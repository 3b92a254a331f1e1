import { proxyActivities } from '@temporalio/workflow';
import type { BareActivities, BareInput } from './bare-protocol.js';

/**
 * The loop as a plain Temporal agent has it: the messages live in the workflow and travel with each model call, one
 * activity a step, nothing beside Temporal.
 */
const { callModel, callTool } = proxyActivities<BareActivities>({
  startToCloseTimeout: '1 minute',
  retry: { initialInterval: '500 milliseconds', maximumAttempts: 5 },
});

export async function bareRun({ runId, input }: BareInput): Promise<{ state: 'completed' }> {
  const messages: Parameters<BareActivities['callModel']>[0]['messages'] = [{ role: 'user', text: input }];
  for (let step = 1; ; step += 1) {
    const parts = await callModel({ runId, step, messages });
    messages.push({ role: 'assistant', parts });
    const calls = parts.filter((part) => part.type === 'tool_call');
    if (calls.length === 0) return { state: 'completed' };
    const results = [];
    for (const [slot, call] of calls.entries()) {
      const text = await callTool({ key: `${runId}:s${step}:c${slot}`, arguments: call.arguments });
      results.push({ callId: call.callId, toolName: call.toolName, text, isError: false });
    }
    messages.push({ role: 'tool', results });
  }
}
