import { beforeAll, describe, expect, test } from 'vitest';
import { NUDGE_SIGNAL } from '../../shared/domain/protocol.js';
import { applied, arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { readThread } from '../../shared/ledger/reads/read-threads.js';
import { newThread, untilQuiet } from '../support/threads.js';
import { keyOf, startWorld, until, type World, type WorldWorker } from '../support/world.js';

// Cases from the field of kind DUP: an effect that was repeated, or swallowed. What needs a person, input, messages or a
// cancel comes with those; that a worker is killed with -9 at every one of these places is test/seam-kill.test.ts.

let world: World;
let worker: WorldWorker;

beforeAll(async () => {
  world = await startWorld({
    workers: 0,
    httpTools: {
      // Never waits for its target longer than a second.
      hasty: { description: 'Mails.', class: 'opaque', url: '/opaque', timeoutSeconds: 1 },
      lasting: { description: 'Mails.', class: 'opaque', url: '/opaque', timeoutSeconds: 60 },
      brisk: {
        ...{ description: 'Pays.', class: 'keyed', url: '/keyed', timeoutSeconds: 1 },
        keyed: { windowSeconds: 3_600, resendsMax: 3, comparesBodies: true },
      },
    },
    script: script(
      when('one', reply('pay', 'mail'), DONE),
      when('two', reply('mail', 'book', 'pay'), DONE),
      when(
        'five',
        { attempts: ['he asked', 'as agreed', 'a refund'].map((note) => reply(call('pay', { note }))) },
        { attempts: ['Done.', 'It is done.', 'All done.'].map((text) => ({ text })) },
      ),
      when('six', reply(call('mail', { note: 'hi' })), reply(call('mail', { note: 'hi' })), DONE),
      when('fourteen', reply('pay'), reply('mail'), DONE),
      when('talk', DONE),
      ...['pay', 'mail', 'book', 'hasty', 'lasting', 'brisk'].map((tool) => when(tool, reply(tool), DONE)),
    ),
  });
  worker = await world.startWorker();
});

const asksFirst = (tool: string) => ({
  effects: { [tool]: { approval: 'required' } },
  timeouts: { approval_seconds: 2 },
});

function callsAsked(runId: string): string[] {
  return modelRequests(world, runId).map(({ callKey }) => callKey.slice(runId.length + 1));
}

/** Another worker in place of the one that runs, which takes its memory of every run along. */
async function replaceWorker(): Promise<void> {
  await worker.stop();
  worker = await world.startWorker();
}

test('case 1: a call that waits for a person does not make its neighbour run again', async () => {
  const runId = await world.run({ input: 'one', contract: asksFirst('mail') });
  await world.waitFor(runId, 'awaiting_approval');
  await replaceWorker();
  await world.waitFor(runId, 'completed');
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(await world.effects(runId)).toMatchObject([
    { tool: 'pay', state: 'succeeded', attempts: 1 },
    { tool: 'mail', state: 'denied', attempts: 0 },
  ]);
  const told = modelRequests(world, runId)[1]?.messages.at(-1);
  expect(
    told?.role === 'tool' ? told.results.map(({ toolName, isError }) => [toolName, isError]) : [],
  ).toEqual([
    ['pay', false],
    ['mail', true],
  ]);
  await checkRun(world, runId);
});

test.each(['undisturbed', 'with an activity lost after the second receipt'])(
  'case 2: calls that were done are not done again beside the one that is retried, %s',
  async (how) => {
    const runId = await world.admit({ input: 'two' });
    world.target.dial({ mode: 'drop_before', key: keyOf(runId, { slot: 2 }), times: 1 });
    if (how !== 'undisturbed') world.faults.add({ runId, point: 'act.after_settle', mode: 'throw', hit: 2 });
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    expect(Object.values(applied(world, runId))).toEqual([1, 1, 1]);
    expect((await world.effects(runId)).map(({ attempts, redo }) => [attempts, redo])).toEqual([
      [1, 0],
      [1, 0],
      [2, 0],
    ]);
    await checkRun(world, runId);
  },
);

describe('case 4: done and not told', () => {
  test('where keys are honoured the same key goes out again, and is done once', async () => {
    const runId = await world.admit({ input: 'pay' });
    world.faults.add({ runId, point: 'act.after_call', mode: 'throw' });
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 2 });
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('where they are not, a person is asked and nothing is sent again', async () => {
    const runId = await world.admit({ input: 'mail' });
    world.faults.add({ runId, point: 'act.after_call', mode: 'throw' });
    await world.starter.round();
    await world.waitFor(runId, 'needs_reconciliation');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await world.effects(runId)).toMatchObject([{ state: 'unknown', attempts: 1 }]);
    await checkRun(world, runId);
  });
});

