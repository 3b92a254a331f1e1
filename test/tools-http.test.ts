import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createAddressGuard, parseAllowEntry } from '../shared/process/address-guard.js';
import type { AllowEntry } from '../shared/process/address-guard.js';
import { ToolDeclarationError } from '../activities/tools/declaration.js';
import { createHttpTool } from '../activities/tools/http-tool.js';
import type { HttpToolDeps } from '../activities/tools/http-tool.js';
import { parseRetryAfter } from '../activities/tools/retry-after.js';
import { RESULT_BYTES_MAX } from '../activities/tools/tool.js';
import type { ToolAnswer, ToolCall } from '../activities/tools/tool.js';
import { startHttpTarget } from './support/http-target.js';
import type { HttpTarget, TargetMode } from './support/http-target.js';

const KEY = 'key-0123456789abcdef';
let folder: string;
let target: HttpTarget;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'holdfast-http-'));
  target = await startHttpTarget({ logPath: join(folder, 'target.jsonl') });
});
afterEach(() => {
  target.reset();
});
afterAll(async () => {
  await target.close();
  rmSync(folder, { recursive: true });
});

let keys = 0;
function newCall(changes: Partial<ToolCall> = {}): ToolCall {
  keys += 1;
  return {
    arguments: { amount: 5 },
    idempotencyKey: `${KEY}-${keys}`,
    effectId: 'eff_1',
    runId: 'run_1',
    tenantId: 'default',
    attempt: 1,
    signal: new AbortController().signal,
    timeoutMs: 5000,
    progress: () => undefined,
    ...changes,
  };
}

function declare(changes: Record<string, unknown> = {}) {
  return {
    description: 'Pays.',
    input: {
      type: 'object',
      properties: { amount: { type: 'number' }, id: { type: 'string' } },
      required: ['id'],
    },
    class: 'opaque',
    url: `${target.url}/opaque`,
    keyHeader: 'Idempotency-Key',
    body: 'arguments',
    reference: '/id',
    allow: [`127.0.0.1:${target.port}`],
    ...changes,
  };
}

const nothing: HttpToolDeps = { env: () => undefined, secrets: () => undefined };
function makeTool(changes: Record<string, unknown> = {}, deps: Partial<HttpToolDeps> = {}) {
  return createHttpTool('pay', declare(changes), { ...nothing, ...deps });
}

function arrivals(key: string): number {
  return target.log().filter((entry) => entry.kind === 'arrived' && entry.key === key).length;
}

function summary(answer: ToolAnswer): string {
  switch (answer.kind) {
    case 'succeeded':
      return answer.kind;
    case 'rejected':
      return `rejected ${answer.status}`;
    case 'throttled':
    case 'in_progress':
      return `${answer.kind} ${answer.retryAfterMs}`;
    case 'not_sent':
    case 'unknown':
      return `${answer.kind} ${answer.reason}`;
  }
}

