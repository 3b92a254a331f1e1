import type pg from 'pg';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import type { TrailEntry } from '../shared/domain/protocol.js';
import { type FeedPlace, readFeedHead, readFeedPage } from '../shared/ledger/reads/read-feed.js';
import { openTenantStream, type StreamReader } from './support/event-stream.js';
import type { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi, until } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url, limits: { heartbeatMs: 100 } });
});

const WARNING: TrailEntry = { kind: 'warning', code: 'noted' };
const placesOf = ({ events }: StreamReader): string[] => events.map(({ runId, seq }) => `${runId} ${seq}`);
const seqsOf = ({ events }: StreamReader, { runId }: LedgerRun): number[] =>
  events.filter((event) => event.runId === runId).map(({ seq }) => seq);
const upTo = (last: number): number[] => Array.from({ length: last }, (_, index) => index + 1);

const pageAfter = (place: FeedPlace) =>
  readFeedPage(ledger.db, 'default', place, { limit: 100, bytesMax: 100_000 });

/** A transaction that has its number and does nothing yet. */
async function begin(): Promise<pg.PoolClient> {
  const client = await ledger.owner.connect();
  await client.query('begin');
  await client.query('select pg_current_xact_id()');
  return client;
}
const append = (client: pg.PoolClient, { runId }: LedgerRun, type: string) =>
  client.query(
    `select holdfast.save_run(holdfast.append_event(r, $2, '{}')) from holdfast.runs r where run_id = $1 for update`,
    [runId, type],
  );
async function end(client: pg.PoolClient, how: 'commit' | 'rollback'): Promise<void> {
  await client.query(how);
  client.release();
}

