import { connect } from 'node:net';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RunView } from '../api/views/run-views.js';
import { Announcer } from '../shared/ledger/announcer.js';
import { commitTrail } from '../shared/ledger/trail.js';
import type { TrailEntry } from '../shared/domain/protocol.js';
import { openStream, type StreamReader } from './support/event-stream.js';
import { createTestDatabase } from './support/servers.js';
import { openWay, registerTestAgent, startTestApi, until } from './support/test-api.js';
import type { TestApi } from './support/test-api.js';

let api: TestApi;
/** Tells the feeds of what was committed, as a worker does. */
let announcer: Announcer;
let databaseUrl: string;
/** Connects as the schema's owner, who may do what the application never can. */
let owner: pg.Pool;
beforeAll(async () => {
  databaseUrl = (await createTestDatabase()).url;
  owner = new pg.Pool({ connectionString: databaseUrl, max: 4 });
  owner.on('error', () => undefined);
  api = await startTestApi({ databaseUrl, limits: { heartbeatMs: 100 } });
  await registerTestAgent(api.pool);
  announcer = new Announcer({ db: api.pool, onError: () => undefined });
});
afterAll(async () => {
  await announcer.stop();
  await owner.end();
});

let keys = 0;
async function newRun(): Promise<string> {
  const response = await api.start({ key: `feed-${(keys += 1)}` });
  return RunView.parse(await response.json()).run_id;
}

const START: TrailEntry = { kind: 'move', to: 'running', reason: 'run_started' };
const END: TrailEntry = { kind: 'move', to: 'completed', reason: 'answer_final' };
const positions = new Map<string, number>();

/** Commits trail entries as the run's workflow would; each becomes one event. */
async function commit(runId: string, ...entries: TrailEntry[]): Promise<void> {
  const from = (positions.get(runId) ?? 0) + 1;
  await commitTrail(api.pool, { runId, execution: `exec-of-${runId}` }, { from, entries });
  announcer.announce(runId);
  positions.set(runId, from - 1 + entries.length);
}

const warnings = (count: number): TrailEntry[] =>
  Array.from({ length: count }, (_, index) => ({ kind: 'warning', code: `burst_${index}` }) as TrailEntry);
const upTo = (last: number, after = 0): number[] =>
  Array.from({ length: last - after }, (_, index) => after + index + 1);
/** The ids as they came, each of which is the sequence of its event. */
const idsOf = (reader: StreamReader): number[] =>
  reader.events.map(({ id, seq }) => (id === String(seq) ? seq : Number.NaN));
const lastEventOf = async (runId: string): Promise<number> =>
  RunView.parse(await (await api.request(`/v1/runs/${runId}`)).json()).recovery.event_seq;

