import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { compensationArguments, placeholdersOfRule } from '../shared/domain/compensation.js';
import type { JsonObject } from '../shared/domain/json.js';

// Goal: the arguments of a compensation are made of nothing but the call that it undoes and its receipt, the same for
// ever; what cannot be made is said, not guessed (SPEC 3.7).

const UNDONE = {
  arguments: { amount: 500, order: 'ORD-1', tags: ['a', 'b'], nothing: null },
  reference: 'pay_77',
  idempotencyKey: 'run_1:t1:s1:c0',
};

describe('a rule', () => {
  test.each<[string, JsonObject, JsonObject]>([
    ['takes a value as it is', { amount: '{amount}', tags: '{tags}' }, { amount: 500, tags: ['a', 'b'] }],
    ['writes scalars into a text', { note: 'undo {order} of {amount}' }, { note: 'undo ORD-1 of 500' }],
    [
      'names what was done and its key',
      { of: '{$reference}', by: '{$key}' },
      { of: 'pay_77', by: UNDONE.idempotencyKey },
    ],
    [
      'keeps what is no placeholder',
      { a: true, b: { c: [1, '{ x }', '{order}'] } },
      { a: true, b: { c: [1, '{ x }', 'ORD-1'] } },
    ],
    [
      'leaves out what was not given',
      { amount: '{amount}', why: '{why}', list: ['{why}', 1] },
      { amount: 500, list: [1] },
    ],
    ['keeps a null that was given', { nothing: '{nothing}' }, { nothing: null }],
    ['reads no member that the call has not of its own', { a: '{toString}', b: '{constructor}' }, {}],
  ])('%s', (_, rule, made) => {
    expect(compensationArguments(rule, UNDONE)).toStrictEqual(made);
  });

  test('that is none takes the arguments of the call', () => {
    expect(compensationArguments(null, UNDONE)).toStrictEqual(UNDONE.arguments);
  });

  test.each<[string, JsonObject]>([
    ['a reference that the receipt lacks', { of: '{$reference}' }],
    ['that within a text', { of: 'payment {$reference}' }],
    ['that deep inside', { of: [{ id: '{$reference}' }] }],
    ['a list inside a text', { note: 'tags {tags}' }],
    ['what was not given inside a text', { note: 'why {why}' }],
  ])('cannot be followed where it needs %s', (_, rule) => {
    expect(compensationArguments(rule, { ...UNDONE, reference: null })).toBeUndefined();
  });

  test('makes the same of the same, whatever the values hold', () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), (order, reference) => {
        const undone = { ...UNDONE, arguments: { order }, reference };
        const rule = { of: '{$reference}', note: '{order}/{$reference}' };
        const made = compensationArguments(rule, undone);
        expect(compensationArguments(rule, undone)).toStrictEqual(made);
        // What a value holds is never read as a placeholder again.
        if (made !== undefined) expect(made).toStrictEqual({ of: reference, note: `${order}/${reference}` });
      }),
    );
  });

  test('tells the names that it uses, in order', () => {
    expect(placeholdersOfRule({ a: '{x} {$key}', b: [{ c: '{y}' }], d: 1, e: null })).toStrictEqual([
      'x',
      '$key',
      'y',
    ]);
  });
});
