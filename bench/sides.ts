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
  close(): Promise<void>;
}

const RUN_MS_MAX = 120_000;

/** A run as clients get one: admitted into the ledger, started by the starter in the worker. */
export async function holdfastSide(world: World): Promise<Side> {
  const begun = await firstCommits(world.databaseUrl);
  return {
    name: 'holdfast',
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
  return {
    name: 'bare',
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
      return { runId, ms: performance.now() - from };
    },
    close: () => Promise.resolve(),
  };
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
