import { beforeAll, describe, expect, test } from 'vitest';
import { FAULT_POINTS } from '../../activities/fault-points.js';
import type { Fault } from '../support/fault-plan.js';
import { checkRun, modelRequests } from '../support/run-checks.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { keyOf, startWorld, type World } from '../support/world.js';

// Cases from the field of kind HIST: after any interruption the next request is valid for every provider. `checkRun` looks
// at every request that the model got.

const STEPS = 3;
const looks = Array.from({ length: STEPS }, () => reply(call('look'), call('look')));

/** The results of each step, as the last request held them. */
function resultsOf(world: World, runId: string) {
  return (modelRequests(world, runId).at(-1)?.messages ?? []).flatMap((message) =>
    message.role === 'tool' ? [message.results] : [],
  );
}

describe('case 40: a call that stopped without an answer', () => {
  let world: World;
  beforeAll(async () => {
    world = await startWorld({ script: script(when('both', reply('look', 'mail'), DONE)) });
  });

  test.each([
    ['none of its neighbours has one either', 'drop_before', [true, true]],
    ['its neighbour has one', null, [false, true]],
  ] as const)('has a result that says so, where %s', async (_, mode, isError) => {
    const contract = {
      effects: { mail: { approval: 'required' } },
      timeouts: { approval_seconds: 1 },
      retry: { attempts_max: 1 },
    };
    const runId = await world.admit({ input: 'both', contract });
    if (mode !== null) world.target.dial({ mode, key: keyOf(runId) });
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    expect(resultsOf(world, runId).map((results) => results.map((result) => result.isError))).toEqual([
      isError,
    ]);
    await checkRun(world, runId);
  });
});

describe('case 41: a run that is cut off', () => {
  test('anywhere, again and again, goes on with whole histories', async () => {
    const world = await startWorld({ script: script(when('looks', ...looks, DONE)) });
    const points = FAULT_POINTS.filter((point) => /^(act|think)\./.test(point));
    const runIds = await Promise.all(points.map(() => world.admit({ input: 'looks' })));
    // Each run is cut off in every step, at a place of its own.
    for (const [n, runId] of runIds.entries()) {
      for (let hit = 1; hit <= STEPS; hit += 1) {
        world.faults.add({ runId, point: points[n] ?? 'act.after_call', mode: 'throw', hit });
      }
    }
    await world.starter.round();
    for (const runId of runIds) {
      await world.waitFor(runId, 'completed', 60_000);
      expect(resultsOf(world, runId)).toHaveLength(STEPS);
      expect(
        resultsOf(world, runId)
          .flat()
          .every((result) => !result.isError),
      ).toBe(true);
      await checkRun(world, runId);
    }
    expect(world.faults.reached()).toHaveLength(points.length * STEPS);
  }, 90_000);

  test('by the death of its worker, goes on with whole histories on the next one', async () => {
    const world = await startWorld({
      ...{ workers: 0, heartbeatSeconds: 1 },
      script: script(when('looks', ...looks, DONE)),
    });
    const runIds = await Promise.all(Array.from({ length: 6 }, () => world.admit({ input: 'looks' })));
    // Every kill meets all six runs, each somewhere else.
    const kills: readonly Fault[] = [
      { point: 'act.after_call', mode: 'kill', hit: 4 },
      { point: 'think.after_answer', mode: 'kill', hit: 5 },
    ];
    for (const kill of kills) {
      const worker = world.startWorkerProcess({ faults: [kill] });
      expect(await worker.ended).toMatchObject({ signal: 'SIGKILL' });
    }
    world.startWorkerProcess();
    for (const runId of runIds) {
      await world.waitFor(runId, 'completed', 60_000);
      expect(resultsOf(world, runId)).toHaveLength(STEPS);
      await checkRun(world, runId);
    }
  }, 120_000);
});
