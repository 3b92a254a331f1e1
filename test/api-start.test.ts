import { connect } from 'node:net';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RunView } from '../api/views/run-views.js';
import type { ErrorCode } from '../shared/domain/errors.js';
import { createTestDatabase } from './support/servers.js';
import { openWay, registerTestAgent, startBody, startTestApi, until } from './support/test-api.js';
import type { StartOptions, TestApi } from './support/test-api.js';

let api: TestApi;
let databaseUrl: string;
beforeAll(async () => {
  databaseUrl = (await createTestDatabase()).url;
  api = await startTestApi({ databaseUrl });
  await registerTestAgent(api.pool);
});

let keys = 0;
const newKey = (): string => `key-${(keys += 1)}`;
const runCount = async (): Promise<number> => {
  const { rows } = await api.pool.query<{ n: number }>('select count(*)::int as n from holdfast.runs');
  return rows[0]?.n ?? -1;
};
const startedId = async (response: Response): Promise<string> => RunView.parse(await response.json()).run_id;
const text = (changes: Record<string, unknown> = {}): string => JSON.stringify(startBody(changes));
/** A complete body whose input is written by hand. */
const withInput = (json: string): string => text({ input: '@' }).replace('"@"', json);
const LONG = 'x'.repeat(1_100_000);

describe('a start', () => {
  test('is 201 with the run as it is, and says where it is', async () => {
    const response = await api.start({ key: newKey() });
    const run = RunView.parse(await response.json());
    expect(response.status).toBe(201);
    expect(response.headers.get('location')).toBe(`/v1/runs/${run.run_id}`);
    expect(response.headers.get('x-request-id')).toMatch(/^req_[0-9a-f]{32}$/);
    expect(run.execution).toMatchObject({ state: 'admitted', control: 'active', started_at: null });
    expect(run.identity).toMatchObject({ tenant_id: 'default', actor_id: 'tester', agent: 'test-agent' });
    expect(run.contract).toMatchObject({ owner: 'desk', limits: { steps_max: 10 } });
    expect(run.terminal).toBeNull();
  });

  test('again with the key, keys in another order and other spacing, is the same run and starts nothing (G02)', async () => {
    const key = newKey();
    const first = await startedId(await api.start({ key }));
    const before = await runCount();
    const { contract, input, agent } = startBody();
    const again = await api.start({ key, body: JSON.stringify({ contract, input, agent }, null, 3) });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(await startedId(again)).toBe(first);
    expect(await runCount()).toBe(before);
  });

  test('with a used key and another meaning is refused, and names the run that the key has', async () => {
    const key = newKey();
    const first = await startedId(await api.start({ key }));
    const before = await runCount();
    for (const input of [{ text: 'Refund order ORD-2' }, { text: 'refund order ORD-1' }, '', null, 0]) {
      const other = await api.start({ key, body: text({ input }) });
      expect(other.status).toBe(422);
      expect(await other.json()).toMatchObject({
        code: 'idempotency_key_reused',
        run_id: first,
        retry: 'never',
      });
    }
    expect(await runCount()).toBe(before);
  });

  test('is independent of the same key in another tenant (G03)', async () => {
    const key = newKey();
    const ours = await api.start({ key, tenant: 'one' });
    const theirs = await api.start({ key, tenant: 'two' });
    expect([ours.status, theirs.status]).toStrictEqual([201, 201]);
    expect(await startedId(ours)).not.toBe(await startedId(theirs));
  });

  test('sent fifty times at once under one key is one run, whose id is in every answer (G01)', async () => {
    const key = newKey();
    const before = await runCount();
    const answers = await Promise.all(Array.from({ length: 50 }, () => api.start({ key })));
    const statuses = answers.map(({ status }) => status).sort();
    expect(statuses).toStrictEqual([...Array<number>(49).fill(200), 201]);
    expect(new Set(await Promise.all(answers.map(startedId))).size).toBe(1);
    expect(await runCount()).toBe(before + 1);
  });

  test('keeps composed and decomposed letters apart', async () => {
    const key = newKey();
    expect((await api.start({ key, body: text({ input: '\u00e9' }) })).status).toBe(201);
    expect((await api.start({ key, body: text({ input: 'e\u0301' }) })).status).toBe(422);
  });

  test('takes numbers by their value', async () => {
    const key = newKey();
    expect((await api.start({ key, body: withInput('[1E+2, 1.0, -0]') })).status).toBe(201);
    expect((await api.start({ key, body: withInput('[100,1,0]') })).status).toBe(200);
  });
});

