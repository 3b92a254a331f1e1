import { Runtime } from '@temporalio/worker';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll } from 'vitest';
import { SEARCH_ATTRIBUTES } from '../../shared/domain/protocol.js';
import { MOVABLE_CLOCK } from '../../workers/fixture/clock.js';
import { timeSkippingServerPath } from './servers.js';
import { startWorld, type World, type WorldOptions } from './world.js';

/** A world whose time moves only when the test says so: Temporal's timers and the ledger's clock together. */
export interface SkippingWorld {
  readonly world: World;
  /** Moves time on. Timers that come due on the way fire; what they set off is not waited for. */
  skip(seconds: number): Promise<void>;
  /** Moves time on, in ever longer steps, until the run has ended. */
  skipToEnd(runId: string): Promise<void>;
}

let environment: Promise<TestWorkflowEnvironment> | undefined;
const worlds: World[] = [];

/**
 * A world on Temporal's time-skipping server. Its time is one for all worlds of a file, so only one test at a time may
 * skip. The ledger of each world judges by its own database's clock as always; that clock is set forward with
 * Temporal's before each attempt, which is where waits that were skipped end.
 */
export async function startSkippingWorld(
  options: Omit<WorldOptions, 'temporal' | 'workers'> = {},
): Promise<SkippingWorld> {
  const env = await (environment ??= startEnvironment());
  const namespace = env.namespace ?? 'default';
  const world = await startWorld({
    ...options,
    workers: 0,
    temporal: { client: env.client, connection: env.nativeConnection, address: env.address, namespace },
  });
  await world.rows(MOVABLE_CLOCK);
  await world.startWorker({
    reach: async (point) => {
      if (point.includes('.before_')) await setClock(world, await env.currentTimeMs());
      await world.faults.reach(point);
    },
  });
  worlds.push(world);
  const skip = async (seconds: number): Promise<void> => {
    await env.sleep(seconds * 1_000);
    await setClock(world, await env.currentTimeMs());
  };
  return {
    world,
    skip,
    async skipToEnd(runId) {
      // Not by waiting for the workflow's result: once it is there, that server skips on to any time-out it holds.
      for (let seconds = 1; (await world.runRow(runId)).ended_at === null; seconds *= 2) {
        if (seconds > SKIPPED_SECONDS_MAX) throw new Error(`not in time: ${await world.describe(runId)}`);
        await skip(seconds);
      }
    },
  };
}

const SKIPPED_SECONDS_MAX = 120 * 86_400;

async function startEnvironment(): Promise<TestWorkflowEnvironment> {
  Runtime.install({
    logger: { trace() {}, debug() {}, info() {}, warn() {}, error() {}, log() {} },
    shutdownSignals: [],
    // This server is older than the features that the native core would warn of.
    telemetryOptions: { logging: { filter: 'ERROR' } },
  });
  const env = await TestWorkflowEnvironment.createTimeSkipping({
    server: { executable: { type: 'existing-path', path: await timeSkippingServerPath() } },
  });
  await env.connection.operatorService.addSearchAttributes({
    namespace: env.namespace ?? 'default',
    // 2 is KEYWORD.
    searchAttributes: Object.fromEntries(Object.values(SEARCH_ATTRIBUTES).map((name) => [name, 2])),
  });
  return env;
}

async function setClock(world: World, nowMs: number): Promise<void> {
  await world.rows('update test_clock.shift set by_ms = $1', Math.round(nowMs - Date.now()));
}

afterAll(async () => {
  // Their workers hold the environment's connection.
  for (const world of worlds) await world.close();
  await (await environment)?.teardown();
});
