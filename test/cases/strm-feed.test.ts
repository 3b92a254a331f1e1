import { getEventListeners } from 'node:events';
import { connect, type Socket } from 'node:net';
import { beforeAll, describe, expect, test } from 'vitest';
import { HoldfastError } from '../../shared/domain/errors.js';
import type { TrailEntry } from '../../shared/domain/protocol.js';
import { newFamily } from '../support/children.js';
import { newGate } from '../support/desk.js';
import { openStream, openTenantStream, type StreamReader } from '../support/event-stream.js';
import type { LedgerRun } from '../support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from '../support/ledger-world.js';
import { startBody, startTestApi, type TestApi, until } from '../support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url, limits: { heartbeatMs: 100 } });
});

const WARNING: TrailEntry = { kind: 'warning', code: 'noted' };
const seqsOf = (reader: StreamReader): number[] => reader.events.map(({ seq }) => seq);
const upTo = (last: number, after = 0): number[] =>
  Array.from({ length: last - after }, (_, index) => after + index + 1);
const post = (via: TestApi, path: string, body: object, actor = 'tester') =>
  via.request(path, {
    method: 'POST',
    headers: {
      ...{ 'content-type': 'application/json', 'x-actor': actor },
      'idempotency-key': `key-${Math.random()}`,
    },
    body: JSON.stringify(body),
  });
test('case 49: a reader that comes back with the last id alone sees the events about a child run as before', async () => {
  const { parent, child } = await newFamily(ledger);
  const first = await openStream(api, parent.runId, { query: '?from=1&state=false' });
  await until('the child is told of', () => first.events.some(({ type }) => type === 'child.started'));
  first.cut();
  await child.start();
  await child.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
  await parent.commit(WARNING);
  const again = await openStream(api, parent.runId, { lastEventId: first.ids.at(-1) ?? '' });
  const { length: total } = await ledger.events(parent.runId);
  await again.seen(total - first.events.length);
  expect([...seqsOf(first), ...seqsOf(again)]).toStrictEqual(upTo(total));
  again.cut();
  // The child's own events stand in the feed of the tenant beside its parent's.
  const all = await openTenantStream(api, { query: '?from=start' });
  await until('the child is seen', () => all.events.some(({ runId }) => runId === child.runId));
  all.cut();
});

