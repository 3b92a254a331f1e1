import { beforeAll, expect, test } from 'vitest';
import { decide, tell, untilGated } from './support/desk-world.js';
import { answer, asks, inputs, untilAsked } from './support/input-world.js';
import { arrived, checkRun, modelRequests } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { type SkippingWorld, startSkippingWorld } from './support/skipping-world.js';
import { keyOf, type World } from './support/world.js';

// Goal: a question may wait for months, holds nothing meanwhile, and ends when its own time is over, once (SPEC 4).
// Method: time is skipped, on Temporal's side and the ledger's.

const DAY = 86_400;
/** Seconds until the expiry of `ask_<seconds>`. */
const SPANS = [1, 5, 600, 40 * DAY] as const;

/** What the worker's environment holds at the moment. */
const env = { MAIL_TOKEN: 'first-token' };

let skipping: SkippingWorld;
let world: World;
beforeAll(async () => {
  skipping = await startSkippingWorld({
    limits: { wallClockSecondsMax: 90 * DAY },
    env,
    httpTools: { mail: { headers: { Authorization: 'Bearer ${secret:MAIL_TOKEN}' } } },
    questions: {
      ask_90: asks({ expiresSeconds: 90 * DAY }),
      ...Object.fromEntries(SPANS.map((seconds) => [`ask_${seconds}`, asks({ expiresSeconds: seconds })])),
    },
    script: script(
      when('quarter', reply(call('ask_90', { text: 'Which order?' })), DONE),
      when('gated', reply('mail'), DONE),
      when('empty', { attempts: [{ error: { reason: 'billing' } }, DONE] }),
      ...SPANS.map((seconds) => when(`s${seconds}`, reply(call(`ask_${seconds}`, { text: 'Well?' })), DONE)),
    ),
  });
  world = skipping.world;
});

const CONTRACT = { limits: { wall_clock_seconds: 90 * DAY } };

test('a question waits 89 days, past every idle and stall limit, and its answer is taken (case 24)', async () => {
  const runId = await world.run({ input: 'quarter', contract: CONTRACT });
  const [wait] = await untilAsked(world, runId);
  await skipping.skip(89 * DAY);
  await world.sweeper.round();
  expect(await world.runRow(runId)).toMatchObject({ state: 'waiting_for_input', epoch: 1 });
  const { historyLength } = await world.client.workflow.getHandle(runId).describe();
  expect(historyLength).toBeLessThan(40);
  expect(await answer(world, wait, { order: 'ORD-7' })).toBe('decided');
  await world.waitFor(runId, 'completed');
  expect(modelRequests(world, runId)).toHaveLength(2);
  await checkRun(world, runId);
});

test('an approval waits 80 days, past every idle and stall limit, and its yes is used with the credential of that day (case 24, H07)', async () => {
  const contract = {
    ...CONTRACT,
    effects: { mail: { approval: 'required' } },
    timeouts: { approval_seconds: 89 * DAY },
  };
  const runId = await world.run({ input: 'gated', contract });
  const [wait] = await untilGated(world, runId);
  await skipping.skip(80 * DAY);
  await world.sweeper.round();
  await world.sweeper.nudgeUndecided();
  expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval', epoch: 1 });
  expect(arrived(world, runId)).toEqual({});
  env.MAIL_TOKEN = 'second-token';
  expect(await decide(world, wait)).toBe('decided');
  await world.waitFor(runId, 'completed');
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  // The credential is that of the day it is used on, and neither was ever kept.
  expect(world.targetLog(runId)[0]).toMatchObject({ authorization: 'Bearer second-token' });
  const kept = await world.rows<{ row: string }>(
    `select e::text as row from holdfast.effects e where run_id = $1 union all
     select v::text from holdfast.run_events v where run_id = $1 union all
     select i::text from holdfast.interrupts i where run_id = $1`,
    runId,
  );
  expect(kept.length).toBeGreaterThan(5);
  expect(kept.filter(({ row }) => row.includes('-token'))).toEqual([]);
  await checkRun(world, runId);
});

test('a model call that stopped over an empty account is made again 60 days later, with a series of its own', async () => {
  const contract = { ...CONTRACT, timeouts: { input_seconds: 80 * DAY } };
  const runId = await world.run({ input: 'empty', contract });
  const [wait] = await untilAsked(world, runId);
  await skipping.skip(60 * DAY);
  expect(await world.runRow(runId)).toMatchObject({ state: 'waiting_for_input', model_attempts: 1 });
  expect(await answer(world, wait, { action: 'try_again' })).toBe('decided');
  await world.waitFor(runId, 'completed');
  await checkRun(world, runId);
});

test.each(SPANS)(
  'a wait of %s seconds ends once, when its time is over and not before (case 85)',
  async (seconds) => {
    const runId = await world.run({ input: `s${seconds}`, contract: CONTRACT });
    if (seconds > 5) {
      await untilAsked(world, runId);
      await skipping.skip(seconds * 0.9);
      await tell(world, runId);
      expect(await world.runRow(runId)).toMatchObject({ state: 'waiting_for_input' });
    }
    await skipping.skipToEnd(runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
    expect(await inputs(world, runId)).toMatchObject([{ state: 'expired' }]);
    expect((await world.path(runId)).filter((state) => state === 'waiting_for_input')).toHaveLength(1);
    await checkRun(world, runId);
  },
);
