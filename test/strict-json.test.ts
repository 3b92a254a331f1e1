import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { JsonValue } from '../shared/domain/json.js';
import { isFaithfulNumber } from '../shared/domain/json-rules.js';
import { canonicalJson, checkJsonValue, parseStrictJson } from '../shared/domain/strict-json.js';
import type { StrictJsonCode } from '../shared/domain/strict-json.js';

const verdict = (text: string): string => {
  const read = parseStrictJson(text);
  return read.ok ? 'ok' : `${read.code} ${read.at}`;
};

describe('parseStrictJson', () => {
  // prettier-ignore
  test.each<[string, string, StrictJsonCode, string]>([
    ['nothing',                    '',                             'not_json',        ''],
    ['a word',                     'nul',                          'not_json',        ''],
    ['a trailing comma',           '{"a":[1,]}',                   'not_json',        '/a/1'],
    ['text after the value',       '{} {}',                        'not_json',        ''],
    ['a BOM',                      '\ufeff{}',                     'not_json',        ''],
    ['a leading zero',             '[01]',                         'not_json',        '/1'],
    ['a bare fraction',            '[.5]',                         'not_json',        '/0'],
    ['NaN',                        '[NaN]',                        'not_json',        '/0'],
    ['an unclosed string',         '["a',                          'not_json',        '/0'],
    ['a raw line feed in a string', '["a\n"]',                     'not_json',        '/0'],
    ['an unknown escape',          '["\\x41"]',                    'not_json',        '/0'],
    ['a short escape',             '["\\u12"]',                    'not_json',        '/0'],
    ['a key without quotes',       '{"a":{b:1}}',                  'not_json',        '/a'],
    ['a key twice',                '{"a":{"b":1,"b":9999}}',       'duplicate_key',   '/a/b'],
    ['a key twice, once escaped',  '{"amount":1,"\\u0061mount":9}', 'duplicate_key',  '/amount'],
    ['__proto__',                  '{"x":{"__proto__":{"polluted":1}}}', 'forbidden_key', '/x/__proto__'],
    ['an escaped __proto__',       '{"\\u005f_proto__":1}',        'forbidden_key',   '/__proto__'],
    ['constructor',                '[{"constructor":1}]',          'forbidden_key',   '/0/constructor'],
    ['prototype',                  '{"prototype":1}',              'forbidden_key',   '/prototype'],
    ['an escaped NUL',             '{"a/b":"x\\u0000y"}',          'ill_formed_text', '/a~1b'],
    ['a raw NUL',                  '["x\u0000y"]',                 'ill_formed_text', '/0'],
    ['an escaped half pair',       '{"pay":"\\ud800"}',            'ill_formed_text', '/pay'],
    ['the other half',             '{"pay":"\\udbff"}',            'ill_formed_text', '/pay'],
    ['a raw half pair',            '["\ud800"]',                   'ill_formed_text', '/0'],
    ['a pair the wrong way round', '["\\ude00\\ud83d"]',           'ill_formed_text', '/0'],
    ['a half pair in a key',       '{"a":{"\\ud800":1}}',          'ill_formed_text', '/a'],
    ['a half pair in a later key', '{"a":1,"\\ud800":1}',       'ill_formed_text', ''],
    ['an integer past 2^53-1',     '{"n":9007199254740993}',       'unsafe_number',   '/n'],
    ['2^53 itself',                '[9007199254740992]',           'unsafe_number',   '/0'],
    ['a number past all doubles',  '[1e400]',                      'unsafe_number',   '/0'],
    ['a number under all doubles', '[1e-400]',                     'unsafe_number',   '/0'],
    ['more digits than are kept',  '[0.1000000000000000055]',      'unsafe_number',   '/0'],
    ['a number without end',       `[1${'0'.repeat(600)}]`,        'unsafe_number',   '/0'],
    ['depth 65',                   `${'['.repeat(65)}${']'.repeat(65)}`, 'too_deep',  '/0'.repeat(64)],
  ])('refuses %s', (_what, text, code, at) => {
    expect(verdict(text)).toBe(`${code} ${at}`);
  });

  // prettier-ignore
  test.each<[string, JsonValue]>([
    ['{"a":[1,-2.5,true,false,null,""]}', { a: [1, -2.5, true, false, null, ''] }],
    [' [ ] ',                             []],
    ['\t{\r\n}\n',                        {}],
    ['1E+2',                              100],
    ['1.0',                               1],
    ['-0',                                0],
    ['-0.0e-5',                           0],
    ['0e999999999',                       0],
    ['0.30000000000000004',               0.1 + 0.2],
    ['9007199254740991',                  9007199254740991],
    ['-9007199254740991.0',               -9007199254740991],
    ['1.7976931348623157e-300',           1.7976931348623157e-300],
    ['5e-324',                            5e-324],
    ['"\\ud83d\\ude00\\u00e9\\n\\/"',     '\u{1f600}\u00e9\n/'],
    ['{"":{"2":0,"1":0}}',                { '': { 1: 0, 2: 0 } }],
    ['{"toString":1,"hasOwnProperty":2}', JSON.parse('{"toString":1,"hasOwnProperty":2}') as JsonValue],
    [`${'['.repeat(64)}${']'.repeat(64)}`, JSON.parse(`${'['.repeat(64)}${']'.repeat(64)}`) as JsonValue],
  ])('reads %s', (text, value) => {
    expect(parseStrictJson(text)).toStrictEqual({ ok: true, value });
  });

  test('composed and decomposed letters stay two different texts', () => {
    const read = parseStrictJson('{"\u00e9":1,"e\u0301":2}');
    expect(read.ok && Object.keys(read.value as object)).toHaveLength(2);
  });

  test('nothing is polluted by any spelling of a forbidden key', () => {
    for (const text of ['{"__proto__":{"polluted":1}}', '{"constructor":{"prototype":{"polluted":1}}}']) {
      expect(parseStrictJson(text).ok).toBe(false);
    }
    expect(({} as Record<string, unknown>)['polluted']).toBeUndefined();
  });

  test('agrees with JSON.parse wherever it accepts, and refuses all that JSON.parse refuses', () => {
    const piece = fc.constantFrom(
      ...['{', '}', '[', ']', ',', ':', '"a"', '"\\u00e9"', '1', '-0.5e1', 'true', 'null', ' ', '"', '\\'],
    );
    const text = fc.oneof(
      fc.json(),
      fc.json({ stringUnit: 'binary' }),
      fc.array(piece).map((pieces) => pieces.join('')),
    );
    fc.assert(
      fc.property(text, (written) => {
        const strict = parseStrictJson(written);
        let loose: unknown;
        try {
          loose = JSON.parse(written);
        } catch {
          expect(strict.ok).toBe(false);
          return;
        }
        if (strict.ok) expect(JSON.stringify(strict.value)).toBe(JSON.stringify(loose));
      }),
      { numRuns: 500 },
    );
  });

  test('accepts every well-formed value that a program writes', () => {
    fc.assert(
      fc.property(fc.jsonValue({ noUnicodeString: false, stringUnit: 'grapheme', maxDepth: 5 }), (value) => {
        const checked = checkJsonValue(value);
        fc.pre(checked.ok);
        expect(parseStrictJson(JSON.stringify(value))).toStrictEqual(checked);
      }),
    );
  });

  test('a number is faithful exactly when its text can be had back from it', () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) => {
        expect(isFaithfulNumber(String(value))).toBe(Math.abs(value) <= Number.MAX_SAFE_INTEGER);
      }),
    );
  });

  test('depth 5,000,000 and a million keys cost no stack and time in proportion', () => {
    const started = performance.now();
    expect(verdict('['.repeat(5_000_000))).toMatch(/^too_deep/);
    expect(verdict(`{"a":${'['.repeat(5000)}${']'.repeat(5000)}}`)).toMatch(/^too_deep/);
    expect(performance.now() - started).toBeLessThan(1_000);
    const keys = Array.from({ length: 1_000_000 }, (_, index) => `"k${index}":1`);
    const many = `{${keys.join(',')}}`;
    expect(parseStrictJson(many, { bytesMax: 1_048_576 })).toMatchObject({ ok: false, code: 'too_large' });
    // Against the engine's own reader, since this machine may have much else to do.
    const [strict, loose] = [parseStrictJson, JSON.parse].map((read) => {
      const begun = performance.now();
      read(many);
      return performance.now() - begun;
    });
    expect((strict ?? 0) / (loose ?? 1)).toBeLessThan(25);
  });

  test('the size limit counts bytes, not characters', () => {
    expect(parseStrictJson('"\u00e9"', { bytesMax: 4 }).ok).toBe(true);
    expect(parseStrictJson('"\u20ac"', { bytesMax: 4 })).toMatchObject({ code: 'too_large' });
    expect(parseStrictJson('"\u{1f600}"', { bytesMax: 6 }).ok).toBe(true);
    expect(parseStrictJson('"\u{1f600}"', { bytesMax: 5 })).toMatchObject({ code: 'too_large' });
  });

  test('what it says of a refusal is short and well-formed', () => {
    const long = 'k'.repeat(100_000);
    const texts = [
      `{"${long}":1,"${long}":2}`,
      '{"\ud800":1}',
      '"\u0001"',
      `{"${long}":{"${long}":[\ud800]}}`,
    ];
    for (const text of texts) {
      const read = parseStrictJson(text);
      if (read.ok) throw new Error(`bug: ${text.slice(0, 20)} was accepted`);
      expect((read.message + read.at).length).toBeLessThan(600);
      expect(checkJsonValue(read.message + read.at).ok).toBe(true);
    }
  });
});