test('case 52: a reader that leaves changes nothing; a cancel ends the run, and every stream with its last event', async () => {
  const run = await ledger.newRun();
  await run.start();
  const [a, b] = [await openStream(api, run.runId), await openStream(api, run.runId)];
  await Promise.all([a.seen(2), b.seen(2)]);
  const before = await ledger.footprint(run.runId);
  a.cut();
  await until('it has left', () => api.hub.subscriptions() === 1);
  expect(await ledger.footprint(run.runId)).toStrictEqual(before);
  const c = await openStream(api, run.runId);
  expect((await post(api, `/v1/runs/${run.runId}/commands`, { kind: 'cancel' })).status).toBe(202);
  await run.commit(
    { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    { kind: 'move', to: 'cancelled', reason: 'cancel_requested' },
  );
  for (const reader of [b, c]) {
    await reader.ended;
    expect(seqsOf(reader)).toStrictEqual(upTo((await ledger.events(run.runId)).length));
    expect(reader.events.at(-1)).toMatchObject({ type: 'run.transition', data: { to: 'cancelled' } });
  }
});

test('case 55: a reader that is too slow and cut off gets ten thousand events once each, and slows nobody', async () => {
  const slowApi = await startTestApi({ databaseUrl: ledger.url, limits: { slowReaderMs: 300 } });
  const run = await ledger.newRun();
  await run.start();
  const count = 10_000;
  await ledger.owner.query(
    `insert into holdfast.run_events (run_id, seq, tenant_id, type, data)
     select $1, 2 + n, 'default', 'test.bulk', jsonb_build_object('text', repeat('x', 1500)) from generate_series(1, $2::int) n`,
    [run.runId, count],
  );
  await ledger.owner.query('update holdfast.runs set event_seq = event_seq + $2 where run_id = $1', [
    run.runId,
    count,
  ]);
  await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
  const total = count + 3;
  const memory = process.memoryUsage().rss;
  const isCut = () => slowApi.logged().includes('nothing was taken for 300 ms');
  const first = idsRead(slowApi.port, run.runId, 0, isCut);
  // While it dawdles, another reader gets everything.
  expect(await idsRead(slowApi.port, run.runId, 0)).toHaveLength(total);
  const seen = await first;
  expect(seen.length).toBeLessThan(total);
  while (seen.length < total) seen.push(...(await idsRead(slowApi.port, run.runId, seen.at(-1) ?? 0)));
  expect(seen).toStrictEqual(upTo(total));
  expect(process.memoryUsage().rss - memory).toBeLessThan(150_000_000);
});

/** Reads a stream over a bare socket to its end; or only a little, and nothing more until it is cut off. */
async function idsRead(port: number, runId: string, after: number, isCut?: () => boolean): Promise<number[]> {
  const socket = connect(port, '127.0.0.1');
  const chunks: Buffer[] = [];
  const closed = new Promise<void>((resolve) => void socket.on('close', () => resolve()));
  socket.on('error', () => undefined);
  socket.on('data', (chunk) => void chunks.push(chunk));
  if (isCut !== undefined) {
    socket.once('data', () => {
      socket.pause();
      void until('the reader is cut off', isCut).finally(() => socket.resume());
    });
  }
  socket.write(`GET /v1/runs/${runId}/stream HTTP/1.0\r\nhost: x\r\nlast-event-id: ${after}\r\n\r\n`);
  await closed;
  const frames = Buffer.concat(chunks).toString('latin1').split('\n\n').slice(0, -1);
  return frames.flatMap((frame) => {
    const [, id] = /^id: (\d+)\n/m.exec(frame.slice(0, 400)) ?? [];
    return id === undefined ? [] : [Number(id)];
  });
}

test('case 56, G09: five hundred idle streams hold no connection, come back after a restart, and leave nothing', async () => {
  const limits = { heartbeatMs: 20_000 };
  const first = await startTestApi({ databaseUrl: ledger.url, limits });
  const idle = await ledger.newRun();
  const gate = await newGate(ledger);
  const readers = await Promise.all(Array.from({ length: 500 }, () => openStream(first, idle.runId)));
  await Promise.all(readers.map((reader) => reader.seen(1)));
  expect(first.hub.subscriptions()).toBe(500);
  // The pool has five for all of them, and every request gets one.
  const started = await post(first, '/v1/runs', startBody({ agent: LEDGER_AGENT.name }));
  const { run_id } = (await started.json()) as { run_id: string };
  const word = { decision: 'approve', scope_sha256: gate.scopeSha256 };
  const approved = await post(first, `/v1/interrupts/${gate.interruptId}/resolve`, word, 'ben');
  const cancelled = await post(first, `/v1/runs/${run_id}/commands`, { kind: 'cancel' });
  expect([started.status, approved.status, cancelled.status]).toStrictEqual([201, 200, 200]);
  expect([first.pool.totalCount <= 5, first.pool.waitingCount]).toStrictEqual([true, 0]);
  // Each is told to come back at a time of its own.
  const waits = readers.flatMap(({ retries }) => retries);
  expect([waits.length, waits.every((ms) => ms >= 2_000 && ms <= 4_000)]).toStrictEqual([500, true]);
  expect(new Set(waits).size).toBeGreaterThan(100);
  await first.close();
  await Promise.all(readers.map((reader) => reader.ended));
  expect(getEventListeners(first.stopping, 'abort')).toStrictEqual([]);

  // On a port of its own, since this process's fetch keeps connections to the old one.
  const second = await startTestApi({ databaseUrl: ledger.url, limits });
  // Harder than it comes: all of them at once.
  const back = await Promise.all(
    readers.map((reader) => openStream(second, idle.runId, { lastEventId: reader.ids.at(-1) ?? '' })),
  );
  expect(new Set(back.map(({ status }) => status))).toStrictEqual(new Set([200]));
  await idle.start();
  await Promise.all(back.map((reader) => reader.seen(1)));
  for (const reader of back) {
    expect(seqsOf(reader)).toStrictEqual([2]);
    reader.cut();
  }
  await until('all have left', () => second.hub.subscriptions() === 0);
  await until('nobody listens', () => getEventListeners(second.stopping, 'abort').length === 0);
  expect([second.pool.totalCount <= 5, second.pool.waitingCount]).toStrictEqual([true, 0]);
  await second.close();
});

test('case 57: an event that cannot be stored is not shown live either, and the replay is the same list', async () => {
  const run = await ledger.newRun();
  await run.start();
  const live = await openStream(api, run.runId);
  await live.seen(2);
  await ledger.owner.query(
    `create function holdfast.test_refuse() returns trigger language plpgsql as $$
       begin raise exception 'no room' using errcode = '53100'; end $$;
     create trigger test_refuse before insert on holdfast.run_events for each row
       when (new.run_id = '${run.runId}' and new.type = 'run.warning') execute function holdfast.test_refuse()`,
  );
  const trail = run.trail(WARNING);
  await expect(run.send(trail)).rejects.toThrow('no room');
  await ledger.owner.query(
    'drop trigger test_refuse on holdfast.run_events; drop function holdfast.test_refuse',
  );
  // The same commit again, as the workflow makes it.
  await run.send(trail);
  await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
  await live.ended;
  const replay = await openStream(api, run.runId);
  await replay.ended;
  expect(replay.events).toStrictEqual(live.events);
  expect(live.events.map(({ type }) => type).slice(2)).toStrictEqual(['run.warning', 'run.transition']);
});

describe('case 105', () => {
  const revoked = new Set<string>();
  const admit = (headers: { readonly [name: string]: unknown }): void => {
    if (revoked.has(String(headers['x-actor'])))
      throw new HoldfastError('role_required', 'You may not read.');
  };

  test.each([
    [
      'the stream of a run',
      (run: LedgerRun) => `/v1/runs/${run.runId}/stream`,
      (run: LedgerRun) => `/v1/runs/${run.runId}`,
    ],
    ['the feed of the tenant', () => '/v1/stream', () => '/v1/runs'],
  ])(
    '%s is refused like the read, and ends within the bound when the right is taken away',
    async (_, stream, read) => {
      const limits = { heartbeatMs: 20_000, recheckMs: 100 };
      const guarded = await startTestApi({ databaseUrl: ledger.url, limits, admit });
      const run = await ledger.newRun();
      const headers = { 'x-actor': 'cyd' };
      const response = await guarded.request(stream(run), { headers });
      expect(response.status).toBe(200);
      await until('it is served', () => guarded.hub.subscriptions() === 1);
      revoked.add('cyd');
      // Nothing happens in the run: the stream ends all the same.
      await expect(response.text()).rejects.toThrow();
      expect(guarded.hub.subscriptions()).toBe(0);
      const refused = [
        await guarded.request(stream(run), { headers }),
        await guarded.request(read(run), { headers }),
      ];
      const bodies = await Promise.all(refused.map(async (each) => (await each.json()) as { code: string }));
      expect(refused.map(({ status }) => status)).toStrictEqual([403, 403]);
      expect(bodies.map(({ code }) => code)).toStrictEqual(['role_required', 'role_required']);
      revoked.clear();
    },
  );
});

test('G12: two hundred connections that send a byte now and then are cut off, and others are served meanwhile', async () => {
  const guarded = await startTestApi({
    databaseUrl: ledger.url,
    timeouts: { headersMs: 400, requestMs: 800 },
  });
  const sockets = Array.from({ length: 200 }, () => connect(guarded.port, '127.0.0.1'));
  const ended = sockets.map(
    (socket) => new Promise<void>((resolve) => void socket.on('close', () => resolve())),
  );
  const request =
    'POST /v1/runs HTTP/1.1\r\nhost: x\r\nidempotency-key: slow\r\ncontent-length: 100\r\n\r\n{';
  const drip = (socket: Socket, index: number): void => {
    let at = index % 2 === 0 ? 0 : request.length - 1;
    // Half send their headers slowly, half the body after them.
    if (at > 0) socket.write(request.slice(0, at));
    socket.on('error', () => undefined);
    const timer = setInterval(() => void socket.write(request[(at += 1)] ?? ' '), 50);
    socket.on('close', () => clearInterval(timer)).resume();
  };
  sockets.forEach(drip);
  const before = await ledger.rows('select count(*) from holdfast.api_requests');
  expect((await guarded.request('/v1/runs')).status).toBe(200);
  await Promise.all(ended);
  expect((await guarded.request('/v1/runs')).status).toBe(200);
  expect(await ledger.rows('select count(*) from holdfast.api_requests')).toStrictEqual(before);
});

test('the state beside the events is whole at first, then what changed, and is never ahead of what was told', async () => {
  const run = await ledger.newRun();
  const reader = await openStream(api, run.runId, { query: '?state=true' });
  await reader.seen(2);
  await run.start();
  await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
  await reader.ended;
  let state: Record<string, unknown> = {};
  let last = 0;
  for (const { type, seq, id, data } of reader.events) {
    if (type === 'state.snapshot') state = (data as { state: Record<string, unknown> }).state;
    else if (type === 'state.delta') {
      const { patch } = data as { patch: { op: string; path: string; value: unknown }[] };
      for (const { op, path, value } of patch) {
        expect([op, path.slice(1) in state]).toStrictEqual(['replace', true]);
        state[path.slice(1)] = value;
      }
    } else last = seq;
    // Whoever comes back with this id misses no event, and the state knows of none that was not told.
    expect([id, seq <= last]).toStrictEqual([String(last), true]);
  }
  expect(reader.events.map(({ type }) => type).slice(0, 2)).toStrictEqual(['run.admitted', 'state.snapshot']);
  const whole = (await (await api.request(`/v1/runs/${run.runId}`)).json()) as Record<string, unknown>;
  expect(Object.keys(state).length).toBeGreaterThan(5);
  for (const [part, value] of Object.entries(state)) expect([part, value]).toStrictEqual([part, whole[part]]);
  const back = await openStream(api, run.runId, { query: '?state=true', lastEventId: 1 });
  await back.ended;
  expect(back.events.filter(({ type }) => !type.startsWith('state.')).map(({ seq }) => seq)).toStrictEqual([
    2, 3,
  ]);
});
