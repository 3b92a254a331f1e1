import { chmod, mkdtemp, readdir, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Client, Connection } from '@temporalio/client';
import pg from 'pg';
import { createLedgerPool } from '../shared/ledger/database.js';
import { migrate } from '../shared/ledger/migrate.js';
import { readConfig } from '../shared/process/config.js';
import { type Child, startChild } from '../workers/demo/processes.js';
import { folderOwner, lockFolder } from '../workers/stack/folder-lock.js';
import { postgresRoot } from '../workers/stack/postgres-folder.js';
import { startPostgres, stopLeftPostgres } from '../workers/stack/postgres.js';
import { findTemporalProgram } from '../workers/stack/temporal-binaries.js';
import { startTemporalServer, stopLeftTemporal } from '../workers/stack/temporal-server.js';
import type { Lane } from './options.js';
import { writeProject } from './project.js';

const REPOSITORY = fileURLToPath(new URL('..', import.meta.url));
export const NAMESPACE = 'default';
export const QUEUES = { holdfast: 'bench-holdfast', bare: 'bench-bare' } as const;
export type SideName = keyof typeof QUEUES;

/** Both sides over one Temporal dev server, with everything they need; all of it started for this run alone. */
export interface World {
  readonly client: Client;
  /** Of this process, for admissions. */
  readonly ledger: pg.Pool;
  /** Superuser connection to the server's maintenance database: its own queries are not the ledger's. */
  readonly admin: pg.Client;
  readonly databaseUrl: string;
  readonly targetUrl: string;
  readonly workers: Readonly<Record<SideName, Child>>;
  readonly pids: { readonly postgres: number; readonly temporal: number };
  readonly dataDir: string;
}

export interface WorldOptions {
  /** Tool calls of the runs that will be asked for. */
  readonly lengths: readonly number[];
  readonly lane: Lane;
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
  /** Counts what each function of the database costs; that costs something too. */
  readonly trackFunctions?: boolean;
  /** Loaded into both workers before anything else. */
  readonly workerPreload?: string;
}

type Stop = () => Promise<unknown>;

/** Builds the world, hands it to `use`, and takes all of it down again whatever happens. */
export async function inWorld<T>(options: WorldOptions, use: (world: World) => Promise<T>): Promise<T> {
  // Taken down in the opposite order; each goes on past the failure of another.
  const stops: Stop[] = [];
  try {
    return await use(await build(options, stops));
  } finally {
    const failures: unknown[] = [];
    for (const stop of stops.reverse()) await stop().catch((error: unknown) => failures.push(error));
    if (failures.length > 0) {
      process.exitCode = 1;
      options.say(`not all of it could be stopped: ${failures.map(String).join('; ')}`);
    }
  }
}

async function build(options: WorldOptions, stops: Stop[]): Promise<World> {
  const dataDir = await makeFolder(stops);
  const { postgres, temporal } = await startServers(options, dataDir, stops);
  options.signal.throwIfAborted();
  const databaseUrl = postgres.url;
  await migrate({ databaseUrl });
  const admin = new pg.Client({ connectionString: withDatabase(databaseUrl, 'postgres') });
  // The query in flight tells of a lost connection.
  admin.on('error', () => undefined);
  await admin.connect();
  stops.push(() => admin.end());
  await admin.query('create extension pg_stat_statements');

  const launch = async (name: string, script: string, env: NodeJS.ProcessEnv): Promise<Child> => {
    const outputPath = join(dataDir, `${name}.out`);
    const starting = startChild({ name, script, env, cwd: REPOSITORY, outputPath });
    stops.push(async () => {
      // One that never got ready is gone already, and whoever waits for it here below is told why.
      await (await starting.catch(() => undefined))?.stop();
    });
    const child = await starting;
    options.signal.throwIfAborted();
    return child;
  };
  const target = await launch('target', 'bench/target.ts', process.env);
  const targetUrl = String(target.ready['url']);
  const project = await writeProject(join(dataDir, 'project'), targetUrl, options.lengths, options.lane);
  const env = (side: SideName): NodeJS.ProcessEnv => ({
    ...ownEnvironment(process.env),
    ...(options.workerPreload === undefined ? {} : { NODE_OPTIONS: `--import=${options.workerPreload}` }),
    BENCH_PROFILES: profilesFolder(dataDir),
    DATABASE_URL: databaseUrl,
    TEMPORAL_ADDRESS: temporal.address,
    TEMPORAL_NAMESPACE: NAMESPACE,
    HOLDFAST_DATA_DIR: dataDir,
    HOLDFAST_PROJECT: project,
    HOLDFAST_TASK_QUEUE: QUEUES[side],
    HOLDFAST_LOG_LEVEL: 'warn',
    BENCH_TARGET: targetUrl,
  });
  // Beside each other: either bundles its workflows first, which takes seconds.
  const [holdfast, bare] = await Promise.all([
    launch('worker', 'workers/worker.ts', env('holdfast')),
    launch('bare-worker', 'bench/bare-worker.ts', env('bare')),
  ]);
  const connection = await Connection.connect({ address: temporal.address });
  stops.push(() => connection.close());
  const ledger = createLedgerPool({
    databaseUrl,
    max: 16,
    applicationName: 'holdfast-bench',
    onIdleError: () => undefined,
  });
  stops.push(() => ledger.end());
  return {
    client: new Client({ connection, namespace: NAMESPACE }),
    ...{ ledger, admin, databaseUrl, targetUrl, dataDir },
    workers: { holdfast, bare },
    pids: { postgres: postgres.pid, temporal: temporal.pid },
  };
}

