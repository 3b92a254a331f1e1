import { randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Client } from '@temporalio/client';
import type { NativeConnection, WorkerOptions } from '@temporalio/worker';
import pg from 'pg';
import { afterAll } from 'vitest';
export { until } from './until.js';
import type { ReachFaultPoint } from '../../activities/fault-points.js';
import { loadProject, type Project } from '../../activities/project/load-project.js';
import { manifestOf, ToolCatalogue } from '../../activities/tools/catalogue.js';
import type { Tool } from '../../activities/tools/tool.js';
import type { RunInput } from '../../shared/domain/protocol.js';
import { RunContract } from '../../shared/domain/contract.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { isTerminal, type RunState } from '../../shared/domain/run-machine.js';
import { admitRun, registerAgent } from '../../shared/ledger/admission.js';
import { Announcer } from '../../shared/ledger/announcer.js';
import { createLedgerPool } from '../../shared/ledger/database.js';
import { createLogger, type Logger } from '../../shared/process/log.js';
import { createRunWorker } from '../../workers/create-worker.js';
import { createStarter } from '../../workers/starter.js';
import { createSweeper } from '../../workers/sweeper.js';
import { type Fault, FaultPlan } from './fault-plan.js';
import { type HttpTarget, startHttpTarget, type TargetLogEntry } from './http-target.js';
import { startTestProcess, type TestProcess } from './processes.js';
import { createTestDatabase } from './servers.js';
import { LedgerView, type RunRow } from './ledger-view.js';
import { AGENT, type WorldProject, writeProject } from './world-project.js';
import {
  BUNDLES_DIR,
  closeSharedTemporal,
  sharedBundle,
  sharedTemporal,
  type WorldTemporal,
} from './world-temporal.js';

export { connectTemporal, type WorldTemporal } from './world-temporal.js';

export interface WorldOptions extends WorldProject {
  /** The environment in which the project is loaded, for its secrets; empty unless given. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Silence after which Temporal takes an activity for lost. Default 2; worker processes take whole seconds. */
  readonly heartbeatSeconds?: number;
  readonly historyEventsMax?: number;
  /** Function tools of this process; worker processes do not have them. */
  readonly tools?: readonly Tool[];
  /** Workers in this process from the start. Default 1. */
  readonly workers?: number;
  readonly temporal?: WorldTemporal;
  /** A migrated database of a server of the test's own; one of the shared test server unless given. */
  readonly databaseUrl?: string;
  /** In place of the database's own URL, by way of a proxy say. Readings of the test go to the database itself. */
  readonly databaseUrlOf?: (url: string) => string | Promise<string>;
  /** In place of the target's own URL, likewise. */
  readonly targetUrlOf?: (url: string) => string | Promise<string>;
}

/** What a run is admitted with; everything has a default. */
export interface Request {
  /** The usual script calls the tool that the first word names: `pay`, `book`, `mail`, `look`, `each`, `together`. */
  readonly input?: JsonValue;
  readonly agent?: string;
  /** Laid over the usual contract, member by member. */
  readonly contract?: Readonly<Record<string, unknown>>;
  readonly idempotencyKey?: string;
  readonly tenantId?: string;
  readonly actorId?: string;
}

export interface WorldWorker {
  /** Lets what is in flight finish for a second, then cancels it. */
  stop(): Promise<void>;
}

/** A ledger, a task queue, a target and workers of one test file's own; closed after the file, or earlier by `close`. */
export interface World extends LedgerView {
  readonly databaseUrl: string;
  /** As the application: reads tables, calls functions. */
  readonly db: pg.Pool;
  readonly client: Client;
  readonly taskQueue: string;
  readonly namespace: string;
  /** Folder of the project. */
  readonly folder: string;
  readonly project: Project;
  readonly target: HttpTarget;
  /** Faults of the workers in this process that were given no `reach` of their own. */
  readonly faults: FaultPlan;
  readonly starter: ReturnType<typeof createStarter>;
  /** Leaves no run alone, however shortly ago it moved. */
  readonly sweeper: ReturnType<typeof createSweeper>;
  readonly log: Logger;
  /** What was logged in this process so far, as JSON lines. */
  logged(): string;
  /** Admits a run and starts nothing. @returns its id */
  admit(request?: Request): Promise<string>;
  /** Admits a run and has the starter start it. @returns its id */
  run(request?: Request): Promise<string>;
  /** @param options.connection a way to Temporal of the worker's own, by a proxy say */
  startWorker(options?: {
    readonly reach?: ReachFaultPoint;
    readonly options?: Partial<WorkerOptions>;
    readonly connection?: NativeConnection;
  }): Promise<WorldWorker>;
  /** A worker as production runs it, in a process of its own, with faults. It starts admitted runs by itself. */
  startWorkerProcess(options?: {
    readonly faults?: readonly Fault[];
    readonly env?: Readonly<Record<string, string>>;
  }): TestProcess;
  /**
   * Waits until the run is in one of these states, or the look says yes.
   *
   * @throws Error that shows the run, its transitions and effects when it has not within `deadlineMs` (30 s)
   */
  waitFor(
    runId: string,
    wanted: RunState | readonly RunState[] | 'ended' | ((run: RunRow) => boolean | Promise<boolean>),
    deadlineMs?: number,
  ): Promise<RunRow>;
  /** What the target saw: of one run, or of all. */
  targetLog(runId?: string): TargetLogEntry[];
  close(): Promise<void>;
}