test('case 5: a stored answer is used after every fault, so other words never make another payment', async () => {
  const runId = await world.admit({ input: 'five' });
  world.faults.add({ runId, point: 'think.after_commit', mode: 'throw' });
  world.faults.add({ runId, point: 'act.after_settle', mode: 'throw' });
  await world.starter.round();
  await world.waitFor(runId, 'completed');
  expect(callsAsked(runId)).toEqual(['t1:s1', 't1:s2']);
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(world.targetLog(runId)[0]?.body).toEqual({ note: 'he asked' });
  await checkRun(world, runId);
});

test('case 6: two calls of the same words are two effects, with another worker between them too', async () => {
  const runId = await world.admit({ input: 'six' });
  world.target.dial({ mode: 'hold_after', key: keyOf(runId), times: 1 });
  await world.starter.round();
  await until('the first has arrived', () => keyOf(runId) in arrived(world, runId));
  world.target.release();
  await replaceWorker();
  await world.waitFor(runId, 'completed');
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1, [keyOf(runId, { step: 2 })]: 1 });
  await checkRun(world, runId);
});

test('case 7: news that reaches a working run does not start its step a second time', async () => {
  const runId = await world.admit({ input: 'pay' });
  world.target.dial({ mode: 'hold_before', key: keyOf(runId), times: 1 });
  await world.starter.round();
  await until('the call arrived', () => keyOf(runId) in arrived(world, runId));
  const handle = world.client.workflow.getHandle(runId);
  for (let n = 0; n < 3; n += 1) await handle.signal(NUDGE_SIGNAL);
  await until('they were all heard', async () => {
    const { events } = await handle.fetchHistory();
    return events?.filter((event) => event.workflowExecutionSignaledEventAttributes != null).length === 3;
  });
  world.target.release();
  await world.waitFor(runId, 'completed');
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(callsAsked(runId)).toEqual(['t1:s1', 't1:s2']);
  await checkRun(world, runId);
});

test('case 7: messages and a read while a step works are taken up after its result, in their order', async () => {
  const thread = await newThread(world, 'enqueue');
  await thread.post('pay first');
  const [runId = ''] = await thread.runIds();
  world.target.dial({ mode: 'hold_before', key: keyOf(runId), times: 1 });
  await world.starter.round();
  await until('the call arrived', () => keyOf(runId) in arrived(world, runId));
  for (const text of ['talk b', 'talk c', 'talk d']) await thread.post(text);
  expect(await readThread(world.db, 'default', thread.threadId)).toMatchObject({
    ...{ runtime: 'loaded', turn: { run_id: runId, state: 'running' } },
    messages: { by_state: { delivered: 1, queued: 3 } },
  });
  expect(await thread.runIds()).toHaveLength(1);
  world.target.release();
  await untilQuiet(world, thread);
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(await world.attempts(runId)).toHaveLength(1);
  const last = modelRequests(world, (await thread.runIds()).at(-1) ?? '').at(-1);
  const said = last?.messages.flatMap((message) => (message.role === 'user' ? [message.text] : []));
  expect(said).toEqual(['pay first', 'talk b', 'talk c', 'talk d']);
  expect(last?.messages.slice(0, 3).map(({ role }) => role)).toEqual(['user', 'assistant', 'tool']);
  for (const id of await thread.runIds()) await checkRun(world, id);
});

