import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { judge } from './support/judge.js';
import { applied, checkRun } from './support/run-checks.js';
import { call, reply, script, when } from './support/scripts.js';
import { UNDO_TOOLS, undosOf } from './support/undo.js';
import { startWorld, until, type World } from './support/world.js';

// Goal: an undo of many effects goes on over several executions, and loses and repeats nothing (D10, D12). Method: a run
// whose history may hold little does ten things, fails, and undoes them.

const CALLS = 10;
let world: World;

beforeAll(async () => {
  const pay = (n: number) => reply(call('pay', { note: `{{input}} ${n}` }));
  world = await startWorld({
    historyEventsMax: 60,
    httpTools: UNDO_TOOLS,
    script: script(
      when('fails', ...Array.from({ length: CALLS }, (_, n) => pay(n)), { error: { reason: 'bad_request' } }),
    ),
  });
});

test('a run continues as new while it undoes, and each thing is undone once, backwards', async () => {
  const runId = await world.run({ input: `fails ${randomUUID()}`, contract: { on_failure: 'compensate' } });
  await world.waitFor(runId, 'compensating');
  const { epoch } = await world.runRow(runId);
  await world.waitFor(runId, 'compensated');
  await checkRun(world, runId);
  expect((await undosOf(world, runId)).map(({ of }) => of)).toEqual(
    Array.from({ length: CALLS }, (_, n) => `${runId}:t1:s${CALLS - n}:c0`),
  );
  expect(Object.values(applied(world, runId))).toEqual(Array(2 * CALLS).fill(1));
  expect((await world.runRow(runId)).epoch).toBeGreaterThan(epoch);
  const { events } = await world.client.workflow.getHandle(runId).fetchHistory();
  expect(events?.length).toBeLessThan(120);
  await until('the last execution is over', async () => {
    const { status } = await world.client.workflow.getHandle(runId).describe();
    return status.name === 'COMPLETED';
  });
  expect(await judge(world, world.targetLog())).toEqual([]);
});
