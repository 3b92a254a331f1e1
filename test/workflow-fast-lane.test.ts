import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { command, fates } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: steps declared short cost no round trip through Temporal, and people are heard between them all the same (the
// fast lane, docs/decisions/0007). Method: runs of short steps; what Temporal kept of them is read, and a pause and a
// cancel meet one while its call is at the target. What kills and freezes do to them stands in seam-*-fast.test.ts.

let world: World;

beforeAll(async () => {
  world = await startWorld({
    lane: 'fast',
    historyEventsMax: 50,
    httpTools: { patient: { description: 'Waits.', class: 'read', url: '/read', short: false } },
    script: script(
      when('chain', reply('pay'), reply('mail'), DONE),
      when('mixed', reply('pay'), reply('patient'), DONE),
      when('long', ...Array.from({ length: 60 }, () => reply('look')), DONE),
    ),
  });
});

async function completed(runId: string): Promise<void> {
  await world.waitFor(runId, 'completed');
  await world.client.workflow.getHandle(runId).result();
  await checkRun(world, runId);
}

/** The activities that Temporal scheduled, and how many workflow tasks it took. */
async function keptByTemporal(runId: string): Promise<{ activities: string[]; tasks: number }> {
  const { events } = await world.client.workflow.getHandle(runId).fetchHistory();
  return {
    activities: (events ?? []).flatMap(
      ({ activityTaskScheduledEventAttributes: scheduled }) => scheduled?.activityType?.name ?? [],
    ),
    tasks: (events ?? []).filter((event) => event.workflowTaskCompletedEventAttributes).length,
  };
}

/** A run whose first payment is at the target, and its answer held back. */
async function withCallInFlight(): Promise<string> {
  const runId = await world.admit({ input: `chain ${randomUUID()}` });
  world.target.dial({ mode: 'hold_after', key: keyOf(runId), times: 1 });
  await world.starter.round();
  await until('the target has the call', () => keyOf(runId) in arrived(world, runId));
  return runId;
}

describe('a run of short steps', () => {
  test('schedules no activity and needs one workflow task', async () => {
    const runId = await world.run({ input: `chain ${randomUUID()}` });
    await completed(runId);
    expect(await keptByTemporal(runId)).toEqual({ activities: [], tasks: 1 });
    expect(modelRequests(world, runId)).toHaveLength(3);
  });

  test('takes the normal lane for the one call that is not short', async () => {
    const runId = await world.run({ input: `mixed ${randomUUID()}` });
    await completed(runId);
    expect((await keptByTemporal(runId)).activities).toEqual(['act']);
  });

  test('of any length ends, and each step happened once', async () => {
    const runId = await world.run({ input: `long ${randomUUID()}` });
    await completed(runId);
    expect(Object.values(arrived(world, runId))).toEqual(Array.from({ length: 60 }, () => 1));
  });

  test('is paused before its next step, although signals wait for the end of the workflow task', async () => {
    const runId = await withCallInFlight();
    expect(await command(world, runId, 'pause')).toBe('accepted');
    world.target.release();
    await world.waitFor(runId, ({ control }) => control === 'paused');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(await command(world, runId, 'resume')).toBe('accepted');
    await completed(runId);
    expect(await fates(world, runId)).toEqual(['pause applied', 'resume applied']);
  });

  test('is cancelled before its next step, and what had happened stays told', async () => {
    const runId = await withCallInFlight();
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    world.target.release();
    await world.waitFor(runId, 'cancelled');
    expect(await world.effects(runId)).toMatchObject([{ state: 'succeeded', attempts: 1 }]);
    expect(modelRequests(world, runId)).toHaveLength(1);
  });
});

test('the ledger says what the target saw', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
});
