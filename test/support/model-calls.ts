import { createModelClient } from '../../activities/models/create-model-client.js';
import type { ModelProfile } from '../../shared/domain/agents.js';
import type { ModelChunk, ModelOutcome, ModelRequest, ModelResponse } from '../../shared/domain/models.js';

/** The one secret there is, under the name `TEST_KEY`. */
export const KEY = 'zq-0123456789abcdef';
/** What the clients take for now. */
export const NOW_MS = Date.parse('2026-01-01T00:00:00Z');

/** A small request, with changes. */
export function request(changes: Partial<ModelRequest> = {}): ModelRequest {
  return {
    system: 'Be brief.',
    messages: [{ role: 'user', text: 'Where is the order of Ada Lovelace?' }],
    tools: [],
    maxOutputTokens: 1000,
    callKey: 'run_1/0/0',
    attempt: 1,
    ...changes,
  };
}

/** What one call gave, with the pieces it streamed. */
export interface Called {
  readonly outcome: ModelOutcome;
  readonly chunks: ModelChunk[];
}

/** Makes one call by a client of its own; scripts are found from `projectDir`. */
export async function callModel(
  tested: ModelProfile,
  projectDir: string,
  sent: ModelRequest = request(),
  signal: AbortSignal = new AbortController().signal,
  onChunk: (chunk: ModelChunk) => void = () => undefined,
): Promise<Called> {
  const secrets = (name: string): string | undefined => (name === 'TEST_KEY' ? KEY : undefined);
  const client = createModelClient(tested, { secrets, projectDir, now: () => NOW_MS });
  const chunks: ModelChunk[] = [];
  const outcome = await client.call(sent, {
    signal,
    onChunk: (chunk) => {
      chunks.push(chunk);
      onChunk(chunk);
    },
  });
  return { outcome, chunks };
}

/** The response of a call that must have one. */
export function answered({ outcome }: Called): ModelResponse {
  if (outcome.kind !== 'answered') throw new Error(`not answered: ${JSON.stringify(outcome)}`);
  return outcome.response;
}

/** The failure of a call that must have one. */
export function failed({ outcome }: Called): Extract<ModelOutcome, { kind: 'failed' }> {
  if (outcome.kind !== 'failed') throw new Error(`not failed: ${JSON.stringify(outcome)}`);
  return outcome;
}
