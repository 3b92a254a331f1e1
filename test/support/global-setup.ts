import { chmod, mkdtemp, readdir, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { migrate } from '../../shared/ledger/migrate.js';
import { readConfig } from '../../shared/process/config.js';
import { folderOwner, lockFolder } from '../../workers/stack/folder-lock.js';
import { postgresRoot } from '../../workers/stack/postgres-folder.js';
import { startPostgres, stopLeftPostgres } from '../../workers/stack/postgres.js';
import { findTemporalProgram } from '../../workers/stack/temporal-binaries.js';
import { startTemporalServer, stopLeftTemporal } from '../../workers/stack/temporal-server.js';

declare module 'vitest' {
  interface ProvidedContext {
    /** The test Postgres, connected as its superuser to its maintenance database. */
    databaseServerUrl: string;
    /** A migrated database that new ones are copied from; nothing may stay connected to it. */
    templateDatabase: string;
    /** Why the template could not be migrated; empty when it could. */
    templateProblem: string;
    /** The test dev server's gRPC address; its namespace is `default`. */
    temporalAddress: string;
  }
}

const FOLDER_PREFIX = 'holdfast-test-';
const TEMPLATE = 'holdfast_template';
/** A folder this young may belong to a run that has not locked it yet. */
const LEFT_BEHIND_MS = 60_000;

/** One Postgres and one Temporal dev server for the whole run, over a folder that goes away with it. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  await removeLeftBehind();
  const folder = await mkdtemp(join(tmpdir(), FOLDER_PREFIX));
  // As root, the postgres user must be able to enter it.
  await chmod(folder, 0o755);
  const lock = await lockFolder(folder);
  const close = async (): Promise<void> => {
    await stopServers(folder);
    await lock.release();
    await removeFolder(folder);
  };
  try {
    const [postgres, temporal] = await Promise.all([
      startPostgres({ dataDir: folder, port: 0, settings: { max_connections: '200' } }),
      startTestTemporal(folder),
    ]);
    const databaseServerUrl = withDatabase(postgres.url, 'postgres');
    project.provide('databaseServerUrl', databaseServerUrl);
    project.provide('templateDatabase', TEMPLATE);
    project.provide('templateProblem', await makeTemplate(databaseServerUrl));
    project.provide('temporalAddress', temporal.address);
    return close;
  } catch (error) {
    await close();
    throw error;
  }
}

async function startTestTemporal(folder: string): Promise<{ readonly address: string }> {
  const { binaries } = readConfig({ ...process.env, DATABASE_URL: '', TEMPORAL_ADDRESS: '' });
  const { path } = await findTemporalProgram('cli', binaries);
  return await startTemporalServer({
    program: path,
    folder: join(folder, 'temporal'),
    storage: 'memory',
    port: 0,
    uiPort: null,
    namespace: 'default',
  });
}

/** A broken migration fails the tests that need a database, with its reason, and no others. */
async function makeTemplate(serverUrl: string): Promise<string> {
  const client = new pg.Client(serverUrl);
  await client.connect();
  try {
    await client.query(`create database ${TEMPLATE}`);
  } finally {
    await client.end();
  }
  return await migrate({ databaseUrl: withDatabase(serverUrl, TEMPLATE) }).then(
    () => '',
    (error: unknown) => (error instanceof Error ? error.message : String(error)),
  );
}

async function stopServers(folder: string): Promise<void> {
  await Promise.all([stopLeftPostgres(folder), stopLeftTemporal(join(folder, 'temporal'))]);
}

async function removeFolder(folder: string): Promise<void> {
  await rm(await postgresRoot(folder), { recursive: true, force: true });
  await rm(folder, { recursive: true, force: true });
}

/** A run that was killed leaves its servers behind; the next one ends them, or they would pile up. */
async function removeLeftBehind(): Promise<void> {
  for (const name of await readdir(tmpdir())) {
    if (!name.startsWith(FOLDER_PREFIX)) continue;
    const folder = join(tmpdir(), name);
    const madeAt = await stat(folder).then(
      (found) => found.birthtimeMs,
      () => Date.now(),
    );
    if (Date.now() - madeAt < LEFT_BEHIND_MS || (await folderOwner(folder)) !== null) continue;
    await stopServers(folder);
    await removeFolder(folder);
  }
}

function withDatabase(url: string, database: string): string {
  const changed = new URL(url);
  changed.pathname = `/${database}`;
  return changed.href;
}