describe('checkJsonValue', () => {
  class Money {
    readonly cents = 1;
  }
  const cycle: Record<string, unknown> = {};
  cycle['self'] = { again: cycle };
  const withMember = Object.assign([1], { extra: 2 });
  const throws = {
    get bad(): never {
      throw new Error('secret');
    },
  };

  // prettier-ignore
  test.each<[string, unknown, StrictJsonCode, string]>([
    ['a Date',                { a: [new Date(0)] },      'not_json_value',  '/a/0'],
    ['a BigInt',              { a: 1n },                 'not_json_value',  '/a'],
    ['undefined',             undefined,                 'not_json_value',  ''],
    ['an undefined member',   { a: { b: undefined } },   'not_json_value',  '/a/b'],
    ['a function',            { a: () => 1 },            'not_json_value',  '/a'],
    ['a symbol',              [Symbol('x')],             'not_json_value',  '/0'],
    ['a symbol as key',       { [Symbol('x')]: 1 },      'not_json_value',  ''],
    ['NaN',                   [NaN],                     'not_json_value',  '/0'],
    ['Infinity',              [-Infinity],               'not_json_value',  '/0'],
    ['a cycle',               cycle,                     'not_json_value',  '/self/again'],
    ['a class instance',      { price: new Money() },    'not_json_value',  '/price'],
    ['a Map',                 new Map(),                 'not_json_value',  ''],
    ['bytes',                 new Uint8Array(1),         'not_json_value',  ''],
    ['a boxed number',        [Object(1)],               'not_json_value',  '/0'],
     
    ['a sparse array',        [1, , 2],                  'not_json_value',  ''],
    ['a huge empty array',    new Array(2 ** 32 - 1),    'too_large',       ''],
    ['an array with a member', withMember,               'not_json_value',  ''],
    ['a getter that throws',  throws,                    'not_json_value',  '/bad'],
    ['an unsafe integer',     { n: 2 ** 53 },            'unsafe_number',   '/n'],
    ['NUL',                   ['\0'],                    'ill_formed_text', '/0'],
    ['half a pair',           { a: '\ud800' },           'ill_formed_text', '/a'],
    ['half a pair in a key',  { '\ud800': 1 },           'ill_formed_text', '/\ufffd'],
    ['an own __proto__',      JSON.parse('{"__proto__":1}'), 'forbidden_key', '/__proto__'],
    ['depth 65',              JSON.parse(`${'['.repeat(65)}${']'.repeat(65)}`), 'too_deep', '/0'.repeat(64)],
  ])('refuses %s', (_what, value, code, at) => {
    const checked = checkJsonValue(value);
    expect(checked).toMatchObject({ ok: false, code, at });
    expect(JSON.stringify(checked)).not.toContain('secret');
  });

  test('gives back a copy, without -0, that a later change cannot reach', () => {
    const value = { list: [-0, 'x'], bare: Object.create(null) as object };
    const checked = checkJsonValue(value);
    value.list.push('later');
    expect(checked).toStrictEqual({ ok: true, value: { list: [0, 'x'], bare: {} } });
  });

  test('a value shared in many places cannot grow without bound', () => {
    let value: unknown = 'x';
    for (let level = 0; level < 60; level += 1) value = [value, value];
    expect(checkJsonValue(value, { bytesMax: 100_000 })).toMatchObject({ ok: false, code: 'too_large' });
  });

  test('the size limit is the size of the compact JSON form', () => {
    fc.assert(
      fc.property(fc.jsonValue({ stringUnit: 'grapheme' }), (value) => {
        const checked = checkJsonValue(value);
        fc.pre(checked.ok);
        const bytes = Buffer.byteLength(JSON.stringify(checked.value));
        expect(checkJsonValue(value, { bytesMax: bytes }).ok).toBe(true);
        expect(checkJsonValue(value, { bytesMax: bytes - 1 })).toMatchObject({ code: 'too_large' });
      }),
    );
  });
});

