import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { z } from 'zod';
import { createProviderApp } from './app.js';
import { Book, Payment } from './book.js';
import { Dials } from './dials.js';
import { openJournal } from './journal.js';

export interface ProviderOptions {
  /** Of 127.0.0.1; 0 takes a free one. */
  readonly port: number;
  /** The journal: one JSON line for each arrival and each deed. Made where there is none. */
  readonly journalPath: string;
  /** A JSON array of payments. */
  readonly paymentsPath: string;
}

/** A provider that listens. */
export interface RunningProvider {
  readonly url: string;
  /** Ends it, open connections included. */
  stop(): Promise<void>;
}

/**
 * Starts the payment provider of the refund desk on 127.0.0.1, with the memory its journal gives it.
 *
 * @throws Error when the port is taken, or a file is missing or cannot be read for what it should be
 */
export async function startProvider(options: ProviderOptions): Promise<RunningProvider> {
  const payments = readPayments(options.paymentsPath);
  const journal = openJournal(options.journalPath);
  const book = new Book(payments);
  for (const entry of journal.past) book.record(entry);

  const server = createServer(createProviderApp({ journal, book, dials: new Dials() }));
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(options.port, '127.0.0.1', resolve);
  });
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    async stop() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      await closed;
      journal.close();
    },
  };
}

function readPayments(path: string): Payment[] {
  const parsed = z.array(Payment).safeParse(JSON.parse(readFileSync(path, 'utf8')));
  if (parsed.success) return parsed.data;
  throw new Error(`${path} is no list of payments:\n${z.prettifyError(parsed.error)}`);
}
