import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import type { JsonObject } from '../shared/domain/json.js';
import { brokenControl, tell, toldResults, untilGated, type Wait, waits } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { arrived, checkRun } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { startTestApi } from './support/test-api.js';
import { keyOf, startWorld, type World } from './support/world.js';

// Goal: a call that a person changed on the way is what the target gets, what the ledger holds and what the model is
// told, across restarts (case 27). Method: a scripted model, a real target, edits through the API.

const GATED = { mail: { approval: 'required' } } as const;

async function edit(world: World, wait: Wait | undefined, args: JsonObject): Promise<number> {
  if (wait === undefined) throw new Error('nobody is waited for');
  const api = await startTestApi({ databaseUrl: world.databaseUrl });
  const response = await api.request(`/v1/interrupts/${wait.interrupt_id}/resolve`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-actor': 'ben', 'idempotency-key': randomUUID() },
    body: JSON.stringify({ decision: 'approve', scope_sha256: wait.scope_sha256, arguments: args }),
  });
  await api.close();
  await tell(world, wait.run_id);
  return response.status;
}

test('changed arguments reach the target once, and the model hears what really ran', async () => {
  const world = await startWorld({
    script: script(
      when('two', reply(call('mail', { note: 'one' }), call('mail', { note: 'two {{input}}' })), DONE),
    ),
    workers: 0,
  });
  const first = await world.startWorker();
  const runId = await world.run({ input: 'two', contract: { effects: GATED } });
  const open = await untilGated(world, runId, 2);
  expect(await edit(world, open[0], { note: 'three' })).toBe(200);
  expect(await edit(world, open[0], { note: 'four' })).toBe(409);
  // Tool and arguments are two things: no edit puts another tool in the place of the one that was asked about.
  expect(await edit(world, open[1], { note: 5 })).toBe(422);
  expect(arrived(world, runId)).toEqual({});
  await first.stop();
  await world.startWorker();
  expect(await edit(world, open[1], { note: 'last' })).toBe(200);
  await world.waitFor(runId, 'completed');
  const [one, two] = [keyOf(runId, { slot: 0, redo: 1 }), keyOf(runId, { slot: 1, redo: 1 })];
  expect(arrived(world, runId)).toEqual({ [one]: 1, [two]: 1 });
  expect((await world.effects(runId)).map(({ state }) => state)).toEqual([
    ...['superseded', 'succeeded', 'superseded', 'succeeded'],
  ]);
  expect(toldResults(world, runId)).toEqual([
    expect.stringContaining('They are now: {"note":"three"}'),
    expect.stringContaining('They are now: {"note":"last"}'),
  ]);
  expect((await waits(world, runId)).map(({ state }) => state)).toEqual([
    ...['superseded', 'consumed', 'superseded', 'consumed'],
  ]);
  await checkRun(world, runId);
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});
