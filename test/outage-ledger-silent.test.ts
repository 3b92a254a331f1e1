import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { expect, test } from 'vitest';
import type { FaultPoint } from '../activities/fault-points.js';
import { startTcpProxy, type Direction, type TcpProxy } from './support/tcp-proxy.js';
import { judge } from './support/judge.js';
import { applied, arrived, checkRun } from './support/run-checks.js';
import { startTestApi, startBody } from './support/test-api.js';
import { keyOf, startWorld, until, type World } from './support/world.js';
import { AGENT } from './support/world-project.js';

// Goal: a ledger that is slow or silent, rather than gone, makes nobody act twice, give up or wait for ever. Method: hold
// its locks, or its bytes on a way of our own, at every commit of an effect; then let go. All at the same time, since
// each waits for time-outs of 8 and 12 seconds.

const MINUTE_MS = 60_000;
/** An outage that is counted as an attempt would end the call. */
const ONE_ATTEMPT = { retry: { attempts_max: 1 } };

test.concurrent(
  'behind a lock, at every commit of an effect, a run goes on where it was: nothing is sent twice, nothing counted',
  async () => {
    const world = await startWorld();
    const points = [
      'act.before_claim',
      'act.after_call',
      'think.before_claim',
      'think.after_answer',
    ] as const;
    const runs = await heldAt(world, points);
    const unlocks = await Promise.all(runs.map((runId) => lockRun(world, runId)));
    world.faults.release();
    await allAskAgain(world, runs);
    for (const unlock of unlocks) await unlock();
    for (const runId of runs) await completesAsUndisturbed(world, runId);
    expect(await judge(world, world.targetLog())).toEqual([]);
  },
  MINUTE_MS,
);

test.concurrent.each<Direction | 'both'>(['to_target', 'to_client', 'both'])(
  'a silent ledger (%s) is given up in bounded time, and read again by key',
  async (direction) => {
    const { world, proxy } = await worldByProxy();
    const runs = await heldAt(world, ['act.before_claim', 'act.after_call', 'think.after_answer']);
    proxy.blackhole(direction);
    world.faults.release();
    await allAskAgain(world, runs);
    // What was held arrives now, behind what was said since.
    await proxy.pass();
    for (const runId of runs) await completesAsUndisturbed(world, runId);
    expect(await judge(world, world.targetLog())).toEqual([]);
  },
  MINUTE_MS,
);

test.concurrent(
  'a silent ledger is told by the API as 503 with Retry-After, while it says that it lives',
  async () => {
    const { world, proxy } = await worldByProxy({ workers: 0 });
    const api = await startTestApi({ databaseUrl: world.databaseUrl });
    const body = JSON.stringify(startBody({ agent: AGENT }));
    const key = randomUUID();
    expect((await api.request('/readyz')).status).toBe(200);
    proxy.blackhole('both');
    const [read, start, ready, healthy] = await Promise.all([
      api.request('/v1/runs'),
      api.start({ key, body }),
      api.request('/readyz'),
      api.request('/healthz'),
    ]);
    expect([read.status, start.status, ready.status, healthy.status]).toEqual([503, 503, 503, 200]);
    for (const refused of [read, start]) {
      expect(refused.headers.get('retry-after')).toMatch(/^\d+$/);
      const text = await refused.text();
      expect(JSON.parse(text)).toMatchObject({ code: 'ledger_unavailable', retry: 'later' });
      expect(text).not.toMatch(/pg|timeout|socket| at /i);
    }
    await proxy.pass();
    expect([200, 201]).toContain((await api.start({ key, body })).status);
    expect(await world.rows('select run_id from holdfast.runs')).toHaveLength(1);
    await api.close();
  },
  MINUTE_MS,
);

test.concurrent(
  'a status query whose commit was not acknowledged counts as the one answer that it was',
  async () => {
    const { world, proxy } = await worldByProxy({
      httpTools: {
        book: { query: { settlingSeconds: 0, equalAnswers: 2, intervalSeconds: 0.1, queriesMax: 10 } },
      },
    });
    const runId = await world.admit({ input: `book ${randomUUID()}` });
    world.target.dial({ mode: 'drop_after', key: keyOf(runId), times: 1 });
    // Done, and not to be seen in the first answer yet: the second one finds it.
    world.target.hideApplied(1);
    proxy.cutReplyAfter('ledger/record-query');
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    expect(proxy.cuts).toBe(1);
    const queries = await world.rows<{ answer: string }>(
      'select answer from holdfast.status_queries where run_id = $1 order by query',
      runId,
    );
    expect(queries.map(({ answer }) => answer)).toEqual(['absent', 'found']);
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await judge(world, world.targetLog())).toEqual([]);
  },
);

test.concurrent(
  'a worker whose ledger is silent ends by itself when it is asked to',
  async () => {
    const { world, proxy } = await worldByProxy({ workers: 0 });
    const worker = world.startWorkerProcess();
    await worker.ready;
    await until('it listens', async () => (await listeners(world)) === 1);
    proxy.blackhole('both');
    await worker.signal('SIGTERM');
    expect(await worker.ended).toEqual({ code: 0, signal: null });
  },
  MINUTE_MS,
);

/** One run a point, which waits there; each may make one attempt only. */
async function heldAt(world: World, points: readonly FaultPoint[]): Promise<string[]> {
  const runs = [];
  for (const point of points) {
    const runId = await world.admit({ input: `mail ${randomUUID()}`, contract: ONE_ATTEMPT });
    world.faults.add({ point, runId, mode: 'hang' });
    runs.push(runId);
  }
  await world.starter.round();
  await until('all are where they are held', () => world.faults.reached().length === points.length);
  return runs;
}

/** Until a call of each run has been given up. */
async function allAskAgain(world: World, runs: readonly string[]): Promise<void> {
  await until('each asks the ledger again', () => {
    const lines = world.logged().split('\n');
    const gaveUp = lines.filter((line) => line.includes('ledger unavailable'));
    return runs.every((runId) => gaveUp.some((line) => line.includes(runId)));
  });
}

async function completesAsUndisturbed(world: World, runId: string): Promise<void> {
  await world.waitFor(runId, 'completed');
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(await world.path(runId)).toEqual(['admitted', 'running', 'completed']);
  expect((await world.attempts(runId)).map(({ outcome }) => outcome)).toEqual(['succeeded']);
  expect((await world.runRow(runId)).model_attempts).toBe(2);
  await checkRun(world, runId);
}

async function listeners(world: World): Promise<number> {
  const rows = await world.rows(
    `select from pg_stat_activity where datname = current_database() and query like 'listen %'`,
  );
  return rows.length;
}

async function worldByProxy(
  options: Parameters<typeof startWorld>[0] = {},
): Promise<{ readonly world: World; readonly proxy: TcpProxy }> {
  let proxy: TcpProxy | undefined;
  const world = await startWorld({
    ...options,
    databaseUrlOf: async (url) => {
      proxy = await startTcpProxy(url);
      return proxy.via(url);
    },
  });
  if (proxy === undefined) throw new Error('bug: no way was asked for');
  return { world, proxy };
}

/** Holds the row that every commit of the run needs, until the returned function is called. */
async function lockRun(world: World, runId: string): Promise<() => Promise<void>> {
  const client = new pg.Client(world.databaseUrl);
  await client.connect();
  await client.query('begin');
  await client.query('select from holdfast.runs where run_id = $1 for update', [runId]);
  return async () => {
    await client.query('rollback');
    await client.end();
  };
}