describe('a stream', () => {
  test('after a burst gives from every id exactly the rest, in order, 9 before 10 (case 48)', async () => {
    const runId = await newRun();
    await commit(runId, START, ...warnings(30), END);
    const last = await lastEventOf(runId);
    expect(last).toBe(33);
    for (let id = 0; id < last; id += 1) {
      const reader = await openStream(api, runId, { lastEventId: id });
      await reader.ended;
      expect(idsOf(reader)).toStrictEqual(upTo(last, id));
    }
    const listed = await api.request(`/v1/runs/${runId}/events?limit=100`);
    const { events } = (await listed.json()) as { events: { seq: number }[] };
    expect(events.map(({ seq }) => seq)).toStrictEqual(upTo(last));
  });

  test('sends what becomes durable while it is open, to every reader, and ends after the last event', async () => {
    const runId = await newRun();
    const readers = await Promise.all([1, 2, 3, 4].map(() => openStream(api, runId)));
    await commit(runId, START, ...warnings(3));
    await Promise.all(readers.map((reader) => reader.seen(5)));
    await commit(runId, END);
    for (const reader of readers) {
      await reader.ended;
      expect(idsOf(reader)).toStrictEqual(upTo(6));
      expect(reader.events.at(-1)).toMatchObject({ type: 'run.transition', data: { to: 'completed' } });
    }
  });

  test('cut before its first event or before its last one misses nothing and repeats nothing (case 51)', async () => {
    const runId = await newRun();
    const early = await openStream(api, runId);
    early.cut();
    await commit(runId, START, ...warnings(2));
    const before = await openStream(api, runId);
    await before.seen(4);
    before.cut();
    await commit(runId, END);
    const after = await openStream(api, runId, { lastEventId: 4 });
    await after.ended;
    expect([...idsOf(before), ...idsOf(after)]).toStrictEqual(upTo(5));
    const whole = await openStream(api, runId);
    await whole.ended;
    expect(idsOf(whole)).toStrictEqual(upTo(5));
  });

  test('of an ended run that was seen to its end is 204, so that an EventSource stays away', async () => {
    const runId = await newRun();
    await commit(runId, START, END);
    const reader = await openStream(api, runId, { lastEventId: 3 });
    expect(reader.status).toBe(204);
  });

  test('that is silent sends comments', async () => {
    const reader = await openStream(api, await newRun());
    await until('two comments came', () => reader.comments.length >= 2);
    expect(idsOf(reader)).toStrictEqual([1]);
    reader.cut();
  });

  test('answers HEAD with its headers alone', async () => {
    const response = await api.request(`/v1/runs/${await newRun()}/stream`, { method: 'HEAD' });
    expect([response.status, response.headers.get('content-type')]).toStrictEqual([
      200,
      'text/event-stream; charset=utf-8',
    ]);
  });

  test('starts nothing: three equal starts and four streams leave one run as it was admitted', async () => {
    const answers = await Promise.all([1, 2, 3].map(() => api.start({ key: 'start-and-look' })));
    const ids = await Promise.all(answers.map(async (a) => RunView.parse(await a.json()).run_id));
    const [runId = ''] = ids;
    expect(new Set(ids).size).toBe(1);
    const readers = await Promise.all([1, 2, 3, 4].map(() => openStream(api, runId)));
    await Promise.all(readers.map((reader) => reader.seen(1)));
    const run = RunView.parse(await (await api.request(`/v1/runs/${runId}`)).json());
    expect(run).toMatchObject({
      execution: { state: 'admitted' },
      recovery: { event_seq: 1 },
      concurrency: { epoch: 0 },
    });
    readers.forEach((reader) => reader.cut());
  });
});

describe('G07: a last event id', () => {
  // prettier-ignore
  test.each([
    ['-1'], ['abc'], ['1e99'], ['1.0'], ['01'], ['+1'], ['99999'], ['9007199254740993'], ['1, 2'], ['0x1'],
    ['0'.repeat(5000)],
  ])('%s is 400 in the header and in the query', async (id) => {
    const runId = await newRun();
    const inHeader = await api.request(`/v1/runs/${runId}/stream`, { headers: { 'last-event-id': id } });
    const inQuery = await api.request(`/v1/runs/${runId}/stream?last_event_id=${encodeURIComponent(id)}`);
    for (const response of [inHeader, inQuery]) {
      expect(response.status).toBe(400);
      expect(ProblemView.parse(await response.json()).code).toBe('last_event_id_invalid');
    }
  });

  test('that is empty, twice or beside an unknown parameter is 400', async () => {
    const runId = await newRun();
    for (const query of ['?last_event_id=', '?last_event_id=0&last_event_id=1', '?from=0']) {
      expect((await api.request(`/v1/runs/${runId}/stream${query}`)).status).toBe(400);
    }
  });

  test('in the header counts before the one in the query', async () => {
    const runId = await newRun();
    await commit(runId, START, END);
    const reader = await openStream(api, runId, { lastEventId: 2, query: '?last_event_id=0' });
    await reader.ended;
    expect(idsOf(reader)).toStrictEqual([3]);
  });

  test('of another run is 400 past this run’s last event, and else a place in this run: never its events (case 50, G07)', async () => {
    const [first, second] = [await newRun(), await newRun()];
    await commit(first, START, END);
    await commit(second, START, ...warnings(20));
    const foreign = await api.request(`/v1/runs/${first}/stream`, { headers: { 'last-event-id': '20' } });
    expect(foreign.status).toBe(400);
    const reader = await openStream(api, first, { lastEventId: 1 });
    await reader.ended;
    expect(reader.events.map(({ runId }) => runId)).toStrictEqual([first, first]);
  });
});