describe('one request', () => {
  test('carries the key, the arguments and the secret, and its answer gives the reference', async () => {
    const secrets = (name: string) => (name === 'TOKEN' ? 'hidden' : undefined);
    const tool = makeTool({ headers: { authorization: 'Bearer ${secret:TOKEN}' } }, { secrets });
    const call = newCall();
    const answer = await tool.call(call);
    expect(answer).toMatchObject({
      kind: 'succeeded',
      reference: expect.stringMatching(/^obj_\d+$/) as string,
    });
    const entry = target.log().find(({ key }) => key === call.idempotencyKey);
    expect(entry?.body).toEqual({ amount: 5 });
  });

  test('is applied once by a target that honours keys, however often it is sent', async () => {
    const keyed = { windowSeconds: 60, resendsMax: 3 };
    const tool = makeTool({ class: 'keyed', keyed, url: `${target.url}/keyed` });
    const call = newCall();
    const answers = [await tool.call(call), await tool.call({ ...call, attempt: 2 })];
    expect(answers.map(summary)).toEqual(['succeeded', 'succeeded']);
    const applied = target.log().filter(({ key, kind }) => key === call.idempotencyKey && kind === 'applied');
    expect(applied).toHaveLength(1);
    expect(summary(await tool.call({ ...call, arguments: { amount: 6 } }))).toBe('unknown http_409');
  });

  test('fills path, parameters and body from the arguments, encoded', async () => {
    const tool = makeTool({
      class: 'read',
      method: 'GET',
      url: `${target.url}/read/{id}`,
      parameters: { amount: '{amount}', tag: 'a b' },
      body: undefined,
    });
    expect(summary(await tool.call(newCall({ arguments: { id: 'a b&c?d#e%', amount: 1 } })))).toBe(
      'succeeded',
    );
    const mapped = makeTool({ body: { sum: '{amount}', note: 'for {id}', ref: '{$key}', gone: '{id}' } });
    const call = newCall({ arguments: { amount: 7, id: 'x' } });
    await mapped.call(call);
    const entry = target.log().find(({ key }) => key === call.idempotencyKey);
    expect(entry?.body).toEqual({ sum: 7, note: 'for x', ref: call.idempotencyKey, gone: 'x' });
  });

  test.each(['..', '.', '', '../../x', '..\\x', 'a/../b', 'a\u0000b', '\ud800'])(
    'is not sent when the argument %j would lead elsewhere in the path',
    async (id) => {
      const tool = makeTool({ url: `${target.url}/opaque/{id}` });
      const call = newCall({ arguments: { id } });
      expect(await tool.call(call)).toEqual({ kind: 'not_sent', reason: 'arguments_invalid' });
      expect(arrivals(call.idempotencyKey)).toBe(0);
    },
  );

  test('is not sent without its secret, nor with one that HTTP cannot carry', async () => {
    const headers = { authorization: '${secret:TOKEN}' };
    const call = newCall();
    expect(summary(await makeTool({ headers }).call(call))).toBe('not_sent secret_missing');
    const broken = makeTool({ headers }, { secrets: () => 'a\r\nx-evil: 1' });
    expect(summary(await broken.call(call))).toBe('not_sent request_invalid');
    expect(arrivals(call.idempotencyKey)).toBe(0);
  });
});

// prettier-ignore
const OUTCOMES: readonly (readonly [TargetMode, string])[] = [
  ['ok', 'succeeded'],
  ['late', 'succeeded'],
  ['no_content_204', 'succeeded'],
  ['nul_body', 'succeeded'],
  ['deep_body', 'succeeded'],
  ['two_answers', 'succeeded'],
  ['refuse_422', 'rejected http_422'],
  ['not_found_404', 'rejected http_404'],
  ['drop_before', 'unknown connection_closed'],
  ['drop_after', 'unknown connection_closed'],
  ['error_500_before', 'unknown http_500'],
  ['error_500_after', 'unknown http_500'],
  ['redirect_302', 'unknown http_302'],
  ['truncated', 'unknown body_truncated'],
  ['invalid_json', 'unknown body_not_json'],
  ['empty_body', 'unknown body_not_json'],
  ['wrong_type', 'unknown content_type_unexpected'],
  ['in_progress_409', 'unknown http_409'],
  ['throttle_429', 'unknown http_429'],
  ['overloaded_503', 'unknown http_503'],
];

