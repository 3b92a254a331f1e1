import { spawn } from 'node:child_process';
import { open, readFile, realpath, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { StartError } from '../../shared/process/exit.js';
import { claimPort } from './ports.js';
import { locatePostgres } from './postgres-binaries.js';
import type { PostgresBinaries } from './postgres-binaries.js';
import { DATABASE_USER, postgresRoot, preparePostgresFolder } from './postgres-folder.js';
import type { PostgresFolder } from './postgres-folder.js';
import { commandLine, isRunning, processesIn, stopProcess, waitUntil } from './processes.js';

/** Our own Postgres, which outlives this process unless `stop` is called. */
export interface PostgresServer {
  /** Connects as the superuser to the database `holdfast`; holds the password. */
  readonly url: string;
  readonly port: number;
  readonly pid: number;
  /** Whether it was left running by an earlier, killed supervisor. */
  readonly reused: boolean;
  /** Ends connections, writes a checkpoint and stops. */
  stop(): Promise<void>;
}

/**
 * Small, for a machine that also runs everything else; durability stays on: a committed intent must
 * survive the loss of power, or the promise about effects is void.
 */
const SETTINGS: Readonly<Record<string, string>> = {
  listen_addresses: '127.0.0.1',
  unix_socket_directories: '',
  fsync: 'on',
  synchronous_commit: 'on',
  shared_buffers: '32MB',
  wal_buffers: '1MB',
  max_connections: '100',
  max_wal_size: '256MB',
  maintenance_work_mem: '32MB',
  autovacuum_max_workers: '1',
  // Nothing replicates from a development server, and helper processes cost memory.
  wal_level: 'minimal',
  max_wal_senders: '0',
  max_logical_replication_workers: '0',
  max_parallel_workers_per_gather: '0',
  io_method: 'sync',
  jit: 'off',
  timezone: 'UTC',
};

/** Recovery after a kill -9 replays at most `max_wal_size`; a slow disk may need a minute for that. */
const START_SECONDS = 90;

/**
 * Starts Postgres over the data in `dataDir`, making it on the first call, or takes over the one that
 * a killed supervisor left behind on the same port. Hold the folder's lock: only one process may do this.
 *
 * The server is a process of its own session with its own log file, so neither Ctrl-C nor a kill -9
 * of the supervisor reaches it.
 *
 * @throws StartError when the port is taken or Postgres does not come up, with its own last words
 */
export async function startPostgres(options: {
  readonly dataDir: string;
  /** 0 takes any free port. */
  readonly port: number;
  /** Settings on top of ours, by their Postgres names. */
  readonly settings?: Readonly<Record<string, string>>;
}): Promise<PostgresServer> {
  const binaries = await locatePostgres();
  const folder = await preparePostgresFolder(options.dataDir, binaries);
  const left = await leftRunning(folder);
  if (left && (options.port === 0 || options.port === left.port)) {
    await untilServing(folder, left);
    return describe(folder, left, true);
  }
  if (left) await stopServer(left.pid);
  await clearStalePidFile(folder);
  const port = await claimPort({
    port: options.port,
    purpose: 'Postgres',
    variable: 'HOLDFAST_POSTGRES_PORT',
  });
  const settings = { ...SETTINGS, ...options.settings, port: String(port) };
  const pid = await launchUntilServing(binaries, folder, settings, port);
  return describe(folder, { pid, port }, false);
}

/** Stops a Postgres that a killed supervisor left running over `dataDir`, if there is one. */
export async function stopLeftPostgres(dataDir: string): Promise<void> {
  const left = await leftRunning({ data: join(await postgresRoot(dataDir), 'data') });
  if (left) await stopServer(left.pid);
}

interface RunningServer {
  readonly pid: number;
  readonly port: number;
}

async function describe(
  folder: PostgresFolder,
  { pid, port }: RunningServer,
  reused: boolean,
): Promise<PostgresServer> {
  await createDatabase(folder, port);
  return { url: urlOf(folder, port, DATABASE_USER), port, pid, reused, stop: () => stopServer(pid) };
}

function urlOf(folder: PostgresFolder, port: number, database: string): string {
  return `postgres://${DATABASE_USER}:${folder.password}@127.0.0.1:${port}/${database}`;
}

/** SIGINT is Postgres's fast shutdown, SIGQUIT its immediate one, which the next start recovers from. */
async function stopServer(pid: number): Promise<void> {
  await stopProcess(pid, { signal: 'SIGINT', lastSignal: 'SIGQUIT', graceSeconds: 30 });
}

/** The postmaster that runs over this very folder, told by its pid file and its command line. */
async function leftRunning(folder: Pick<PostgresFolder, 'data'>): Promise<RunningServer | null> {
  const lines = (await readFile(join(folder.data, 'postmaster.pid'), 'utf8').catch(() => '')).split('\n');
  const [pid, port] = [Number(lines[0]), Number(lines[3])];
  if (!pid || !port || !(await isRunning(pid))) return null;
  return (await commandLine(pid)).includes(folder.data) ? { pid, port } : null;
}

/**
 * Removes a postmaster.pid whose process id now belongs to another program or a zombie: Postgres asks
 * only whether the id lives and would refuse to start for ever. Where the id is dead the file is left
 * to Postgres, which also checks the old server's shared memory before it goes on.
 */
async function clearStalePidFile(folder: PostgresFolder): Promise<void> {
  const path = join(folder.data, 'postmaster.pid');
  const pid = Number((await readFile(path, 'utf8').catch(() => '')).split('\n')[0]);
  if (!pid || !signalled(pid)) return;
  // Without the file that check of Postgres's is gone too, so make it here: no backend may still write.
  const data = await realpath(folder.data);
  const quiet = await waitUntil(async () => (await processesIn(data)).length === 0, 15);
  if (!quiet) {
    const pids = (await processesIn(data)).join(', ');
    throw new StartError(
      `Processes ${pids} of a dead Postgres still use ${folder.data}. End them, then start.`,
    );
  }
  await rm(path, { force: true });
}

function signalled(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/**
 * Right after a kill -9 of the postmaster its backends may still be ending; Postgres sees their shared
 * memory and refuses to start beside them, which is right and passes within moments.
 */
async function launchUntilServing(
  binaries: PostgresBinaries,
  folder: PostgresFolder,
  settings: Readonly<Record<string, string>>,
  port: number,
): Promise<number> {
  const deadline = Date.now() + 20_000;
  for (;;) {
    const pid = await launch(binaries, folder, settings);
    try {
      await untilServing(folder, { pid, port });
      return pid;
    } catch (error) {
      const passing = error instanceof StartError && error.message.includes('shared memory block');
      if (!passing || Date.now() > deadline) throw error;
      await delay(250);
    }
  }
}

async function launch(
  binaries: PostgresBinaries,
  folder: PostgresFolder,
  settings: Readonly<Record<string, string>>,
): Promise<number> {
  await rotateLog(folder.logFile);
  const log = await open(folder.logFile, 'a', 0o600);
  try {
    const args = ['-D', folder.data];
    for (const [name, value] of Object.entries(settings)) args.push('-c', `${name}=${value}`);
    const child = spawn(binaries.postgres, args, {
      cwd: '/',
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
      env: { LC_ALL: 'C', TZ: 'UTC' },
      ...(binaries.user ? { uid: binaries.user.uid, gid: binaries.user.gid } : {}),
    });
    const pid = await new Promise<number>((resolve, reject) => {
      child.once('error', reject);
      child.once('spawn', () => resolve(child.pid ?? 0));
    });
    child.unref();
    return pid;
  } finally {
    await log.close();
  }
}

/**
 * Waits until the server answers; recovery after a kill takes its time, a server that ends does not
 * come back.
 */
async function untilServing(folder: PostgresFolder, server: RunningServer): Promise<void> {
  let lastError: unknown = null;
  let ended = false;
  const serving = await waitUntil(async () => {
    ended = !(await isRunning(server.pid));
    if (ended) return true;
    try {
      await withClient(urlOf(folder, server.port, 'postgres'), (client) => client.query('select 1'));
      return true;
    } catch (error) {
      lastError = error;
      return false;
    }
  }, START_SECONDS);
  if (serving && !ended) return;
  const lines = (await readFile(folder.logFile, 'utf8').catch(() => '')).trim().split('\n');
  const fatal = lines.findLast((line) => /FATAL|PANIC/.test(line)) ?? lines.at(-1) ?? '';
  throw new StartError(
    `Postgres over ${folder.data} ${ended ? 'ended while starting' : `does not answer after ${START_SECONDS} s`}` +
      ` (${fatal.slice(0, 300)}). Its log is ${folder.logFile}.`,
    { cause: lastError },
  );
}

async function createDatabase(folder: PostgresFolder, port: number): Promise<void> {
  await withClient(urlOf(folder, port, 'postgres'), async (client) => {
    const { rowCount } = await client.query('select from pg_database where datname = $1', [DATABASE_USER]);
    if (rowCount === 0) await client.query(`create database ${DATABASE_USER}`);
  });
}

async function withClient<T>(url: string, use: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: 5_000,
    query_timeout: 60_000,
  });
  // The server may end while the client is open; the query in flight tells that, the event need not.
  client.on('error', () => undefined);
  try {
    await client.connect();
    return await use(client);
  } finally {
    await client.end();
  }
}

/** A log over 10 MiB moves aside, once; a development stack keeps no archive. */
async function rotateLog(path: string): Promise<void> {
  const size = await stat(path).then(
    (found) => found.size,
    () => 0,
  );
  if (size > 10 * 1024 * 1024) await rename(path, `${path}.1`);
}
