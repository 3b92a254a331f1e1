import { expect, test } from 'vitest';
import { z } from 'zod';
import { defineTool } from '../activities/tools/define-tool.js';
import { appendProgress } from '../shared/ledger/effects.js';
import { callOf } from './support/ledger-run.js';
import { openLedger } from './support/ledger-world.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { startWorld, until } from './support/world.js';

// Goal: who watches a run hears how far a call is (SPEC 6: custom progress), and it decides nothing.

test('what a tool says of its call is in the feed while it works: the first word, the newest, and none after its outcome', async () => {
  let end = (): void => undefined;
  const ended = new Promise<void>((resolve) => (end = resolve));
  const slow = defineTool({
    ...{ name: 'slow', description: 'Takes its time.', input: z.object({}), effect: { class: 'read' } },
    run: async (_, { progress }) => {
      for (let done = 1; done <= 500; done += 1)
        progress({ message: `row ${done}\0\ud800`, done, total: 500 });
      await ended;
      progress({ message: 'too late to be told' });
      return 'ok';
    },
  });
  const world = await startWorld({ tools: [slow], script: script(when('go', reply('slow'), DONE)) });
  const runId = await world.run({ input: 'go' });
  const told = async () =>
    (await world.events(runId)).flatMap(({ type, data }) => (type === 'effect.progress' ? [data] : []));
  await until('the newest word is told', async () => (await told()).length === 2);
  const [effect] = await world.effects(runId);
  expect(await told()).toMatchObject([
    {
      effect_id: effect!.effect_id,
      tool: 'slow',
      attempt: 1,
      message: 'row 1\ufffd\ufffd',
      done: 1,
      total: 500,
    },
    {
      effect_id: effect!.effect_id,
      tool: 'slow',
      attempt: 1,
      message: 'row 500\ufffd\ufffd',
      done: 500,
      total: 500,
    },
  ]);
  end();
  await world.waitFor(runId, 'completed');
  const types = (await world.events(runId)).map(({ type }) => type);
  expect(types.lastIndexOf('effect.progress')).toBeLessThan(types.indexOf('effect.settled'));
});

test('of a call that another attempt holds, or that is settled, nothing is heard', async () => {
  const ledger = await openLedger();
  const run = await ledger.newStep([callOf('keyed')]);
  const claim = await run.call(0).claimed();
  const say = (changes: { fencingToken?: number; execution?: string } = {}) =>
    appendProgress(
      ledger.db,
      { runId: run.runId, execution: changes.execution ?? run.execution },
      { effectId: claim.effectId, fencingToken: changes.fencingToken ?? claim.fencingToken },
      { message: 'at work', done: null, total: null },
    );
  expect(await say()).toBe(true);
  expect(await say({ fencingToken: claim.fencingToken + 1 })).toBe(false);
  expect(await say({ execution: 'another' })).toBe(false);
  await run.call(0).settle(claim, 'succeeded');
  expect(await say()).toBe(false);
  const events = await ledger.events(run.runId);
  expect(events.filter(({ type }) => type === 'effect.progress')).toHaveLength(1);
});
