// Goal: every way a provider can answer, refuse or break off becomes the right outcome, through a real
// socket, with exactly one request a call.
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createModelClient } from '../activities/models/create-model-client.js';
import { parseRetryAfter } from '../activities/models/retry-after.js';
import type { ModelProfile } from '../shared/domain/agents.js';
import type { ModelFailureReason, ModelMessage } from '../shared/domain/models.js';
import { answered, callModel, failed, KEY, NOW_MS, request } from './support/model-calls.js';
import type { Called } from './support/model-calls.js';
import { startModelServer } from './support/model-server.js';
import type { ModelServer, ServedAnswer } from './support/model-server.js';

const PROVIDERS = ['openai', 'openai-responses', 'anthropic', 'openai-compatible'] as const;
type Provider = (typeof PROVIDERS)[number];

let server: ModelServer;
// No scripted models here, so nothing is read from it.
const PROJECT_DIR = '.';

beforeAll(async () => {
  server = await startModelServer();
});
afterEach(() => {
  server.requests.length = 0;
  server.answers.length = 0;
});
afterAll(async () => {
  await server.close();
});

function profile(provider: ModelProfile['provider'], changes: Partial<ModelProfile> = {}): ModelProfile {
  return {
    name: 'tested',
    provider,
    model: 'gpt-4.1-mini',
    baseUrl: server.baseUrl,
    apiKeyEnv: 'TEST_KEY',
    maxOutputTokens: 1000,
    timeoutSeconds: 20,
    short: false,
    ...changes,
  };
}

async function callServed(provider: Provider, answer: ServedAnswer, sent = request()): Promise<Called> {
  server.answers.push(answer);
  const called = await callModel(profile(provider), PROJECT_DIR, sent);
  expect(server.requests).toHaveLength(1);
  return called;
}

// prettier-ignore
const STATUSES: [number, string, ModelFailureReason][] = [
  [400, '{"error":{"message":"bad","type":"invalid_request_error"}}',                      'bad_request'],
  [400, '{"error":{"message":"prompt is too long: 9 > 8","type":"invalid_request_error"}}', 'context_too_long'],
  [400, '{"error":{"message":"m","type":"x","code":"context_length_exceeded"}}',           'context_too_long'],
  [400, '{"error":{"message":"Your credit balance is too low","type":"invalid_request_error"}}', 'billing'],
  [400, '{"error":{"message":"m","type":"x","code":"content_policy_violation"}}',          'content_refused'],
  [401, '{"error":{"message":"no","type":"authentication_error"}}',                        'authentication'],
  [402, '',                                                                                'billing'],
  [403, '{"error":{"message":"no","type":"permission_error"}}',                            'authentication'],
  [404, '{"error":{"message":"no such model","type":"not_found_error"}}',                  'model_not_found'],
  [408, '',                                                                                'timed_out'],
  [413, '{"error":{"message":"m","type":"request_too_large"}}',                            'context_too_long'],
  [422, '<html>',                                                                          'bad_request'],
  [429, '{"error":{"message":"slow down","type":"rate_limit_error"}}',                     'rate_limited'],
  [429, '{"error":{"message":"m","type":"insufficient_quota","code":"insufficient_quota"}}', 'billing'],
  [500, '{"error":{"message":"m","type":"api_error"}}',                                    'server_error'],
  [502, '<html>',                                                                          'server_error'],
  [503, '',                                                                                'overloaded'],
  [504, '',                                                                                'timed_out'],
  [529, '{"type":"error","error":{"message":"m","type":"overloaded_error"}}',              'overloaded'],
];

