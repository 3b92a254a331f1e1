// Goal: the stand-in for the outside company keeps its own word, since the demo judges the ledger by it.
// Method: real requests to a real port; its journal is read as a file. The kill is of the real process.
import { type ChildProcess, spawn } from 'node:child_process';
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { startProvider } from '../examples/refund-desk/provider/start-provider.js';

interface Provider {
  readonly url: string;
  stop(): Promise<void>;
}

const REFUND = { payment_id: 'pay_a', amount_cents: 4000, currency: 'EUR', reason: 'arrived broken' };
let folder: string;
let provider: Provider;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'holdfast-provider-'));
  const payments = [
    { payment_id: 'pay_a', amount_cents: 5000, currency: 'EUR', refunded_cents: 0 },
    { payment_id: 'pay_b', amount_cents: 5000, currency: 'EUR', refunded_cents: 5000 },
  ];
  writeFileSync(join(folder, 'payments.json'), JSON.stringify(payments));
  provider = await startProvider({ port: 0, ...files() });
});

afterEach(async () => {
  await provider.stop();
  rmSync(folder, { recursive: true });
});

test('a key is answered the same for ever, and the money moves once', async () => {
  const first = await post('/refunds', REFUND, 'key-1');
  expect(first.status).toBe(201);
  const again = await post('/refunds', REFUND, 'key-1');
  expect(again).toMatchObject({ status: 200, replayed: 'true', body: first.body });
  expect(await get('/payments/pay_a')).toMatchObject({ body: { refunded_cents: 4000 } });
  expect(kinds()).toEqual(['arrived', 'applied', 'arrived', 'replayed']);
});

test('a key with another body is refused, and the first answer stays', async () => {
  const first = await post('/refunds', REFUND, 'key-1');
  const other = await post('/refunds', { ...REFUND, amount_cents: 1 }, 'key-1');
  expect(other).toMatchObject({ status: 409, body: { error: { code: 'key_conflict' } } });
  expect((await post('/refunds', REFUND, 'key-1')).body).toEqual(first.body);
});

// prettier-ignore
test.each([
  ['more than is left',      { ...REFUND, amount_cents: 5001 },    422, 'amount_too_large'],
  ['a payment given back',   { ...REFUND, payment_id: 'pay_b' },   422, 'already_refunded'],
  ['another currency',       { ...REFUND, currency: 'USD' },       422, 'currency_mismatch'],
  ['an unknown payment',     { ...REFUND, payment_id: 'pay_none'}, 404, 'payment_not_found'],
])('%s is refused for ever under its key', async (_what, body, status, code) => {
  expect(await post('/refunds', body, 'key-1')).toMatchObject({ status, body: { error: { code } } });
  expect(await post('/refunds', body, 'key-1')).toMatchObject({ status, replayed: 'true' });
  expect(kinds()).toEqual(['arrived', 'refused', 'arrived', 'replayed']);
  expect(await get('/refunds/by-key/key-1')).toMatchObject({ body: { error: { code: 'key_refused' } } });
});

test('a refund without a key, or with a misspelt field, is refused and takes no key', async () => {
  const noKey = await post('/refunds', REFUND);
  expect(noKey).toMatchObject({ status: 400, body: { error: { code: 'key_missing' } } });
  expect((await post('/refunds', { ...REFUND, amount: 4000 }, 'key-1')).status).toBe(400);
  expect((await post('/refunds', REFUND, 'key-1')).status).toBe(201);
});

test('a held key is in progress until it is released, and then has one refund', async () => {
  await dial({ mode: 'hold', for: { payment_id: 'pay_a' }, delay_ms: 60_000 });
  const held = post('/refunds', REFUND, 'key-1');
  await until(() => kinds().includes('arrived'));
  expect(await post('/refunds', REFUND, 'key-1')).toMatchObject({
    status: 409,
    retryAfter: '1',
    body: { error: { code: 'key_in_progress' } },
  });
  const conflict = await post('/refunds', { ...REFUND, amount_cents: 1 }, 'key-1');
  expect(conflict.body).toMatchObject({ error: { code: 'key_conflict' } });
  expect((await get('/refunds/by-key/key-1')).status).toBe(409);
  await dial({ mode: 'ok', for: { payment_id: 'pay_a' } });
  expect((await held).status).toBe(201);
  expect((await post('/refunds', REFUND, 'key-1')).status).toBe(200);
  expect(kinds().filter((kind) => kind === 'applied')).toHaveLength(1);
});

// prettier-ignore
test.each([
  ['commit_then_drop',        'dropped', 200, 1],
  ['error_500_after_commit',  500,       200, 1],
  ['error_500_before_commit', 500,       201, 1],
  ['late',                    201,       200, 1],
])('%s: the first answer is %s, the same key again %i, and the money moves once', async (
  mode, firstStatus, secondStatus, applied,
) => {
  await dial({ mode, delay_ms: 20 });
  const first = await post('/refunds', REFUND, 'key-1').catch(() => ({ status: 'dropped' }));
  expect(first.status).toBe(firstStatus);
  expect((await post('/refunds', REFUND, 'key-1')).status).toBe(secondStatus);
  expect(kinds().filter((kind) => kind === 'applied')).toHaveLength(applied);
  expect((await get('/refunds/by-key/key-1')).body).toMatchObject({ payment_id: 'pay_a' });
});