describe('an answer', () => {
  test.each(OUTCOMES)('%s is %s, and is asked for once (A16)', async (mode, expected) => {
    const tool = makeTool();
    const call = newCall();
    target.dial({ mode, key: call.idempotencyKey });
    expect(summary(await tool.call(call))).toBe(expected);
    expect(arrivals(call.idempotencyKey)).toBe(1);
  });

  test('of 429 and 503 is throttled only with the word that the limiter runs first', async () => {
    const tool = makeTool({ limiterRunsBeforeExecution: true });
    target.dial({ mode: 'throttle_429', retryAfter: '10', times: 1 });
    expect(summary(await tool.call(newCall()))).toBe('throttled 10000');
    target.dial({ mode: 'overloaded_503', retryAfter: 'soon', times: 1 });
    expect(summary(await tool.call(newCall()))).toBe('throttled null');
  });

  test('is judged by the first row of the table that fits its status and body', async () => {
    const answers = [
      { status: 409, at: '/error', equals: 'key_in_progress', outcome: 'in_progress' },
      { status: '4xx', at: '/error', equals: 'unknown thing', outcome: 'succeeded' },
      { status: ['500-599'], outcome: 'rejected' },
    ];
    const tool = makeTool({ answers });
    target.dial({ mode: 'in_progress_409', retryAfter: '2', times: 1 });
    expect(summary(await tool.call(newCall()))).toBe('in_progress 2000');
    target.dial({ mode: 'not_found_404', times: 1 });
    expect(summary(await tool.call(newCall()))).toBe('succeeded');
    target.dial({ mode: 'error_500_after', times: 1 });
    expect(summary(await tool.call(newCall()))).toBe('rejected http_500');
    target.dial({ mode: 'refuse_422', times: 1 });
    expect(summary(await tool.call(newCall()))).toBe('rejected http_422');
  });

  test('above the cap is cut and marked, and stays succeeded', async () => {
    target.dial({ mode: 'big_body', times: 1 });
    const answer = await makeTool().call(newCall());
    if (answer.kind !== 'succeeded') throw new Error(summary(answer));
    expect(answer.body.truncated).toBe(true);
    expect(answer.body.bytes.byteLength).toBe(RESULT_BYTES_MAX);
  });

  test('that is unclear keeps what came as evidence', async () => {
    target.dial({ mode: 'truncated', times: 1 });
    const answer = await makeTool().call(newCall());
    if (answer.kind !== 'unknown' || answer.body === null) throw new Error(summary(answer));
    expect(new TextDecoder().decode(answer.body.bytes)).toContain('"status":"done"');
    expect(answer.body.truncated).toBe(true);
  });

  test('is the first of two on one connection (A21)', async () => {
    target.dial({ mode: 'two_answers', times: 1 });
    const answer = await makeTool().call(newCall());
    if (answer.kind !== 'succeeded') throw new Error(summary(answer));
    expect(JSON.parse(new TextDecoder().decode(answer.body.bytes))).toMatchObject({ status: 'done' });
  });

  test('that echoes another key, or does not fit the schema, is none (A21)', async () => {
    const echoing = makeTool({ keyEcho: '/key' });
    expect(summary(await echoing.call(newCall()))).toBe('succeeded');
    target.dial({ mode: 'other_key_echo', times: 1 });
    expect(summary(await echoing.call(newCall()))).toBe('unknown answer_not_ours');
    const strict = makeTool({ output: { type: 'object', required: ['refund_id'] } });
    expect(summary(await strict.call(newCall()))).toBe('unknown schema_mismatch');
  });

  test('that redirects a read is final, and is not followed', async () => {
    target.dial({ mode: 'redirect_302', times: 1 });
    const call = newCall();
    const tool = makeTool({ class: 'read', method: 'GET', body: undefined, url: `${target.url}/read` });
    expect(summary(await tool.call(call))).toBe('rejected http_302');
    expect(arrivals(call.idempotencyKey)).toBe(1);
  });
});

describe('time', () => {
  test.each(['hold_after', 'slow_drip'] as const)(
    'ends %s by the total limit, as unknown (A20)',
    async (mode) => {
      const tool = makeTool({ timeoutSeconds: 1 });
      const call = newCall();
      target.dial({ mode, key: call.idempotencyKey, delayMs: 100 });
      const startedMs = performance.now();
      expect(summary(await tool.call(call))).toBe('unknown timed_out');
      expect(performance.now() - startedMs).toBeLessThan(2500);
      expect(arrivals(call.idempotencyKey)).toBe(1);
    },
  );

  test('ends by itself with the budget of the caller, who need not end it', async () => {
    target.dial({ mode: 'hold_before', times: 1 });
    expect(summary(await makeTool().call(newCall({ timeoutMs: 300 })))).toBe('unknown timed_out');
  });

  test('an abort after the send is unknown, one before it proves that nothing left', async () => {
    const tool = makeTool();
    const controller = new AbortController();
    const call = newCall({ signal: controller.signal });
    target.dial({ mode: 'hold_after', key: call.idempotencyKey });
    const answer = tool.call(call);
    await expect.poll(() => target.held()).toBe(1);
    controller.abort();
    expect(summary(await answer)).toBe('unknown aborted');
    const late = newCall({ signal: controller.signal });
    expect(summary(await tool.call(late))).toBe('not_sent aborted_before_send');
    expect(arrivals(late.idempotencyKey)).toBe(0);
  });
});

