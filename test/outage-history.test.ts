import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { judge } from './support/judge.js';
import { type OwnTemporal, startOwnTemporal } from './support/own-stack.js';
import { arrived, checkRun } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld } from './support/world.js';

// Goal: Temporal ends a workflow whose history is too long without running any of its code. A run continues as new
// before that; and one that is ended all the same is shown as ended within a minute. Method: a server of our own that
// allows 120 events, which about ten steps make.

const STEPS = 25;
const LONG = script(when('long', ...Array.from({ length: STEPS }, () => reply('look')), DONE));

let temporal: OwnTemporal;
beforeAll(async () => {
  temporal = await startOwnTemporal({ dynamicConfig: { 'limit.historyCount.error': '120' } });
}, 60_000);

test.concurrent(
  'a run that is longer than a history may be continues as new before the limit, and repeats nothing',
  async () => {
    const world = await startWorld({ temporal: temporal.way, historyEventsMax: 60, script: LONG });
    const runId = await world.run({ input: `long ${randomUUID()}` });
    const { epoch, model_calls } = await world.waitFor(runId, 'completed', 60_000);
    expect(epoch).toBeGreaterThan(2);
    expect(model_calls).toBe(STEPS + 1);
    const keys = Array.from({ length: STEPS }, (_, index) => keyOf(runId, { step: index + 1 }));
    expect(arrived(world, runId)).toEqual(Object.fromEntries(keys.map((key) => [key, 1])));
    await checkRun(world, runId);
    expect(await judge(world, world.targetLog())).toEqual([]);
  },
  90_000,
);

test.concurrent(
  'a run whose workflow is ended by the limit is shown as failed within a minute, with the reason (D06)',
  async () => {
    // The worker process continues as new only far beyond this server's limit.
    const world = await startWorld({ temporal: temporal.way, workers: 0, script: LONG });
    await world.startWorkerProcess().ready;
    const runId = await world.admit({ input: `long ${randomUUID()}` });
    const { state, reason, step } = await world.waitFor(runId, 'ended', 60_000);
    expect({ state, reason }).toEqual({ state: 'failed', reason: 'workflow_terminated' });
    expect(step).toBeLessThan(STEPS);
    expect((await world.client.workflow.getHandle(runId).describe()).status.name).toBe('TERMINATED');
    await checkRun(world, runId);
    expect(await judge(world, world.targetLog())).toEqual([]);
  },
  90_000,
);
