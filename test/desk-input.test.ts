import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { runsToNudge } from '../shared/ledger/commands.js';
import { answerInput } from '../shared/ledger/questions.js';
import {
  brokenControl,
  command,
  decide,
  fates,
  heard,
  resetRun,
  tell,
  toldResults,
  waits,
} from './support/desk-world.js';
import type { InputRow } from './support/input.js';
import { answer, asks, inputs, untilAsked } from './support/input-world.js';
import { judge } from './support/judge.js';
import { arrived, checkRun, modelRequests } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: a run that asks a person waits for them without a worker and goes on once with what they said; a question
// never becomes an effect, and the model's next prompt is valid whatever came (SPEC 4). Method: scripted questions;
// workers are stopped, workflows reset, commands sent in between; ledger, target and the next request are compared.

const which = (text = 'Which order? {{input}}') => call('ask_desk', { text });
const gated = call('mail', { note: 'gate {{input}}' });
const GATED = { mail: { approval: 'required' } } as const;
const QUESTIONS = {
  ask_desk: asks(),
  ask_soon: asks({ expiresSeconds: 1 }),
  ask_or_fail: asks({ expiresSeconds: 1, onExpiry: 'fail' }),
};
const SCRIPT = script(
  when('ask', reply(which()), DONE),
  when('soon', reply(call('ask_soon', { text: 'Quick?' })), DONE),
  when('must', reply(call('ask_or_fail', { text: 'Quick?' })), DONE),
  when('wrong', reply(call('ask_desk', { question: 'Which?' })), DONE),
  when('two', reply(which('First?'), which('Second?')), DONE),
  when('twice', reply(which('First?')), reply(which('Second?')), DONE),
  when('mixed', reply(which(), call('pay'), gated), DONE),
  when('gate', reply(gated, which()), DONE),
  when('pay', reply('pay'), reply(which()), DONE),
  when('three', reply(which('First?')), reply('mail'), reply(which('Third?')), DONE),
);
const ORDER = { order: 'ORD-7' };

let world: World;
beforeAll(async () => {
  world = await startWorld({ questions: QUESTIONS, script: SCRIPT });
});

async function askedRun(
  word: string,
  count = 1,
  contract: Readonly<Record<string, unknown>> = {},
): Promise<{ readonly runId: string; readonly open: InputRow[] }> {
  const runId = await world.run({ input: `${word} ${randomUUID()}`, contract });
  return { runId, open: await untilAsked(world, runId, count) };
}

async function completed(runId: string): Promise<void> {
  await world.waitFor(runId, 'completed');
  await checkRun(world, runId);
}

describe('a question', () => {
  test('is a tool to the model, and its answer the tool’s one result', async () => {
    const { runId, open } = await askedRun('ask');
    expect(modelRequests(world, runId)[0]?.tools.find(({ name }) => name === 'ask_desk')).toMatchObject({
      description: 'Asks the desk which order is meant.',
      inputSchema: { required: ['text'] },
    });
    expect(open[0]?.scope).toMatchObject({
      arguments: { text: expect.stringContaining('Which order? ask') as unknown },
    });
    expect(await answer(world, open[0], ORDER)).toBe('decided');
    await completed(runId);
    expect(toldResults(world, runId)).toEqual(['{"order":"ORD-7"}']);
    expect(await world.effects(runId)).toEqual([]);
    expect(arrived(world, runId)).toEqual({});
    expect(await world.path(runId)).toEqual([
      ...['admitted', 'running', 'waiting_for_input', 'running', 'completed'],
    ]);
  });

  test('waits without a worker, and another worker goes on with the answer (case 14)', async () => {
    const own = await startWorld({ questions: QUESTIONS, script: SCRIPT, workers: 0 });
    const first = await own.startWorker();
    const runId = await own.run({ input: 'pay 10' });
    const [wait] = await untilAsked(own, runId);
    await first.stop();
    expect(await answer(own, wait, ORDER)).toBe('decided');
    expect(await own.runRow(runId)).toMatchObject({ state: 'waiting_for_input' });
    await own.startWorker();
    await own.waitFor(runId, 'completed');
    expect(arrived(own, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(modelRequests(own, runId)).toHaveLength(3);
    await checkRun(own, runId);
    expect(await judge(own, own.targetLog())).toEqual([]);
    expect(await brokenControl(own)).toEqual([]);
    await own.close();
  });

  test('that nobody answers in time tells the model so, by its own timer', async () => {
    const runId = await world.run({ input: 'soon' });
    await completed(runId);
    expect(await inputs(world, runId)).toMatchObject([{ state: 'expired' }]);
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('Nobody answered in time')]);
    expect((await world.transitions(runId)).map(({ reason }) => reason)).toContain('input_expired');
    expect(await answer(world, (await inputs(world, runId))[0], ORDER)).toBe('interrupt_expired');
  });

  test('that the run cannot do without fails it when nobody answers', async () => {
    const runId = await world.run({ input: 'must' });
    expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'failed', reason: 'input_expired' });
    expect(modelRequests(world, runId)).toHaveLength(1);
    await checkRun(world, runId);
  });

  test('with arguments that do not fit is asked of nobody: the model is told', async () => {
    const runId = await world.run({ input: 'wrong' });
    await completed(runId);
    expect(await inputs(world, runId)).toEqual([]);
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('do not fit the schema of ask_desk')]);
  });

  test('after another is answered by its own answer alone, across restarts (case 66)', async () => {
    const { runId, open } = await askedRun('twice');
    const [first] = open;
    await answer(world, first, { order: 'first' }, { idempotencyKey: 'once' });
    const second = await until2(runId);
    await tell(world, runId);
    await heard(world, runId);
    expect(await answer(world, first, { order: 'late' })).toBe('interrupt_decided');
    expect(await answer(world, first, { order: 'first' }, { idempotencyKey: 'once' })).toBe('replayed');
    expect(await world.runRow(runId)).toMatchObject({ state: 'waiting_for_input' });
    const both = await Promise.all([
      answer(world, second, { order: 'a' }),
      answer(world, second, { order: 'a' }),
    ]);
    expect(both.toSorted()).toEqual(['decided', 'interrupt_decided']);
    await completed(runId);
    expect(toldResults(world, runId)).toEqual(['{"order":"a"}']);
  });

  test('answered at once on the event that shows it is never lost (case 61, case 72)', async () => {
    const runs = await Promise.all(
      Array.from({ length: 5 }, async (_, n) => {
        const runId = await world.run({ input: `ask ${n} ${randomUUID()}` });
        await until('the question is shown', async () => (await inputs(world, runId)).length === 1);
        expect(await answer(world, (await inputs(world, runId))[0], ORDER)).toBe('decided');
        return runId;
      }),
    );
    for (const runId of runs) await completed(runId);
  });
});

