import type { Db } from './database.js';

/** Shortest time between two announcements of one process, in milliseconds. */
const PAUSE_MS = 100;

const ANNOUNCE = { name: 'ledger/announce', text: 'select holdfast.announce($1)' };

/**
 * Tells the feeds which runs have new events. Not the commit itself does, since Postgres lets one transaction at a time
 * commit with a notification in it, through the wait for the disk: each process announces many commits at once, the
 * first at once and the next after a pause. One that is lost costs a reader the hub's poll, and no event.
 * What people do is rare, and its functions notify by themselves.
 */
export class Announcer {
  readonly #db: Db;
  readonly #onError: (error: unknown) => void;
  readonly #changed = new Set<string>();
  #working: Promise<void> | undefined;
  #stopped = false;

  constructor(options: { readonly db: Db; readonly onError: (error: unknown) => void }) {
    this.#db = options.db;
    this.#onError = options.onError;
  }

  /** After a commit of the run; once too often does no harm. */
  announce(runId: string): void {
    this.#changed.add(runId);
    this.#working ??= this.#work().finally(() => {
      this.#working = undefined;
    });
  }

  /** Says what is left to say. Nothing may be announced afterwards. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#working;
  }

  async #work(): Promise<void> {
    while (this.#changed.size > 0) {
      const runs = [...this.#changed];
      this.#changed.clear();
      try {
        await this.#db.query({ ...ANNOUNCE, values: [runs] });
      } catch (error) {
        this.#onError(error);
      }
      if (!this.#stopped) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }
}
