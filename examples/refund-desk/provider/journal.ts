import { closeSync, fsyncSync, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import { z } from 'zod';

const Stamp = { at: z.iso.datetime() };
const Key = z.string().nullable();

/**
 * One line of the provider's journal: what reached the provider and what it did about it. It is the
 * outside truth that the demo and the tests compare the ledger with, so nothing of Holdfast writes it.
 */
export const JournalEntry = z.discriminatedUnion('kind', [
  /** A request came in; nothing has been done yet. `subject`: its payment or address, where it has one. */
  z.object({
    ...Stamp,
    kind: z.literal('arrived'),
    key: Key,
    endpoint: z.enum(['refunds', 'mail']),
    subject: z.string().nullable(),
  }),
  /** Money moved. */
  z.object({
    ...Stamp,
    kind: z.literal('applied'),
    key: z.string(),
    digest: z.string(),
    refund_id: z.string(),
    payment_id: z.string(),
    amount_cents: z.int(),
    currency: z.string(),
    reason: z.string(),
  }),
  /** A key that was answered before was answered the same again. */
  z.object({ ...Stamp, kind: z.literal('replayed'), key: z.string() }),
  /** Nothing was done. `digest` is set where the refusal is the key's answer for ever. */
  z.object({
    ...Stamp,
    kind: z.literal('refused'),
    key: Key,
    endpoint: z.enum(['refunds', 'mail']),
    status: z.int(),
    code: z.string(),
    message: z.string(),
    digest: z.string().nullable(),
  }),
  /** A mail left. `key` is what the sender called it; it is written down and honoured by nobody. */
  z.object({
    ...Stamp,
    kind: z.literal('mail_sent'),
    key: Key,
    message_id: z.string(),
    to: z.string(),
    subject: z.string(),
  }),
]);
export type JournalEntry = z.infer<typeof JournalEntry>;

type WithoutTime<T> = T extends unknown ? Omit<T, 'at'> : never;
/** An entry before the journal has stamped it. */
export type NewEntry = WithoutTime<JournalEntry>;

/** An append-only file of JSON lines. */
export interface Journal {
  /** What the file held when it was opened, oldest first. */
  readonly past: readonly JournalEntry[];
  /** Writes one line and returns when it is on the disk; throws when it could not be written. */
  append(entry: NewEntry): JournalEntry;
  close(): void;
}

/**
 * Opens the journal at `path`, making it where there is none.
 *
 * A last line without its newline is what a kill in mid-write leaves. Nobody was answered for it, since
 * answers follow the fsync, so it is cut off.
 *
 * @throws Error naming the file and line when a complete line is no journal entry
 */
export function openJournal(path: string): Journal {
  const file = openSync(path, 'a+');
  const bytes = readFileSync(path);
  const wholeBytes = bytes.lastIndexOf(0x0a) + 1;
  if (wholeBytes < bytes.length) {
    ftruncateSync(file, wholeBytes);
    fsyncSync(file);
  }
  return {
    past: parseLines(path, bytes.subarray(0, wholeBytes).toString('utf8')),
    append(entry) {
      // Synchronous on purpose: no answer, and no other request, may come between the write and the fsync.
      const stamped = { at: new Date().toISOString(), ...entry };
      writeSync(file, `${JSON.stringify(stamped)}\n`);
      fsyncSync(file);
      return stamped;
    },
    close: () => closeSync(file),
  };
}

function parseLines(path: string, text: string): JournalEntry[] {
  const lines = text.split('\n').slice(0, -1);
  return lines.map((line, index) => {
    try {
      return JournalEntry.parse(JSON.parse(line));
    } catch (cause) {
      throw new Error(
        `${path}:${index + 1} is no journal entry. Move the file away to start with an empty journal.`,
        { cause },
      );
    }
  });
}
