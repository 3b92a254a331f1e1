import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { judge } from './support/judge.js';
import { eachTool, type OwnApi, startOwnApi } from './support/own-stack.js';
import type { TestProcess } from './support/processes.js';
import { arrived, checkRun } from './support/run-checks.js';
import { temporalAddress } from './support/servers.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: Postgres may end any session at any moment, idle or at work, and nothing is lost, doubled or given up, and no
// process ends. Method: a worker and an API as production runs them, and pg_terminate_backend on all they have.

const STORM_MS = 15_000;
const STRIKE_EVERY_MS = 150;

let world: World;
let api: OwnApi;
let worker: TestProcess;
beforeAll(async () => {
  world = await startWorld({ workers: 0, script: eachTool() });
  worker = world.startWorkerProcess();
  api = await startOwnApi(world, temporalAddress());
  await worker.ready;
});

test('an idle session that is ended ends no process: the next request and the next run go through (C02)', async () => {
  await until('both listen', async () => (await sessions('query like $1', 'listen %')) === 2);
  await until('nobody is at work', async () => (await sessions(`state <> 'idle'`)) === 0);
  expect(await strike()).toBeGreaterThanOrEqual(2);
  expect((await fetch(`${api.url}/v1/runs`)).status).toBe(200);
  const runId = await api.admit(`pay ${randomUUID()}`);
  await world.waitFor(runId, 'completed');
  await until('both listen again', async () => (await sessions('query like $1', 'listen %')) === 2);
});

test('every session ended again and again for 15 s while ten runs work: no row or effect lost or doubled (C01)', async () => {
  let struck = 0;
  let isOver = false;
  const storm = (async () => {
    while (!isOver) {
      struck += await strike();
      await new Promise((resolve) => setTimeout(resolve, STRIKE_EVERY_MS));
    }
  })();
  const began = performance.now();
  const runs: string[] = [];
  // One after the other, so that there is work to be struck until the end.
  while (performance.now() - began < STORM_MS || runs.length < 10) {
    runs.push(...(await Promise.all([0, 1].map(() => api.admit(`each ${randomUUID()}`)))));
    await until('some work is done', async () => {
      const { ended_at } = await world.runRow(runs.at(-3) ?? runs[0] ?? '');
      return ended_at !== null || performance.now() - began > STORM_MS;
    });
  }
  isOver = true;
  await storm;
  expect(struck).toBeGreaterThan(30);
  for (const runId of runs) {
    await world.waitFor(runId, 'completed');
    expect(arrived(world, runId)).toEqual(
      Object.fromEntries([1, 2, 3, 4].map((step) => [keyOf(runId, { step }), 1])),
    );
    expect((await world.runRow(runId)).model_calls).toBe(5);
    await checkRun(world, runId);
  }
  expect(await world.rows('select run_id from holdfast.runs')).toHaveLength(runs.length + 1);
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect((await fetch(`${api.url}/readyz`)).status).toBe(200);
  const alive = await Promise.race([worker.ended, api.process.ended, Promise.resolve('both')]);
  expect(alive).toBe('both');
}, 90_000);

/** Ends every session of the worker and the API. @returns how many there were */
async function strike(): Promise<number> {
  const rows = await world.rows(
    `select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and application_name like 'holdfast-%'`,
  );
  return rows.length;
}

async function sessions(condition: string, ...values: readonly string[]): Promise<number> {
  const rows = await world.rows(
    `select from pg_stat_activity
      where datname = current_database() and application_name like 'holdfast-%' and ${condition}`,
    ...values,
  );
  return rows.length;
}
