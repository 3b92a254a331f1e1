// Goal: the scripted model keeps the contract of every other model without any network, says the same to the
// same request, and names the line of what is wrong in a script.
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { modelOverrideFromEnv } from '../activities/models/profile-from-env.js';
import { parseScript } from '../activities/models/script-format.js';
import type { ModelProfile } from '../shared/domain/agents.js';
import type { ModelChunk, ModelMessage, ModelRequest } from '../shared/domain/models.js';
import { answered, callModel, failed, request } from './support/model-calls.js';
import type { Called } from './support/model-calls.js';

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'holdfast-scripts-'));
});
afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

function call(
  tested: ModelProfile,
  sent?: ModelRequest,
  signal?: AbortSignal,
  onChunk?: (chunk: ModelChunk) => void,
): Promise<Called> {
  return callModel(tested, folder, sent, signal, onChunk);
}

// prettier-ignore
const BROKEN_SCRIPTS: [string, string][] = [
  ['replies:\n  - text: a\n  - txt: b\n', 'demo.yaml:3: replies.1.txt'],
  ['replies:\n  - text: a\n    pieces: [b]\n', 'demo.yaml:3: replies.0.pieces'],
  ['replies:\n  - error:\n      reason: sulky\n', 'demo.yaml:3: replies.0.error.reason'],
  ['replies:\n  - toolCalls:\n      - name: pay\n', 'demo.yaml:3: replies.0.toolCalls.0'],
  ['replies:\n  - text: a\n    attempts: [{ text: b }]\n', 'demo.yaml:2: replies.0'],
  ['{"replies": [\n {"text": 5}]}', 'demo.yaml:2: replies.0.text'],
  ['counts: turn\n', 'demo.yaml:1: the script'],
  ['scenarios:\n  - name: a\n    when: { inputMatches: "(" }\n    replies: [{}]\n', 'demo.yaml:3: scenarios.0.when'],
  ['replies:\n  - text: "a\n', 'demo.yaml:'],
  ['replies: [{ text: a }]\nreplies: [{ text: b }]\n', 'demo.yaml:2'],
];

