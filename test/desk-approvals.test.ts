import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { runsToNudge } from '../shared/ledger/commands.js';
import {
  brokenControl,
  command,
  decide,
  heard,
  resetRun,
  toldResults,
  untilGated,
  type Wait,
  waits,
} from './support/desk-world.js';
import { judge } from './support/judge.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: what needs a person's word waits for it without a worker, happens once after a yes and never without one, and
// the model hears which (SPEC 4.1). Method: scripted calls meet a gate; people decide by the ledger's own functions;
// workers are stopped and killed in between; ledger, target and the model's next request are compared.

const note = (n: number) => ({ note: `${n} {{input}}` });
const GATED = { mail: { approval: 'required' } } as const;

let world: World;

beforeAll(async () => {
  world = await startWorld({
    script: script(
      when('mail', reply('mail'), DONE),
      when('pay', reply('pay'), DONE),
      when('two', reply(call('mail', note(1)), call('mail', note(2))), DONE),
      when('kinds', reply(call('mail', note(1)), call('pay', note(2))), DONE),
      when('then', reply(call('pay', note(1)), call('mail', note(2))), DONE),
      when('read', reply(call('look', note(1)), call('mail', note(2))), DONE),
      when('again', reply(call('mail', note(1))), reply(call('mail', note(2))), DONE),
    ),
  });
});

async function gatedRun(
  word: string,
  count = 1,
  contract: Readonly<Record<string, unknown>> = {},
): Promise<{ readonly runId: string; readonly open: Wait[] }> {
  const runId = await world.run({
    input: `${word} ${randomUUID()}`,
    contract: { effects: GATED, ...contract },
  });
  return { runId, open: await untilGated(world, runId, count) };
}

async function completed(runId: string): Promise<void> {
  await world.waitFor(runId, 'completed');
  await checkRun(world, runId);
}

describe('a call that needs an approval', () => {
  test('waits without a worker, and another worker carries out the yes once', async () => {
    const own = await startWorld({ script: script(when('mail', reply('mail'), DONE)), workers: 0 });
    const first = await own.startWorker();
    const runId = await own.run({ input: 'mail', contract: { effects: GATED } });
    const [wait] = await untilGated(own, runId);
    expect(await own.effects(runId)).toMatchObject([{ state: 'intended', attempts: 0 }]);
    await first.stop();
    expect(await decide(own, wait)).toBe('decided');
    expect(await own.runRow(runId)).toMatchObject({ state: 'awaiting_approval' });
    expect(own.targetLog(runId)).toEqual([]);
    await own.startWorker();
    await own.waitFor(runId, 'completed');
    expect(arrived(own, runId)).toEqual({ [keyOf(runId)]: 1 });
    const [effect] = await own.effects(runId);
    expect(await waits(own, runId)).toMatchObject([{ state: 'consumed', consumed_by: effect?.effect_id }]);
    expect(await own.receipts(runId)).toMatchObject([{ status: 'succeeded', source: 'response' }]);
    expect(await own.path(runId)).toEqual([
      ...['admitted', 'running', 'awaiting_approval', 'running', 'completed'],
    ]);
    await checkRun(own, runId);
    expect(await judge(own, own.targetLog())).toEqual([]);
    expect(await brokenControl(own)).toEqual([]);
    await own.close();
  });

  test('that is refused is never made, and the model hears the refusal with its note', async () => {
    const { runId, open } = await gatedRun('mail');
    expect(await decide(world, open[0], { decision: 'deny', note: 'Not this week.' })).toBe('decided');
    await completed(runId);
    expect(arrived(world, runId)).toEqual({});
    expect(await world.effects(runId)).toMatchObject([{ state: 'denied', attempts: 0 }]);
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('Not this week.')]);
  });

  test('that nobody decides in time is denied as expired', async () => {
    const { runId, open } = await gatedRun('mail', 1, { timeouts: { approval_seconds: 1 } });
    await completed(runId);
    expect(await waits(world, runId)).toMatchObject([{ state: 'expired' }]);
    expect(arrived(world, runId)).toEqual({});
    expect(await world.effects(runId)).toMatchObject([{ state: 'denied' }]);
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('not given in time')]);
    expect(await decide(world, open[0])).toBe('interrupt_expired');
  });

  test('is asked about anew in a later step: one yes is for one call', async () => {
    const { runId, open } = await gatedRun('again');
    await decide(world, open[0]);
    await world.waitFor(runId, async () => (await waits(world, runId)).length === 2);
    const [second] = await untilGated(world, runId);
    expect(second?.scope_sha256).not.toBe(open[0]?.scope_sha256);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await decide(world, open[0])).toBe('interrupt_decided');
    await decide(world, second, { decision: 'deny' });
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  });

  test('beside one that needs none: that is made at once, and once (case 1)', async () => {
    const { runId, open } = await gatedRun('then');
    expect(applied(world, runId)).toEqual({ [keyOf(runId, { slot: 0 })]: 1 });
    await decide(world, open[0]);
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId, { slot: 0 })]: 1, [keyOf(runId, { slot: 1 })]: 1 });
  });

  test('beside a read, refused: both calls have their result (case 43)', async () => {
    const { runId, open } = await gatedRun('read');
    await decide(world, open[0], { decision: 'deny', note: 'No.' });
    await completed(runId);
    expect(toldResults(world, runId)).toEqual([
      expect.stringContaining('42'),
      expect.stringContaining('They said: No.'),
    ]);
    expect(applied(world, runId)).toEqual({});
  });
});