describe.each(PROVIDERS)('%s', (provider) => {
  test('streams text in pieces and reports stop reason, usage, request id and model', async () => {
    const called = await callServed(provider, {
      text: ['It is', ' under', ' way.'],
      headers: { 'x-request-id': 'req_77' },
    });
    const response = answered(called);
    expect(called.chunks).toEqual(['It is', ' under', ' way.'].map((text) => ({ type: 'text', text })));
    expect(response.parts).toMatchObject([{ type: 'text', text: 'It is under way.' }]);
    expect(response).toMatchObject({ stopReason: 'stop', requestId: 'req_77', modelId: 'served-model' });
    expect(response.usage).toMatchObject({ inputTokens: 11, outputTokens: 7, cachedInputTokens: 4 });
    expect(server.requests[0]?.headers['x-client-request-id']).toBe('run_1/0/0/1');
  });

  test('gives tool-call arguments exactly as the model wrote them, broken or not', async () => {
    const pieces = ['{"amount": ', '1.50,\n "amount": 9', ' '];
    const response = answered(
      await callServed(provider, {
        toolCalls: [
          { id: 'call_a', name: 'pay', pieces },
          { id: 'call_b', name: 'pay', pieces: ['{"amount": '] },
        ],
      }),
    );
    expect(response.stopReason).toBe('tool_calls');
    expect(response.parts).toMatchObject([
      { type: 'raw_tool_call', providerCallId: 'call_a', toolName: 'pay', argumentsText: pieces.join('') },
      { type: 'raw_tool_call', providerCallId: 'call_b', argumentsText: '{"amount": ' },
    ]);
  });

  test('sends the system text, every message and the tools in the form of its provider', async () => {
    const messages: ModelMessage[] = [
      { role: 'user', text: 'Pay Ada' },
      {
        role: 'assistant',
        parts: [
          { type: 'text', text: 'Paying.' },
          { type: 'tool_call', callId: 'call_a', toolName: 'pay', arguments: { amount: 1 } },
        ],
      },
      { role: 'tool', results: [{ callId: 'call_a', toolName: 'pay', text: 'no funds', isError: true }] },
      { role: 'user', text: 'Try again' },
      { role: 'user', text: 'Now, please' },
    ];
    const tools = [{ name: 'pay', description: 'Pays.', inputSchema: { type: 'object', properties: {} } }];
    await callServed(provider, {}, request({ messages, tools }));
    const sent = JSON.stringify(server.requests[0]?.body);
    const places = ['Be brief.', 'Pay Ada', 'Paying.', 'call_a', 'no funds', 'Try again', 'Now, please'].map(
      (text) => (provider === 'anthropic' && text === 'Be brief.' ? 0 : sent.indexOf(text)),
    );
    expect(places).toEqual([...places].sort((left, right) => left - right));
    expect(places).not.toContain(-1);
    expect(sent).toContain('"Pays."');
    // Nobody speaks twice in a row: some providers refuse that.
    const body = server.requests[0]?.body as { messages?: { role?: string }[]; input?: { role?: string }[] };
    const roles = (body.messages ?? body.input ?? []).map(({ role }) => role);
    expect(roles.some((role, n) => role === 'user' && roles[n - 1] === 'user')).toBe(false);
    if (provider === 'anthropic') expect(sent).toContain('"is_error":true');
    if (provider === 'openai-responses') expect(sent).toContain('"store":false');
    const { authorization, 'x-api-key': apiKey } = server.requests[0]?.headers ?? {};
    expect(provider === 'anthropic' ? apiKey : authorization).toContain(KEY);
  });

  test.each(['reset', 'end'] as const)(
    'A25: a stream cut by %s is disconnected at every event, never an answer',
    async (how) => {
      const answer = {
        text: ['a', 'b'],
        toolCalls: [{ id: 'call_a', name: 'pay', pieces: ['{"a":', '1}'] }],
      };
      // The first events of a stream carry no content in any of the four forms.
      for (let afterEvents = 1; afterEvents < 7; afterEvents += 1) {
        server.requests.length = 0;
        const outcome = failed(await callServed(provider, { ...answer, cut: { afterEvents, how } }));
        expect(outcome).toMatchObject({ reason: 'disconnected', httpStatus: 200 });
      }
    },
  );

  test('an event that is no JSON is a malformed response that does not quote the answer', async () => {
    const outcome = failed(await callServed(provider, { insert: { at: 2, data: '{"secret text' } }));
    expect(outcome.reason).toBe('malformed_response');
    expect(outcome.detail).not.toContain('secret text');
  });

  test('a page in place of a stream is a malformed response', async () => {
    const answer = { body: '<html>Sign in</html>', headers: { 'content-type': 'text/html' } };
    expect(failed(await callServed(provider, answer)).reason).toBe('malformed_response');
  });

  test('an abort ends the call at once and closes the connection', async () => {
    server.answers.push({ stallAfterEvents: 4, text: ['a', 'b', 'c'] });
    const controller = new AbortController();
    const called = await callModel(profile(provider), PROJECT_DIR, request(), controller.signal, () =>
      controller.abort(),
    );
    expect(failed(called).reason).toBe('aborted');
    await expect.poll(() => server.requests[0]?.clientLeft).toBe(true);
  });

  test('an aborted signal sends nothing', async () => {
    const called = await callModel(profile(provider), PROJECT_DIR, request(), AbortSignal.abort());
    expect(failed(called).reason).toBe('aborted');
    expect(server.requests).toHaveLength(0);
  });

  test.each<ServedAnswer>([{ silent: true }, { stallAfterEvents: 3 }])(
    'the time limit ends %j',
    async (answer) => {
      server.answers.push(answer);
      const called = await callModel(profile(provider, { timeoutSeconds: 0.2 }), PROJECT_DIR);
      expect(failed(called).reason).toBe('timed_out');
      await expect.poll(() => server.requests[0]?.clientLeft).toBe(true);
    },
  );

  test.each(STATUSES)('HTTP %i %s is %s, after one request', async (status, body, reason) => {
    const outcome = failed(
      await callServed(provider, { status, body, headers: { 'x-request-id': 'req_9' } }),
    );
    expect(outcome).toMatchObject({ reason, httpStatus: status, requestId: 'req_9' });
  });

  test('an error inside the stream has its own reason, also after text', async () => {
    const frame =
      provider === 'openai-responses'
        ? {
            type: 'error',
            sequence_number: 9,
            error: { type: 'rate_limit_error', code: 'rate_limit_exceeded', message: 'm' },
          }
        : { type: 'error', error: { type: 'rate_limit_error', code: 'rate_limit_exceeded', message: 'm' } };
    for (const at of [1, 4]) {
      server.requests.length = 0;
      const answer = { text: ['a', 'b', 'c'], insert: { at, data: JSON.stringify(frame) } };
      expect(failed(await callServed(provider, answer)).reason).toBe('rate_limited');
    }
  });

  test('a redirect is not followed', async () => {
    const answer = { status: 307, headers: { location: `${server.baseUrl}/elsewhere` } };
    expect(failed(await callServed(provider, answer)).reason).toBe('bad_request');
  });

  test('a port that nobody listens on is unreachable', async () => {
    const closed = createServer().listen(0, '127.0.0.1');
    await new Promise((listening) => closed.once('listening', listening));
    const { port } = closed.address() as AddressInfo;
    await new Promise((done) => closed.close(done));
    const called = await callModel(
      profile(provider, { baseUrl: `http://127.0.0.1:${port}/v1` }),
      PROJECT_DIR,
    );
    expect(failed(called)).toMatchObject({ reason: 'unreachable' });
    expect(failed(called)).not.toHaveProperty('httpStatus');
  });

  test('without its key nothing is sent, and the outcome names the variable', async () => {
    const outcome = failed(await callModel(profile(provider, { apiKeyEnv: 'NO_SUCH_KEY' }), PROJECT_DIR));
    expect(outcome.reason).toBe('authentication');
    expect(outcome.detail).toContain('NO_SUCH_KEY');
    expect(server.requests).toHaveLength(0);
  });

  test('the detail shows neither the key nor the prompt that the provider quotes', async () => {
    const quote = (message: string): ServedAnswer => ({
      status: 400,
      body: JSON.stringify({ error: { message } }),
    });
    const withKey = failed(await callServed(provider, quote(`Incorrect API key: ${KEY}.`)));
    expect(withKey.detail).toContain('Incorrect API key');
    expect(withKey.detail).not.toContain('0123456789');
    server.requests.length = 0;
    const withPrompt = failed(
      await callServed(provider, quote('Cannot read "the order of Ada Lovelace" here')),
    );
    expect(withPrompt.detail).not.toContain('Lovelace');
    expect(withPrompt.detail.length).toBeLessThanOrEqual(500);
  });

  test('what onChunk throws is a bug of the caller: it rejects, and the connection is closed', async () => {
    server.answers.push({ text: ['a', 'b', 'c'], stallAfterEvents: 5 });
    const broken = callModel(profile(provider), PROJECT_DIR, request(), undefined, () => {
      throw new Error('bug: listener');
    });
    await expect(broken).rejects.toThrow('bug: listener');
    await expect.poll(() => server.requests[0]?.clientLeft).toBe(true);
  });

  test('text is made storable, and a character that the stream cuts in two stays whole', async () => {
    const called = await callServed(provider, { text: ['a\u0000', 'x\ud83d', '\ude00y', '\ud800'] });
    expect(answered(called).parts).toMatchObject([{ text: 'a\ufffdx\u{1f600}y\ufffd' }]);
    expect(called.chunks.map((chunk) => chunk.text).join('')).toBe('a\ufffdx\u{1f600}y\ufffd');
  });
});