/** The key of a call: of the first one of the first step unless a place is given. */
export function keyOf(
  runId: string,
  { step = 1, slot = 0, redo = 0 }: { step?: number; slot?: number; redo?: number } = {},
): string {
  return `${runId}:t1:s${step}:c${slot}${redo > 0 ? `:r${redo}` : ''}`;
}

export async function startWorld(options: WorldOptions = {}): Promise<World> {
  const temporal = options.temporal ?? (await sharedTemporal());
  const ownUrl = options.databaseUrl ?? (await createTestDatabase()).url;
  const databaseUrl = (await options.databaseUrlOf?.(ownUrl)) ?? ownUrl;
  const folder = await mkdtemp(join(tmpdir(), 'holdfast-world-'));
  const target = await startHttpTarget({ logPath: join(folder, 'target.jsonl') });
  const targetUrl = (await options.targetUrlOf?.(target.url)) ?? target.url;
  const projectPath = await writeProject(join(folder, 'project'), targetUrl, options);
  const project = await loadProject(projectPath, options.env ?? {});
  const lines: string[] = [];
  const log = createLogger({
    ...{ name: 'test-worker', level: 'info' },
    destination: { write: (line) => lines.push(line) },
  });
  const onIdleError = (error: Error): void => log.warn({ err: error }, 'an idle ledger connection was lost');
  const db = createLedgerPool({ databaseUrl, max: 16, applicationName: 'test-worker', onIdleError });
  const reading = new pg.Pool({ connectionString: ownUrl, max: 4 });
  reading.on('error', onIdleError);
  const taskQueue = `world-${randomUUID()}`;
  const settings: RunInput['settings'] = {
    heartbeatSeconds: options.heartbeatSeconds ?? 2,
    historyEventsMax: options.historyEventsMax ?? 2_000,
    apiUrl: '',
  };
  const tools = options.tools ?? [];
  const catalogue = new ToolCatalogue([...project.catalogue.list(), ...tools]);
  for (const agent of project.agents) {
    await registerAgent(db, {
      ...agent,
      tools: [...agent.tools, ...tools.map((tool) => manifestOf(tool, 'not_required', catalogue))],
    });
  }
  const world = new RunningWorld({
    ...{ databaseUrl, db, reading, folder, project, projectPath, target, log, lines, taskQueue, temporal },
    ...{ settings, catalogue },
  });
  open.add(world);
  for (let n = 0; n < (options.workers ?? 1); n += 1) await world.startWorker();
  return world;
}

interface WorldParts {
  readonly databaseUrl: string;
  readonly db: pg.Pool;
  readonly reading: pg.Pool;
  readonly folder: string;
  readonly project: Project;
  readonly projectPath: string;
  readonly target: HttpTarget;
  readonly log: Logger;
  readonly lines: readonly string[];
  readonly taskQueue: string;
  readonly temporal: WorldTemporal;
  readonly settings: RunInput['settings'];
  readonly catalogue: ToolCatalogue;
}

class RunningWorld extends LedgerView implements World {
  readonly databaseUrl: string;
  readonly db: pg.Pool;
  readonly client: Client;
  readonly taskQueue: string;
  readonly namespace: string;
  readonly folder: string;
  readonly project: Project;
  readonly target: HttpTarget;
  readonly faults = new FaultPlan();
  readonly starter: World['starter'];
  readonly sweeper: World['sweeper'];
  readonly log: Logger;
  readonly #parts: WorldParts;
  readonly #workers = new Set<WorldWorker>();
  readonly #processes: TestProcess[] = [];

  constructor(parts: WorldParts) {
    super(parts.reading);
    this.#parts = parts;
    const { db, log, settings, temporal } = parts;
    const { client } = temporal;
    this.databaseUrl = parts.databaseUrl;
    this.db = db;
    this.client = client;
    this.taskQueue = parts.taskQueue;
    this.namespace = temporal.namespace;
    this.folder = dirname(parts.projectPath);
    this.project = parts.project;
    this.target = parts.target;
    this.log = log;
    this.starter = createStarter({ db, client, settings, log });
    this.sweeper = createSweeper({ db, client, log, quietSeconds: 0, keepEventsSeconds: null });
  }

  logged(): string {
    return this.#parts.lines.join('');
  }