describe('a start is refused, and nothing is written, for (F01, F02, F03, F04, F05, F06, F07, F09)', () => {
  const json = { 'content-type': 'application/json' };
  // prettier-ignore
  test.each<[string, () => StartOptions, number, ErrorCode, string?]>([
    ['no key',              () => ({}),                                   400, 'idempotency_key_missing'],
    ['an empty key',        () => ({ key: '' }),                          400, 'idempotency_key_invalid'],
    ['a key of 256',        () => ({ key: 'k'.repeat(256) }),             400, 'idempotency_key_invalid'],
    ['a key with a space',  () => ({ key: 'a b' }),                       400, 'idempotency_key_invalid'],
    ['a key of 9,000 random bytes',
      () => ({ key: Array.from({ length: 9000 }, (_, i) => String.fromCharCode(0xa0 + ((i * 7919) % 95))).join('') }),
      400, 'idempotency_key_invalid'],
    ['a key not of ASCII',  () => ({ key: 'cl\u00e9' }),                  400, 'idempotency_key_invalid'],
    ['form data',           () => ({ key: newKey(), headers: { 'content-type': 'application/x-www-form-urlencoded' } }), 415, 'unsupported_media_type'],
    ['text',                () => ({ key: newKey(), headers: { 'content-type': 'text/plain' } }), 415, 'unsupported_media_type'],
    ['UTF-16 as declared',  () => ({ key: newKey(), headers: { 'content-type': 'application/json; charset=utf-16' } }), 415, 'unsupported_media_type'],
    ['a compressed body',   () => ({ key: newKey(), headers: { ...json, 'content-encoding': 'gzip' } }), 415, 'unsupported_media_type'],
    ['UTF-16 in fact',      () => ({ key: newKey(), body: Buffer.from(`\ufeff${text()}`, 'utf16le') }), 400, 'invalid_json', 'not_json'],
    ['invalid UTF-8',       () => ({ key: newKey(), body: Buffer.from([0x22, 0xc3, 0x28, 0x22]) }), 400, 'invalid_json', 'not_json'],
    ['a byte order mark',   () => ({ key: newKey(), body: `\ufeff${text()}` }), 400, 'invalid_json', 'not_json'],
    ['no body',             () => ({ key: newKey(), body: '' }),          400, 'invalid_json', 'not_json'],
    ['half a body',         () => ({ key: newKey(), body: text().slice(0, -1) }), 400, 'invalid_json', 'not_json'],
    ['NUL',                 () => ({ key: newKey(), body: withInput('"a\\u0000b"') }), 400, 'invalid_json', 'ill_formed_text'],
    ['NUL in the contract', () => ({ key: newKey(), body: text().replace('One refund', 'One\\u0000refund') }), 400, 'invalid_json', 'ill_formed_text'],
    ['half a pair',         () => ({ key: newKey(), body: withInput('"pay \\ud800"') }), 400, 'invalid_json', 'ill_formed_text'],
    ['the other half',      () => ({ key: newKey(), body: withInput('"pay \\udbff"') }), 400, 'invalid_json', 'ill_formed_text'],
    ['__proto__',           () => ({ key: newKey(), body: withInput('{"__proto__":{"polluted":1}}') }), 400, 'invalid_json', 'forbidden_key'],
    ['constructor',         () => ({ key: newKey(), body: withInput('{"constructor":{"prototype":{}}}') }), 400, 'invalid_json', 'forbidden_key'],
    ['a key twice',         () => ({ key: newKey(), body: withInput('{"amount":1,"amount":9999}') }), 400, 'invalid_json', 'duplicate_key'],
    ['2^53+1',              () => ({ key: newKey(), body: withInput('9007199254740993') }), 400, 'invalid_json', 'unsafe_number'],
    ['1e400',               () => ({ key: newKey(), body: withInput('1e400') }), 400, 'invalid_json', 'unsafe_number'],
    ['depth 5,000',         () => ({ key: newKey(), body: withInput('['.repeat(5000) + ']'.repeat(5000)) }), 400, 'invalid_json', 'too_deep'],
    ['1e5 array items',     () => ({ key: newKey(), body: withInput(`[${Array<string>(600_000).fill('1').join()}]`) }), 413, 'payload_too_large'],
    ['1.1 MB of input',     () => ({ key: newKey(), body: text({ input: LONG }) }), 413, 'payload_too_large'],
    ['1.1 MB of contract',  () => ({ key: newKey(), body: text({ contract: { objective: LONG } }) }), 413, 'payload_too_large'],
    ['an array',            () => ({ key: newKey(), body: '[]' }),        400, 'invalid_request'],
    ['a misspelt member',   () => ({ key: newKey(), body: text({ inptu: 1 }) }), 400, 'invalid_request'],
    ['no input',            () => ({ key: newKey(), body: text({ input: undefined }) }), 400, 'invalid_request'],
    ['no contract',         () => ({ key: newKey(), body: text({ contract: {} }) }), 422, 'contract_invalid'],
    ['an unknown agent',    () => ({ key: newKey(), body: text({ agent: 'nobody' }) }), 422, 'agent_not_found'],
  ])('%s', async (_what, options, status, code, jsonCode) => {
    const before = await runCount();
    const response = await api.start(options());
    const problem = ProblemView.parse(await response.json());
    expect([response.status, problem.code, problem['json_code']]).toStrictEqual([status, code, jsonCode]);
    expect(response.headers.get('content-type')).toContain('application/problem+json');
    expect(problem.type).toBe(`urn:holdfast:problem:${code}`);
    expect(problem.instance).toBe(`urn:holdfast:request:${response.headers.get('x-request-id')}`);
    expect(await runCount()).toBe(before);
    expect(({} as Record<string, unknown>)['polluted']).toBeUndefined();
  });

  test('ten megabytes or a million keys, at once and in flat memory (F08)', async () => {
    const bodies = ['x'.repeat(10_000_000), Array.from({ length: 1_000_000 }, (_, i) => `"k${i}":1`).join()];
    for (const body of bodies) {
      const started = performance.now();
      const response = await api.start({ key: newKey(), body });
      expect(response.status).toBe(413);
      expect(performance.now() - started).toBeLessThan(2_000);
    }
    const memory = process.memoryUsage().rss;
    for (let round = 0; round < 20; round += 1) await api.start({ key: newKey(), body: bodies[0] ?? '' });
    expect(process.memoryUsage().rss - memory).toBeLessThan(150_000_000);
  });

  test('a place that the problem names', async () => {
    const response = await api.start({ key: newKey(), body: withInput('{"items":[1,{"n":1e400}]}') });
    const problem = ProblemView.parse(await response.json());
    expect(problem.errors?.[0]?.at).toBe('body/input/items/1/n');
    const misspelt = await api.start({ key: newKey(), body: text({ agent: 7, extra: 1 }) });
    expect(ProblemView.parse(await misspelt.json()).errors).toHaveLength(2);
  });
});

