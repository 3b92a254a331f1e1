import pg from 'pg';
import { closeConnection, KEEP_ALIVE } from '../shared/ledger/database.js';
import type { Logger } from '../shared/process/log.js';

/** Pause before a lost LISTEN connection is opened again, in milliseconds. */
const REOPEN_MS = 1_000;

export interface Listener {
  stop(): Promise<void>;
}

/**
 * Keeps one connection that listens on `channels`. A notification may be lost with its connection, so whoever listens
 * also polls: `onMessage` only makes things quick, and `onOpened` says that something may have been missed.
 */
export function listen(options: {
  readonly databaseUrl: string;
  readonly channels: readonly string[];
  readonly onMessage: (channel: string, payload: string) => void;
  readonly onOpened: () => void;
  readonly log: Logger;
}): Listener {
  let stopped = false;
  let client: pg.Client | undefined;
  let timer: NodeJS.Timeout | undefined;

  const reopen = (): void => {
    if (stopped || timer !== undefined) return;
    timer = setTimeout(() => {
      timer = undefined;
      void open();
    }, REOPEN_MS);
  };

  const open = async (): Promise<void> => {
    const opened = new pg.Client({
      connectionString: options.databaseUrl,
      application_name: 'holdfast-worker-listen',
      connectionTimeoutMillis: 5_000,
      // To ask for a channel takes no time; an answer that does not come would keep us waiting for ever.
      query_timeout: 5_000,
      ...KEEP_ALIVE,
    });
    client = opened;
    opened.on('notification', ({ channel, payload }) => options.onMessage(channel, payload ?? ''));
    opened.on('error', (error) => options.log.warn({ err: error }, 'LISTEN connection lost'));
    opened.on('end', reopen);
    try {
      await opened.connect();
      for (const channel of options.channels) await opened.query(`listen ${channel}`);
      options.onOpened();
    } catch (error) {
      options.log.warn({ err: error }, 'cannot listen; polling meanwhile');
      await closeConnection(opened).catch(() => undefined);
      reopen();
    }
  };

  void open();
  return {
    async stop() {
      stopped = true;
      clearTimeout(timer);
      if (client !== undefined) await closeConnection(client).catch(() => undefined);
    },
  };
}