test('an answer cut by its length leaves out its last tool call', async () => {
  const toolCalls = [
    { id: 'call_a', name: 'pay', pieces: ['{"a":1}'] },
    { id: 'call_b', name: 'delete_all', pieces: [] },
  ];
  for (const [provider, stopReason] of [
    ['anthropic', 'max_tokens'],
    ['openai', 'length'],
  ] as const) {
    server.requests.length = 0;
    const response = answered(await callServed(provider, { toolCalls, stopReason }));
    expect(response.stopReason).toBe('length');
    expect(response.parts).toMatchObject([{ toolName: 'pay' }]);
    expect(response.parts).toHaveLength(1);
    expect(response.warnings.join()).toContain('last tool call');
  }
});

// prettier-ignore
const SIGNED: [Provider, string, object][] = [
  ['anthropic',        'claude-sonnet-4-5', { anthropic: { signature: 'sig-1' } }],
  ['openai-responses', 'gpt-5-mini',        { openai: { reasoningEncryptedContent: 'sig-1' } }],
];

test.each(SIGNED)('%s gets back the reasoning it signed', async (provider, model, metadata) => {
  const signed = {
    reasoning: ['Let me', ' think'],
    signature: 'sig-1',
    toolCalls: [{ id: 'call_a', name: 'pay', pieces: ['{}'] }],
  };
  server.answers.push(signed, {});
  const called = await callModel(profile(provider, { model }), PROJECT_DIR);
  expect(called.chunks).toEqual([
    { type: 'reasoning', text: 'Let me' },
    { type: 'reasoning', text: ' think' },
  ]);
  const [reasoning] = answered(called).parts;
  expect(reasoning).toMatchObject({ type: 'reasoning', text: 'Let me think', providerMetadata: metadata });
  if (reasoning?.type !== 'reasoning') throw new Error('no reasoning part');
  const toolCall = { type: 'tool_call', callId: 'call_a', toolName: 'pay', arguments: {} } as const;
  const messages: ModelMessage[] = [
    { role: 'user', text: 'Pay' },
    { role: 'assistant', parts: [reasoning, toolCall] },
    { role: 'tool', results: [{ callId: 'call_a', toolName: 'pay', text: 'done', isError: false }] },
  ];
  await callModel(profile(provider, { model }), PROJECT_DIR, request({ messages }));
  expect(JSON.stringify(server.requests[1]?.body)).toContain('sig-1');
});

