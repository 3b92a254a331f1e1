import { callFunction, type Db } from './database.js';

/** What a memory's effect came to. Whatever is not `written` has written nothing. */
export type MemoryWritten =
  | { readonly kind: 'written'; readonly threadId: string; readonly generation: number }
  /** Another generation is the newest by now (0: there is none); this is its text. */
  | { readonly kind: 'stale'; readonly generation: number; readonly text: string | null }
  /** The run belongs to no thread. */
  | { readonly kind: 'no_thread' }
  /** The claim was lost, or the effect is settled: nothing was written, and nothing will be under this claim. */
  | { readonly kind: 'not_claimed' };

const WRITE = { name: 'ledger/write-memory', text: 'select holdfast.write_memory($1) as answer' };

/**
 * Writes the next generation of a thread's memory, as the effect's stored intent says, if it was made of the newest one.
 * An effect writes once: asked again, it answers with what it wrote.
 */
export async function writeMemory(db: Db, effectId: string): Promise<MemoryWritten> {
  const a = await callFunction(db, WRITE, [effectId]);
  switch (a['kind']) {
    case 'written':
      return {
        kind: 'written',
        threadId: a['thread_id'] as string,
        generation: a['generation'] as number,
      };
    case 'stale':
      return {
        kind: 'stale',
        generation: a['generation'] as number,
        text: (a['text'] ?? null) as string | null,
      };
    default:
      return { kind: a['kind'] as 'no_thread' | 'not_claimed' };
  }
}