describe('case 8: a call that outlives its time-out and is done after all', () => {
  test('is sent again under its key where that is honoured, and done once', async () => {
    const runId = await world.admit({ input: 'brisk' });
    world.target.dial({ mode: 'hold_before', key: keyOf(runId), times: 1 });
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    const receipts = await world.receipts(runId);
    world.target.release();
    await until('the late one is done', () => world.target.held() === 0);
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await world.receipts(runId)).toEqual(receipts);
    await checkRun(world, runId);
  });

  test('goes to a person where it is not, and is never sent again', async () => {
    const runId = await world.admit({ input: 'hasty' });
    world.target.dial({ mode: 'hold_before', key: keyOf(runId), times: 1 });
    await world.starter.round();
    await world.waitFor(runId, 'needs_reconciliation');
    world.target.release();
    await until('it is done after all', () => applied(world, runId)[keyOf(runId)] === 1);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await world.receipts(runId)).toEqual([]);
    expect(await world.attempts(runId)).toMatchObject([{ outcome: 'unknown', reason: 'timed_out' }]);
    await checkRun(world, runId);
  });
});

test('case 9: one start, posted three times at once, is one run, one workflow and one effect', async () => {
  const request = { input: 'pay', idempotencyKey: `start-${world.taskQueue}` };
  const ids = await Promise.all([world.admit(request), world.admit(request), world.admit(request)]);
  expect(new Set(ids).size).toBe(1);
  const runId = ids[0] ?? '';
  await Promise.all([world.starter.round(), world.starter.round(), world.starter.round()]);
  await world.waitFor(runId, 'completed');
  await world.starter.round();
  expect(await world.runRow(runId)).toMatchObject({ epoch: 1 });
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  await checkRun(world, runId);
});

test('case 10: whoever comes up and looks around leaves a live call alone', async () => {
  const runId = await world.admit({ input: 'lasting' });
  world.target.dial({ mode: 'hold_before', key: keyOf(runId), times: 1 });
  await world.starter.round();
  await until('the call arrived', () => keyOf(runId) in arrived(world, runId));
  const second = world.startWorkerProcess();
  await second.ready;
  for (let round = 0; round < 3; round += 1) {
    await world.starter.round();
    await world.sweeper.round();
    await world.sweeper.nudgeLateEvidence();
  }
  world.target.release();
  await world.waitFor(runId, 'completed');
  await second.signal('SIGTERM');
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(await world.path(runId)).toEqual(['admitted', 'running', 'completed']);
  await checkRun(world, runId);
});

describe('case 12: claimed, and the worker gone before anything was sent', () => {
  test('where nobody can tell, a person is asked', async () => {
    const runId = await world.admit({ input: 'mail' });
    world.faults.add({ runId, point: 'act.after_claim', mode: 'throw' });
    await world.starter.round();
    await world.waitFor(runId, 'needs_reconciliation');
    expect(await world.effects(runId)).toMatchObject([
      { state: 'unknown', reconciliation_owner: 'owner', reconciliation_deadline_at: expect.any(Date) },
    ]);
    expect(arrived(world, runId)).toEqual({});
    await checkRun(world, runId);
  });

  test('where the target says that it knows nothing of it, it is done once, as a new effect', async () => {
    const runId = await world.admit({ input: 'book' });
    world.faults.add({ runId, point: 'act.after_claim', mode: 'throw' });
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    const effects = await world.effects(runId);
    expect(effects).toMatchObject([
      { state: 'not_committed', attempts: 1 },
      { state: 'succeeded', attempts: 1, redo: 1, supersedes: effects[0]?.effect_id },
    ]);
    expect(applied(world, runId)).toEqual({ [keyOf(runId, { redo: 1 })]: 1 });
    await checkRun(world, runId);
  });
});

test('case 14: a waiting run goes on from its wait on another worker, and nothing before it happens again', async () => {
  const runId = await world.run({ input: 'fourteen', contract: asksFirst('mail') });
  await world.waitFor(runId, 'awaiting_approval');
  await worker.stop();
  await until('the approval is over', async () => {
    const [wait] = await world.rows<{ over: boolean }>(
      `select created_at + interval '2 seconds' < clock_timestamp() as over from holdfast.effects
        where run_id = $1 and tool = 'mail'`,
      runId,
    );
    return wait?.over === true;
  });
  worker = await world.startWorker();
  await world.waitFor(runId, 'completed');
  expect(await world.path(runId)).toEqual([
    'admitted',
    'running',
    'awaiting_approval',
    'running',
    'completed',
  ]);
  expect(callsAsked(runId)).toEqual(['t1:s1', 't1:s2', 't1:s3']);
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  await checkRun(world, runId);
});
