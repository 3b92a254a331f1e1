import { beforeAll, describe, expect, test } from 'vitest';
import type { ModelMessage } from '../../shared/domain/models.js';
import { decide, tell, untilGated, waits } from '../support/desk-world.js';
import { arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { DONE, reply, script, when } from '../support/scripts.js';
import { newThread, type TestThread, untilQuiet } from '../support/threads.js';
import { keyOf, startWorld, until, type World } from '../support/world.js';

// Cases from the field of kind HIST (and 72), on threads: whatever stopped a run, the next one on its thread begins with a
// history that every provider takes. `checkRun` looks at every request that the model got.

let world: World;
beforeAll(async () => {
  world = await startWorld({
    charactersMax: 3_000,
    script: script(
      when('both', reply('look', 'look'), DONE),
      when('three', reply('look', 'look', 'look'), DONE),
      when('twice', reply('look'), reply('look'), DONE),
      when('mail', reply('mail'), DONE),
      when('talk', DONE),
    ),
  });
});

async function newestOf(thread: TestThread): Promise<string> {
  return (await thread.runIds()).at(-1) ?? '';
}

/** The results that the last request of a run held, in order. */
function resultsIn(runId: string): { readonly text: string; readonly isError: boolean }[] {
  return (modelRequests(world, runId).at(-1)?.messages ?? []).flatMap((message) =>
    message.role === 'tool' ? message.results : [],
  );
}
const userTexts = (messages: readonly ModelMessage[] = []) =>
  messages.flatMap((message) => (message.role === 'user' ? [message.text] : []));

describe('case 40: a call that a cancel stopped', () => {
  test.each([
    ['before any result', [0, 1], [/stopped/i, /stopped/i]],
    ['with one of two done', [1], [/\{/, /stopped/i]],
  ] as const)('has a result on the next run of the thread, %s', async (_, held, expected) => {
    const thread = await newThread(world);
    await thread.post('both');
    const runId = await newestOf(thread);
    for (const slot of held)
      world.target.dial({ mode: 'hold_before', key: keyOf(runId, { slot }), times: 1 });
    await world.starter.round();
    await until('both calls arrived', () => Object.keys(arrived(world, runId)).length === 2);
    await until(
      'what is not held is done',
      async () => (await world.receipts(runId)).length === 2 - held.length,
    );
    await thread.post('twice', { policy: 'interrupt' });
    await tell(world, runId);
    await world.waitFor(runId, 'cancelled');
    world.target.release();
    await untilQuiet(world, thread);
    const next = await newestOf(thread);
    expect(await world.runRow(next)).toMatchObject({ state: 'completed' });
    // In the last of three calls, as in the first: what was there before is there once.
    const results = resultsIn(next);
    expect(results.splice(2)).toHaveLength(2);
    results.forEach(({ text }, index) => expect(text).toMatch(expected[index] ?? /never/));
    expect(results.map(({ isError }) => isError)).toEqual([held.length === 2, true]);
    const requests = modelRequests(world, next);
    expect(requests).toHaveLength(3);
    for (const { messages } of requests) expect(userTexts(messages)).toEqual(['both', 'twice']);
    for (const id of [runId, next]) await checkRun(world, id);
  });
});

describe('case 42: a message in place of an answer to a pending approval', () => {
  const gated = { effects: { mail: { approval: 'required' } } };
  async function pending(): Promise<{ readonly thread: TestThread; readonly runId: string }> {
    const thread = await newThread(world, 'enqueue', gated);
    await thread.post('mail now');
    const runId = await newestOf(thread);
    await world.starter.round();
    await untilGated(world, runId);
    return { thread, runId };
  }

  test('under reject is refused, under enqueue and steer waits, and the approval still decides', async () => {
    const { thread, runId } = await pending();
    expect(await thread.post('talk', { policy: 'reject' })).toMatchObject({ kind: 'thread_busy', runId });
    await thread.post('talk about it', { policy: 'steer' });
    await thread.post('talk later', { policy: 'enqueue' });
    const [wait] = await untilGated(world, runId);
    expect(await thread.standing()).toEqual([
      'mail now delivered',
      'talk about it queued',
      'talk later queued',
    ]);
    expect(await decide(world, wait)).toBe('decided');
    await untilQuiet(world, thread);
    expect(Object.values(arrived(world, runId))).toEqual([1]);
    // What steers came after the result, in the run itself.
    const [first, second] = await thread.runIds();
    expect([first, await thread.runIds()]).toEqual([runId, [runId, second]]);
    const roles = modelRequests(world, runId)
      .at(-1)
      ?.messages.map(({ role }) => role);
    expect(roles).toEqual(['user', 'assistant', 'tool', 'user']);
    for (const id of await thread.runIds()) await checkRun(world, id);
  });

  test.each(['interrupt', 'rollback'] as const)(
    'under %s withdraws it, runs nothing, and is answered',
    async (policy) => {
      const { thread, runId } = await pending();
      await thread.post('talk instead', { policy });
      await tell(world, runId);
      await untilQuiet(world, thread);
      expect(await world.runRow(runId)).toMatchObject({ state: 'cancelled' });
      expect(await waits(world, runId)).toMatchObject([{ state: 'withdrawn' }]);
      expect(arrived(world, runId)).toEqual({});
      const next = await newestOf(thread);
      expect(await world.runRow(next)).toMatchObject({ state: 'completed' });
      const [request] = modelRequests(world, next);
      if (policy === 'rollback') expect(userTexts(request?.messages)).toEqual(['talk instead']);
      else {
        expect(userTexts(request?.messages)).toEqual(['mail now', 'talk instead']);
        expect(resultsIn(next)).toMatchObject([
          { isError: true, text: expect.stringMatching(/^Not run/) as unknown },
        ]);
      }
      for (const id of [runId, next]) await checkRun(world, id);
    },
  );
});

test('case 44: a thread longer than the prompt is cut on whole batches at every turn, and kept whole', async () => {
  const thread = await newThread(world);
  const turns = 14;
  for (let n = 0; n < turns; n += 1) await thread.post(n % 3 === 0 ? `three ${n}` : `talk ${n}`);
  await untilQuiet(world, thread);
  const runIds = await thread.runIds();
  expect(runIds).toHaveLength(turns);
  let cuts = 0;
  for (const runId of runIds) {
    await checkRun(world, runId);
    for (const { messages } of modelRequests(world, runId)) {
      const { length } = JSON.stringify(messages);
      expect(length).toBeLessThan(3_400);
      if (userTexts(messages).some((text) => text.includes('left out here'))) cuts += 1;
    }
  }
  expect(cuts).toBeGreaterThan(5);
  const left = await world.rows<{ left_out: { messages: number } }>(
    `select c.left_out from holdfast.model_calls c join holdfast.runs r using (run_id)
      where r.thread_id = $1 and c.left_out is not null`,
    thread.threadId,
  );
  expect(left).toHaveLength(cuts);
  const kept = await world.rows(
    `select from holdfast.messages m join holdfast.runs r using (run_id) where r.thread_id = $1 and m.role = 'user'`,
    thread.threadId,
  );
  expect(kept).toHaveLength(turns);
}, 40_000);

test('case 72: with megabytes of history an approval is taken the moment it is shown', async () => {
  const thread = await newThread(world, 'enqueue', { effects: { mail: { approval: 'required' } } });
  await thread.post(`talk ${'long '.repeat(600_000)}`);
  await untilQuiet(world, thread);
  await thread.post('mail now');
  const runId = await newestOf(thread);
  await world.starter.round();
  const wait = await until('the wait is shown', async () => {
    const shown = (await world.events(runId)).some(({ type }) => type === 'interrupt.opened');
    return shown ? (await waits(world, runId))[0] : undefined;
  });
  expect(await decide(world, wait)).toBe('decided');
  await world.waitFor(runId, 'completed');
  expect(Object.values(arrived(world, runId))).toEqual([1]);
  await checkRun(world, runId);
});