describe('the order of refusals is that of docs/errors.md', () => {
  const huge = { body: LONG };
  // prettier-ignore
  test.each<[string, StartOptions & { readonly query?: string }, ErrorCode]>([
    ['key before media type', { ...huge, headers: { 'content-type': 'text/plain' } },             'idempotency_key_missing'],
    ['media type before size', { ...huge, key: 'o1', headers: { 'content-type': 'text/plain' } }, 'unsupported_media_type'],
    ['size before JSON',      { ...huge, key: 'o2' },                                             'payload_too_large'],
    ['JSON before members',   { key: 'o3', body: '{"agent":7,"agent":8}' },                       'invalid_json'],
    ['members before agent',  { key: 'o4', body: JSON.stringify(startBody({ agent: 'nobody', x: 1 })) }, 'invalid_request'],
  ])('%s', async (_what, options, code) => {
    expect(await (await api.start(options)).json()).toMatchObject({ code });
  });

  test('the key before the agent: a replay is answered although its agent is another body’s matter', async () => {
    const key = newKey();
    await api.start({ key });
    expect(await (await api.start({ key, body: text({ agent: 'nobody' }) })).json()).toMatchObject({
      code: 'idempotency_key_reused',
    });
  });
});

describe('raw connections', () => {
  /** Sends bytes as they are and gives back all that comes until the other side closes or `done` says enough. */
  const sendRaw = (bytes: string | Buffer, enough: (answer: string) => boolean): Promise<string> =>
    new Promise((resolve, reject) => {
      let answer = '';
      const socket = connect(api.port, '127.0.0.1', () => socket.write(bytes));
      socket.setTimeout(10_000, () => socket.destroy(new Error(`no answer, only: ${answer}`)));
      socket.on('error', reject).on('close', () => resolve(answer));
      socket.on('data', (chunk) => {
        answer += chunk.toString('latin1');
        if (enough(answer)) socket.destroy();
      });
    });
  const head = (extra: string): string =>
    `POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nidempotency-key: ${newKey()}\r\n${extra}\r\n`;

  test('a Content-Length that is too large is refused before the body comes', async () => {
    const answer = await sendRaw(head('content-length: 50000000\r\n'), (got) =>
      got.includes('payload_too_large'),
    );
    expect(answer).toMatch(/^HTTP\/1\.1 413 /);
  });

  test('a chunked body without a length is counted as it comes', async () => {
    const chunk = `10000\r\n${'x'.repeat(0x10000)}\r\n`;
    const answer = await sendRaw(head('transfer-encoding: chunked\r\n') + chunk.repeat(20), (got) =>
      got.includes('payload_too_large'),
    );
    expect(answer).toMatch(/^HTTP\/1\.1 413 /);
  });

  test('a Content-Length that says too little starts nothing', async () => {
    const before = await runCount();
    const answer = await sendRaw(`${head('content-length: 20\r\n')}${text()}`, (got) =>
      got.includes('not_json'),
    );
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(await runCount()).toBe(before);
  });

  test('a NUL in the key is answered as a problem', async () => {
    const raw = `POST /v1/runs HTTP/1.1\r\nhost: x\r\nidempotency-key: a\0b\r\n\r\n`;
    const answer = await sendRaw(raw, () => false);
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(answer).toContain('application/problem+json');
  });

  test('a sender that hangs up in its headers or its body leaves nothing half done (G05)', async () => {
    const before = await runCount();
    const body = text();
    const key = 'hung-up';
    const headers = `POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nidempotency-key: ${key}\r\n`;
    for (const part of [headers, `${headers}content-length: ${body.length}\r\n\r\n${body.slice(0, 40)}`]) {
      await new Promise<void>((resolve, reject) => {
        const socket = connect(api.port, '127.0.0.1', () => socket.write(part, () => socket.destroy()));
        socket.on('error', reject).on('close', () => resolve());
      });
    }
    await until('the API noticed', () => api.logged().includes('hung up'));
    expect(await runCount()).toBe(before);
    const retried = await api.start({ key, body });
    expect(retried.status).toBe(201);
    expect((await api.start({ key, body })).status).toBe(200);
  });

  test('a sender that hangs up after its body is answered on retry by the run that it started', async () => {
    const before = await runCount();
    const body = text();
    const key = 'gone-early';
    const whole =
      `POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nidempotency-key: ${key}\r\n` +
      `content-length: ${body.length}\r\n\r\n${body}`;
    await new Promise<void>((resolve, reject) => {
      const socket = connect(api.port, '127.0.0.1', () => socket.end(whole));
      socket.resume();
      socket.on('error', reject).on('close', () => resolve());
    });
    await until('the run is there', async () => (await runCount()) === before + 1);
    expect((await api.start({ key, body })).status).toBe(200);
    expect(await runCount()).toBe(before + 1);
  });
});