describe('several waits of one step', () => {
  test('two questions are shown at once; each result is that of its call', async () => {
    const { runId, open } = await askedRun('two', 2);
    await answer(world, open[1], { order: 'second' });
    await heard(world, runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'waiting_for_input' });
    expect(await runsToNudge(world.db, 1_000, 0)).not.toContain(runId);
    await answer(world, open[0], { order: 'first' });
    await completed(runId);
    expect(toldResults(world, runId)).toEqual(['{"order":"first"}', '{"order":"second"}']);
    expect((await world.path(runId)).filter((state) => state === 'waiting_for_input')).toHaveLength(1);
  });

  test('a question, an effect and a gate: all waits at once, and nothing leaves before its turn', async () => {
    const { runId, open } = await askedRun('mixed', 1, { effects: GATED });
    const [gate] = await waits(world, runId);
    expect(gate).toMatchObject({ state: 'open', slot: 2 });
    expect(await decide(world, gate)).toBe('decided');
    await heard(world, runId);
    expect(arrived(world, runId)).toEqual({});
    await answer(world, open[0], ORDER);
    await completed(runId);
    expect(arrived(world, runId)).toEqual({
      [keyOf(runId, { slot: 1 })]: 1,
      [keyOf(runId, { slot: 2 })]: 1,
    });
    expect(toldResults(world, runId)).toHaveLength(3);
  });

  test('keep their order when a reset meets the gate approved and the question open', async () => {
    const { runId, open } = await askedRun('mixed', 1, { effects: GATED });
    await decide(world, (await waits(world, runId))[0]);
    const after = await resetRun(world, runId);
    await world.waitFor(
      runId,
      async ({ owner_execution, state }) =>
        owner_execution === after &&
        state === 'waiting_for_input' &&
        (await world.path(runId)).filter((each) => each === 'waiting_for_input').length === 2,
    );
    expect(arrived(world, runId)).toEqual({});
    expect(await inputs(world, runId)).toHaveLength(1);
    await answer(world, open[0], ORDER);
    await completed(runId);
    expect(Object.keys(arrived(world, runId))).toHaveLength(2);
  });

  test('a gate before a question: both shown, the approved call goes first, then the answer is waited for', async () => {
    const runId = await world.run({ input: `gate ${randomUUID()}`, contract: { effects: GATED } });
    await world.waitFor(runId, 'awaiting_approval');
    const [gate] = await waits(world, runId);
    const [wait] = await inputs(world, runId);
    expect([gate?.state, wait?.state]).toEqual(['open', 'open']);
    await decide(world, gate);
    await world.waitFor(runId, 'waiting_for_input');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await answer(world, wait, ORDER);
    await completed(runId);
  });
});