test('a stream of an unknown run or of another tenant’s is 404 at once, with one and the same answer (case 54)', async () => {
  const runId = await newRun();
  const bodies: unknown[] = [];
  for (const [id, tenant] of [
    [`run_${'0'.repeat(32)}`, 'default'],
    [runId, 'other'],
    ['nonsense', 'default'],
  ] as const) {
    const response = await api.request(`/v1/runs/${id}/stream`, {
      tenant,
      headers: { 'last-event-id': '99' },
    });
    expect(response.status).toBe(404);
    const { instance, ...problem } = ProblemView.parse(await response.json());
    expect(instance).not.toBe('');
    bodies.push(JSON.parse(JSON.stringify(problem).replaceAll(id, 'ID')));
  }
  expect(bodies[1]).toStrictEqual(bodies[0]);
  expect(bodies[2]).toStrictEqual(bodies[0]);
});

describe('G10: only what is committed is shown', () => {
  test('a commit that waits for another comes after it, and nothing shows before it is durable', async () => {
    const runId = await newRun();
    await commit(runId, START);
    const reader = await openStream(api, runId);
    await reader.seen(2);
    const first = await owner.connect();
    await first.query('begin');
    await first.query(
      `select holdfast.save_run(holdfast.append_event(r, 'test.first', '{}')) from holdfast.runs r
        where run_id = $1 for update`,
      [runId],
    );
    const second = commit(runId, ...warnings(1));
    await until('the second waits for the first', async () => {
      const { rows } = await owner.query<{ n: number }>(
        `select count(*)::int as n from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
      );
      return rows[0]?.n === 1;
    });
    expect(idsOf(reader)).toStrictEqual([1, 2]);
    await first.query('commit');
    first.release();
    await second;
    await reader.seen(4);
    expect(reader.events.map(({ type }) => type).slice(2)).toStrictEqual(['test.first', 'run.warning']);
    expect(idsOf(reader)).toStrictEqual(upTo(4));
    reader.cut();
  });

  test('what is rolled back never shows, and its sequence goes to what is committed next', async () => {
    const runId = await newRun();
    await commit(runId, START);
    const reader = await openStream(api, runId);
    const lost = await owner.connect();
    await lost.query('begin');
    await lost.query(
      `select holdfast.save_run(holdfast.append_event(r, 'test.lost', '{}')) from holdfast.runs r
        where run_id = $1 for update`,
      [runId],
    );
    const { rows } = await lost.query<{ pid: number }>('select pg_backend_pid() as pid');
    lost.on('error', () => undefined);
    await owner.query('select pg_terminate_backend($1)', [rows[0]?.pid]);
    lost.release(true);
    await commit(runId, ...warnings(1), END);
    await reader.ended;
    expect(reader.events.map(({ type }) => type)).not.toContain('test.lost');
    expect(idsOf(reader)).toStrictEqual(upTo(4));
  });
});

test('two hundred reconnects at random places while events come see each event once (G06)', async () => {
  const runId = await newRun();
  await commit(runId, START);
  let writing = true;
  const writer = (async () => {
    while (writing) await commit(runId, ...warnings(5));
    await commit(runId, END);
  })();
  const seen: number[] = [];
  for (let round = 0; round < 200; round += 1) {
    const reader = await openStream(api, runId, { lastEventId: seen.at(-1) ?? 0 });
    const enough = (round * 7919) % 6;
    await until('some events came', () => reader.events.length >= enough);
    reader.cut();
    seen.push(...idsOf(reader));
  }
  writing = false;
  await writer;
  const rest = await openStream(api, runId, { lastEventId: seen.at(-1) ?? 0 });
  await rest.ended;
  expect([...seen, ...idsOf(rest)]).toStrictEqual(upTo(await lastEventOf(runId)));
});

describe('whatever carries the news', () => {
  test('polling alone brings every event', async () => {
    const polling = await startTestApi({
      ...{ databaseUrl, listen: false, pollMs: 20 },
      limits: { heartbeatMs: 600_000 },
    });
    const runId = await newRun();
    const reader = await openStream(polling, runId);
    await reader.seen(1);
    await commit(runId, START, ...warnings(2), END);
    await reader.ended;
    expect(idsOf(reader)).toStrictEqual(upTo(5));
  });

  test('listening alone brings every event, over one connection for all streams', async () => {
    const listening = await startTestApi({ databaseUrl, pollMs: 600_000, limits: { heartbeatMs: 600_000 } });
    await until('it listens', () => listening.hub.isListening());
    const runId = await newRun();
    const readers = await Promise.all(Array.from({ length: 20 }, () => openStream(listening, runId)));
    await Promise.all(readers.map((reader) => reader.seen(1)));
    const { rows } = await owner.query<{ n: number }>(
      `select count(*)::int as n from pg_stat_activity where query = 'listen holdfast_events' and datname = current_database()`,
    );
    // One of this API, one of the API of this file.
    expect(rows[0]?.n).toBe(2);
    await commit(runId, START, END);
    await Promise.all(readers.map((reader) => reader.ended));
    for (const reader of readers) expect(idsOf(reader)).toStrictEqual(upTo(3));
    expect(listening.hub.subscriptions()).toBe(0);
  });

  test('a stream outlives the loss of Postgres and goes on where it was', async () => {
    const way = await openWay(databaseUrl);
    const cutOff = await startTestApi({ databaseUrl: way.url, pollMs: 50, limits: { heartbeatMs: 50 } });
    const runId = await newRun();
    const reader = await openStream(cutOff, runId);
    await reader.seen(1);
    await way.cut();
    await commit(runId, START, ...warnings(3));
    await until('the loss was noticed', () => cutOff.logged().includes('LISTEN was lost'));
    expect((await cutOff.request(`/v1/runs/${runId}/stream`)).status).toBe(503);
    await way.mend();
    await until('it listens again', () => cutOff.hub.isListening());
    await commit(runId, END);
    await reader.ended;
    expect(idsOf(reader)).toStrictEqual(upTo(6));
    await cutOff.close();
    await way.close();
  });

  test('streams past the limit of the process are 429, and a place that is left can be had again', async () => {
    const small = await startTestApi({ databaseUrl, limits: { streamsMax: 1, heartbeatMs: 50 } });
    const runId = await newRun();
    const reader = await openStream(small, runId);
    await reader.seen(1);
    expect((await small.request(`/v1/runs/${runId}/stream`)).status).toBe(429);
    reader.cut();
    await until('the place is free', () => small.hub.subscriptions() === 0);
    const next = await openStream(small, runId);
    await next.seen(1);
    await small.close();
    await next.ended;
    expect(next.status).toBe(200);
  });
});

test('G08: a reader that takes nothing is dropped, holds no memory, slows nobody, and resumes from its last id', async () => {
  const slowApi = await startTestApi({ databaseUrl, limits: { slowReaderMs: 500, heartbeatMs: 50 } });
  const runId = await newRun();
  await commit(runId, START);
  const count = 10_000;
  await owner.query(
    `insert into holdfast.run_events (run_id, seq, tenant_id, type, data)
     select $1, 2 + n, 'default', 'test.bulk', jsonb_build_object('n', n, 'text', repeat('x', 1500))
       from generate_series(1, $2::int) n`,
    [runId, count],
  );
  await owner.query('update holdfast.runs set event_seq = event_seq + $2 where run_id = $1', [runId, count]);
  const memory = process.memoryUsage().rss;
  let taken = '';
  const slow = connect(slowApi.port, '127.0.0.1');
  const dropped = new Promise<void>((resolve) => void slow.on('close', () => resolve()));
  slow.on('error', () => undefined);
  slow.once('data', (chunk) => {
    taken += chunk.toString();
    slow.pause();
  });
  slow.write(`GET /v1/runs/${runId}/stream HTTP/1.1\r\nhost: x\r\n\r\n`);
  await until('the slow reader is dropped', () => slowApi.logged().includes('nothing was taken for 500 ms'));
  expect(process.memoryUsage().rss - memory).toBeLessThan(60_000_000);
  slow.on('data', (chunk) => (taken += chunk.toString())).resume();
  await dropped;
  const frames = taken.split('\n\n').slice(0, -1);
  const last = Number(/id: (\d+)\n/.exec(frames.at(-1) ?? '')?.[1] ?? 0);
  expect(last).toBeLessThan(count);
  await commit(runId, END);
  const rest = await openStream(slowApi, runId, { lastEventId: last });
  await rest.ended;
  expect(idsOf(rest)).toStrictEqual(upTo(await lastEventOf(runId), last));
});
