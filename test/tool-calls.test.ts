// Goal: whatever a model writes as a tool call is either an object that fits its schema and can be digested,
// or a refusal that tells the model what to do; and no schema, however hostile, holds the process.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  compileSchema,
  createArgumentsValidator,
  SCHEMA_CHECK_MS_MAX,
} from '../shared/schema/validate-arguments.js';
import type { JsonObject, JsonValue } from '../shared/domain/json.js';
import type { ModelResponsePart } from '../shared/domain/models.js';
import { readToolCalls } from '../shared/domain/tool-calls.js';
import type { PlannedCall, ToolCallContext, ToolCallRefusal } from '../shared/domain/tool-calls.js';

const PAY = {
  type: 'object',
  properties: { amount: { type: 'integer', minimum: 1 }, note: {}, currency: { enum: ['EUR', 'USD'] } },
  required: ['amount'],
  additionalProperties: false,
};
const TOOLS = new Map<string, { inputSchema: JsonObject }>([
  ['pay', { inputSchema: PAY }],
  ['list', { inputSchema: { type: 'object' } }],
  ['search', { inputSchema: { type: 'object', properties: { all: { type: 'boolean' } } } }],
  ['any', { inputSchema: {} }],
]);

function read(parts: readonly ModelResponsePart[], changes: Partial<ToolCallContext> = {}): PlannedCall[] {
  return readToolCalls(parts, {
    tools: TOOLS,
    validate: createArgumentsValidator(TOOLS),
    callIdPrefix: 't0_s1',
    usedCallIds: new Set(),
    callsMax: 20,
    ...changes,
  });
}

function raw(toolName: string, argumentsText: string, providerCallId = ''): ModelResponsePart {
  return { type: 'raw_tool_call', toolName, argumentsText, providerCallId };
}

function only(calls: readonly PlannedCall[]): PlannedCall {
  const [call] = calls;
  if (!call || calls.length !== 1) throw new Error(`expected one call, got ${calls.length}`);
  return call;
}

test('plans a call with its object and its canonical form', () => {
  const call = only(
    read([{ type: 'text', text: 'Paying.' }, raw('pay', ' {"note": [1.0], "amount": 5}', 'call_1')]),
  );
  expect(call).toEqual({
    kind: 'planned',
    slot: 0,
    callId: 'call_1',
    toolName: 'pay',
    arguments: { note: [1], amount: 5 },
    canonicalArguments: '{"amount":5,"note":[1]}',
  });
});

// prettier-ignore
test.each<[string, string, ToolCallRefusal, RegExp]>([
  ['pay',    '{"amount": 5',                       'arguments_not_json',   /complete JSON object/],
  ['pay',    'amount=5',                           'arguments_not_json',   /not JSON/],
  ['pay',    '```json\n{"amount": 5}\n```',        'arguments_not_json',   /code fence/],
  ['pay',    '{"amount": 5} and more',             'arguments_not_json',   /not JSON/],
  ['pay',    '',                                   'arguments_not_json',   /no arguments were written/],
  ['search', ' ',                                  'arguments_not_json',   /no arguments were written/],
  ['pay',    'null',                               'arguments_not_object', /are null/],
  ['pay',    '[{"amount": 5}]',                    'arguments_not_object', /an array/],
  ['pay',    '"{\\"amount\\": 5}"',                'arguments_not_object', /a string/],
  ['pay',    '{"amount": 5, "amount": 9999}',      'arguments_unstorable', /amount/],
  ['pay',    '{"amount": 5, "note": "a\\u0000"}',  'arguments_unstorable', /note/],
  ['pay',    '{"amount": 5, "note": "\\ud800"}',   'arguments_unstorable', /note/],
  ['pay',    '{"__proto__": {"amount": 5}}',       'arguments_unstorable', /__proto__/],
  ['any',    '{"a": {"constructor": 1}}',          'arguments_unstorable', /constructor/],
  ['any',    '{"prototype": 1}',                   'arguments_unstorable', /prototype/],
  ['any',    '{"a": 9007199254740993}',            'arguments_unstorable', /a/],
  ['any',    '{"a": 1e400}',                       'arguments_unstorable', /a/],
  ['any',    `{"a": ${'['.repeat(64)}${']'.repeat(64)}}`, 'arguments_unstorable', /deep/],
  ['any',    `{"a": "${'x'.repeat(1_048_576)}"}`,  'arguments_unstorable', /larger/],
  ['pay',    '{"amount": "5"}',                    'arguments_invalid',    /\/amount must be integer/],
  ['pay',    '{}',                                 'arguments_invalid',    /required property 'amount'/],
  ['pay',    '{"amount": 5, "to": "x"}',           'arguments_invalid',    /"to"/],
  ['pay',    '{"amount": 5, "currency": "GBP"}',   'arguments_invalid',    /"EUR","USD"/],
  ['pya',    '{"amount": 5}',                      'unknown_tool',         /"pya".*pay, list/],
  ['Pay',    '{"amount": 5}',                      'unknown_tool',         /no tool named/],
  ['constructor', '{}',                            'unknown_tool',         /no tool named/],
  ['',       '{}',                                 'unknown_tool',         /no tool named/],
])('%s(%.40j) is refused as %s', (toolName, text, code, message) => {
  const call = only(read([raw(toolName, text)]));
  expect(call).toMatchObject({ kind: 'refused', code });
  expect(call).toHaveProperty('message', expect.stringMatching(message));
  expect(call).not.toHaveProperty('canonicalArguments');
});

