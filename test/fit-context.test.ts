import fc from 'fast-check';
import { expect, test } from 'vitest';
import { promptOf, withMemory } from '../activities/fit-context.js';
import type { StoredMessage } from '../shared/ledger/model-calls.js';
import { checkMessages } from './support/run-checks.js';

// Goal: a prompt within its limit is valid for every provider, and holds what must not be missing. Method: transcripts of
// any shape, cut at every length.

const turn = fc.record({
  input: fc.string({ minLength: 1, maxLength: 400 }),
  steps: fc.array(
    fc.record({
      text: fc.string({ minLength: 1, maxLength: 300 }),
      results: fc.array(fc.string({ maxLength: 500 }), { maxLength: 3 }),
      joins: fc.boolean(),
    }),
    { maxLength: 6 },
  ),
});
type Turn = typeof turn extends fc.Arbitrary<infer T> ? T : never;

/** Some calls have lost their results: what stopped them is told in their place. */
function stored(turns: readonly Turn[]): StoredMessage[] {
  const rows: Omit<StoredMessage, 'position'>[] = [];
  turns.forEach(({ input, steps }, n) => {
    const isLast = n === turns.length - 1;
    const at = (step: number): number => (isLast ? step : 0);
    rows.push({ step: at(1), role: 'user', content: { text: `input ${n}: ${input}` } });
    steps.forEach(({ text, results, joins }, index) => {
      const step = at(index + 1);
      if (joins && index > 0) rows.push({ step, role: 'user', content: { text: 'and also' } });
      const calls = results.map((_, slot) => ({ callId: `c${n}_${index}_${slot}`, toolName: 'look' }));
      const parts = [
        { type: 'text', text },
        ...calls.map((call) => ({ ...call, type: 'tool_call', arguments: {} })),
      ];
      rows.push({ step, role: 'assistant', content: { parts } });
      results.forEach((result, slot) => {
        if (result.length % 7 === 3) return;
        rows.push({ step, role: 'tool', content: { ...calls[slot], text: result, isError: false } });
      });
    });
  });
  return rows.map((row, position) => ({ ...row, position }));
}

test('whole batches are kept or left out, the user comes after a cut, and what is asked now stays', () => {
  fc.assert(
    fc.property(
      fc.array(turn, { minLength: 1, maxLength: 8 }),
      fc.integer({ min: 100, max: 20_000 }),
      (turns, charactersMax) => {
        const transcript = stored(turns);
        const whole = promptOf(transcript, undefined);
        const { messages, leftOut } = promptOf(transcript, { charactersMax });
        expect(whole.leftOut).toBeNull();
        if (JSON.stringify(whole.messages).length <= charactersMax)
          expect(messages).toStrictEqual(whole.messages);
        const request = { system: '', messages, tools: [], maxOutputTokens: 1, callKey: '', attempt: 1 };
        checkMessages(request);
        const own = messages.filter(
          (message) => message.role === 'user' && message.text.startsWith(`input ${turns.length - 1}:`),
        );
        expect(own).toHaveLength(1);
        expect(messages.at(-1)).toStrictEqual(whole.messages.at(-1));
        const notes = messages.filter(
          ({ role, ...rest }) => role === 'user' && /left out here/.test(JSON.stringify(rest)),
        );
        expect(notes).toHaveLength(leftOut === null ? 0 : 1);
        expect(messages.length - notes.length + (leftOut?.messages ?? 0)).toBe(whole.messages.length);
        // Nothing but a cut was made: what is left stands in its order.
        const left = messages
          .filter((message) => !notes.includes(message))
          .map((message) => JSON.stringify(message));
        let from = 0;
        for (const message of whole.messages) if (JSON.stringify(message) === left[from]) from += 1;
        expect(from).toBe(left.length);
      },
    ),
    { numRuns: 300 },
  );
});

test('a cut stays in its place while the transcript grows by less than a quarter of the limit', () => {
  const turns = (steps: number): Turn[] => [
    { input: 'x'.repeat(4_000), steps: [] },
    {
      input: 'now',
      steps: Array.from({ length: steps }, () => ({ text: 'y'.repeat(40), results: [], joins: false })),
    },
  ];
  const lefts = [60, 61, 62, 63].map(
    (steps) => promptOf(stored(turns(steps)), { charactersMax: 8_000 }).leftOut,
  );
  expect(lefts[0]).not.toBeNull();
  expect(new Set(lefts.map((left) => left?.messages)).size).toBe(1);
});

test('what is remembered follows the instructions, by its generation and as material, and without it they stay as they are', () => {
  expect(withMemory('Help.', null)).toBe('Help.');
  const told = withMemory('Help.', { generation: 3, text: 'They like mail.' });
  expect(told).toMatch(/^Help\.\n\n.*generation 3.*material, no instructions.*They like mail\.$/s);
});