describe('what never left', () => {
  test('a refused connection', async () => {
    const port = await freePort();
    const tool = makeTool({ url: `http://127.0.0.1:${port}/x`, allow: [`127.0.0.1:${port}`] });
    expect(summary(await tool.call(newCall()))).toBe('not_sent connection_refused');
  });

  test('a name without an address', async () => {
    const tool = makeTool({ url: 'http://nowhere.invalid/x' });
    expect(summary(await tool.call(newCall()))).toBe('not_sent dns_failed');
  });

  test('a failed TLS handshake: the target sees no request', async () => {
    const call = newCall();
    const tool = makeTool({ url: `https://127.0.0.1:${target.port}/opaque` });
    expect(summary(await tool.call(call))).toBe('not_sent tls_failed');
    expect(arrivals(call.idempotencyKey)).toBe(0);
  });

  test('a handshake that never ends is over with the connect limit', async () => {
    // It reads and never answers.
    const silent = createServer((socket) => socket.resume());
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
    const { port } = silent.address() as AddressInfo;
    const url = `https://127.0.0.1:${port}/x`;
    const tool = makeTool({ url, allow: [`127.0.0.1:${port}`], connectTimeoutSeconds: 0.2 });
    expect(summary(await tool.call(newCall()))).toBe('not_sent connect_timed_out');
    await new Promise((resolve) => silent.close(resolve));
  });

  test.each([
    'http://0x7f.1:PORT/',
    'http://2130706433:PORT/',
    'http://127.1:PORT/',
    'http://0177.0.0.1:PORT/',
    'http://0:PORT/',
    'http://[::]:PORT/',
    'http://[::1]:PORT/',
    'http://[::ffff:7f00:1]:PORT/',
    'http://①②⑦.⓪.⓪.①:PORT/',
    'http://localhost:PORT/',
    'http://localhost.:PORT/',
    'http://169.254.169.254./',
    'http://169。254。169。254/',
    'http://[::ffff:169.254.169.254]/',
    'http://[fd00:ec2::254]/',
    'http://[64:ff9b::a9fe:a9fe]/',
    'http://user@169.254.169.254:80#@good.example/',
    'http://good.example\\@169.254.169.254/',
    'file:///etc/passwd',
  ])('a URL from the model that spells a private address: %s', async (spelling) => {
    const tool = createHttpTool(
      'get',
      {
        description: 'Reads a page.',
        input: { type: 'object', properties: { url: { type: 'string' } }, required: ['url'] },
        class: 'read',
        method: 'GET',
        url: '{url}',
        // As open as a list can be without naming an address.
        allow: ['*.example:*', 'localhost.evil.example:80'],
      },
      nothing,
    );
    const url = spelling.replace('PORT', String(target.port));
    const before = target.log().length;
    const answer = await tool.call(newCall({ arguments: { url } }));
    expect(answer.kind).toBe('not_sent');
    expect(target.log()).toHaveLength(before);
  });

  test('a public name that resolves to a private address, unless the list names that address', async () => {
    const resolve = () => Promise.resolve([{ address: '127.0.0.1' }]);
    const url = `http://pay.example:${target.port}/opaque`;
    const call = newCall();
    const guarded = makeTool({ url, allow: [`pay.example:${target.port}`] }, { resolve });
    expect(summary(await guarded.call(call))).toBe('not_sent address_not_allowed');
    expect(arrivals(call.idempotencyKey)).toBe(0);
    const named = makeTool({ url, allow: [`127.0.0.0/8:${target.port}`] }, { resolve });
    expect(summary(await named.call(call))).toBe('succeeded');
  });

  test('the connection goes to the address that was judged: the name is resolved once', async () => {
    let asked = 0;
    const resolve = () => {
      asked += 1;
      return Promise.resolve([{ address: asked === 1 ? '127.0.0.1' : '169.254.169.254' }]);
    };
    const url = `http://pay.example:${target.port}/opaque`;
    const tool = makeTool({ url, allow: [`127.0.0.1:${target.port}`] }, { resolve });
    expect(summary(await tool.call(newCall()))).toBe('succeeded');
    expect(asked).toBe(1);
  });
});