describe('canonicalJson', () => {
  test('is the same for any order of keys, any spacing and any spelling of a number', () => {
    const text = '{"b":[1.0,2e1],"a":{"d":"\\u00e9","c":-0}}';
    const same = ' { "a" : {"c":0, "d":"\u00e9"}, "b":[1,20] } ';
    const forms = [text, same].map((written) => {
      const read = parseStrictJson(written);
      if (!read.ok) throw new Error(read.message);
      return canonicalJson(read.value);
    });
    expect(forms).toStrictEqual(Array(2).fill('{"a":{"c":0,"d":"\u00e9"},"b":[1,20]}'));
  });

  test('does not depend on the order in which keys were written, at any level', () => {
    const reversed = (value: JsonValue): JsonValue => {
      if (Array.isArray(value)) return value.map(reversed);
      if (value === null || typeof value !== 'object') return value;
      const members = Object.entries(value).map(([key, member]) => [key, reversed(member as JsonValue)]);
      return Object.fromEntries(members.reverse()) as JsonValue;
    };
    fc.assert(
      fc.property(fc.jsonValue({ stringUnit: 'grapheme' }), (value) => {
        const checked = checkJsonValue(value);
        fc.pre(checked.ok);
        const form = canonicalJson(checked.value);
        expect(canonicalJson(reversed(checked.value))).toBe(form);
        expect(parseStrictJson(form)).toEqual(checked);
      }),
    );
  });
});