describe('the scripted model', () => {
  let scripts = 0;

  async function script(text: string): Promise<ModelProfile> {
    scripts += 1;
    const model = `script-${scripts}.yaml`;
    await writeFile(join(folder, model), text);
    return {
      name: 'tested',
      provider: 'scripted',
      model,
      baseUrl: null,
      apiKeyEnv: null,
      maxOutputTokens: 1000,
      timeoutSeconds: 20,
      short: false,
    };
  }

  const assistant: ModelMessage = { role: 'assistant', parts: [{ type: 'text', text: 'x' }] };
  const input = (text: string): ModelMessage => ({ role: 'user', text });

  test('answers by the number of assistant messages, the same for the same request', async () => {
    const tested = await script('replies:\n  - text: one two three\n  - pieces: [sec, ond]\n');
    const second = request({ messages: [input('a'), assistant, input('b')] });
    expect(answered(await call(tested)).parts).toEqual([{ type: 'text', text: 'one two three' }]);
    const called = await call(tested, second);
    expect(called.chunks.map((chunk) => chunk.text)).toEqual(['sec', 'ond']);
    expect(await call(tested, second)).toEqual(called);
  });

  test('running out of replies names the position', async () => {
    const tested = await script('replies: [{ text: only }]');
    const outcome = failed(await call(tested, request({ messages: [input('a'), assistant] })));
    expect(outcome).toMatchObject({ reason: 'bad_request' });
    expect(outcome.detail).toContain('position 2');
  });

  test('fails on one attempt and answers on the next', async () => {
    const tested = await script(`
replies:
  - attempts:
      - error: { reason: rate_limited, httpStatus: 429, retryAfter: 120 }
      - error: { reason: overloaded, retryAfter: 'Sat, 03 Jan 2026 00:00:00 GMT' }
      - { pieces: [a, b, c], disconnectAfterChunks: 2 }
      - text: fine
`);
    const on = async (attempt: number): Promise<Called> => call(tested, request({ attempt }));
    expect(failed(await on(1))).toMatchObject({
      reason: 'rate_limited',
      retryAfterMs: 120_000,
      httpStatus: 429,
    });
    expect(failed(await on(2))).toMatchObject({ reason: 'overloaded', retryAfterMs: 2 * 86_400_000 });
    const third = await on(3);
    expect(failed(third).reason).toBe('disconnected');
    expect(third.chunks).toHaveLength(2);
    expect(answered(await on(4)).parts).toMatchObject([{ text: 'fine' }]);
    expect(answered(await on(9)).parts).toMatchObject([{ text: 'fine' }]);
  });

  test('builds tool calls from the input and from earlier results', async () => {
    const tested = await script(`
scenarios:
  - name: refund
    when: { inputContains: REFUND, inputMatches: 'order (?<order>\\w+) of (?<amount>\\d+)' }
    replies:
      - toolCalls:
          - { name: pay, arguments: { order: '{{input.order}}', amount: '{{input.amount | number}}' } }
          - { name: pay, argumentsText: '{"broken', callId: '' }
      - cases:
          - { when: { resultIsError: true }, text: 'It failed: {{lastResult.text}}' }
          - { text: 'Paid as {{results.0.json.ids.1}} by {{results.-1.toolName}}.' }
  - name: other
    replies: [{ text: 'You said: {{input}}' }]
`);
    const asked = input('Please refund order A7 of 25');
    const first = answered(await call(tested, request({ messages: [asked] })));
    expect(first.stopReason).toBe('tool_calls');
    expect(first.parts).toEqual([
      {
        type: 'raw_tool_call',
        providerCallId: 'call_0_0',
        toolName: 'pay',
        argumentsText: '{"order":"A7","amount":25}',
      },
      { type: 'raw_tool_call', providerCallId: '', toolName: 'pay', argumentsText: '{"broken' },
    ]);
    const after = async (text: string, isError: boolean): Promise<unknown> => {
      const result: ModelMessage = {
        role: 'tool',
        results: [{ callId: 'c', toolName: 'pay', text, isError }],
      };
      return answered(await call(tested, request({ messages: [asked, assistant, result] }))).parts;
    };
    expect(await after('{"ids":[7,8]}', false)).toEqual([{ type: 'text', text: 'Paid as 8 by pay.' }]);
    expect(await after('no funds', true)).toEqual([{ type: 'text', text: 'It failed: no funds' }]);
    const other = answered(await call(tested, request({ messages: [input('Hello')] })));
    expect(other.parts).toEqual([{ type: 'text', text: 'You said: Hello' }]);
  });

  test.each([
    '{{input.__proto__}}',
    '{{lastResult.json.constructor}}',
    '{{results.5.text}}',
    '{{process.env}}',
    '{{input | eval}}',
  ])('the template %s reaches nothing', async (template) => {
    const tested = await script(`replies: [{}, { text: '${template}' }]`.replace('{}', '{ text: a }'));
    const result: ModelMessage = {
      role: 'tool',
      results: [{ callId: 'c', toolName: 'pay', text: '{}', isError: false }],
    };
    const outcome = failed(await call(tested, request({ messages: [input('{}'), assistant, result] })));
    expect(outcome).toMatchObject({ reason: 'bad_request' });
  });

  test('with counts: turn, each user message begins anew', async () => {
    const tested = await script("counts: turn\nreplies: [{ text: 'about {{input}}' }, { text: second }]\n");
    const messages = [input('a'), assistant, assistant, input('b')];
    expect(answered(await call(tested, request({ messages }))).parts).toMatchObject([{ text: 'about b' }]);
  });

  test('logs each request as one JSON line', async () => {
    const tested = await script('log: requests.jsonl\nreplies: [{ text: a }]\n');
    await call(tested);
    await call(tested, request({ attempt: 2 }));
    const lines = (await readFile(join(folder, 'requests.jsonl'), 'utf8')).trim().split('\n');
    const logged = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(logged).toMatchObject([request(), request({ attempt: 2 })]);
  });

  test('waits can be aborted and end with the time limit', async () => {
    const tested = await script('replies: [{ text: late, delayMs: 600000 }]');
    expect(failed(await call({ ...tested, timeoutSeconds: 0.1 })).reason).toBe('timed_out');
    const slow = await script('replies: [{ pieces: [a, b], chunkDelayMs: 600000 }]');
    const controller = new AbortController();
    const called = await call(slow, request(), controller.signal, () => controller.abort());
    expect(failed(called).reason).toBe('aborted');
    expect(called.chunks).toHaveLength(1);
  });

  test('a changed script is taken up, and a missing one is named', async () => {
    const tested = await script('replies: [{ text: before }]');
    await call(tested);
    await writeFile(join(folder, tested.model), 'replies: [{ text: afterwards }]');
    expect(answered(await call(tested)).parts).toMatchObject([{ text: 'afterwards' }]);
    const missing = failed(await call({ ...tested, model: 'nowhere.yaml' }));
    expect(missing.detail).toContain('nowhere.yaml');
    expect(missing.detail).not.toContain(folder);
  });

  test.each(BROKEN_SCRIPTS)('refuses %j and names the place', (text, place) => {
    expect(() => parseScript(text, 'demo.yaml')).toThrow(place);
  });
});