test('a broken Anthropic stream still says what its prompt had cost', async () => {
  const outcome = failed(await callServed('anthropic', { cut: { afterEvents: 3, how: 'reset' } }));
  expect(outcome.usage).toMatchObject({ inputTokens: 11, cachedInputTokens: 4 });
});

// prettier-ignore
const RETRY_AFTERS: [Record<string, string>, number | undefined][] = [
  [{ 'retry-after': '120' },                                                      120_000],
  [{ 'retry-after': '0' },                                                        0],
  [{ 'retry-after': '315360000' },                                                315_360_000_000],
  [{ 'retry-after': 'Sat, 03 Jan 2026 00:00:00 GMT' },                            2 * 86_400_000],
  [{ 'retry-after': 'Saturday, 03-Jan-26 00:00:00 GMT' },                         2 * 86_400_000],
  [{ 'retry-after': 'Sat Jan  3 00:00:00 2026' },                                 2 * 86_400_000],
  [{ 'retry-after': 'Wed, 31 Dec 2025 00:00:00 GMT' },                            0],
  [{ 'retry-after-ms': '1500.2', 'retry-after': '9' },                            1_501],
  [{ 'retry-after': 'soon' },                                                     undefined],
  [{ 'retry-after': '-5' },                                                       undefined],
  [{ 'retry-after': 'Sat, 99 Foo 2026' },                                         undefined],
  [{},                                                                            undefined],
];

test.each(RETRY_AFTERS)('Retry-After %j is %s ms', async (headers, expected) => {
  expect(parseRetryAfter((name) => headers[name], NOW_MS)).toBe(expected);
  const outcome = failed(await callServed('openai', { status: 429, body: '{}', headers }));
  expect(outcome.retryAfterMs).toBe(expected);
});

test.each([null, 'ftp://127.0.0.1/v1', 'not a url', 'http://user:pass@127.0.0.1/v1'])(
  'a base URL of %s is refused when the client is made',
  (baseUrl) => {
    const make = (): unknown =>
      createModelClient(profile('openai-compatible', { baseUrl }), {
        secrets: () => KEY,
        projectDir: PROJECT_DIR,
      });
    expect(make).toThrow(/tested/);
  },
);
