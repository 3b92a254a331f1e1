import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decideRetry, type RetryKind, type RetryQuestion } from '../shared/domain/retry-policy.js';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

/** The first failure of a long series, at the least random moment. */
const question = (changes: Partial<RetryQuestion> = {}): RetryQuestion => ({
  kind: 'transient',
  attempt: 1,
  attemptsMax: 100,
  seriesMsLeft: 7 * 24 * HOUR,
  retryAfterMs: null,
  retryAfterMaxMs: HOUR,
  random: 0,
  ...changes,
});
const waitOf = (changes: Partial<RetryQuestion>): number => {
  const decision = decideRetry(question(changes));
  if (decision.kind !== 'wait') throw new Error(`exhausted: ${decision.why}`);
  return decision.waitMs;
};

describe('the backoff', () => {
  // prettier-ignore
  test.each<[RetryKind, readonly number[]]>([
    // after attempt  1           2            3            4            5            6
    ['limit',       [2 * MINUTE,  5 * MINUTE,  10 * MINUTE, 15 * MINUTE, 15 * MINUTE, 15 * MINUTE]],
    ['transient',   [250,         500,         1 * SECOND,  2 * SECOND,  4 * SECOND,  8 * SECOND]],
    ['in_progress', [250,         500,         1 * SECOND,  2 * SECOND,  4 * SECOND,  7.5 * SECOND]],
  ])('of a %s stop grows with the attempts', (kind, waits) => {
    expect(waits.map((_, index) => waitOf({ kind, attempt: index + 1 }))).toStrictEqual(waits);
  });

  // prettier-ignore
  test.each<[RetryKind, number, number]>([
    // kind          least        most
    ['limit',       15 * MINUTE, 16.5 * MINUTE],
    ['transient',   30 * SECOND, 60 * SECOND],
    ['in_progress', 7.5 * SECOND, 15 * SECOND],
  ])('of a %s stop has a cap, and jitter spreads it', (kind, least, most) => {
    expect(waitOf({ kind, attempt: 90, random: 0 })).toBe(least);
    const latest = waitOf({ kind, attempt: 90, random: 0.999 });
    expect(latest).toBeGreaterThan(0.99 * most);
    expect(latest).toBeLessThanOrEqual(most);
  });

  test('of a limit stop is never shorter than the table, whatever the jitter', () => {
    for (const random of [0, 0.5, 0.999])
      expect(waitOf({ kind: 'limit', random })).toBeGreaterThanOrEqual(2 * MINUTE);
  });

  test('after no counted attempt at all is that of the first', () => {
    expect(waitOf({ attempt: 0 })).toBe(waitOf({ attempt: 1 }));
  });
});

describe('a Retry-After', () => {
  test('longer than the backoff is waited for', () => {
    expect(waitOf({ retryAfterMs: 45 * SECOND })).toBe(45 * SECOND);
  });

  test('shorter than the backoff, zero or in the past changes nothing', () => {
    for (const retryAfterMs of [10, 0, -5 * SECOND]) expect(waitOf({ retryAfterMs })).toBe(250);
  });

  test('of exactly the longest allowed is waited for, and a moment more ends the series', () => {
    expect(waitOf({ retryAfterMs: HOUR })).toBe(HOUR);
    expect(decideRetry(question({ retryAfterMs: HOUR + 1 }))).toStrictEqual({
      ...{ kind: 'exhausted', why: 'retry_after_too_long' },
    });
  });
});

describe('a series', () => {
  test('ends with its last attempt', () => {
    expect(decideRetry(question({ attempt: 4, attemptsMax: 5 })).kind).toBe('wait');
    expect(decideRetry(question({ attempt: 5, attemptsMax: 5 }))).toStrictEqual({
      kind: 'exhausted',
      why: 'attempts',
    });
  });

  test('ends when its deadline comes before the next attempt may', () => {
    expect(decideRetry(question({ seriesMsLeft: 251 })).kind).toBe('wait');
    for (const seriesMsLeft of [250, 0, -HOUR]) {
      expect(decideRetry(question({ seriesMsLeft }))).toStrictEqual({ kind: 'exhausted', why: 'deadline' });
    }
  });

  test('ends by its deadline when the target asks for a longer wait than is left', () => {
    expect(decideRetry(question({ retryAfterMs: 10 * MINUTE, seriesMsLeft: 5 * MINUTE }))).toStrictEqual({
      ...{ kind: 'exhausted', why: 'deadline' },
    });
  });

  test('of one attempt is never tried again', () => {
    expect(decideRetry(question({ attemptsMax: 1 })).kind).toBe('exhausted');
  });
});

test('whatever is asked: a wait is whole, positive, at least the Retry-After, before the deadline, and in series', () => {
  const questions = fc.record<RetryQuestion>({
    kind: fc.constantFrom('limit', 'transient', 'in_progress'),
    attempt: fc.integer({ min: 0, max: 120 }),
    attemptsMax: fc.integer({ min: 1, max: 100 }),
    seriesMsLeft: fc.integer({ min: -HOUR, max: 8 * 24 * HOUR }),
    retryAfterMs: fc.option(fc.integer({ min: 0, max: 10 * 365 * 24 * HOUR })),
    retryAfterMaxMs: fc.integer({ min: SECOND, max: 7 * 24 * HOUR }),
    random: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
  });
  fc.assert(
    fc.property(questions, (asked) => {
      const decision = decideRetry(asked);
      if (decision.kind === 'exhausted') return;
      expect(Number.isSafeInteger(decision.waitMs)).toBe(true);
      expect(decision.waitMs).toBeGreaterThan(0);
      expect(decision.waitMs).toBeGreaterThanOrEqual(asked.retryAfterMs ?? 0);
      expect(decision.waitMs).toBeLessThan(asked.seriesMsLeft);
      expect(asked.attempt).toBeLessThan(asked.attemptsMax);
      expect(asked.retryAfterMs ?? 0).toBeLessThanOrEqual(asked.retryAfterMaxMs);
    }),
    { numRuns: 2_000 },
  );
});
