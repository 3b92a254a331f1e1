import { expect, test } from 'vitest';
import { checkRun } from '../support/run-checks.js';
import { script, when } from '../support/scripts.js';
import { startWorld } from '../support/world.js';

const ANSWER = 'The order has been looked at, and nothing about it was found to be wrong.';

test('53: the text of a stream that broke stays with its attempt, and the answer is the text of the kept one', async () => {
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
