import { expect, test } from 'vitest';
import { arrived, checkRun } from '../support/run-checks.js';
import { DONE, reply, script, when } from '../support/scripts.js';
import { keyOf, startWorld } from '../support/world.js';

const ANSWER = 'The order has been looked at, and nothing about it was found to be wrong.';

test('case 53: the text of a stream that broke stays with its attempt, and the answer is the text of the kept one', async () => {
  const world = await startWorld({
    script: script(
      when('talk', {
        attempts: [
          { pieces: ['The order ', 'has been ', 'looked at, '], chunkDelayMs: 300, disconnectAfterChunks: 3 },
          { text: ANSWER, chunkDelayMs: 100 },
        ],
      }),
    ),
  });
  const runId = await world.run({ input: 'talk' });
  await world.waitFor(runId, 'completed');
  const events = await world.events(runId);
  const chunksOf = (attempt: number) =>
    events
      .filter(({ type, data }) => type === 'model.chunk' && data['attempt'] === attempt)
      .map(({ data }) => String(data['text']))
      .join('');
  // Something of the broken attempt was shown: that it must be told apart is the point.
  expect(chunksOf(1)).not.toBe('');
  expect('The order has been looked at, ').toContain(chunksOf(1));
  expect(chunksOf(2)).toBe(ANSWER);

  // A reader drops what came before when it sees a new attempt begin.
  let shown = '';
  for (const { type, data } of events) {
    if (type === 'model.started') shown = '';
    if (type === 'model.chunk') shown += String(data['text']);
  }
  expect(shown).toBe(ANSWER);
  const messages = events.filter(({ type }) => type === 'model.message');
  expect(messages).toHaveLength(1);
  expect(messages[0]?.data).toMatchObject({
    attempt: 2,
    message: { parts: [{ type: 'text', text: ANSWER }] },
  });
  const order = events.map(({ type, data }) => `${type} ${String(data['attempt'] ?? '')}`);
  expect(order.lastIndexOf('model.chunk 1')).toBeLessThan(order.indexOf('model.started 2'));
  await checkRun(world, runId);
});

test('a call in an answer that broke off is never made, and both attempts are paid for (A25)', async () => {
  const world = await startWorld({
    script: script(
      when(
        'half',
        {
          attempts: [
            { pieces: ['I will ', 'write.'], ...reply('mail'), disconnectAfterChunks: 2 },
            { text: 'Paying.', ...reply('pay') },
          ],
        },
        DONE,
      ),
    ),
  });
  const runId = await world.run({ input: 'half' });
  await world.waitFor(runId, 'completed');
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(await world.effects(runId)).toMatchObject([{ tool: 'pay', state: 'succeeded' }]);
  const attempts = await world.rows<{ step: number; outcome: string; input_tokens: string }>(
    'select step, outcome, input_tokens from holdfast.model_attempts where run_id = $1 order by step, attempt',
    runId,
  );
  expect(attempts.map(({ step, outcome }) => `${step} ${outcome}`)).toEqual([
    ...['1 failed', '1 answered', '2 answered'],
  ]);
  const spent = attempts.map(({ input_tokens }) => Number(input_tokens));
  expect(spent[0]).toBeGreaterThan(0);
  expect(Number((await world.runRow(runId)).input_tokens)).toBe(spent.reduce((sum, each) => sum + each, 0));
  await checkRun(world, runId);
});
