import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { judge } from './support/judge.js';
import type { TestProcess } from './support/processes.js';
import { checkRun } from './support/run-checks.js';
import { startWorld, until } from './support/world.js';

// Goal: workers may come and go at any moment, many at once. Method: four real ones that start together over runs that
// wait already, of which two are ended every few seconds, one in order and one by kill -9, and replaced.

const WORKERS = 4;
const ROUNDS = 2;
const RUNS = 8;

test('of four workers that start at once two are ended again and again: every run completes, every effect once', async () => {
  const world = await startWorld({ workers: 0 });
  // Slow enough that an end meets effects at their targets.
  world.target.dial({ mode: 'late', delayMs: 150 });
  const runs: string[] = [];
  const admit = async (): Promise<void> => {
    for (let n = 0; n < RUNS; n += 1) {
      const tool = ['pay', 'book', 'look'][n % 3];
      runs.push(await world.admit({ input: `${tool} ${randomUUID()}` }));
    }
  };
  await admit();
  const workers: TestProcess[] = Array.from({ length: WORKERS }, () => world.startWorkerProcess());
  await Promise.all(workers.map(({ ready }) => ready));
  for (let round = 0; round < ROUNDS; round += 1) {
    await admit();
    await until('some of them are at work', async () => (await world.runRow(runs.at(-1) ?? '')).step > 0);
    const [first, second] = [takeAny(workers), takeAny(workers)];
    await Promise.all([first.signal('SIGTERM'), second.signal('SIGKILL')]);
    expect(await first.ended).toEqual({ code: 0, signal: null });
    workers.push(world.startWorkerProcess(), world.startWorkerProcess());
    await Promise.all(workers.map(({ ready }) => ready));
  }
  for (const runId of runs) {
    await world.waitFor(runId, 'completed', 60_000);
    await checkRun(world, runId);
  }
  expect(await world.rows('select from holdfast.runs where start_confirmed_at is null')).toEqual([]);
  expect(await judge(world, world.targetLog())).toEqual([]);
}, 120_000);

function takeAny(workers: TestProcess[]): TestProcess {
  const [taken] = workers.splice(Math.floor(Math.random() * workers.length), 1);
  if (taken === undefined) throw new Error('bug: no worker is left');
  return taken;
}
