import type { JsonObject } from '../shared/domain/json.js';
import type { AssistantPart, ModelMessage, ToolResultPart } from '../shared/domain/models.js';
import type { StoredMessage } from '../shared/ledger/model-calls.js';

/** What the model is told of a call that stopped before it had a result. */
const STOPPED = 'Stopped: this call has no result.';

/**
 * The messages of the next prompt. Valid for every provider whatever interrupted the run (SPEC 4): each tool call has
 * exactly one result, straight after its message, in call order; a missing one is filled in, a stray one left out.
 */
export function messagesOf(stored: readonly StoredMessage[]): ModelMessage[] {
  const results = new Map<string, ToolResultPart>();
  for (const { role, content } of stored) {
    if (role === 'tool') results.set(String(content['callId']), content as unknown as ToolResultPart);
  }
  return stored.flatMap(({ role, content }): ModelMessage[] => {
    switch (role) {
      case 'user':
        return [{ role: 'user', text: String(content['text']) }];
      case 'assistant':
        return withResults(partsOf(content), results);
      case 'tool':
        return [];
    }
  });
}

function withResults(
  parts: readonly AssistantPart[],
  results: ReadonlyMap<string, ToolResultPart>,
): ModelMessage[] {
  // Providers refuse a message without content; an empty answer says nothing anyway.
  if (parts.length === 0) return [];
  const calls = parts.filter((part) => part.type === 'tool_call');
  const assistant: ModelMessage = { role: 'assistant', parts };
  if (calls.length === 0) return [assistant];
  return [
    assistant,
    {
      role: 'tool',
      results: calls.map(
        ({ callId, toolName }) => results.get(callId) ?? { callId, toolName, text: STOPPED, isError: true },
      ),
    },
  ];
}

/** Every call id that the transcript holds. */
export function callIdsOf(stored: readonly StoredMessage[]): Set<string> {
  return new Set(
    stored
      .filter(({ role }) => role === 'assistant')
      .flatMap(({ content }) => partsOf(content))
      .flatMap((part) => (part.type === 'tool_call' ? [part.callId] : [])),
  );
}

function partsOf(content: JsonObject): readonly AssistantPart[] {
  return content['parts'] as unknown as readonly AssistantPart[];
}

interface Known {
  readonly step: number;
  readonly messages: readonly StoredMessage[];
  readonly characters: number;
}

/** Runs whose transcripts one worker keeps at most. */
const RUNS_MAX = 200;
/** Characters of message content that one worker keeps at most. */
const CHARACTERS_MAX = 16_000_000;

/**
 * The transcripts that this worker has read lately, so that step 200 reads what step 199 added and not all of it
 * again. Stored messages never change, and only whole steps are kept, so what is here is what the ledger holds.
 */
export class TranscriptCache {
  readonly #known = new Map<string, Known>();
  #characters = 0;

  /** The step up to which this worker knows the run; 0 where it knows nothing. */
  knownStep(runId: string): number {
    return this.#known.get(runId)?.step ?? 0;
  }

  /**
   * What is known up to `knownStep`, then `added`: the whole transcript before the answer of `step`.
   * A run that was dropped meanwhile gives undefined: read it whole.
   */
  extend(
    runId: string,
    knownStep: number,
    step: number,
    added: readonly StoredMessage[],
  ): readonly StoredMessage[] | undefined {
    const known = this.#known.get(runId);
    if (knownStep > 0 && known?.step !== knownStep) return undefined;
    const before = knownStep === 0 ? [] : (known?.messages ?? []);
    const messages = [...before, ...added.filter((message) => message.step < step)];
    const characters =
      (knownStep === 0 ? 0 : (known?.characters ?? 0)) +
      added.reduce((sum, message) => sum + JSON.stringify(message.content).length, 0);
    this.#drop(runId);
    this.#known.set(runId, { step: step - 1, messages, characters });
    this.#characters += characters;
    this.#evict();
    return [...messages, ...added.filter((message) => message.step >= step)];
  }

  /** For a run that ended. */
  forget(runId: string): void {
    this.#drop(runId);
  }

  #drop(runId: string): void {
    const known = this.#known.get(runId);
    if (known === undefined) return;
    this.#known.delete(runId);
    this.#characters -= known.characters;
  }

  #evict(): void {
    for (const runId of this.#known.keys()) {
      if (this.#known.size <= RUNS_MAX && this.#characters <= CHARACTERS_MAX) return;
      this.#drop(runId);
    }
  }
}
