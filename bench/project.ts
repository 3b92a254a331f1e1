import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Lane } from './options.js';

export const AGENT = 'loop';
export const TOOL = 'apply_change';
/** Tool calls of the run that the comparison is about: the work "agent-loop-5". */
export const LOOP_CALLS = 5;

/** Durable steps of a run: a model call before each tool call and one for the final answer. */
export function stepsOf(toolCalls: number): number {
  return 2 * toolCalls + 1;
}

/** What a run is asked; the script knows by it how long the loop is. */
export function inputOf(toolCalls: number): string {
  return `Apply the list of ${toolCalls} changes, one after the other.`;
}

/**
 * Writes the project that both sides run: one agent, a scripted model that answers at once, and one keyed HTTP tool.
 *
 * @param lengths tool calls a run, one scenario of the script for each
 * @param lane `fast` declares model and tool short
 * @returns the path of the project file
 */
export async function writeProject(
  folder: string,
  targetUrl: string,
  lengths: readonly number[],
  lane: Lane,
): Promise<string> {
  const pace = { short: lane === 'fast', timeoutSeconds: 10 };
  await mkdir(folder, { recursive: true });
  const { host } = new URL(targetUrl);
  // JSON is YAML too.
  const write = async (name: string, value: object): Promise<string> => {
    const path = join(folder, name);
    await writeFile(path, JSON.stringify(value, null, 1));
    return path;
  };
  await write('model.yaml', { modelId: 'bench-script', scenarios: [...new Set(lengths)].map(scenarioOf) });
  await write('tools.yaml', { version: 1, tools: { [TOOL]: { ...toolOf(host), ...pace } } });
  return await write('holdfast.yaml', {
    version: 1,
    models: { script: { provider: 'scripted', script: 'model.yaml', maxOutputTokens: 1024, ...pace } },
    tools: { http: ['tools.yaml'] },
    agents: {
      [AGENT]: {
        model: 'script',
        instructions: { text: 'You apply a list of changes, one at a time, and say when all are applied.' },
        tools: [{ name: TOOL, approval: 'not_required' }],
        limits: { stepsMax: 1_000, toolCallsMax: 1_000, wallClockSecondsMax: 3_600 },
      },
    },
  });
}

function scenarioOf(toolCalls: number): object {
  const replies = Array.from({ length: toolCalls }, (_, at) => ({
    text: `I apply change ${at + 1}.`,
    toolCalls: [{ name: TOOL, arguments: { account: 'acc_4711', change: at + 1, amount_cents: 1_000 + at } }],
  }));
  return {
    name: `loop-${toolCalls}`,
    when: { inputContains: `list of ${toolCalls} changes` },
    replies: [...replies, { text: `All ${toolCalls} changes are applied.` }],
  };
}

function toolOf(host: string): object {
  return {
    description: 'Applies one change to an account.',
    input: {
      type: 'object',
      additionalProperties: false,
      required: ['account', 'change', 'amount_cents'],
      properties: {
        account: { type: 'string', maxLength: 100 },
        change: { type: 'integer', minimum: 1 },
        amount_cents: { type: 'integer', minimum: 1 },
      },
    },
    class: 'keyed',
    namespace: 'bench-target',
    keyed: { windowSeconds: 86_400, resendsMax: 5, comparesBodies: false, keepsServerErrors: false },
    method: 'POST',
    url: `http://${host}/changes`,
    allow: [host],
    keyHeader: 'Idempotency-Key',
    body: 'arguments',
    reference: '/change_id',
  };
}