describe('the feed of a tenant', () => {
  test('tells the events of all of its runs from now on, each run’s in its order, and nobody else’s', async () => {
    const before = await ledger.newRun();
    const reader = await openTenantStream(api);
    await reader.opened();
    const [first, second] = [await ledger.newRun(), await ledger.newRun()];
    const other = await ledger.newRun({}, { tenantId: 'other' });
    for (const run of [first, other, second, before]) {
      await run.start();
      await run.commit(WARNING, WARNING);
    }
    await reader.seen(11);
    expect(seqsOf(reader, first)).toStrictEqual(upTo(4));
    expect(seqsOf(reader, second)).toStrictEqual(upTo(4));
    expect(seqsOf(reader, before)).toStrictEqual([2, 3, 4]);
    expect(placesOf(reader)).toHaveLength(11);
    reader.cut();
    // From the start, every reader sees the same, in the same order.
    const whole = await openTenantStream(api, { query: '?from=start' });
    await until('it shows the last', () => seqsOf(whole, before).includes(4));
    expect(placesOf(whole).slice(-11).sort()).toStrictEqual(placesOf(reader).sort());
    whole.cut();
    const foreign = await openTenantStream(api, { query: '?from=start', tenant: 'other' });
    await foreign.seen(4);
    expect(new Set(foreign.events.map(({ runId }) => runId))).toStrictEqual(new Set([other.runId]));
    foreign.cut();
  });

  test('skips nothing that an older transaction commits after a younger one', async () => {
    const [slow, quick] = [await ledger.newRun(), await ledger.newRun()];
    const reader = await openTenantStream(api);
    await reader.opened();
    const { horizon } = await readFeedHead(ledger.db, 'default');
    const place = { xid: horizon, runId: '', seq: 0 };
    const older = await begin();
    await quick.start();
    await append(older, slow, 'test.slow');
    // What is committed waits for the older one, or the place after it would pass that one over.
    const held = await pageAfter(place);
    expect([held.events, held.more, held.pending]).toStrictEqual([[], false, true]);
    await end(older, 'commit');
    await reader.seen(2);
    expect(reader.events.map(({ type }) => type)).toStrictEqual(['test.slow', 'run.transition']);
    const given = await begin();
    await append(given, slow, 'test.never');
    await end(given, 'rollback');
    await slow.commit(WARNING).catch(() => undefined);
    await quick.commit(WARNING);
    await until('the next is told', () => seqsOf(reader, quick).length === 2);
    expect(reader.events.map(({ type }) => type)).not.toContain('test.never');
    reader.cut();
  });

  test('keeps the order of a run whose later event is written by the older transaction', async () => {
    const run = await ledger.newRun();
    const reader = await openTenantStream(api);
    await reader.opened();
    const older = await begin();
    await run.start();
    await run.commit(WARNING);
    await append(older, run, 'test.late');
    await end(older, 'commit');
    await reader.seen(3);
    expect(seqsOf(reader, run)).toStrictEqual([2, 3, 4]);
    const rest = await openTenantStream(api, { lastEventId: reader.events[1]?.id ?? '' });
    await rest.seen(1);
    expect(seqsOf(rest, run)).toStrictEqual([4]);
    reader.cut();
    rest.cut();
  });

  test('is whole over a hundred reconnects while many write at once', async () => {
    const runs = await Promise.all(Array.from({ length: 5 }, () => ledger.newRun()));
    const first = await openTenantStream(api);
    await first.opened();
    let place = first.ids.at(-1) ?? '';
    first.cut();
    let writing = true;
    const writers = runs.map(async (run, index) => {
      await run.start();
      while (writing) {
        const client = await begin();
        await append(client, run, `test.${index}`);
        await end(client, index % 2 === 0 ? 'commit' : 'rollback');
      }
    });
    const seen: string[] = [];
    for (let round = 0; round < 100; round += 1) {
      const reader = await openTenantStream(api, { lastEventId: place });
      const enough = (round * 7919) % 4;
      await until('some events came', () => reader.events.length >= enough);
      reader.cut();
      seen.push(...placesOf(reader));
      place = reader.ids.at(-1) ?? place;
    }
    writing = false;
    await Promise.all(writers);
    const committed = await ledger.rows<{ place: string }>(
      `select run_id || ' ' || seq as place from holdfast.run_events where run_id = any($1) and seq > 1 order by 1`,
      runs.map(({ runId }) => runId),
    );
    const rest = await openTenantStream(api, { lastEventId: place });
    await until('the rest came', () => seen.length + rest.events.length >= committed.length);
    rest.cut();
    expect([...seen, ...placesOf(rest)].sort()).toStrictEqual(committed.map((row) => row.place).sort());
  });

  test('goes on by polling alone', async () => {
    const polling = await startTestApi({
      databaseUrl: ledger.url,
      listen: false,
      limits: { heartbeatMs: 50 },
    });
    const run = await ledger.newRun();
    const reader = await openTenantStream(polling);
    await reader.opened();
    await run.start();
    await reader.seen(1);
    reader.cut();
    await until('nobody is left', () => polling.hub.subscriptions() === 0);
  });

  test('takes no id that it never gave: of a run, of another tenant, from the future, or made up', async () => {
    const mine = await openTenantStream(api);
    await mine.opened();
    mine.cut();
    const theirs = await openTenantStream(api, { tenant: 'other' });
    await theirs.opened();
    theirs.cut();
    const [digest] = JSON.parse(Buffer.from(mine.ids[0] ?? '', 'base64url').toString()) as [string];
    const future = Buffer.from(JSON.stringify([digest, [2 ** 50, '', 0]])).toString('base64url');
    for (const id of ['3', '-1', 'abc', theirs.ids[0] ?? '', future, 'A'.repeat(5_000)]) {
      const response = await api.request('/v1/stream', { headers: { 'last-event-id': id } });
      expect([response.status, ProblemView.parse(await response.json()).code]).toStrictEqual([
        400,
        'last_event_id_invalid',
      ]);
    }
    expect((await api.request('/v1/stream?from=then')).status).toBe(400);
  });
});