  async admit(request: Request = {}): Promise<string> {
    const admitted = await admitRun(this.db, {
      tenantId: request.tenantId ?? 'default',
      actorId: request.actorId ?? 'tester',
      endpoint: 'POST /v1/runs',
      idempotencyKey: request.idempotencyKey ?? randomUUID(),
      agent: request.agent ?? AGENT,
      // Unlike any other, so that the target's log tells one logical effect from another by its arguments.
      input: request.input ?? `pay ${randomUUID()}`,
      contract: RunContract.parse({
        objective: 'The target did what the input says.',
        acceptance: { rule: 'The target log shows it once.', accepted_by: 'tester' },
        owner: 'owner',
        ...request.contract,
      }),
      taskQueue: this.taskQueue,
    });
    if (admitted.kind === 'admitted' || admitted.kind === 'replayed') return admitted.runId;
    throw new Error(`the run was not admitted: ${admitted.kind}`);
  }

  async run(request: Request = {}): Promise<string> {
    const runId = await this.admit(request);
    await this.starter.round();
    return runId;
  }

  async startWorker({
    reach,
    options,
    connection,
  }: Parameters<World['startWorker']>[0] = {}): Promise<WorldWorker> {
    const { db, catalogue, log, temporal, taskQueue } = this.#parts;
    const announcer = new Announcer({
      db,
      onError: (error) => log.warn({ err: error }, 'not announced'),
    });
    const worker = await createRunWorker({
      announcer,
      ...{ db, catalogue, log, taskQueue },
      ...{ client: temporal.client, namespace: temporal.namespace },
      connection: connection ?? temporal.connection,
      secrets: () => undefined,
      projectDir: this.folder,
      workflowBundle: await sharedBundle(),
      reach: reach ?? this.faults.reach,
      options: {
        shutdownGraceTime: '1 second',
        shutdownForceTime: '10 seconds',
        // A worker that is gone is found out sooner, and a live one is not taken for lost on a busy machine.
        stickyQueueScheduleToStartTimeout: '1 second',
        maxHeartbeatThrottleInterval: '200 milliseconds',
        ...options,
      },
    });
    const running = worker.run();
    const started: WorldWorker = {
      stop: async () => {
        if (!this.#workers.delete(started)) return;
        worker.shutdown();
        await running;
        await announcer.stop();
      },
    };
    // A worker that fails is seen by whoever waits for its runs, and by `stop`.
    running.catch((error: unknown) => log.error({ err: error }, 'worker failed'));
    this.#workers.add(started);
    return started;
  }

  startWorkerProcess({ faults = [], env }: Parameters<World['startWorkerProcess']>[0] = {}): TestProcess {
    const { databaseUrl, projectPath, settings, temporal } = this.#parts;
    const started = startTestProcess({
      entry: 'test/support/fault-worker.ts',
      env: {
        DATABASE_URL: databaseUrl,
        TEMPORAL_ADDRESS: temporal.address,
        TEMPORAL_NAMESPACE: temporal.namespace,
        HOLDFAST_PROJECT: projectPath,
        HOLDFAST_TASK_QUEUE: this.taskQueue,
        HOLDFAST_HEARTBEAT_SECONDS: String(Math.max(1, Math.ceil(settings.heartbeatSeconds))),
        HOLDFAST_DATA_DIR: BUNDLES_DIR,
        FAULTS: JSON.stringify(faults),
        ...env,
      },
    });
    this.#processes.push(started);
    return started;
  }

  async waitFor(
    runId: string,
    wanted: Parameters<World['waitFor']>[1],
    deadlineMs = 25_000,
  ): Promise<RunRow> {
    const deadline = performance.now() + deadlineMs;
    for (;;) {
      const run = await this.runRow(runId);
      if (await suits(run, wanted)) return run;
      if (performance.now() > deadline) {
        const asked = typeof wanted === 'function' ? wanted.toString() : String(wanted);
        const shown = await this.describe(runId);
        const said = this.#parts.lines.filter((line) => line.includes(runId)).slice(-10);
        throw new Error(`not ${asked} within ${deadlineMs} ms:\n${shown}\n${said.join('')}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
  }

  targetLog(runId?: string): TargetLogEntry[] {
    return this.target.log().filter(({ key }) => runId === undefined || key.startsWith(`${runId}:`));
  }

  async close(): Promise<void> {
    if (!open.delete(this)) return;
    const { db, reading, project, target, folder } = this.#parts;
    for (const process of this.#processes) await process.signal('SIGKILL');
    this.faults.release();
    target.reset();
    await Promise.all([...this.#workers].map((worker) => worker.stop()));
    await project.close();
    await target.close();
    await db.end();
    await reading.end();
    await rm(folder, { recursive: true, force: true });
  }
}

async function suits(run: RunRow, wanted: Parameters<World['waitFor']>[1]): Promise<boolean> {
  if (typeof wanted === 'function') return await wanted(run);
  if (wanted === 'ended') return isTerminal(run.state);
  return typeof wanted === 'string' ? run.state === wanted : wanted.includes(run.state);
}

const open = new Set<World>();

/** For whoever owns what the worlds of this file stand on, and takes it away. */
export async function closeWorlds(): Promise<void> {
  for (const world of open) await world.close();
}

afterAll(async () => {
  await closeWorlds();
  await closeSharedTemporal();
});