test('no text at all means no arguments only where the tool takes none', () => {
  expect(only(read([raw('list', '')]))).toMatchObject({ kind: 'planned', canonicalArguments: '{}' });
});

test('readable arguments of a refused call stay in the transcript, unreadable ones become {}', () => {
  expect(only(read([raw('pay', '{"amount":"5"}')])).arguments).toEqual({ amount: '5' });
  expect(only(read([raw('pay', '{"amount":')])).arguments).toEqual({});
});

test('calls past the limit are refused, the first ones stay', () => {
  const calls = read(
    [1, 2, 3].map((amount) => raw('pay', `{"amount":${amount}}`)),
    { callsMax: 2 },
  );
  expect(calls.map((call) => (call.kind === 'planned' ? 'planned' : call.code))).toEqual([
    'planned',
    'planned',
    'too_many_calls',
  ]);
});

test('empty, repeated, used and ill-formed call ids are replaced by the same ones on every reading', () => {
  const ids = ['call_1', '', 'call_1', 'used', 'bad id', 'x'.repeat(65), 't0_s1_7', ''];
  const parts = ids.map((id) => raw('pay', '{"amount":1}', id));
  const changes = { usedCallIds: new Set(['used', 't0_s1_1']) };
  const calls = read(parts, changes);
  expect(calls.map((call) => call.callId)).toEqual([
    'call_1',
    't0_s1_1_2',
    't0_s1_2',
    't0_s1_3',
    't0_s1_4',
    't0_s1_5',
    't0_s1_7',
    't0_s1_7_2',
  ]);
  expect(read(parts, changes)).toEqual(calls);
});

test('a name that no tool has goes back in a form that providers take', () => {
  expect(only(read([raw('pay money!\u0000', '{}')])).toolName).toBe('pay_money__');
  expect(only(read([raw('', '{}')])).toolName).toBe('unnamed');
});

