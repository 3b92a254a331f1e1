import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { HoldfastConfig } from '../../shared/process/config.js';
import { StartError } from '../../shared/process/exit.js';
import type { TemporalConnection } from '../../shared/process/temporal-config.js';
import { lockFolder } from './folder-lock.js';
import type { FolderLock } from './folder-lock.js';
import { startPostgres } from './postgres.js';
import type { PostgresServer } from './postgres.js';
import { isRunning } from './processes.js';
import { prepareGivenTemporal } from './given-temporal.js';
import { findTemporalProgram } from './temporal-binaries.js';
import { startTemporalServer } from './temporal-server.js';
import type { TemporalServer } from './temporal-server.js';

/** The servers a Holdfast needs, ours or given ones, all serving. */
export interface Stack {
  readonly databaseUrl: string;
  readonly temporal: TemporalConnection;
  /** host:port, the same as `temporal.address`. */
  readonly temporalAddress: string;
  readonly namespace: string;
  /** Null with a given Temporal: where its Web UI is, only its operator knows. */
  readonly webUiUrl: string | null;
  /** Process ids of the servers that are ours now. */
  pids(): { readonly postgres: number | null; readonly temporal: number | null };
  /** Stops what is ours and frees the data folder. Given servers are left alone. */
  stop(): Promise<void>;
}

export interface StackOptions {
  readonly config: HoldfastConfig;
  /** Told one line for each thing that happened; silent unless given. */
  readonly say?: (line: string) => void;
  /** Extra settings of our dev server; values are JSON text. */
  readonly dynamicConfig?: Readonly<Record<string, string>>;
}

/**
 * Brings up the servers: ours over the data folder, or the ones that DATABASE_URL and TEMPORAL_ADDRESS
 * name. One of ours that dies is started again over the same data and port until `stop`.
 *
 * @throws StartError with one line and what to do; everything this call started is stopped again
 */
export async function startStack(given: StackOptions): Promise<Stack> {
  const options = { say: () => undefined, ...given };
  const { config } = options;
  const lock = await lockFolder(config.dataDir);
  const servers: Servers = { lock, postgres: null, temporal: null };
  try {
    // Both even if one fails, so that a server which comes up late is not left behind unseen.
    const started = await Promise.allSettled([
      config.databaseUrl ? null : startOwnPostgres(servers, options),
      config.temporal.connection
        ? prepareGivenTemporal(config.temporal.connection, config.temporal.namespace, options.say)
        : startOwnTemporal(servers, options),
    ]);
    const failed = started.filter((result) => result.status === 'rejected');
    if (failed.length === 1) throw failed[0]?.reason;
    if (failed.length > 1) throw mergeFailures(failed.map(({ reason }) => reason as unknown));
  } catch (error) {
    await stopServers(servers);
    throw error;
  }
  return describe(servers, options);
}

type TalkingOptions = StackOptions & Required<Pick<StackOptions, 'say'>>;

interface Servers {
  readonly lock: FolderLock;
  postgres: PostgresServer | null;
  temporal: TemporalServer | null;
}

async function describe(servers: Servers, options: TalkingOptions): Promise<Stack> {
  const { config } = options;
  const databaseUrl = servers.postgres?.url ?? config.databaseUrl;
  const temporal: TemporalConnection | null = servers.temporal
    ? { address: servers.temporal.address }
    : config.temporal.connection;
  if (!databaseUrl || !temporal) throw new Error('bug: a stack without servers');
  await writeAddresses(config.dataDir, {
    databaseUrl,
    temporalAddress: temporal.address,
    namespace: config.temporal.namespace,
  });
  const watch = keepServing(servers, options);
  return {
    databaseUrl,
    temporal,
    temporalAddress: temporal.address,
    namespace: config.temporal.namespace,
    webUiUrl: servers.temporal?.webUiUrl ?? null,
    pids: () => ({ postgres: servers.postgres?.pid ?? null, temporal: servers.temporal?.pid ?? null }),
    async stop() {
      await watch.stop();
      await stopServers(servers);
    },
  };
}

/**
 * Lets doctor, benchmarks and a second terminal find the servers; readable by the owner only, for the
 * password.
 */
async function writeAddresses(dataDir: string, addresses: Readonly<Record<string, string>>): Promise<void> {
  await mkdir(dataDir, { recursive: true });
  await writeFile(join(dataDir, 'stack.json'), `${JSON.stringify(addresses, null, 2)}\n`, { mode: 0o600 });
}

async function startOwnPostgres(servers: Servers, options: TalkingOptions, port?: number): Promise<void> {
  const wanted = port ?? options.config.postgresPort;
  servers.postgres = await startPostgres({ dataDir: options.config.dataDir, port: wanted });
  options.say(
    `postgres  ${servers.postgres.reused ? 'taken over' : 'started'} on port ${servers.postgres.port}`,
  );
}

async function startOwnTemporal(servers: Servers, options: TalkingOptions): Promise<void> {
  const { config } = options;
  const program = await findTemporalProgram('cli', config.binaries);
  const again = servers.temporal;
  servers.temporal = await startTemporalServer({
    program: program.path,
    folder: join(config.dataDir, 'temporal'),
    storage: 'file',
    port: again ? portOf(again.address) : config.temporalPort,
    uiPort: again?.webUiUrl ? Number(new URL(again.webUiUrl).port) : config.temporalUiPort,
    namespace: config.temporal.namespace,
    ...(options.dynamicConfig ? { dynamicConfig: options.dynamicConfig } : {}),
  });
  const how = servers.temporal.reused ? 'taken over' : 'started';
  options.say(`temporal  ${how} on port ${portOf(servers.temporal.address)} (CLI from ${program.source})`);
}

/**
 * Looks once a second whether our servers run, since one that was taken over is no child and sends no
 * event.
 */
function keepServing(servers: Servers, options: TalkingOptions): { stop(): Promise<void> } {
  let stopped = false;
  let looking = Promise.resolve();
  const look = async (): Promise<void> => {
    if (servers.postgres && !(await isRunning(servers.postgres.pid))) {
      options.say(`postgres  process ${servers.postgres.pid} is gone; starting it again`);
      await startOwnPostgres(servers, options, servers.postgres.port);
    }
    if (servers.temporal && !(await isRunning(servers.temporal.pid))) {
      options.say(`temporal  process ${servers.temporal.pid} is gone; starting it again`);
      await startOwnTemporal(servers, options);
    }
  };
  const timer = setInterval(() => {
    looking = looking.then(async () => {
      if (stopped) return;
      await look().catch((error: unknown) => {
        options.say(`servers   not started again, next try in a second: ${String(error)}`);
      });
    });
  }, 1000);
  timer.unref();
  return {
    async stop() {
      stopped = true;
      clearInterval(timer);
      await looking;
    },
  };
}

async function stopServers(servers: Servers): Promise<void> {
  const results = await Promise.allSettled([servers.temporal?.stop(), servers.postgres?.stop()]);
  await servers.lock.release();
  const failed = results.find((result) => result.status === 'rejected');
  if (failed) throw failed.reason;
}

function mergeFailures(reasons: readonly unknown[]): Error {
  const lines = reasons.flatMap((reason) => (reason instanceof StartError ? reason.problems : []));
  const bug = reasons.find((reason) => !(reason instanceof StartError));
  return bug instanceof Error ? bug : new StartError(lines);
}

function portOf(address: string): number {
  return Number(address.slice(address.lastIndexOf(':') + 1));
}
