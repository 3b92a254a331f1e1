import { beforeAll, expect, test } from 'vitest';
import { checkRun, modelRequests } from './support/run-checks.js';
import { DONE, script, when } from './support/scripts.js';
import { startWorld, until, type World } from './support/world.js';

// Goal: a deploy, however often it comes, is nobody's failure. Method: workers are stopped in an orderly way, sooner than
// what they do can end, and others take over.

let world: World;

beforeAll(async () => {
  world = await startWorld({
    workers: 0,
    script: script(when('slow', { attempts: [{ delayMs: 40_000, text: 'Never heard.' }, DONE] })),
  });
});

test('a model call that outlives its worker is made again, and counts as no attempt', async () => {
  const worker = await world.startWorker();
  const runId = await world.run({ input: 'slow', contract: { retry: { attempts_max: 1 } } });
  await until('the model was asked', () => modelRequests(world, runId).length === 1);
  await worker.stop();
  await world.startWorker();
  await world.waitFor(runId, 'ended');
  expect(await world.runRow(runId)).toMatchObject({ state: 'completed', model_attempts: 2 });
  expect(await world.path(runId)).toEqual(['admitted', 'running', 'completed']);
  expect(
    await world.rows('select outcome from holdfast.model_attempts where run_id = $1 order by attempt', runId),
  ).toEqual([{ outcome: 'lost' }, { outcome: 'answered' }]);
  await checkRun(world, runId);
});
