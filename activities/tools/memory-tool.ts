import { z } from 'zod';
import type { JsonObject } from '../../shared/domain/json.js';
import type { MemoryWritten } from '../../shared/ledger/memory.js';
import { isLedgerUnavailable } from '../../shared/ledger/refusals.js';
import { bodyOfJson, notSentAnswer, unknownAnswer } from './answers.js';
import { digestDeclaration } from './declaration.js';
import type { Tool, ToolAnswer, ToolCall } from './tool.js';

/** Where the keys of memories are kept: in the ledger itself. No other tool can have this namespace. */
const MEMORY_NAMESPACE = 'holdfast:memory';

/** How a project file declares the tool with which an agent writes a thread's memory. */
export const memoryToolSchema = z.strictObject({
  /** For the model; what a memory is for and how it is written is told in any case. */
  description: z.string().min(1).max(4_000).optional(),
});

const USUAL =
  'Writes what is remembered of the conversation from now on, in place of what is remembered now. Takes the generation ' +
  'that it was made from: 0 where there is none yet. If there is a newer one by now nothing is written, and the answer holds it.';

const INPUT_SCHEMA: JsonObject = {
  type: 'object',
  additionalProperties: false,
  required: ['from_generation', 'text'],
  properties: {
    from_generation: { type: 'integer', minimum: 0, maximum: 2_147_483_647 },
    text: { type: 'string', minLength: 1, maxLength: 16_000 },
  },
};

/** Makes the tool that writes the memory of the run's thread: an effect like any other, at the ledger itself. */
export function createMemoryTool(name: string, declared: z.output<typeof memoryToolSchema>): Tool {
  const description = declared.description === undefined ? USUAL : `${declared.description}\n\n${USUAL}`;
  const shown = {
    name,
    description,
    inputSchema: INPUT_SCHEMA,
    effect: {
      class: 'keyed' as const,
      namespace: MEMORY_NAMESPACE,
      // The ledger keeps a key as long as its effect.
      keyed: {
        windowSeconds: 90 * 86_400,
        resendsMax: 100,
        comparesBodies: true,
        keepsServerErrors: false,
      },
    },
    ...{ parallel: false, short: true, timeoutSeconds: 10 },
  };
  return { ...shown, version: digestDeclaration(name, { kind: 'memory', ...shown }), call: writeOnce };
}

async function writeOnce({ writeMemory, signal }: ToolCall): Promise<ToolAnswer> {
  if (writeMemory === undefined) throw new Error('bug: the memory tool was given no ledger');
  if (signal.aborted) return notSentAnswer('aborted_before_send');
  try {
    return answerOf(await writeMemory());
  } catch (error) {
    // It may have been committed; the same key asks again.
    if (isLedgerUnavailable(error)) return unknownAnswer('connection_closed');
    throw error;
  }
}

function answerOf(written: MemoryWritten): ToolAnswer {
  switch (written.kind) {
    case 'written': {
      const { threadId, generation } = written;
      const body = bodyOfJson({ thread_id: threadId, generation });
      return { kind: 'succeeded', reference: `${threadId}/${generation}`, body };
    }
    case 'stale':
      return refused('memory_stale', {
        message: `Nothing was written: generation ${written.generation} is the newest. Make the next one of that.`,
        ...{ generation: written.generation, text: written.text },
      });
    case 'no_thread':
      return refused('memory_of_no_thread', {
        message: 'Nothing was written: this run belongs to no thread.',
      });
    case 'not_claimed':
      return refused('not_claimed', { message: 'Nothing was written: the effect is not claimed any more.' });
  }
}

function refused(status: string, more: JsonObject): ToolAnswer {
  return { kind: 'rejected', status, body: bodyOfJson({ error: status, ...more }) };
}
