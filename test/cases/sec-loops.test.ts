import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { judge } from '../support/judge.js';
import { arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { call, reply, script, when } from '../support/scripts.js';
import { startWorld, until, type World } from '../support/world.js';

// FAULTS S13: a model that never stops is stopped, whatever it does all the time, by the limit that it meets first; what it
// used is counted once over restarts of the worker and fresh histories.

const FOR_EVER = 40;
const never = (step: (n: number) => Readonly<Record<string, unknown>>) =>
  Array.from({ length: FOR_EVER }, (_, n) => step(n));
const usage = { inputTokens: 1_000, outputTokens: 500 };

/** What the model does for ever, what stops it, and how often the model and the target are asked at most. */
interface Loop {
  readonly step: (n: number) => Readonly<Record<string, unknown>>;
  readonly contract: Readonly<Record<string, unknown>>;
  readonly stoppedBy: string;
  readonly requests: number | null;
  readonly arrivals: number | null;
}

const paying = (n: number) => reply(call('pay', { note: `${n} {{input}}` }));
// prettier-ignore
const LOOPS: Readonly<Record<string, Loop>> = {
  steps:     { step: paying, contract: { limits: { steps_max: 9 } }, stoppedBy: 'limit_steps', requests: 9, arrivals: 9 },
  // Calls past the limit are refused to the model; one that asks on is stopped by its steps.
  calls:     { step: paying, contract: { limits: { steps_max: 9, tool_calls_max: 6 } }, stoppedBy: 'limit_steps', requests: 9, arrivals: 6 },
  reads:     { step: () => reply('look'), contract: { limits: { steps_max: 9 } }, stoppedBy: 'limit_steps', requests: 9, arrivals: 9 },
  // No call of it ever reaches a tool.
  nonsense:  { step: () => reply('no_such_tool'), contract: { limits: { steps_max: 9 } }, stoppedBy: 'limit_steps', requests: 9, arrivals: 0 },
  tokens:    { step: (n) => ({ ...paying(n), usage }), contract: { budget: { tokens: 20_000 } }, stoppedBy: 'limit_tokens', requests: null, arrivals: null },
  amounts:   { step: paying, contract: { budget: { effects: [{ tool: 'pay', count: 6 }] } }, stoppedBy: 'limit_effects', requests: 7, arrivals: 6 },
  time:      { step: (n) => ({ ...paying(n), delayMs: 300 }), contract: { limits: { wall_clock_seconds: 5 } }, stoppedBy: 'limit_wall_clock', requests: null, arrivals: null },
};

test('a model that calls tools for ever is stopped by each limit, over restarts and fresh histories (S13)', async () => {
  const world = await startWorld({
    workers: 0,
    historyEventsMax: 50,
    script: script(...Object.entries(LOOPS).map(([word, { step }]) => when(word, ...never(step)))),
  });
  const worker = await world.startWorker();
  const runs = await Promise.all(
    Object.entries(LOOPS).map(async ([word, loop]) => ({
      ...{ word, ...loop },
      runId: await world.admit({ input: `${word} ${randomUUID()}`, contract: loop.contract }),
    })),
  );
  await world.starter.round();
  await until('each has got some way', async () => {
    const rows = await Promise.all(runs.map(({ runId }) => world.runRow(runId)));
    return rows.every(({ step, ended_at }) => step >= 4 || ended_at !== null);
  });
  await worker.stop();
  await world.startWorker();
  for (const { runId, stoppedBy, requests, arrivals } of runs) {
    expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'failed', reason: stoppedBy });
    const seen = Object.values(arrived(world, runId));
    // A worker that is stopped in the middle lets what it began end, so nothing is asked again.
    if (requests !== null) expect(modelRequests(world, runId).length).toBe(requests);
    if (arrivals !== null) expect(seen).toEqual(Array(arrivals).fill(1));
    expect(seen.length).toBeLessThan(FOR_EVER);
    await checkRun(world, runId);
  }
  const longest = runs.find(({ word }) => word === 'tokens');
  expect(await executionsOf(world, longest?.runId ?? '')).toBeGreaterThan(1);
  expect(await judge(world, world.targetLog())).toEqual([]);
}, 60_000);

async function executionsOf(world: World, runId: string): Promise<number> {
  return (await world.rows('select 1 from holdfast.run_executions where run_id = $1', runId)).length;
}
