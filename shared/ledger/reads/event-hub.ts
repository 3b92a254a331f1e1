import pg from 'pg';
import type { ClientConfig } from 'pg';
import { readEventHeads } from './read-events.js';
import { closeConnection, type Db, KEEP_ALIVE } from '../database.js';

/** The channel on which every commit of a run names it. */
export const EVENTS_CHANNEL = 'holdfast_events';

/** Tells who watches a run that it has new events; never what they are. */
export interface EventHub {
  /**
   * Calls `wake` after new events of the run became visible, perhaps once too often. Call the result to
   * leave.
   */
  subscribe(runId: string, wake: () => void): () => void;
  /** Calls `wake` after new events of any run became visible; only while it listens, so that whoever asks polls too. */
  subscribeAll(wake: () => void): () => void;
  /** How many subscriptions there are now. */
  subscriptions(): number;
  /** Whether the LISTEN connection stands; while it does not, polling alone wakes. */
  isListening(): boolean;
  /** Closes the LISTEN connection and ends polling. Nothing wakes afterwards. */
  stop(): Promise<void>;
}

export interface EventHubOptions {
  /** For polling; the caller ends it after `stop`. */
  readonly db: Db;
  /** How to open the one LISTEN connection of this process. Null polls only. */
  readonly listen: ClientConfig | null;
  /** Hears of a lost and of a regained LISTEN connection and of a failed poll, once each. */
  readonly log: {
    warn(fields: Record<string, unknown>, message: string): void;
    info(fields: Record<string, unknown>, message: string): void;
  };
  /** Pause between two polls and between two tries to listen, in milliseconds. Default 1,000. */
  readonly pollMs?: number;
}

/**
 * Starts the hub: one LISTEN connection a process, however many streams there are, and one cheap query a
 * poll for all of them behind it, since a notification may be lost with its connection (DECISIONS 5).
 */
export function startEventHub(options: EventHubOptions): EventHub {
  return new Hub(options);
}

interface Watched {
  readonly wakes: Set<() => void>;
  /** The head that the last poll saw; -1 before the first. */
  seen: number;
}

class Hub implements EventHub {
  private readonly watched = new Map<string, Watched>();
  private readonly watchers = new Set<() => void>();
  private readonly options: EventHubOptions;
  private readonly pollMs: number;
  private client: pg.Client | null = null;
  private readonly lost = new WeakSet<pg.Client>();
  private pollTimer: NodeJS.Timeout | undefined;
  private listenTimer: NodeJS.Timeout | undefined;
  private work: Promise<void> = Promise.resolve();
  private connecting: Promise<void> = Promise.resolve();
  private listening = false;
  private pollFailed = false;
  private stopped = false;

  constructor(options: EventHubOptions) {
    this.options = options;
    this.pollMs = options.pollMs ?? 1000;
    this.schedulePoll();
    this.connecting = this.listen();
  }

  subscribe(runId: string, wake: () => void): () => void {
    const watched = this.watched.get(runId) ?? { wakes: new Set(), seen: -1 };
    this.watched.set(runId, watched);
    watched.wakes.add(wake);
    return () => {
      watched.wakes.delete(wake);
      if (watched.wakes.size === 0) this.watched.delete(runId);
    };
  }

  subscribeAll(wake: () => void): () => void {
    // An entry of its own, should one function be given twice.
    const watcher = (): void => wake();
    this.watchers.add(watcher);
    return () => void this.watchers.delete(watcher);
  }

  subscriptions(): number {
    let count = this.watchers.size;
    for (const { wakes } of this.watched.values()) count += wakes.size;
    return count;
  }

  isListening(): boolean {
    return this.listening;
  }

  async stop(): Promise<void> {
    this.stopped = true;
    clearTimeout(this.pollTimer);
    clearTimeout(this.listenTimer);
    await this.connecting;
    await this.work;
    const { client } = this;
    this.client = null;
    this.listening = false;
    if (client !== null) await closeConnection(client);
  }

  private wake(runId: string): void {
    for (const wake of this.watched.get(runId)?.wakes ?? []) wake();
  }

  private schedulePoll(): void {
    if (this.stopped) return;
    this.pollTimer = setTimeout(() => {
      this.work = this.poll();
    }, this.pollMs);
  }

  private async poll(): Promise<void> {
    try {
      if (this.watched.size > 0) {
        const heads = await readEventHeads(this.options.db, [...this.watched.keys()]);
        for (const [runId, { eventSeq }] of heads) {
          const watched = this.watched.get(runId);
          if (watched === undefined || watched.seen === eventSeq) continue;
          watched.seen = eventSeq;
          this.wake(runId);
        }
      }
      if (this.pollFailed) this.options.log.info({}, 'the event feed reads the ledger again');
      this.pollFailed = false;
    } catch (error) {
      if (!this.pollFailed) this.options.log.warn({ err: error }, 'the event feed cannot read the ledger');
      this.pollFailed = true;
    }
    this.schedulePoll();
  }

  private async listen(): Promise<void> {
    if (this.options.listen === null || this.stopped) return;
    const client = new pg.Client({
      ...{ connectionTimeoutMillis: 5_000, query_timeout: 5_000, ...KEEP_ALIVE },
      ...this.options.listen,
    });
    // Without this listener a terminated backend would end the process.
    client.on('error', (error) => this.lose(client, error));
    client.on('end', () => this.lose(client, null));
    client.on('notification', ({ payload }) => {
      if (payload === undefined) return;
      this.wake(payload);
      for (const watcher of this.watchers) watcher();
    });
    try {
      await client.connect();
      await client.query(`listen ${EVENTS_CHANNEL}`);
      this.client = client;
      this.listening = true;
      // What was committed while nobody listened is looked for at once.
      for (const runId of this.watched.keys()) this.wake(runId);
      for (const watcher of this.watchers) watcher();
      this.options.log.info({}, 'the event feed listens');
    } catch (error) {
      this.lose(client, error);
    }
  }

  /**
   * Called up to three times for one connection ('error', 'end', our own closing); only the first counts.
   */
  private lose(client: pg.Client, error: unknown): void {
    if (this.stopped || this.lost.has(client)) return;
    this.lost.add(client);
    if (this.listening) this.options.log.warn({ err: error }, 'the event feed polls: LISTEN was lost');
    this.listening = false;
    this.client = null;
    this.listenTimer = setTimeout(() => {
      // A half-open connection must not stay behind the next one.
      this.connecting = closeConnection(client)
        .catch((cause: unknown) => this.options.log.info({ err: cause }, 'a lost LISTEN connection closed'))
        .then(() => this.listen());
    }, this.pollMs);
  }
}
