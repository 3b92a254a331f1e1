import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import type { ProviderDeed } from './compare.js';

// Only what the demo looks at; the provider is an outside party, so its lines are read, not trusted.
const Line = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('arrived'),
    key: z.string().nullable(),
    endpoint: z.string(),
    subject: z.string().nullable(),
  }),
  z.object({
    kind: z.literal('applied'),
    key: z.string(),
    refund_id: z.string(),
    payment_id: z.string(),
  }),
  z.object({ kind: z.literal('mail_sent'), key: z.string().nullable(), message_id: z.string() }),
  z.object({ kind: z.literal('replayed'), key: z.string() }),
  z.object({ kind: z.literal('refused'), key: z.string().nullable(), code: z.string() }),
]);
/** One line of the payment provider's journal, as far as the demo reads it. */
export type ProviderLine = z.infer<typeof Line>;

/**
 * Reads the provider's journal while the provider may be writing it: a last line that is still without its
 * newline is left out.
 *
 * @throws Error naming the line when a complete line is none of the known kinds
 */
export async function readProviderLog(path: string): Promise<ProviderLine[]> {
  const lines = (await readFile(path, 'utf8')).split('\n').slice(0, -1);
  return lines.map((text, index) => {
    try {
      return Line.parse(JSON.parse(text));
    } catch (cause) {
      throw new Error(`${path}:${index + 1} cannot be read as a line of the provider's journal.`, { cause });
    }
  });
}

/** The deeds among the lines: what the provider did, apart from what was asked of it. */
export function deedsOf(lines: readonly ProviderLine[]): ProviderDeed[] {
  return lines.flatMap((line): ProviderDeed[] => {
    if (line.kind === 'applied') return [{ kind: line.kind, key: line.key, reference: line.refund_id }];
    if (line.kind === 'mail_sent') return [{ kind: line.kind, key: line.key, reference: line.message_id }];
    return [];
  });
}
