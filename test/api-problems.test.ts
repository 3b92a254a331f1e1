import { z } from 'zod';
import { describe, expect, test } from 'vitest';
import { decodeCursor, encodeCursor } from '../api/cursor.js';
import { knownError } from '../api/problems.js';
import { ERRORS, HoldfastError, problemOf } from '../shared/domain/errors.js';
import type { ErrorCode } from '../shared/domain/errors.js';
import { ID_PREFIXES, idOfUuid, idSchema, isId } from '../shared/domain/ids.js';
import type { IdPrefix } from '../shared/domain/ids.js';
import { newId } from '../shared/ledger/new-id.js';

describe('a problem', () => {
  test('of any code carries its status, its retry and its own URN, and extensions never displace them', () => {
    for (const [code, { http, retry, title }] of Object.entries(ERRORS)) {
      const extensions = { code: 'other', status: 200, run_id: 'run_1' };
      const error = new HoldfastError(code as ErrorCode, 'What happened.', { extensions });
      expect(problemOf(error, 'req_1')).toStrictEqual({
        ...{ type: `urn:holdfast:problem:${code}`, title, status: http, detail: 'What happened.' },
        ...{ code, retry, instance: 'urn:holdfast:request:req_1', run_id: 'run_1' },
      });
    }
  });

  test('lists at most fifty faults', () => {
    const errors = Array.from({ length: 60 }, (_, index) => ({ at: `body/${index}`, problem: 'odd' }));
    expect(problemOf(new HoldfastError('invalid_request', 'Odd.', { errors }), 'req_1').errors).toHaveLength(
      50,
    );
  });

  test('of a driver says whether a POST may have been done, and nothing of the driver', () => {
    const reset = Object.assign(new Error('read ECONNRESET 10.0.0.7'), { code: 'ECONNRESET' });
    const written = knownError(reset, { method: 'POST' });
    expect([written.code, written.detail]).toStrictEqual([
      'ledger_unavailable',
      expect.stringMatching(/unknown.*same key/),
    ]);
    expect(knownError(reset, { method: 'GET' }).detail).not.toContain('unknown');
    const bug = knownError(new Error('column "secret" does not exist'), { method: 'GET' });
    expect([bug.code, bug.detail]).toStrictEqual(['internal', expect.not.stringContaining('secret')]);
  });
});

describe('an id', () => {
  test('is a prefix and 32 hex digits, and of one kind only', () => {
    for (const prefix of Object.keys(ID_PREFIXES) as IdPrefix[]) {
      const id = newId(prefix);
      const kinds = (Object.keys(ID_PREFIXES) as IdPrefix[]).filter((other) => isId(other, id));
      expect(kinds).toStrictEqual([prefix]);
    }
  });

  test('made later sorts later', () => {
    const ids = Array.from({ length: 500 }, () => newId('run'));
    expect([...ids].sort()).toStrictEqual(ids);
  });

  // prettier-ignore
  test.each([
    ['run_'], ['run_1'], [`run_${'0'.repeat(31)}`], [`run_${'0'.repeat(33)}`], [`run_${'A'.repeat(32)}`],
    [`run_${'g'.repeat(32)}`], [`run_${'0'.repeat(32)}\n`], [`job_${'0'.repeat(32)}`], [` run_${'0'.repeat(32)}`],
  ])('is not %j', (text) => {
    expect([isId('run', text), idSchema('run').safeParse(text).success]).toStrictEqual([false, false]);
  });

  test('names the same thing as its UUID, and nothing else is one', () => {
    expect(idOfUuid('eff', '01981F7C-0A6B-7C3E-9D1F-2A3B4C5D6E7F')).toBe(
      'eff_01981f7c0a6b7c3e9d1f2a3b4c5d6e7f',
    );
    expect(() => idOfUuid('eff', 'nonsense')).toThrow(/^bug: /);
  });
});

test('a cursor is good for its own list and filters alone, and for no place of another shape', () => {
  const scope = { list: 'runs', tenant: 'a', state: null };
  const cursor = encodeCursor(scope, [1, 2]);
  const place = z.tuple([z.int(), z.int()]);
  expect(cursor).toMatch(/^[\w-]+$/);
  expect(decodeCursor({ state: null, tenant: 'a', list: 'runs' }, cursor, place)).toStrictEqual([1, 2]);
  for (const other of [
    { ...scope, tenant: 'b' },
    { ...scope, state: 'failed' },
    { ...scope, list: 'x' },
  ]) {
    expect(() => decodeCursor(other, cursor, place)).toThrow(HoldfastError);
  }
  expect(() => decodeCursor(scope, cursor, z.string())).toThrow(HoldfastError);
});
