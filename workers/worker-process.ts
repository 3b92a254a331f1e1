import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { Client, Connection } from '@temporalio/client';
import { DefaultLogger, NativeConnection, Runtime } from '@temporalio/worker';
import type { Pool } from 'pg';
import { noFaults, type ReachFaultPoint } from '../activities/fault-points.js';
import { modelOverrideFromEnv } from '../activities/models/profile-from-env.js';
import { loadProject } from '../activities/project/load-project.js';
import { ProjectError } from '../activities/project/project-error.js';
import type { RunInput } from '../shared/domain/protocol.js';
import { registerAgent } from '../shared/ledger/admission.js';
import { Announcer } from '../shared/ledger/announcer.js';
import { createLedgerPool } from '../shared/ledger/database.js';
import { checkDurability, LedgerSchemaError } from '../shared/ledger/migrate.js';
import { isLedgerUnavailable } from '../shared/ledger/refusals.js';
import { announceReady, untilAskedToStop } from '../shared/process/child.js';
import { type ConnectedConfig, readConfig, requireServers } from '../shared/process/config.js';
import { StartError } from '../shared/process/exit.js';
import { createLogger, type Logger } from '../shared/process/log.js';
import { createWebhookGuard } from '../shared/process/webhook-address.js';
import { bundleWorkflows } from './bundle-workflows.js';
import { createRunWorker } from './create-worker.js';
import { createDeliverer } from './deliverer.js';
import { listen } from './listen.js';
import { type Repetition, repeat } from './repeat.js';
import { ADMITTED_CHANNEL, createStarter } from './starter.js';
import { createScheduler } from './scheduler.js';
import { createSweeper, nudge } from './sweeper.js';

/** Ledger connections of one worker: more would only queue in Postgres. */
const POOL_MAX = 16;
const STARTER_PAUSE_MS = 2_000;
const DAY_SECONDS = 86_400;
const SWEEPER_PAUSE_MS = 10_000;
const SCHEDULER_PAUSE_MS = 2_000;
/** How often planned times are looked for that nothing was seen of. */
const WATCH_PAUSE_MS = 30_000;
/** How long an outbox row waits at most before it is seen; the commit that wrote it told nobody. */
const DELIVERER_PAUSE_MS = 1_000;
/** Notifications served at once: while Temporal is away each takes long, and the rounds do what is left out. */
const NOTIFIED_MAX = 50;
/** History events after which a run continues as new, far below Temporal's limit of 51,200. */
const HISTORY_EVENTS_MAX = 2_000;
/** Evidence that came for a run which waits for some. */
const EVIDENCE_CHANNEL = 'holdfast_evidence';
/** Something about a run was decided: a command, an approval, a settlement. */
const NUDGE_CHANNEL = 'holdfast_nudge';

export interface WorkerProcessOptions {
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Tests cut activities off; production never does. */
  readonly reach?: ReachFaultPoint;
}

/**
 * The worker as a process of its own: proves that it can work, takes work until it is asked to stop, lets what is in
 * flight finish, and ends.
 */
export async function runWorkerProcess({ env, reach = noFaults }: WorkerProcessOptions): Promise<void> {
  const config = requireServers(readConfig(env));
  const log = createLogger({ name: 'worker', level: config.logLevel });
  installRuntime(log);
  const db = createLedgerPool({
    databaseUrl: config.databaseUrl,
    max: POOL_MAX,
    applicationName: 'holdfast-worker',
    onIdleError: (error) => log.warn({ err: error }, 'an idle ledger connection was lost'),
  });
  const project = await load(config, env);
  await checkLedger(db);
  for (const agent of project.agents) await registerAgent(db, agent);

  const { connection: address, namespace } = config.temporal;
  const connection = await NativeConnection.connect(address).catch((error: unknown) => {
    throw unreachable(address.address, error);
  });
  const clientConnection = await Connection.connect({ ...address, connectTimeout: 10_000 });
  const client = new Client({ connection: clientConnection, namespace });
  const announcer = new Announcer({
    db,
    onError: (error) => log.warn({ err: error }, 'the feeds were not told of news; they poll'),
  });
  const worker = await createRunWorker({
    connection,
    client,
    namespace,
    taskQueue: config.taskQueue,
    db,
    catalogue: project.catalogue,
    secrets: (name) => env[name],
    projectDir: dirname(config.project),
    workflowBundle: await bundleWorkflows(join(config.dataDir, 'cache')),
    announcer,
    reach,
    log,
    // Temporal's own measure leaves a busy worker a fifth of the time-out between "I live" and "taken for lost".
    options: { maxHeartbeatThrottleInterval: config.heartbeatSeconds * 250 },
  });
  const background = startBackground(config, { db, client, log, settings: settingsOf(config, env) });
  const working = worker.run();
  log.info(
    { taskQueue: config.taskQueue, agents: project.agents.map(({ name }) => name) },
    'the worker takes work',
  );
  announceReady({ kind: 'ready', role: 'worker', detail: { taskQueue: config.taskQueue } });

  // A worker that ends without being asked has failed: the error goes up and the process ends.
  const reason = await Promise.race([untilAskedToStop(), working.then(() => 'ended' as const)]);
  log.info({ reason }, 'the worker stops');
  // No new work from here on; what is in flight ends beside the background work, which may wait for a server.
  if (reason !== 'ended') worker.shutdown();
  await Promise.all([working, background.stop()]);
  await announcer.stop();
  await project.close();
  await clientConnection.close();
  await connection.close();
  await db.end();
  if (process.connected) process.disconnect();
}