describe('two calls of one reply that both need an approval', () => {
  test('are shown at once; the run waits on after the first yes, across a restart (case 18)', async () => {
    const own = await startWorld({
      script: script(when('two', reply(call('mail', note(1)), call('mail', note(2))), DONE)),
      workers: 0,
    });
    const first = await own.startWorker();
    const runId = await own.run({ input: 'two', contract: { effects: GATED } });
    const open = await untilGated(own, runId, 2);
    expect(new Set(open.map(({ scope_sha256 }) => scope_sha256)).size).toBe(2);
    await decide(own, open[0]);
    await first.stop();
    expect(await own.runRow(runId)).toMatchObject({ state: 'awaiting_approval' });
    await own.startWorker();
    await decide(own, open[1]);
    await own.waitFor(runId, 'completed');
    expect(arrived(own, runId)).toEqual({ [keyOf(runId, { slot: 0 })]: 1, [keyOf(runId, { slot: 1 })]: 1 });
    expect((await own.path(runId)).filter((state) => state === 'awaiting_approval')).toHaveLength(1);
    expect(modelRequests(own, runId)).toHaveLength(2);
    await checkRun(own, runId);
    expect(await judge(own, own.targetLog())).toEqual([]);
    await own.close();
  });

  test('decided in the other order, a yes and a no: each result is that of its call (case 17)', async () => {
    const { runId, open } = await gatedRun('kinds', 2, {
      effects: { ...GATED, pay: { approval: 'required' } },
    });
    expect(open.map(({ tool }) => tool)).toEqual(['mail', 'pay']);
    await decide(world, open[1]);
    await tellAndRest(runId);
    expect(arrived(world, runId)).toEqual({});
    // Nothing is owed to a run that still waits for somebody: a week's wait stays one wait.
    expect(await runsToNudge(world.db, 100, 0)).not.toContain(runId);
    await decide(world, open[0], { decision: 'deny', note: 'No mail.' });
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId, { slot: 1 })]: 1 });
    expect(toldResults(world, runId)).toEqual([
      expect.stringContaining('No mail.'),
      expect.stringContaining('done'),
    ]);
  });

  test('keep their order where a reset meets the second one approved and the first one not', async () => {
    const { runId, open } = await gatedRun('two', 2);
    await decide(world, open[1]);
    const after = await resetRun(world, runId);
    await world.waitFor(runId, async ({ owner_execution, state }) => {
      const asked = (await world.path(runId)).filter((each) => each === 'awaiting_approval').length;
      return owner_execution === after && state === 'awaiting_approval' && asked === 2;
    });
    expect(arrived(world, runId)).toEqual({});
    await decide(world, open[0]);
    await completed(runId);
    expect(world.targetLog(runId).flatMap(({ key, kind }) => (kind === 'applied' ? [key] : []))).toEqual([
      keyOf(runId, { slot: 0 }),
      keyOf(runId, { slot: 1 }),
    ]);
  });
});