describe('the model that the environment asks for', () => {
  test.each<[Record<string, string>, Partial<ModelProfile> | undefined]>([
    [{}, undefined],
    [{ HOLDFAST_MODEL: '  ' }, undefined],
    [{ OPENAI_API_KEY: 'k' }, { provider: 'openai', apiKeyEnv: 'OPENAI_API_KEY', baseUrl: null }],
    [
      { ANTHROPIC_API_KEY: 'k', HOLDFAST_MODEL: 'm' },
      { provider: 'anthropic', model: 'm', apiKeyEnv: 'ANTHROPIC_API_KEY' },
    ],
    [
      { HOLDFAST_MODEL_BASE_URL: 'http://127.0.0.1:1/v1', HOLDFAST_MODEL: 'm', OPENAI_API_KEY: 'k' },
      { provider: 'openai-compatible', apiKeyEnv: null },
    ],
    [
      { HOLDFAST_MODEL_PROVIDER: 'scripted', HOLDFAST_MODEL: 'a.yaml', OPENAI_API_KEY: 'k' },
      { provider: 'scripted', model: 'a.yaml', apiKeyEnv: null },
    ],
    [
      {
        HOLDFAST_MODEL_PROVIDER: 'anthropic',
        HOLDFAST_MODEL_API_KEY: 'k',
        HOLDFAST_MODEL_TIMEOUT_SECONDS: '30',
      },
      { apiKeyEnv: 'HOLDFAST_MODEL_API_KEY', timeoutSeconds: 30 },
    ],
  ])('%j', (env, expected) => {
    const found = modelOverrideFromEnv(env);
    if (expected === undefined) expect(found).toBeUndefined();
    else expect(found).toMatchObject(expected);
    expect(JSON.stringify(found) ?? '').not.toContain('"k"');
  });

  test.each([
    [{ HOLDFAST_MODEL: 'm' }, 'HOLDFAST_MODEL_PROVIDER'],
    [{ HOLDFAST_MODEL_PROVIDER: 'oracle' }, 'HOLDFAST_MODEL_PROVIDER'],
    [{ HOLDFAST_MODEL_PROVIDER: 'openai-compatible', HOLDFAST_MODEL: 'm' }, 'HOLDFAST_MODEL_BASE_URL'],
    [{ HOLDFAST_MODEL_PROVIDER: 'scripted' }, 'HOLDFAST_MODEL'],
    [{ OPENAI_API_KEY: 'k', HOLDFAST_MODEL_TIMEOUT_SECONDS: '1e9' }, 'HOLDFAST_MODEL_TIMEOUT_SECONDS'],
  ])('%j is refused and names the variable', (env, name) => {
    expect(() => modelOverrideFromEnv(env)).toThrow(name);
  });
});
