import { readdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';

/** Where the ledger's migrations stand: plain SQL, applied in the order of their names. */
export const MIGRATIONS_DIRECTORY = fileURLToPath(new URL('./migrations/', import.meta.url));

/** The schema that holds the ledger and, beside it, the record of what was applied. */
const SCHEMA = 'holdfast';
const TABLE = 'migrations';

/** Any fixed number will do; it only has to be the same in every process that migrates. */
const ADVISORY_LOCK_ID = 7_202_611_291;

/** What speaks SQL: a pool or one connection. */
type Db = Pick<pg.Pool | pg.ClientBase, 'query'>;

/** Which migrations a database has, against those of this build. */
export interface MigrationState {
  readonly applied: readonly string[];
  /** In this build, not in the database: run `migrate`. */
  readonly pending: readonly string[];
  /** In the database, not in this build: deploy the newer build. */
  readonly unknown: readonly string[];
}

/** Why a database cannot be used. `code` is for programs, the message for people. */
export class LedgerSchemaError extends Error {
  override readonly name = 'LedgerSchemaError';
  readonly code: 'schema_too_new' | 'not_durable' | 'migration_failed';

  constructor(code: LedgerSchemaError['code'], message: string, options?: ErrorOptions) {
    super(`${code}: ${message}`, options);
    this.code = code;
  }
}

/**
 * Brings the ledger's schema up to the newest migration of this build.
 *
 * Safe to call from any number of processes at once: they take turns on an advisory lock, and each
 * migration commits together with its row in `holdfast.migrations`, so none is applied twice or by half.
 *
 * @returns the names applied by this call, oldest first; empty when there was nothing to do
 * @throws LedgerSchemaError `schema_too_new` when the database has a migration this build does not know,
 *   `not_durable` when Postgres may lose commits, `migration_failed` when one was refused: it was rolled
 *   back, those before it stay; DatabaseError or a system error when Postgres cannot be reached
 */
export async function migrate(options: {
  readonly databaseUrl: string;
  /** Another folder of migrations; for tests. */
  readonly directory?: string;
}): Promise<{ applied: string[] }> {
  const directory = options.directory ?? MIGRATIONS_DIRECTORY;
  const client = new pg.Client({
    connectionString: options.databaseUrl,
    application_name: 'holdfast-migrate',
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
  });
  // A backend that is ended tells it to the query in flight, which throws; the event adds nothing.
  client.on('error', () => undefined);
  try {
    await client.connect();
    await checkDurability(client);
    // Held by the session, so that it is freed with the connection however this ends.
    await client.query('select pg_advisory_lock($1)', [ADVISORY_LOCK_ID]);
    const state = await migrationState(client, directory);
    refuseNewer(state);
    return { applied: await applyPending(client, directory, state) };
  } finally {
    await client.end();
  }
}

/**
 * Compares a database with this build. Reads only; a database that was never migrated has all pending.
 *
 * @throws DatabaseError or a system error when Postgres cannot be reached
 */
export async function migrationState(db: Db, directory = MIGRATIONS_DIRECTORY): Promise<MigrationState> {
  const known = (await readdir(directory))
    .filter((file) => file.endsWith('.sql'))
    .map((file) => file.slice(0, -'.sql'.length))
    .sort();
  const applied = await appliedMigrations(db);
  return {
    applied,
    pending: known.filter((name) => !applied.includes(name)),
    unknown: applied.filter((name) => !known.includes(name)),
  };
}

/**
 * Refuses a Postgres that may forget what it said it committed: an intent lost in a crash would let
 * its effect be sent a second time.
 *
 * @throws LedgerSchemaError `not_durable`, naming the settings
 */
export async function checkDurability(db: Db): Promise<void> {
  const { rows } = await db.query<{ name: string }>(
    `select name from pg_settings where name in ('fsync', 'synchronous_commit') and setting = 'off' order by name`,
  );
  if (rows.length === 0) return;
  const settings = rows.map(({ name }) => `${name}=off`).join(' and ');
  throw new LedgerSchemaError(
    'not_durable',
    `Postgres runs with ${settings}, so a crash could lose committed intents. Set ` +
      `${rows.map(({ name }) => `${name}=on`).join(' and ')} for this server, database and role, then start again.`,
  );
}

async function appliedMigrations(db: Db): Promise<string[]> {
  const { rows: tables } = await db.query<{ found: boolean }>('select to_regclass($1) is not null as found', [
    `${SCHEMA}.${TABLE}`,
  ]);
  if (!tables[0]?.found) return [];
  const { rows } = await db.query<{ name: string }>(`select name from ${SCHEMA}.${TABLE} order by id`);
  return rows.map(({ name }) => name);
}

function refuseNewer({ unknown }: MigrationState): void {
  if (unknown.length === 0) return;
  throw new LedgerSchemaError(
    'schema_too_new',
    `the database has ${unknown.join(', ')}, which this build does not know. Nothing was changed. ` +
      `Deploy the build that brought it, or a newer one.`,
  );
}

async function applyPending(
  client: pg.Client,
  directory: string,
  { pending }: MigrationState,
): Promise<string[]> {
  if (pending.length === 0) return [];
  // Loaded only here: API and worker read the state from this file and have no use for the runner in memory.
  const { runner } = await import('node-pg-migrate');
  const silent = { info: () => undefined, warn: () => undefined, error: () => undefined };
  try {
    const ran = await runner({
      dbClient: client,
      dir: directory,
      // A README beside the SQL is no migration.
      ignorePattern: '(?!.*\\.sql$).*',
      direction: 'up',
      schema: SCHEMA,
      createSchema: true,
      migrationsSchema: SCHEMA,
      migrationsTable: TABLE,
      // Each in a transaction of its own: a long list need not hold its locks from first to last.
      singleTransaction: false,
      checkOrder: true,
      // Ours is held already, around the look at the state as well.
      noLock: true,
      logger: silent,
    });
    return ran.map(({ name }) => name);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new LedgerSchemaError(
      'migration_failed',
      `one of ${pending.join(', ')} was refused and rolled back (${reason}). ` +
        `Those before it were applied. Mend what it names, then migrate again.`,
      { cause: error },
    );
  }
}
