import { join } from 'node:path';
import { LedgerSchemaError, migrate } from '../shared/ledger/migrate.js';
import { untilAskedToStop } from '../shared/process/child.js';
import { readConfig } from '../shared/process/config.js';
import type { HoldfastConfig } from '../shared/process/config.js';
import { runMain, StartError } from '../shared/process/exit.js';
import { claimPort } from './stack/ports.js';
import { ownSecretKey } from './stack/secret-key.js';
import { startStack } from './stack/stack.js';
import type { Stack } from './stack/stack.js';
import { openChildRegister, superviseChild } from './stack/supervised-child.js';
import type { SupervisedChild } from './stack/supervised-child.js';

/**
 * An idle development stack should fit into 700 MiB. Small young generations and compact code keep idle
 * Node processes small; the API holds no state, so its heap needs little.
 */
const NODE_FLAGS = {
  worker: ['--max-semi-space-size=4', '--optimize-for-size'],
  api: ['--max-semi-space-size=2', '--optimize-for-size', '--max-old-space-size=256'],
} as const;

const say = (line: string): void => void process.stdout.write(`${line}\n`);

/**
 * `npm start`: all that Holdfast needs, on this machine, until Ctrl-C. Supervises, and does no work
 * itself.
 */
async function main(): Promise<void> {
  const config = readConfig(process.env);
  const asked = untilAskedToStop();
  say(`Holdfast starts; its data is in ${config.dataDir}`);
  const stack = await startStack({ config, say });
  const children: SupervisedChild[] = [];
  const stopAll = async (): Promise<void> => {
    // The API first, so that nobody is told "accepted" by a system that is going away.
    for (const child of children.splice(0).reverse()) await child.stop();
    await stack.stop();
  };
  try {
    const apiUrl = await startParts(config, stack, children);
    showAddresses(stack, apiUrl);
  } catch (error) {
    await stopAll();
    throw error;
  }
  // A second signal means "at once": the servers stay, being durable, and the next start takes them over.
  process.once('exit', () => children.forEach((child) => child.kill()));
  const reason = await asked;
  say(`\nHoldfast stops (${reason})`);
  await stopAll();
  say('Holdfast stopped');
  process.exit(0);
}

async function startParts(
  config: HoldfastConfig,
  stack: Stack,
  children: SupervisedChild[],
): Promise<string> {
  say(`migrate   ${await bringUpToDate(stack.databaseUrl)}`);
  const register = await openChildRegister(join(config.dataDir, 'children.json'), say);
  const { host } = config.api;
  const port = await claimPort({
    host,
    port: config.api.port,
    purpose: 'the API',
    variable: 'HOLDFAST_API_PORT',
  });
  const env = {
    // glibc keeps a heap for every few threads; the worker's native core has many threads and needs two.
    MALLOC_ARENA_MAX: '2',
    ...process.env,
    DATABASE_URL: stack.databaseUrl,
    TEMPORAL_ADDRESS: stack.temporalAddress,
    TEMPORAL_NAMESPACE: stack.namespace,
    HOLDFAST_API_PORT: String(port),
    HOLDFAST_SECRET_KEY: process.env['HOLDFAST_SECRET_KEY'] || (await ownSecretKey(config.dataDir)),
  };
  const start = async (role: 'worker' | 'api', entry: string): Promise<void> => {
    const options = { role, entry: new URL(entry, import.meta.url), nodeFlags: NODE_FLAGS[role], env };
    const { child, ready } = await superviseChild({ ...options, say, register });
    children.push(child);
    const detail = Object.entries(ready.detail).map(([name, value]) => `${name} ${value}`);
    say(
      `${role.padEnd(9)} ready, process ${child.pid()}${detail.length > 0 ? ` (${detail.join(', ')})` : ''}`,
    );
  };
  // At once, since the worker bundles its workflows meanwhile; but a failure waits for the other's end.
  const started = await Promise.allSettled([start('worker', './worker'), start('api', '../api/server')]);
  const failed = started.filter((result) => result.status === 'rejected');
  if (failed.length > 0) {
    throw new StartError(
      failed.flatMap(({ reason }) => {
        if (reason instanceof StartError) return reason.problems;
        throw reason;
      }),
    );
  }
  children.sort((a, b) => b.role.localeCompare(a.role));
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}

async function bringUpToDate(databaseUrl: string): Promise<string> {
  try {
    const { applied } = await migrate({ databaseUrl });
    return applied.length > 0 ? `applied ${applied.join(', ')}` : 'nothing to apply';
  } catch (error) {
    if (error instanceof LedgerSchemaError) throw new StartError(error.message, { cause: error });
    const reason = error instanceof Error ? error.message : String(error);
    throw new StartError(
      `Postgres could not be migrated (${reason}). Check DATABASE_URL and that it serves.`,
      {
        cause: error,
      },
    );
  }
}

function showAddresses(stack: Stack, apiUrl: string): void {
  say('');
  say(`  API              ${apiUrl}`);
  say(`  API docs         ${apiUrl}/docs`);
  if (stack.webUiUrl) say(`  Temporal Web UI  ${stack.webUiUrl}`);
  // A given database's password is its owner's; only our own, on this machine alone, is shown.
  if (stack.pids().postgres !== null) say(`  Postgres         ${stack.databaseUrl}`);
  say('');
  say('Ctrl-C stops all of it; the data stays.');
}

runMain('holdfast', main);
