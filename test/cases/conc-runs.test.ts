import { beforeAll, describe, expect, test } from 'vitest';
import { tell } from '../support/desk-world.js';
import { arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { DONE, reply, script, when } from '../support/scripts.js';
import { newThread, type TestThread, threadContract, untilQuiet } from '../support/threads.js';
import { keyOf, startWorld, until, type World } from '../support/world.js';

// Cases from the field of kind CONC (and 69) on threads with real runs.

const LOOKS = 14;
let world: World;
beforeAll(async () => {
  world = await startWorld({
    ...{ workers: 0, heartbeatSeconds: 1, historyEventsMax: 50 },
    script: script(
      when('pay', reply('pay'), DONE),
      when('work', reply('pay'), reply('look'), DONE),
      when('long', ...Array.from({ length: LOOKS }, () => reply('look')), DONE),
      when('talk', DONE),
    ),
  });
});

/** Every text that the user said in the run's last request. */
function said(runId: string): string[] {
  const messages = modelRequests(world, runId).at(-1)?.messages ?? [];
  return messages.flatMap((message) => (message.role === 'user' ? [message.text] : []));
}

async function checkAll(thread: TestThread): Promise<void> {
  for (const runId of await thread.runIds()) await checkRun(world, runId);
}

// The first test, since it brings the workers of all others up.
test('case 62: the workers die in the middle, and nothing of the thread is left behind', async () => {
  const thread = await newThread(world);
  await thread.post('pay');
  const [runId = ''] = await thread.runIds();
  const worker = world.startWorkerProcess({ faults: [{ point: 'act.after_call', mode: 'kill', hit: 1 }] });
  expect(await worker.ended).toMatchObject({ signal: 'SIGKILL' });
  await thread.post('talk after');
  expect(await thread.standing()).toEqual(['pay delivered', 'talk after queued']);
  await world.startWorker();
  await untilQuiet(world, thread);
  expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
  expect(await thread.standing()).toEqual(['pay delivered', 'talk after delivered']);
  expect(await thread.runIds()).toHaveLength(2);
  await checkAll(thread);
}, 60_000);

describe('case 59: three messages close together to a run at work', () => {
  async function atWork(): Promise<{ readonly thread: TestThread; readonly runId: string }> {
    const thread = await newThread(world);
    await thread.post('work');
    const [runId = ''] = await thread.runIds();
    const key = keyOf(runId, { step: 2 });
    world.target.dial({ mode: 'hold_before', key, times: 1 });
    await world.starter.round();
    await until('the second call arrived', () => key in arrived(world, runId));
    return { thread, runId };
  }

  test.each(['enqueue', 'reject', 'interrupt', 'rollback', 'steer'] as const)(
    'under %s come to what its policy says, and none is lost',
    async (policy) => {
      const { thread, runId } = await atWork();
      const posted = [];
      for (const text of ['talk a', 'talk b', 'talk c'])
        posted.push((await thread.post(text, { policy })).kind);
      expect(posted).toEqual(Array(3).fill(policy === 'reject' ? 'thread_busy' : 'posted'));
      await tell(world, runId);
      if (policy === 'interrupt' || policy === 'rollback') await world.waitFor(runId, 'cancelled');
      world.target.release();
      await untilQuiet(world, thread);
      const last = (await thread.runIds()).at(-1) ?? '';
      const [first = '', ...others] = await thread.standing();
      const all = (state: string) => ['talk a', 'talk b', 'talk c'].map((text) => `${text} ${state}`);
      const newestWins = ['talk a superseded', 'talk b superseded', 'talk c delivered'];
      expect([first, others]).toEqual(
        {
          enqueue: ['work delivered', all('delivered')],
          reject: ['work delivered', []],
          interrupt: ['work delivered', newestWins],
          rollback: ['work rolled_back', newestWins],
          steer: ['work delivered', all('delivered')],
        }[policy],
      );
      expect(said(last)).toEqual(
        {
          enqueue: ['work', 'talk a', 'talk b', 'talk c'],
          reject: ['work'],
          interrupt: ['work', 'talk c'],
          rollback: ['talk c'],
          steer: ['work', 'talk a\n\ntalk b\n\ntalk c'],
        }[policy],
      );
      // Whatever became of the run: what it has done stays done.
      expect((await world.effects(runId))[0]).toMatchObject({ tool: 'pay', state: 'succeeded' });
      await checkAll(thread);
    },
  );
});

test('case 63: messages behind a run that failed are answered by the next ones', async () => {
  const thread = await newThread(world);
  await thread.post('work', { contract: threadContract({ limits: { steps_max: 1 } }) });
  await thread.post('talk a');
  await thread.post('talk b');
  await untilQuiet(world, thread);
  const runIds = await thread.runIds();
  const states = await Promise.all(runIds.map(async (runId) => (await world.runRow(runId)).state));
  expect(states).toEqual(['failed', 'completed', 'completed']);
  expect(said(runIds[2] ?? '')).toEqual(['work', 'talk a', 'talk b']);
  await checkAll(thread);
});

test('case 69: steady messages and signals do not keep a run from continuing as new', async () => {
  const thread = await newThread(world);
  await thread.post('long');
  const [runId = ''] = await thread.runIds();
  await world.starter.round();
  let sent = 0;
  await world.waitFor(runId, async (run) => {
    if (sent < 10 && run.ended_at === null) {
      await thread.post(`talk ${sent}`);
      await tell(world, runId);
      sent += 1;
    }
    return run.ended_at !== null;
  });
  const executions = await world.rows(
    `select from holdfast.run_executions where run_id = $1 and reason = 'continued'`,
    runId,
  );
  expect(executions.length).toBeGreaterThan(0);
  await untilQuiet(world, thread);
  const last = (await thread.runIds()).at(-1) ?? '';
  expect(said(last)).toEqual(['long', ...Array.from({ length: sent }, (_, n) => `talk ${n}`)]);
  expect(sent).toBeGreaterThan(3);
  expect(await thread.runIds()).toHaveLength(sent + 1);
  expect(arrived(world, runId)).toEqual(
    Object.fromEntries(Array.from({ length: LOOKS }, (_, n) => [keyOf(runId, { step: n + 1 }), 1])),
  );
  await checkAll(thread);
}, 60_000);