describe('a guard', () => {
  const guardOf = (...entries: string[]) =>
    createAddressGuard(
      entries.map((entry) => parseAllowEntry(entry)).filter((e): e is AllowEntry => typeof e === 'object'),
    );

  test.each([
    '10.1.2.3',
    '172.16.0.1',
    '192.168.1.1',
    '127.9.9.9',
    '169.254.169.254',
    '100.64.0.1',
    '0.0.0.0',
    '224.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    'fe80::1',
    'fe80::1%eth0',
    'fd00::1',
    'ff02::1',
    '::ffff:10.0.0.1',
    '::ffff:a00:1',
    '64:ff9b::a00:1',
    '2002:a00:1::',
    '2001:db8::1',
    '::127.0.0.1',
  ])('refuses %s', (address) => {
    expect(guardOf('*.example:443').allowsAddress(address, 'a.example', 443)).toBe(false);
  });

  test.each(['93.184.216.34', '8.8.8.8', '2606:4700::1111', '::ffff:8.8.8.8'])('lets %s pass', (address) => {
    expect(guardOf('*.example:443').allowsAddress(address, 'a.example', 443)).toBe(true);
  });

  test('matches names and ports as a whole', () => {
    const guard = guardOf('*.example.com:443', 'api.test:*');
    expect(guard.allowsHost('a.example.com', 443)).toBe(true);
    expect(guard.allowsHost('A.Example.com.', 443)).toBe(true);
    expect(guard.allowsHost('example.com', 443)).toBe(false);
    expect(guard.allowsHost('evilexample.com', 443)).toBe(false);
    expect(guard.allowsHost('a.example.com', 80)).toBe(false);
    expect(guard.allowsHost('api.test', 8080)).toBe(true);
  });

  test.each(['', 'host', 'host:0', 'host:99999', 'http://host:80', 'a b:80', '10.0.0.0/64:80', '::1:80'])(
    'does not read %j as an entry',
    (entry) => {
      expect(typeof parseAllowEntry(entry)).toBe('string');
    },
  );
});

describe('a probe', () => {
  const query = { settlingSeconds: 1, equalAnswers: 2, intervalSeconds: 1, queriesMax: 5 };
  const probeOf = () => ({
    url: `${target.url}/queryable/{$key}`,
    reference: '/id',
    answers: [
      { status: 200, outcome: 'found' },
      { status: 404, at: '/error', equals: 'unknown key', outcome: 'absent' },
    ],
  });

  test('finds what was applied though its answer was lost, and says absent otherwise', async () => {
    const tool = makeTool({ class: 'queryable', query, url: `${target.url}/queryable`, probe: probeOf() });
    const call = newCall();
    expect(await tool.probe?.(call)).toMatchObject({ kind: 'absent' });
    target.dial({ mode: 'drop_after', key: call.idempotencyKey });
    expect(summary(await tool.call(call))).toBe('unknown connection_closed');
    target.hideApplied(1);
    expect(await tool.probe?.(call)).toMatchObject({ kind: 'absent' });
    expect(await tool.probe?.(call)).toMatchObject({
      kind: 'found',
      reference: expect.any(String) as string,
    });
    expect(arrivals(call.idempotencyKey)).toBe(1);
  });

  test('that gets no listed answer settles nothing', async () => {
    const probe = { ...probeOf(), url: `${target.url}/elsewhere/{$key}` };
    const tool = makeTool({ class: 'queryable', query, url: `${target.url}/queryable`, probe });
    expect(await tool.probe?.(newCall())).toMatchObject({ kind: 'inconclusive', reason: 'http_404' });
  });
});