test('three waits, each answered after a restart of the worker (case 19)', async () => {
  const own = await startWorld({ questions: QUESTIONS, script: SCRIPT, workers: 0 });
  let worker = await own.startWorker();
  const restart = async (): Promise<void> => {
    await worker.stop();
    worker = await own.startWorker();
  };
  const runId = await own.run({ input: 'three', contract: { effects: GATED } });
  const [first] = await untilAsked(own, runId);
  await restart();
  await answer(own, first, ORDER);
  await own.waitFor(runId, 'awaiting_approval');
  const [gate] = await waits(own, runId);
  await restart();
  await decide(own, gate);
  const [third] = await untilAsked(own, runId);
  await restart();
  await answer(own, third, ORDER);
  await own.waitFor(runId, 'completed');
  expect(arrived(own, runId)).toEqual({ [keyOf(runId, { step: 2 })]: 1 });
  await checkRun(own, runId);
  await own.close();
});

describe('a run that waits for input', () => {
  test('is cancelled at once; the question is withdrawn, and no answer is taken', async () => {
    const { runId, open } = await askedRun('ask');
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    await world.waitFor(runId, 'cancelled');
    expect(await world.path(runId)).toEqual(['admitted', 'running', 'waiting_for_input', 'cancelled']);
    expect(await inputs(world, runId)).toMatchObject([{ state: 'withdrawn' }]);
    expect(await answer(world, open[0], ORDER)).toBe('run_ended');
    await checkRun(world, runId);
  });

  test('and is paused takes the answer, and goes on with it after the resume', async () => {
    const { runId, open } = await askedRun('ask');
    await command(world, runId, 'pause');
    await world.waitFor(runId, ({ control }) => control === 'paused');
    expect(await answer(world, open[0], ORDER)).toBe('decided');
    await heard(world, runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'waiting_for_input', control: 'paused' });
    expect(modelRequests(world, runId)).toHaveLength(1);
    await command(world, runId, 'resume');
    await completed(runId);
    expect(await fates(world, runId)).toEqual(['pause applied', 'resume applied']);
  });

  test('that was reset waits on for the same answer, in one wait', async () => {
    const { runId, open } = await askedRun('ask');
    await resetRun(world, runId);
    await world.waitFor(runId, ({ epoch, state }) => epoch === 2 && state === 'waiting_for_input');
    expect((await inputs(world, runId)).map(({ interrupt_id }) => interrupt_id)).toEqual([
      open[0]?.interrupt_id,
    ]);
    await answer(world, open[0], ORDER);
    await completed(runId);
    expect(modelRequests(world, runId)).toHaveLength(1 + 1);
  });

  test('hears an answer whose message was lost from the sweeper', async () => {
    const { runId, open } = await askedRun('ask');
    // As the API does, and the notification goes nowhere.
    await answerInput(world.db, {
      ...{
        tenantId: 'default',
        interruptId: open[0]?.interrupt_id ?? '',
        actorId: 'olga',
        authority: 'operator',
      },
      ...{ answer: ORDER, fits: true, note: '', endpoint: 'e', idempotencyKey: randomUUID() },
    });
    expect(await runsToNudge(world.db, 1_000, 0)).toContain(runId);
    await tell(world, runId);
    await completed(runId);
  });

  test('whose workflow is terminated is brought to rest, its question withdrawn', async () => {
    const { runId } = await askedRun('ask');
    await world.client.workflow.getHandle(runId).terminate('a test');
    await world.sweeper.round();
    expect(await world.runRow(runId)).toMatchObject({ state: 'failed', reason: 'workflow_terminated' });
    expect(await inputs(world, runId)).toMatchObject([{ state: 'withdrawn' }]);
    await checkRun(world, runId);
  });

  test('keeps every word of question and answer out of Temporal', async () => {
    const runId = await world.run({ input: 'ask canary-question' });
    const [wait] = await untilAsked(world, runId);
    await answer(world, wait, { order: 'canary-answer' });
    await completed(runId);
    const history = JSON.stringify(
      await world.client.workflow.getHandle(runId).fetchHistory(),
      (_, value: unknown) => (value instanceof Uint8Array ? Buffer.from(value).toString('utf8') : value),
    );
    expect(history).toContain(runId);
    expect(history).not.toContain('canary');
  });
});

test('a run goes on as new while it waits, and loses nothing', async () => {
  const own = await startWorld({
    questions: QUESTIONS,
    historyEventsMax: 50,
    script: script(when('long', ...Array.from({ length: 5 }, () => reply('look')), reply(which()), DONE)),
  });
  const runId = await own.run({ input: 'long' });
  const [wait] = await untilAsked(own, runId);
  const { epoch } = await own.runRow(runId);
  await until('another execution waits', async () => {
    await tell(own, runId);
    const now = await own.runRow(runId);
    return now.epoch > epoch && now.state === 'waiting_for_input';
  });
  expect(await inputs(own, runId)).toHaveLength(1);
  await answer(own, wait, ORDER);
  await own.waitFor(runId, 'completed');
  await checkRun(own, runId);
  await own.close();
});

test('when all is said, ledger and target agree, and nothing left without its yes', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});

/** The second question of the run, once it is open and waited on. */
async function until2(runId: string): Promise<InputRow | undefined> {
  await world.waitFor(runId, async ({ state, step }) => state === 'waiting_for_input' && step === 2);
  return (await inputs(world, runId)).find(({ state }) => state === 'open');
}