const FOLDER_PREFIX = 'holdfast-bench-';
/** A folder this young may belong to a benchmark that has not locked it yet. */
const LEFT_BEHIND_MS = 60_000;

/**
 * A folder for this benchmark alone, gone with it. Where root started it, Postgres runs as another user, who must be
 * able to pass through.
 */
export async function makeFolder(stops: Stop[]): Promise<string> {
  await removeLeftBehind();
  const folder = await mkdtemp(join(tmpdir(), FOLDER_PREFIX));
  await chmod(folder, 0o711);
  const lock = await lockFolder(folder);
  stops.push(async () => {
    await lock.release();
    await removeFolder(folder);
  });
  return folder;
}

/** A benchmark that was killed leaves its servers behind; the next one ends them. */
async function removeLeftBehind(): Promise<void> {
  for (const name of await readdir(tmpdir())) {
    if (!name.startsWith(FOLDER_PREFIX)) continue;
    const folder = join(tmpdir(), name);
    const madeAt = await stat(folder).then(
      ({ birthtimeMs }) => birthtimeMs,
      () => Date.now(),
    );
    if (Date.now() - madeAt < LEFT_BEHIND_MS || (await folderOwner(folder)) !== null) continue;
    await Promise.all([stopLeftPostgres(folder), stopLeftTemporal(temporalFolder(folder))]);
    await removeFolder(folder);
  }
}

async function removeFolder(folder: string): Promise<void> {
  await rm(await postgresRoot(folder), { recursive: true, force: true });
  await rm(folder, { recursive: true, force: true });
}

const temporalFolder = (dataDir: string): string => join(dataDir, 'temporal');

async function startServers(options: WorldOptions, dataDir: string, stops: Stop[]) {
  const { binaries } = readConfig({ ...process.env, DATABASE_URL: '', TEMPORAL_ADDRESS: '' });
  const postgres = await startPostgres({
    dataDir,
    port: 0,
    settings: {
      shared_preload_libraries: 'pg_stat_statements',
      'pg_stat_statements.track': 'top',
      ...(options.trackFunctions === true ? { track_functions: 'all' } : {}),
    },
  });
  stops.push(() => postgres.stop());
  options.say(`postgres  started on port ${postgres.port}`);
  const { path, source } = await findTemporalProgram('cli', binaries);
  const temporal = await startTemporalServer({
    program: path,
    folder: temporalFolder(dataDir),
    // As npm start has it.
    storage: 'file',
    port: 0,
    uiPort: null,
    namespace: NAMESPACE,
  });
  stops.push(() => temporal.stop());
  options.say(`temporal  started at ${temporal.address} (CLI from ${source})`);
  return { postgres, temporal };
}

/** The environment without servers, settings and keys of somebody else's: every run of the benchmark is alike. */
export function ownEnvironment(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const foreign = /^(DATABASE_URL|TEMPORAL_.*|HOLDFAST_.*|OPENAI_API_KEY|ANTHROPIC_API_KEY|NODE_OPTIONS)$/;
  return Object.fromEntries(Object.entries(env).filter(([name]) => !foreign.test(name)));
}

/** Where `workerPreload` may leave what it has seen. */
export function profilesFolder(dataDir: string): string {
  return join(dataDir, 'profiles');
}

function withDatabase(url: string, database: string): string {
  const changed = new URL(url);
  changed.pathname = `/${database}`;
  return changed.href;
}