describe('a declaration', () => {
  const refusal = (changes: Record<string, unknown>) => {
    try {
      makeTool(changes);
    } catch (error) {
      if (error instanceof ToolDeclarationError) return error.problems.map(({ path }) => path.join('.'));
      throw error;
    }
    return [];
  };

  test.each([
    [{ class: 'keyed' }, 'class'],
    [{ class: 'queryable' }, 'class'],
    [{ class: 'opaque', keyed: { windowSeconds: 1, resendsMax: 1 } }, 'keyed'],
    [{ class: 'read', compensation: 'undo' }, 'compensation'],
    [{ keyHeader: undefined, class: 'keyed', keyed: { windowSeconds: 1, resendsMax: 1 } }, 'class'],
    [{ url: 'https://{id}.example.com/' }, 'url'],
    [{ url: 'https://user:pass@example.com/' }, 'url'],
    [{ url: 'https://example.com/a/../b' }, 'url'],
    [{ url: 'https://example.com/{nothing}' }, 'url'],
    [{ url: 'https://example.com/{amount}' }, 'url'],
    [{ url: 'ftp://example.com/' }, 'url'],
    [{ url: '{id}', allow: [] }, 'url'],
    [{ url: 'http://${env:MISSING}/' }, 'url'],
    [{ headers: { 'x-a': '${env:HOME}' } }, 'headers.x-a'],
    [{ headers: { 'x a': 'b' } }, 'headers.x a'],
    [{ method: 'GET' }, 'body'],
    [{ body: { a: '{nothing}' } }, 'body'],
    [{ allow: ['nonsense'] }, 'allow.0'],
    [{ input: { type: 'string' } }, 'input'],
    [{ input: { type: 'object', properties: { id: { type: 'nonsense' } } } }, 'input'],
    [{ colour: 'red' }, 'colour'],
    [{ answers: [{ status: 'abc', outcome: 'rejected' }] }, 'answers.0.status'],
  ])('%j is refused at %s', (changes, at) => {
    expect(refusal(changes)).toContain(at);
  });

  test('takes places from the environment, and its version does not depend on them', () => {
    const url = 'http://${env:PAY_HOST:-127.0.0.1:1}/opaque';
    const here = makeTool({ url, allow: [] });
    const there = makeTool({ url, allow: [] }, { env: () => 'pay.example.com' });
    expect(here.version).toBe(there.version);
    expect(makeTool({ url, allow: [], timeoutSeconds: 7 }).version).not.toBe(here.version);
    expect(here.version).toMatch(/^[0-9a-f]{64}$/);
  });
});

describe('Retry-After', () => {
  const nowMs = Date.UTC(2026, 0, 1);
  const read = (text: string | null, responseDate: string | null = null) =>
    parseRetryAfter(text, { responseDate, nowMs });

  test.each([
    ['0', 0],
    ['10', 10_000],
    ['315360000', 315_360_000_000],
    ['Thu, 01 Jan 2026 00:01:00 GMT', 60_000],
    ['Thursday, 01-Jan-26 00:01:00 GMT', 60_000],
    ['Thu Jan  1 00:01:00 2026', 60_000],
    ['Wed, 31 Dec 2025 00:00:00 GMT', 0],
    ['garbage 5', null],
    ['-1', null],
    ['1.5', null],
    ['', null],
    [null, null],
    ['Mon, 31 Feb 2026 00:00:00 GMT', null],
    ['Thu, 01 Foo 2026 00:01:00 GMT', null],
  ])('%j is %j ms', (text, expected) => {
    expect(read(text)).toBe(expected);
  });

  test('counts a date from the clock of the response', () => {
    const date = 'Thu, 01 Jan 2026 05:00:30 GMT';
    expect(read(date, 'Thu, 01 Jan 2026 05:00:00 GMT')).toBe(30_000);
    expect(read(date, 'nonsense')).toBe(5 * 3_600_000 + 30_000);
  });
});

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