test('with Postgres away a start is 503 with Retry-After, and the same key goes through when it is back', async () => {
  const way = await openWay(databaseUrl);
  const cutOff = await startTestApi({ databaseUrl: way.url });
  const key = newKey();
  expect((await cutOff.start({ key: newKey() })).status).toBe(201);
  await way.cut();
  const refused = await cutOff.start({ key });
  expect([refused.status, refused.headers.get('retry-after')]).toStrictEqual([503, '1']);
  const problem = ProblemView.parse(await refused.json());
  expect(problem).toMatchObject({ code: 'ledger_unavailable', retry: 'later' });
  expect(problem.detail).not.toMatch(/ECONN|127\.0\.0\.1|connect/);
  await way.mend();
  await until('the start goes through', async () => (await cutOff.start({ key })).status < 300);
  expect((await cutOff.start({ key })).status).toBe(200);
  await cutOff.close();
  await way.close();
});

test('past the limit of an actor requests are 429 with Retry-After, and others are served', async () => {
  const limited = await startTestApi({ databaseUrl, limits: { requestsPerMinute: 3 } });
  const statuses: number[] = [];
  for (let count = 0; count < 4; count += 1) statuses.push((await limited.request('/v1/runs')).status);
  expect(statuses).toStrictEqual([200, 200, 200, 429]);
  const refused = await limited.request('/v1/runs');
  expect(ProblemView.parse(await refused.json())).toMatchObject({ code: 'rate_limited', retry: 'later' });
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
  expect((await limited.request('/v1/runs', { tenant: 'other' })).status).toBe(200);
  expect((await limited.request('/healthz')).status).toBe(200);
});
