import { randomUUID } from 'node:crypto';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll } from 'vitest';
import { migrate } from '../../shared/ledger/migrate.js';
import { readConfig } from '../../shared/process/config.js';
import { postgresRoot } from '../../workers/stack/postgres-folder.js';
import { type PostgresServer, startPostgres } from '../../workers/stack/postgres.js';
import { isRunning, sendSignal, waitUntil } from '../../workers/stack/processes.js';
import { findTemporalProgram } from '../../workers/stack/temporal-binaries.js';
import { startTemporalServer, type TemporalServer } from '../../workers/stack/temporal-server.js';
import { RunView } from '../../api/views/run-views.js';
import { startTestProcess, type TestProcess } from './processes.js';
import { startBody } from './test-api.js';
import { closeWorlds, connectTemporal, until, type World, type WorldTemporal } from './world.js';
import { AGENT, TOOL_OF_CLASS, usualScript } from './world-project.js';
import { call, DONE, reply, when } from './scripts.js';

/** A server of a test's own, which it may kill; gone after the test file. */
interface OwnServer {
  /** Ends it with kill -9, as a crash does; what it had acknowledged must be there again after `start`. */
  kill(): Promise<void>;
  /** Starts it again over the same data, on the same port. Does nothing while it runs. */
  start(): Promise<void>;
}

export interface OwnPostgres extends OwnServer {
  /** A migrated database. */
  readonly url: string;
  /** Ends one of its sessions with kill -9: Postgres then ends every session and recovers by itself. */
  killBackend(): Promise<void>;
  /** Ends it in order, as an operator does before maintenance. */
  stop(): Promise<void>;
  /** Starts it again with these settings on top of ours. */
  restartWith(settings: Readonly<Record<string, string>>): Promise<void>;
}

export interface OwnTemporal extends OwnServer {
  readonly address: string;
  /** For worlds. Connections of it outlive the server. */
  readonly way: WorldTemporal;
}

/** A Postgres of the test's own with the ledger's schema: 2 to 5 seconds. */
export async function startOwnPostgres(): Promise<OwnPostgres> {
  const dataDir = await makeFolder();
  let settings: Readonly<Record<string, string>> = {};
  let server: PostgresServer = await startPostgres({ dataDir, port: 0 });
  const { url, port } = server;
  const start = async (): Promise<void> => {
    server = await startPostgres({ dataDir, port, settings });
  };
  closers.push(async () => {
    if (await isRunning(server.pid)) await server.stop();
    await rm(await postgresRoot(dataDir), { recursive: true, force: true });
    await rm(dataDir, { recursive: true, force: true });
  });
  await migrate({ databaseUrl: url });
  return {
    ...{ url, start },
    kill: () => killNow(server.pid),
    killBackend: () => killSession(url),
    stop: () => server.stop(),
    restartWith: async (wanted) => {
      await server.stop();
      settings = wanted;
      await start();
    },
  };
}

/** A Temporal dev server of the test's own, over a file that survives its kills. */
export async function startOwnTemporal(
  options: {
    /** Temporal's dynamic configuration; values are JSON text. */
    readonly dynamicConfig?: Readonly<Record<string, string>>;
  } = {},
): Promise<OwnTemporal> {
  const { binaries } = readConfig({ ...process.env, DATABASE_URL: '', TEMPORAL_ADDRESS: '' });
  const program = (await findTemporalProgram('cli', binaries)).path;
  const folder = await makeFolder();
  const launch = (port: number): Promise<TemporalServer> =>
    startTemporalServer({
      ...{ program, folder, port, storage: 'file', uiPort: null, namespace: 'default' },
      ...(options.dynamicConfig === undefined ? {} : { dynamicConfig: options.dynamicConfig }),
    });
  let server = await launch(0);
  const { address } = server;
  closers.push(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });
  const way = await connectTemporal(address);
  closers.push(async () => {
    await way.client.connection.close();
    await way.connection.close();
  });
  return {
    ...{ address, way },
    kill: () => killNow(server.pid),
    start: async () => {
      server = await launch(Number(new URL(`tcp://${address}`).port));
    },
  };
}

/** A script in which `each …` calls one tool of each class, in steps of their own, no two with the same arguments. */
export function eachTool(): Record<string, unknown> {
  const steps = Object.values(TOOL_OF_CLASS).map((tool) => reply(call(tool, { note: `${tool} {{input}}` })));
  return { scenarios: [when('each', ...steps, DONE), ...(usualScript()['scenarios'] as object[])] };
}

/** The API of a world as a process of its own. */
export interface OwnApi {
  readonly process: TestProcess;
  readonly url: string;
  /** One request to admit a run; whatever is answered. */
  start(input: string, key: string): Promise<Response>;
  /** Admits a run as a client should: the same key again for as long as it is told "later". @returns its id */
  admit(input: string): Promise<string>;
}

export async function startOwnApi(world: World, temporalAddress: string): Promise<OwnApi> {
  const process = startTestProcess({
    entry: 'api/server.ts',
    env: {
      DATABASE_URL: world.databaseUrl,
      TEMPORAL_ADDRESS: temporalAddress,
      HOLDFAST_API_PORT: '0',
      HOLDFAST_TASK_QUEUE: world.taskQueue,
    },
  });
  const url = String((await process.ready).detail['url']);
  const start = (input: string, key: string): Promise<Response> =>
    fetch(`${url}/v1/runs`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': key },
      body: JSON.stringify(startBody({ agent: AGENT, input })),
    });
  return {
    ...{ process, url, start },
    admit: async (input) => {
      const key = randomUUID();
      return await until(`the API admits ${input}`, async () => {
        const response = await start(input, key);
        if (response.ok) return RunView.parse(await response.json()).run_id;
        if (response.status !== 503) throw new Error(`the API answers ${response.status}`);
        await response.body?.cancel();
        return undefined;
      });
    },
  };
}

/** Where root started it, Postgres runs as another user, who must be able to pass through the folder. */
async function makeFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'holdfast-own-'));
  await chmod(folder, 0o711);
  return folder;
}

async function killNow(pid: number): Promise<void> {
  sendSignal(pid, 'SIGKILL');
  const gone = await waitUntil(async () => !(await isRunning(pid)), 10);
  if (!gone) throw new Error(`process ${pid} does not end`);
}

async function killSession(url: string): Promise<void> {
  const client = new pg.Client(url);
  // It loses its own session too.
  client.on('error', () => undefined);
  await client.connect();
  const ended = new Promise<void>((resolve) => client.once('end', () => resolve()));
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  sendSignal(rows[0]?.pid ?? 0, 'SIGKILL');
  await ended;
}

/** Called last first: connections before their server. */
const closers: (() => Promise<void>)[] = [];

afterAll(async () => {
  await closeWorlds();
  for (const close of closers.reverse()) await close();
});
