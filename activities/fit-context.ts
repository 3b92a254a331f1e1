import type { ContextLimit } from '../shared/domain/agents.js';
import type { ModelMessage } from '../shared/domain/models.js';
import type { LeftOut, StoredMessage } from '../shared/ledger/model-calls.js';
import { messagesOf } from './transcript.js';

/** What the model is shown of a transcript. */
export interface Prompt {
  readonly messages: readonly ModelMessage[];
  /** Null where it is shown whole. */
  readonly leftOut: LeftOut | null;
}

/**
 * The messages of the next prompt, within the agent's limit where it has one. The transcript itself is never shortened.
 *
 * What goes first is the oldest of the thread, then of the run; the run's own input and its newest exchange stay. An
 * assistant message and the results of its calls are kept or left out together, and a cut is followed by a message of the
 * user that tells of it. A cut goes by quarters of the limit, so that it stays in its place for many steps.
 */
export function promptOf(transcript: readonly StoredMessage[], limit: ContextLimit | undefined): Prompt {
  // What the thread said before, and what a fork inherits, stands at the steps up to 0.
  const earlier = messagesOf(transcript.filter(({ step }) => step <= 0));
  const own = messagesOf(transcript.filter(({ step }) => step > 0));
  const all = [...earlier, ...own];
  const total = sizeOf(all);
  if (limit === undefined || total <= limit.charactersMax) return { messages: all, leftOut: null };
  const quarter = limit.charactersMax / 4;
  const toDrop = Math.ceil((total - limit.charactersMax) / quarter) * quarter;

  const kept = withoutOldest(batchesOf(earlier), toDrop, (batch) => batch?.[0]?.role !== 'user');
  const [input, ...rest] = batchesOf(own);
  const recent =
    kept.batches.length > 0
      ? { batches: rest.slice(0, -1), dropped: [] }
      : withoutOldest(rest.slice(0, -1), toDrop - sizeOf(earlier), () => false);
  const dropped = [...kept.dropped, ...recent.dropped];
  if (dropped.length === 0) return { messages: all, leftOut: null };
  const leftOut = { messages: dropped.length, characters: sizeOf(dropped) };
  const note: ModelMessage = {
    role: 'user',
    text: `[${leftOut.messages} earlier messages of this conversation are left out here, for its length.]`,
  };
  const isOwnCut = recent.dropped.length > 0;
  return {
    messages: [
      ...(isOwnCut ? [] : [note]),
      ...kept.batches.flat(),
      ...(input ?? []),
      ...(isOwnCut ? [note] : []),
      ...recent.batches.flat(),
      ...(rest.at(-1) ?? []),
    ],
    leftOut,
  };
}

type Batch = readonly ModelMessage[];

/** The batches after the oldest `toDrop` characters, and further while what comes next may not come first. */
function withoutOldest(
  batches: readonly Batch[],
  toDrop: number,
  mayNotBeFirst: (batch: Batch | undefined) => boolean,
): { readonly batches: readonly Batch[]; readonly dropped: readonly ModelMessage[] } {
  let cut = 0;
  for (let left = toDrop; left > 0 && cut < batches.length; cut += 1) left -= sizeOf(batches[cut] ?? []);
  if (cut > 0) while (cut < batches.length && mayNotBeFirst(batches[cut])) cut += 1;
  return { batches: batches.slice(cut), dropped: batches.slice(0, cut).flat() };
}

/** What is kept or left out together: a message of the user, or one of the assistant with the results of its calls. */
function batchesOf(messages: readonly ModelMessage[]): Batch[] {
  const batches: ModelMessage[][] = [];
  for (const message of messages) {
    if (message.role === 'tool') batches.at(-1)?.push(message);
    else batches.push([message]);
  }
  return batches;
}

function sizeOf(messages: readonly ModelMessage[]): number {
  return messages.reduce((sum, message) => sum + JSON.stringify(message).length, 0);
}