describe('an approval', () => {
  test('that is revoked before it is used lets nothing out, and is asked for again', async () => {
    const { runId, open } = await gatedRun('two', 2);
    expect(await decide(world, open[0])).toBe('decided');
    expect(await decide(world, open[0], { decision: 'revoke' })).toBe('decided');
    await decide(world, open[1]);
    await world.waitFor(runId, async () => (await waits(world, runId)).length === 3);
    const [anew] = await untilGated(world, runId);
    expect(anew).toMatchObject({ slot: 0 });
    expect(arrived(world, runId)).toEqual({});
    await decide(world, anew, { decision: 'deny' });
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId, { slot: 1 })]: 1 });
  });

  test('of the one who asked for the run counts for nothing', async () => {
    const { runId, open } = await gatedRun('mail');
    expect(await decide(world, open[0], { actorId: 'tester' })).toBe('self_approval');
    await tellAndRest(runId);
    expect(arrived(world, runId)).toEqual({});
    await command(world, runId, 'cancel');
    await world.waitFor(runId, 'cancelled');
  });
});

test('a worker that dies between the target and the receipt of an approved call repeats nothing (case 4)', async () => {
  const own = await startWorld({
    workers: 0,
    httpTools: { pay: { timeoutSeconds: 60 }, mail: { timeoutSeconds: 60 } },
    script: script(when('mail', reply('mail'), DONE), when('pay', reply('pay'), DONE)),
  });
  const contract = { effects: { ...GATED, pay: { approval: 'required' } } };
  const mail = await own.admit({ input: 'mail 1', contract });
  const pay = await own.admit({ input: 'pay 1', contract });
  const worker = own.startWorkerProcess({
    faults: [
      { point: 'act.after_call', mode: 'hang', runId: mail },
      { point: 'act.after_call', mode: 'hang', runId: pay, hit: 1 },
    ],
  });
  for (const runId of [mail, pay]) {
    const [wait] = await untilGated(own, runId);
    expect(await decide(own, wait)).toBe('decided');
  }
  await until('both were done', () => own.targetLog().filter(({ kind }) => kind === 'applied').length === 2);
  await until('both answers are there', () => worker.messages().length >= 3);
  await worker.signal('SIGKILL');
  await own.startWorker();
  await own.waitFor(pay, 'completed');
  await own.waitFor(mail, 'needs_reconciliation');
  expect(applied(own, pay)).toEqual({ [keyOf(pay)]: 1 });
  expect(arrived(own, pay)).toEqual({ [keyOf(pay)]: 2 });
  expect(arrived(own, mail)).toEqual({ [keyOf(mail)]: 1 });
  for (const runId of [mail, pay]) {
    expect(await waits(own, runId)).toMatchObject([{ state: 'consumed' }]);
    await checkRun(own, runId);
  }
  expect(await judge(own, own.targetLog())).toEqual([]);
  expect(await brokenControl(own)).toEqual([]);
  await own.close();
}, 60_000);

test('when all is said, ledger and target agree, and nothing left without its yes', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});

/** The workflow has heard the last nudge and rests again. */
async function tellAndRest(runId: string): Promise<void> {
  await heard(world, runId);
  expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval' });
}
