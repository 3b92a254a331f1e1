import { createLedgerPool } from '../shared/ledger/database.js';
import { checkDurability, LedgerSchemaError, migrationState } from '../shared/ledger/migrate.js';
import { isLedgerUnavailable } from '../shared/ledger/refusals.js';
import { startEventHub } from '../shared/ledger/reads/event-hub.js';
import { announceReady, untilAskedToStop } from '../shared/process/child.js';
import { readConfig, requireServers } from '../shared/process/config.js';
import { runMain, StartError } from '../shared/process/exit.js';
import { createLogger } from '../shared/process/log.js';
import { createApp } from './app.js';
import { DEFAULT_LIMITS } from './deps.js';
import { startHttpServer } from './http-server.js';
import type { HttpServer } from './http-server.js';
import { developmentIdentity } from './identity.js';
import { checkReadiness } from './readiness.js';
import type { ApiDeps } from './deps.js';

/** Connections of one API process, besides the one that listens. */
const POOL_MAX = 10;
/** How long requests in flight may take to end after a stop was asked for. */
const STOP_GRACE_MS = 5_000;

/**
 * The API as a process of its own: reads the configuration, serves until it is asked to stop, ends in
 * order.
 */
async function main(): Promise<void> {
  const config = requireServers(readConfig(process.env));
  const log = createLogger({ name: 'api', level: config.logLevel });
  const pool = createLedgerPool({
    databaseUrl: config.databaseUrl,
    max: POOL_MAX,
    applicationName: 'holdfast-api',
    onIdleError: (error) => log.warn({ err: error }, 'an idle ledger connection was lost'),
  });
  const hub = startEventHub({
    db: pool,
    listen: { connectionString: config.databaseUrl, application_name: 'holdfast-api-feed' },
    log,
  });
  await refuseForgetfulLedger(pool);
  const stopping = new AbortController();
  const app = createApp({
    pool,
    hub,
    log,
    authenticate: developmentIdentity,
    readiness: () => checkReadiness({ pool, hub, schemaLevel }),
    taskQueue: config.taskQueue,
    limits: DEFAULT_LIMITS,
    webhooks: { keys: config.secretKeys, allow: config.webhookAllow },
    stopping: stopping.signal,
  });
  const server = await listen(app, config.api);
  log.info({ url: server.url }, 'the API listens');
  announceReady({ kind: 'ready', role: 'api', detail: { url: server.url } });

  const reason = await untilAskedToStop();
  log.info({ reason }, 'the API stops');
  stopping.abort();
  await server.stop(STOP_GRACE_MS);
  await hub.stop();
  await pool.end();
  // The supervisor's channel would keep the process alive.
  if (process.connected) process.disconnect();
}

async function listen(
  app: ReturnType<typeof createApp>,
  address: { readonly host: string; readonly port: number },
): Promise<HttpServer> {
  try {
    return await startHttpServer(app, address);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
    throw new StartError(
      `Port ${address.port} on ${address.host} is in use. Set HOLDFAST_API_PORT to another, or stop ` +
        'what uses it.',
      { cause: error },
    );
  }
}

/** An admission that a crash could lose is none. A Postgres that is away is waited for, and looked at by /readyz. */
async function refuseForgetfulLedger(pool: ApiDeps['pool']): Promise<void> {
  try {
    await checkDurability(pool);
  } catch (error) {
    if (error instanceof LedgerSchemaError) throw new StartError(error.message, { cause: error });
    if (!isLedgerUnavailable(error)) throw error;
  }
}

async function schemaLevel(pool: ApiDeps['pool']): Promise<{ ok: boolean; evidence: string }> {
  const { applied, pending, unknown } = await migrationState(pool);
  const newest = applied.at(-1) ?? 'none';
  const parts = [`${applied.length} applied, newest ${newest}`];
  if (pending.length > 0) parts.push(`pending: ${pending.join(', ')}`);
  if (unknown.length > 0) parts.push(`unknown to this build: ${unknown.join(', ')}`);
  return { ok: pending.length === 0 && unknown.length === 0, evidence: parts.join('; ') };
}

runMain('api', main);
