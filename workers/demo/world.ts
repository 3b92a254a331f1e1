import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { readConfig } from '../../shared/process/config.js';
import { migrate } from '../../shared/ledger/migrate.js';
import { freePort } from '../stack/ports.js';
import { startStack } from '../stack/stack.js';
import { createApiClient } from './api-client.js';

import { type Child, startChild } from './processes.js';
import { readProviderLog } from './provider-log.js';
import type { Stage } from './stage.js';

/** Everything the demo runs on, all of it started for this demo alone. */
export interface World extends Stage {
  readonly apiUrl: string;
  /** Of Temporal. */
  readonly webUiUrl: string;
  /** Stops all of it. Goes on past a part that will not stop, and then throws. */
  stop(): Promise<void>;
}

interface WorldOptions {
  /** Takes the databases, journals and output of this one demo. */
  readonly dataDir: string;
  readonly repositoryDir: string;
  /** The environment of the demo itself: the worker finds a model's key in it. */
  readonly env: NodeJS.ProcessEnv;
  readonly signal: AbortSignal;
  say(line: string): void;
}

/** What has been started so far. */
interface Started {
  readonly children: (() => Promise<void>)[];
  readonly servers: (() => Promise<void>)[];
}

/**
 * Starts Postgres, Temporal, the payment provider, the API and a worker, each on a port of its own.
 *
 * @throws Error when one of them does not start, or on abort; those that did are stopped by then
 */
export async function startWorld(options: WorldOptions): Promise<World> {
  const started: Started = { children: [], servers: [] };
  try {
    return await build(options, started);
  } catch (error) {
    await stopAll(started);
    throw error;
  }
}

async function build(options: WorldOptions, started: Started): Promise<World> {
  const { dataDir, repositoryDir, signal, say } = options;
  const journalPath = join(dataDir, 'provider.log');
  const reportsDir = join(dataDir, 'reports');
  await mkdir(reportsDir, { recursive: true });
  const apiPort = await freePort();
  const servers = await startServers(options, started);
  signal.throwIfAborted();

  const launch = async (name: string, script: string, env: NodeJS.ProcessEnv, args: string[] = []) => {
    const outputPath = join(dataDir, `${name}.out`);
    const starting = startChild({ name, script, args, env, cwd: repositoryDir, outputPath });
    started.children.push(async () => {
      // A child that never got ready is gone already, and whoever waits for it here below is told why.
      const child = await starting.catch(() => undefined);
      await child?.stop();
    });
    const child = await starting;
    signal.throwIfAborted();
    return child;
  };
  const provider = await launch('payment provider', 'examples/refund-desk/provider/main.ts', options.env, [
    ...['--port', '0', '--log', journalPath],
  ]);
  const providerUrl = new URL(String(provider.ready['url']));
  const env = {
    ...withoutServers(options.env),
    ...servers.env,
    HOLDFAST_DATA_DIR: dataDir,
    HOLDFAST_PROJECT: join(repositoryDir, 'examples/refund-desk/holdfast.yaml'),
    HOLDFAST_API_PORT: String(apiPort),
    // A killed worker is missed after a few heartbeats; the demo's viewer should not wait for long.
    HOLDFAST_HEARTBEAT_SECONDS: '1',
    REFUND_DESK_PROVIDER: providerUrl.host,
    REFUND_DESK_REPORTS: reportsDir,
  };
  const startWorker = () => launch('worker', 'workers/worker.ts', env);
  const [firstWorker, api] = await Promise.all([startWorker(), launch('api', 'api/server.ts', env)]);
  let worker = firstWorker;
  const apiUrl = `http://127.0.0.1:${apiPort}`;
  say(`Postgres, Temporal (${servers.webUiUrl}), the API (${apiUrl}), a worker and a payment provider run`);
  return {
    apiUrl,
    webUiUrl: servers.webUiUrl,
    api: createApiClient(apiUrl),
    async killWorker() {
      await worker.kill();
      return worker.pid;
    },
    async startWorker() {
      worker = await startWorker();
      return worker.pid;
    },
    turnDial: (body) => turnDial(providerUrl, body),
    providerLog: () => readProviderLog(journalPath),
    checkAlive: () => [provider, api].forEach(assertAlive),
    stop: () => stopAll(started),
  };
}

async function startServers(options: WorldOptions, started: Started) {
  const config = readConfig({
    ...withoutServers(options.env),
    HOLDFAST_DATA_DIR: options.dataDir,
    HOLDFAST_POSTGRES_PORT: '0',
    HOLDFAST_TEMPORAL_PORT: '0',
    HOLDFAST_TEMPORAL_UI_PORT: '0',
  });
  const stack = await startStack({ config, say: options.say });
  started.servers.push(() => stack.stop());
  await migrate({ databaseUrl: stack.databaseUrl });
  const env = {
    DATABASE_URL: stack.databaseUrl,
    TEMPORAL_ADDRESS: stack.temporalAddress,
    TEMPORAL_NAMESPACE: stack.namespace,
  };
  // Null only where Temporal was given, and here it never is.
  return { env, webUiUrl: stack.webUiUrl ?? '' };
}

/** The environment without anything that points at servers that are not the demo's own. */
function withoutServers(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(
    Object.entries(env).filter(([name]) => name !== 'DATABASE_URL' && !name.startsWith('TEMPORAL_')),
  );
}

async function turnDial(providerUrl: URL, body: object): Promise<void> {
  const response = await fetch(new URL('/control', providerUrl), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(5_000),
  });
  if (!response.ok) throw new Error(`The provider refused the dial: ${await response.text()}`);
}

function assertAlive(child: Child): void {
  const ending = child.ending();
  if (ending !== undefined) throw new Error(`The ${child.name} ended by itself (${ending}).`);
}

/** The children at once, since one may wait for another's answer; what they run on only after them. */
async function stopAll({ children, servers }: Started): Promise<void> {
  const results = [];
  for (const part of [children, servers]) {
    results.push(...(await Promise.allSettled(part.splice(0).map((stop) => stop()))));
  }
  const failures = results.flatMap((result) =>
    result.status === 'rejected' ? [result.reason as unknown] : [],
  );
  if (failures.length > 0) throw new AggregateError(failures, 'Something of the demo did not stop.');
}