test('a dial for one payment leaves the others alone, and bites as often as it says', async () => {
  await dial({ mode: 'error_500_before_commit', for: { payment_id: 'pay_a', requests: 2 } });
  expect((await post('/refunds', { ...REFUND, payment_id: 'pay_b' }, 'key-b')).status).toBe(422);
  expect((await post('/refunds', REFUND, 'key-1')).status).toBe(500);
  expect((await post('/refunds', REFUND, 'key-1')).status).toBe(500);
  expect((await post('/refunds', REFUND, 'key-1')).status).toBe(201);
});

test('an unknown dial is refused with the name of the field', async () => {
  const answer = await post('/control', { mode: 'explode' });
  expect(answer.status).toBe(400);
  expect(JSON.stringify(answer.body)).toContain('mode');
});

test('a mail leaves each time it arrives, whatever its key', async () => {
  const mail = { to: 'a@mail.example', subject: 'Your refund', text: 'It is on its way.' };
  await dial({ mode: 'commit_then_drop', on: 'mail', for: { to: mail.to } });
  await expect(post('/mail', mail, 'key-m')).rejects.toThrow();
  expect((await post('/mail', mail, 'key-m')).status).toBe(202);
  expect(kinds()).toEqual(['arrived', 'mail_sent', 'arrived', 'mail_sent']);
});

test('killed with -9 in mid-work and started again, it knows all it answered and nothing else', async () => {
  await provider.stop();
  const killed = await startProcess();
  provider = killed;
  const first = await post('/refunds', { ...REFUND, amount_cents: 1000 }, 'key-1');
  await dial({ mode: 'hold', delay_ms: 60_000 });
  const lost = post('/refunds', REFUND, 'key-2').catch(() => 'cut');
  await until(() => kinds().at(-1) === 'arrived');
  await killed.stop();
  expect(await lost).toBe('cut');
  // What a kill in mid-write leaves behind.
  appendFileSync(join(folder, 'provider.log'), '{"at":"2026-11-30T');

  provider = await startProcess();
  const again = await post('/refunds', { ...REFUND, amount_cents: 1000 }, 'key-1');
  expect(again).toMatchObject({ status: 200, body: first.body });
  expect((await get('/refunds/by-key/key-2')).status).toBe(404);
  expect((await post('/refunds', REFUND, 'key-2')).status).toBe(201);
  const tooMuch = await post('/refunds', { ...REFUND, amount_cents: 1 }, 'key-3');
  expect(tooMuch.body).toMatchObject({ error: { code: 'already_refunded' } });
  // Each line is whole again: what the kill left behind was cut off, not glued to the next entry.
  expect(kinds().filter((kind) => kind === 'applied')).toHaveLength(2);
});

function files(): { journalPath: string; paymentsPath: string } {
  return { journalPath: join(folder, 'provider.log'), paymentsPath: join(folder, 'payments.json') };
}

/** The provider as a process of its own, stopped by kill -9. */
function startProcess(): Promise<Provider> {
  const { journalPath, paymentsPath } = files();
  const args = ['--import', 'tsx', 'examples/refund-desk/provider/main.ts', '--port', '0'];
  args.push('--log', journalPath, '--payments', paymentsPath);
  const child: ChildProcess = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'pipe', 'ipc'] });
  let stderr = '';
  child.stderr?.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  const stop = async (): Promise<void> => {
    child.kill('SIGKILL');
    await ended;
  };
  return new Promise((resolve, reject) => {
    child.once('message', (message: { url: string }) => resolve({ url: message.url, stop }));
    child.once('exit', () => reject(new Error(`The provider ended before it was ready: ${stderr}`)));
  });
}

interface Answer {
  readonly status: number;
  readonly replayed: string | null;
  readonly retryAfter: string | null;
  readonly body: unknown;
}

async function post(path: string, body: object, key?: string): Promise<Answer> {
  const headers = { 'content-type': 'application/json', ...(key && { 'idempotency-key': key }) };
  return read(await fetch(provider.url + path, { method: 'POST', headers, body: JSON.stringify(body) }));
}

async function get(path: string): Promise<Answer> {
  return read(await fetch(provider.url + path));
}

async function read(response: Response): Promise<Answer> {
  return {
    status: response.status,
    replayed: response.headers.get('idempotent-replayed'),
    retryAfter: response.headers.get('retry-after'),
    body: await response.json(),
  };
}

async function dial(control: object): Promise<void> {
  expect((await post('/control', control)).status).toBe(200);
}

function kinds(): string[] {
  const lines = readFileSync(join(folder, 'provider.log'), 'utf8').split('\n').slice(0, -1);
  return lines.map((line) => (JSON.parse(line) as { kind: string }).kind);
}

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error('The condition did not come true within 5 s.');
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