test('garbage never throws and never plans a forbidden key', () => {
  const forbidden = fc.constantFrom('__proto__', 'constructor', 'prototype', 'amount', '\u0000', '\ud800');
  const almostJson = fc
    .array(
      fc.oneof(fc.constantFrom('{', '}', '[', ']', ':', ',', '"', '\\u', '\\', '1', 'null', ' '), forbidden),
    )
    .map((pieces) => pieces.join(''));
  const objects = fc
    .tuple(forbidden, fc.json(), fc.json())
    .map(([key, one, two]) => `{${JSON.stringify(key)}:${one},"b":{"${key}":${two}}}`);
  const bytes = fc.uint8Array({ maxLength: 200 }).map((array) => Buffer.from(array).toString('latin1'));
  const texts = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 200 }),
    bytes,
    almostJson,
    objects,
    fc.json(),
  );
  fc.assert(
    fc.property(texts, fc.constantFrom('pay', 'any', 'nothing'), fc.string(), (text, toolName, id) => {
      const call = only(read([raw(toolName, text, id)]));
      expect(call.callId).toMatch(/^[A-Za-z0-9_-]{1,64}$/);
      const value = call.arguments;
      expect(keysOf(value).filter((key) => ['__proto__', 'constructor', 'prototype'].includes(key))).toEqual(
        [],
      );
      if (call.kind === 'planned') expect(JSON.parse(call.canonicalArguments)).toEqual(value);
    }),
    { numRuns: 1000 },
  );
});

describe('argument schemas', () => {
  const check = (schema: JsonObject, value: JsonValue): string[] => compileSchema(schema)(value);

  test('2020-12 and draft-07 are told apart', () => {
    const modern = { prefixItems: [{ type: 'string' }], items: false };
    expect(check(modern, ['a'])).toEqual([]);
    expect(check(modern, ['a', 1])).not.toEqual([]);
    const draft07 = { items: [{ type: 'string' }], additionalItems: false };
    expect(check({ $schema: 'http://json-schema.org/draft-07/schema#', ...draft07 }, ['a', 1])).not.toEqual(
      [],
    );
    expect(check(draft07, ['a', 1])).not.toEqual([]);
  });

  test('formats are checked, keywords of others are passed over', () => {
    const schema = { properties: { at: { type: 'string', format: 'date-time', 'x-widget': 'clock' } } };
    expect(check(schema, { at: '2026-01-01T00:00:00Z' })).toEqual([]);
    expect(check(schema, { at: 'soon' })).toEqual(['/at must match format "date-time"']);
  });

  test('two schemas may share one $id and stay apart', () => {
    expect(check({ $id: 'https://example.com/a', type: 'string' }, 'a')).toEqual([]);
    expect(check({ $id: 'https://example.com/a', type: 'number' }, 'a')).toHaveLength(1);
  });

  test('a runaway regular expression is stopped, and the next check works', () => {
    const schema = { properties: { a: { type: 'string', pattern: '^(a+)+$' } } };
    const begin = performance.now();
    expect(check(schema, { a: `${'a'.repeat(60)}!` }).join()).toContain('longer than');
    expect(performance.now() - begin).toBeLessThan(SCHEMA_CHECK_MS_MAX + 2_000);
    expect(check(schema, { a: 'aaa' })).toEqual([]);
  });

  test('a $ref that leads to itself is answered, not followed for ever', () => {
    expect(check({ $ref: '#' }, {}).join()).toContain('cannot be applied');
  });

  test.each<[string, JsonObject]>([
    ['async', { $async: true, type: 'object' }],
    ['remote', { $ref: 'https://example.com/other.json' }],
    ['nonsense', { type: 'objekt' }],
    ['broken pattern', { properties: { a: { pattern: '(' } } }],
    ['huge', { description: 'x'.repeat(300_000) }],
  ])('a schema that is %s is refused, and so is every call of its tool', (_name, inputSchema) => {
    expect(() => compileSchema(inputSchema)).toThrow();
    const validate = createArgumentsValidator(new Map([['t', { inputSchema }]]));
    expect(validate('t', {}).join()).toContain('use another tool');
  });

  test('many faults are counted, not listed', () => {
    const value = Object.fromEntries(Array.from({ length: 50 }, (_unused, index) => [`k${index}`, 1]));
    const faults = check({ additionalProperties: false }, value);
    expect(faults).toHaveLength(9);
    expect(faults.at(-1)).toBe('and 42 more faults');
  });
});

function keysOf(value: JsonValue): string[] {
  if (typeof value !== 'object' || value === null) return [];
  const entries: [string, JsonValue][] = Object.entries(value);
  return entries.flatMap(([key, member]) => [key, ...keysOf(member)]);
}