function settingsOf(config: ConnectedConfig, env: WorkerProcessOptions['env']): RunInput['settings'] {
  return {
    heartbeatSeconds: config.heartbeatSeconds,
    historyEventsMax: HISTORY_EVENTS_MAX,
    apiUrl: env['HOLDFAST_PUBLIC_URL'] ?? `http://${config.api.host}:${config.api.port}`,
  };
}

/** Starting admitted runs and comparing Temporal with the ledger, beside the worker's own polling. */
function startBackground(
  config: ConnectedConfig,
  parts: Parameters<typeof createStarter>[0],
): { stop(): Promise<void> } {
  const { db, client, log } = parts;
  const starter = createStarter(parts);
  const sweeper = createSweeper({
    ...{ db, client, log, quietSeconds: 20 },
    keepEventsSeconds: config.keepEventsDays === 0 ? null : config.keepEventsDays * DAY_SECONDS,
  });
  const starting = repeat('starter', STARTER_PAUSE_MS, log, () => starter.round());
  const sweeping = repeat('sweeper', SWEEPER_PAUSE_MS, log, async () => {
    await sweeper.round();
    await sweeper.nudgeLateEvidence();
    await sweeper.nudgeUndecided();
    await sweeper.escalateOverdue();
    await sweeper.trimEvents();
  });
  const scheduler = createScheduler({ db, client, namespace: config.temporal.namespace, log });
  const scheduling = repeat('scheduler', SCHEDULER_PAUSE_MS, log, () => scheduler.round());
  const watching = repeat('schedule watch', WATCH_PAUSE_MS, log, () => scheduler.watch());
  const delivering = startDelivering(config, db, log);
  const underWay = new Set<Promise<void>>();
  const listener = listen({
    databaseUrl: config.databaseUrl,
    channels: [ADMITTED_CHANNEL, EVIDENCE_CHANNEL, NUDGE_CHANNEL],
    onMessage(channel, payload) {
      if (underWay.size >= NOTIFIED_MAX) return;
      const told = (
        channel === ADMITTED_CHANNEL ? starter.startNotified(payload) : nudge(client, payload, log)
      )
        .catch((error: unknown) =>
          log.warn({ err: error, channel }, 'notification not served; the next round does'),
        )
        .finally(() => underWay.delete(told));
      underWay.add(told);
    },
    onOpened: () => starting.soon(),
    log,
  });
  return {
    async stop() {
      const rounds = [starting, sweeping, scheduling, watching].map((each) => each.stop());
      await Promise.all([...rounds, listener.stop(), delivering?.stop()]);
      // One that is tried again after the client's connection was closed would end the process.
      await Promise.all(underWay);
    },
  };
}

/** Sends webhooks, where this process has the key to sign them; without it the others do. */
function startDelivering(config: ConnectedConfig, db: Pool, log: Logger): { stop(): Promise<void> } | null {
  const { secretKeys: keys, webhookAllow } = config;
  if (keys === null) return null;
  const guard = createWebhookGuard(webhookAllow);
  const workerName = `${hostname()}:${process.pid}`;
  let sending: Repetition | undefined;
  const deliverer = createDeliverer({ db, keys, guard, log, workerName }, () => sending?.soon());
  sending = repeat('webhooks', DELIVERER_PAUSE_MS, log, async () => void (await deliverer.round()));
  return {
    async stop() {
      await sending?.stop();
      await deliverer.settled();
    },
  };
}

async function load(config: ConnectedConfig, env: WorkerProcessOptions['env']) {
  const modelOverride = modelOverrideFromEnv(env);
  try {
    return await loadProject(
      config.project,
      env,
      ...(modelOverride === undefined ? [] : [{ modelOverride }]),
    );
  } catch (error) {
    if (error instanceof ProjectError) throw new StartError(error.message.split('\n'), { cause: error });
    throw error;
  }
}

async function checkLedger(db: Pool): Promise<void> {
  try {
    await checkDurability(db);
  } catch (error) {
    if (error instanceof LedgerSchemaError) throw new StartError(error.message, { cause: error });
    if (!isLedgerUnavailable(error)) throw error;
    throw new StartError(
      'Postgres does not answer at DATABASE_URL. Start it, or set DATABASE_URL to the one that runs.',
      {
        cause: error,
      },
    );
  }
}

function unreachable(address: string, error: unknown): StartError {
  return new StartError(
    `Temporal does not answer at ${address}. Start it, or set TEMPORAL_ADDRESS to the one that runs.`,
    { cause: error },
  );
}

/**
 * Temporal's own warnings as our log lines: JSON, redacted. Anything less is noise of its core. Its signal handlers
 * are off, since the process stops in our order.
 */
function installRuntime(log: Logger): void {
  const logger = new DefaultLogger('WARN', ({ level, message, meta }) => {
    log[level === 'ERROR' ? 'error' : 'warn']({ temporal: { ...meta } }, message);
  });
  // Without `forward` the native core writes to the console by itself, past this logger.
  Runtime.install({ logger, telemetryOptions: { logging: { forward: {} } }, shutdownSignals: [] });
}
