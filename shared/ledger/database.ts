import pg from 'pg';

/** Anything that runs a statement. The caller owns the transaction; most ledger calls are one statement. */
export type Db = Pick<pg.Pool | pg.ClientBase, 'query'>;

export interface LedgerPoolOptions {
  readonly databaseUrl: string;
  /** Connections at most. */
  readonly max: number;
  /** Shown in pg_stat_activity, for example `holdfast-worker`. */
  readonly applicationName: string;
  /** Hears of idle connections that died; the pool replaces them by itself. */
  readonly onIdleError: (error: Error) => void;
}

/** Longest a statement may run; a call that takes longer is answered as unavailable and read again by key. */
export const STATEMENT_TIMEOUT_MS = 10_000;

/**
 * The pool of one process, acting as the role that may read tables and call functions but write nothing itself.
 *
 * Every wait has an end: a black-holed connection would otherwise hang a query for ever. And a pool without an
 * `error` listener ends the process when a backend is terminated.
 */
export function createLedgerPool(options: LedgerPoolOptions): pg.Pool {
  const pool = new pg.Pool({
    connectionString: options.databaseUrl,
    max: options.max,
    application_name: options.applicationName,
    options: '-c role=holdfast_app',
    connectionTimeoutMillis: 5_000,
    idleTimeoutMillis: 60_000,
    statement_timeout: STATEMENT_TIMEOUT_MS,
    // Above the server's own limit, for the case in which the server's answer never arrives.
    query_timeout: STATEMENT_TIMEOUT_MS + 2_000,
    lock_timeout: 8_000,
    idle_in_transaction_session_timeout: 30_000,
    ...KEEP_ALIVE,
  });
  pool.on('error', options.onIdleError);
  return pool;
}

/** Probes a silent connection after ten seconds; the system's own default of two hours finds no dead peer in time. */
export const KEEP_ALIVE = { keepAlive: true, keepAliveInitialDelayMillis: 10_000 } as const;

/** How long a connection may take to say good-bye. */
const CLOSE_MS = 1_000;

/** Closes a connection. One whose server says nothing any more is dropped, or whoever closes it would wait for ever. */
export async function closeConnection(client: pg.Client): Promise<void> {
  const drop = setTimeout(() => client.connection.stream.destroy(), CLOSE_MS);
  try {
    await client.end();
  } finally {
    clearTimeout(drop);
  }
}

/** Calls one ledger function that answers with jsonb. `sql` is `select holdfast.f($1, …) as answer`. */
export async function callFunction(
  db: Db,
  statement: { readonly name: string; readonly text: string },
  values: readonly unknown[],
): Promise<Record<string, unknown>> {
  const { rows } = await db.query<{ answer: Record<string, unknown> }>({ ...statement, values: [...values] });
  const answer = rows[0]?.answer;
  if (answer === undefined || answer === null) throw new Error(`bug: ${statement.name} answered nothing`);
  return answer;
}

/** jsonb parameter: pg would send a JS array as a Postgres array, so every value is written as JSON text. */
export function jsonb(value: unknown): string {
  return JSON.stringify(value);
}
