import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import pg from 'pg';
import { RunContract } from '../shared/domain/contract.js';
import { admitRun } from '../shared/ledger/admission.js';
import { BARE_WORKFLOW, type BareInput } from './bare-protocol.js';
import { AGENT, inputOf } from './project.js';
import { QUEUES, type SideName, type World } from './world.js';

/** One run from the request to the moment in which its caller knows that it is completed. */
export interface TimedRun {
  /** Also its workflow id. */
  readonly runId: string;
  readonly ms: number;
}

/** One of the two things that are compared. */
export interface Side {
  readonly name: SideName;
  /** Performs one run. @throws Error when it ends otherwise than completed, or not within two minutes */
  run(toolCalls: number): Promise<TimedRun>;
  /** Tool calls of all runs that completed so far. */
  calls(): number;
  close(): Promise<void>;
}

const RUN_MS_MAX = 120_000;

/** A run as clients get one: admitted into the ledger, started by the starter in the worker. */
export async function holdfastSide(world: World): Promise<Side> {
  const begun = await firstCommits(world.databaseUrl);
  let calls = 0;
  return {
    name: 'holdfast',
    calls: () => calls,
    async run(toolCalls) {
      const from = performance.now();
      const admitted = await admitRun(world.ledger, {
        tenantId: 'bench',
        actorId: 'bench',
        endpoint: 'POST /v1/runs',
        idempotencyKey: randomUUID(),
        agent: AGENT,
        input: inputOf(toolCalls),
        contract: CONTRACT,
        taskQueue: QUEUES.holdfast,
      });
      if (admitted.kind !== 'admitted') throw new Error(`the run was not admitted: ${admitted.kind}`);
      const { runId } = admitted;
      // Its workflow exists from its first commit on; from there on the wait is the same as the other side's.
      await begun.of(runId);
      await untilCompleted(world, runId);
      calls += toolCalls;
      return { runId, ms: performance.now() - from };
    },
    close: () => begun.close(),
  };
}

const CONTRACT = RunContract.parse({
  objective: 'Every change of the list is applied.',
  acceptance: { rule: 'Each change stands once at the target.', accepted_by: 'bench' },
  owner: 'bench',
});

/** The same loop as a plain workflow. */
export function bareSide(world: World): Side {
  let calls = 0;
  return {
    name: 'bare',
    calls: () => calls,
    async run(toolCalls) {
      const from = performance.now();
      const runId = `bare_${randomUUID()}`;
      const input: BareInput = { runId, input: inputOf(toolCalls) };
      await world.client.workflow.start(BARE_WORKFLOW, {
        workflowId: runId,
        taskQueue: QUEUES.bare,
        args: [input],
      });
      await untilCompleted(world, runId);
      calls += toolCalls;
      return { runId, ms: performance.now() - from };
    },
    close: () => Promise.resolve(),
  };
}

/** @throws Error unless each call of each run reached the target exactly once: a run that skips its work is quick */
export async function checkWork({ targetUrl }: World, sides: readonly Side[]): Promise<void> {
  const expected = sides.reduce((all, side) => all + side.calls(), 0);
  const response = await fetch(targetUrl, { signal: AbortSignal.timeout(5_000) });
  const { effects, requests } = (await response.json()) as { effects: number; requests: number };
  if (effects === expected && requests === expected) return;
  throw new Error(
    `the runs made ${expected} calls; the target got ${requests} and applied ${effects} effects`,
  );
}

async function untilCompleted({ client }: World, runId: string): Promise<void> {
  const result: unknown = await within(client.workflow.getHandle(runId).result(), `the end of ${runId}`);
  const { state } = result as { state: string };
  if (state !== 'completed') throw new Error(`${runId} ended as ${state}`);
}

/** Hears the ledger's notifications, as an API process does, and tells when a run has made its first commit. */
async function firstCommits(databaseUrl: string) {
  const heard = new Set<string>();
  const waiting = new Map<string, () => void>();
  const listener = new pg.Client({
    connectionString: databaseUrl,
    application_name: 'holdfast-bench-listen',
  });
  listener.on('notification', ({ payload = '' }) => {
    heard.add(payload);
    waiting.get(payload)?.();
    waiting.delete(payload);
  });
  listener.on('error', () => undefined);
  await listener.connect();
  await listener.query('listen holdfast_events');
  return {
    of(runId: string): Promise<void> {
      if (heard.has(runId)) return Promise.resolve();
      return within(new Promise<void>((resolve) => waiting.set(runId, resolve)), `the start of ${runId}`);
    },
    async close(): Promise<void> {
      await Promise.all([once(listener, 'end'), listener.end()]);
    },
  };
}

/** @throws Error when `what` has not come within two minutes: a benchmark that hangs says nothing */
async function within<T>(promise: Promise<T>, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`waited ${RUN_MS_MAX / 1000} s in vain for ${what}`)),
      RUN_MS_MAX,
    );
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
