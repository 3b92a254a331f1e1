import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { beforeAll, expect, test } from 'vitest';
import { judge } from './support/judge.js';
import {
  eachTool,
  type OwnApi,
  type OwnPostgres,
  startOwnApi,
  startOwnPostgres,
} from './support/own-stack.js';
import { startTestProcess, type TestProcess } from './support/processes.js';
import { arrived, checkRun } from './support/run-checks.js';
import { temporalAddress } from './support/servers.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: Postgres may crash, come back, or be away for a while: runs wait, nothing is sent meanwhile that it does not
// know of, everything goes on, and the API says what is so. Method: a Postgres of our own that is killed, under a worker
// and an API as production runs them; the ledger is held against the target's log in the end.

/** How often the API must have refused an admission before a killed Postgres is started again. */
const REFUSALS_WHILE_DOWN = [0, 3, 12];
const DOWN_MS = 20_000;

let postgres: OwnPostgres;
let world: World;
let api: OwnApi;
let worker: TestProcess;

beforeAll(async () => {
  postgres = await startOwnPostgres();
  world = await startWorld({
    workers: 0,
    databaseUrl: postgres.url,
    script: eachTool(),
    httpTools: { pay: { keyed: { windowSeconds: 3_600, resendsMax: 20, comparesBodies: true } } },
  });
  worker = world.startWorkerProcess();
  api = await startOwnApi(world, temporalAddress());
  await worker.ready;
}, 90_000);

test('a backend killed with -9 ends every session: the API says 503 until Postgres has recovered (C03)', async () => {
  const runs = await admitAll(3);
  await postgres.killBackend();
  const answers = await answersUntilServed();
  expect(answers.filter(({ status }) => status !== 200).map(problemOf)).toEqual(
    answers.slice(0, -1).map(() => LEDGER_UNAVAILABLE),
  );
  await allCompleteOnce(runs);
}, 60_000);

test('the postmaster killed with -9 again and again: every run completes, every effect once (C04)', async () => {
  // Slow enough that a kill meets runs at work.
  world.target.dial({ mode: 'late', delayMs: 200 });
  const runs: string[] = [];
  for (const refusals of REFUSALS_WHILE_DOWN) {
    runs.push(...(await admitAll(4)));
    await until('the new ones are at work', async () => (await world.runRow(runs.at(-1) ?? '')).step > 1);
    await postgres.kill();
    for (let refused = 0; refused < refusals; refused += 1)
      expect(await refusal()).toEqual(LEDGER_UNAVAILABLE);
    await postgres.start();
  }
  await allCompleteOnce(runs);
  world.target.reset();
}, 90_000);

test('Postgres away for 20 s: nothing fails, nothing is half-started, and all goes on where it was (C05)', async () => {
  const held = await Promise.all([0, 1, 2].map(() => api.admit(`mail ${randomUUID()}`)));
  for (const runId of held) world.target.dial({ mode: 'hold_after', key: keyOf(runId), times: 1 });
  const unclear = await api.admit(`mail ${randomUUID()}`);
  const [retrying] = await admitAll(1);
  world.target.dial({ mode: 'drop_after', key: keyOf(unclear), times: 1 });
  await world.waitFor(unclear, 'needs_reconciliation');
  await until('the target holds three', () => world.target.held() === held.length);
  const before = await counts();

  await postgres.stop();
  world.target.release();
  const keys: string[] = [];
  const began = performance.now();
  while (performance.now() - began < DOWN_MS) {
    keys.push(randomUUID());
    expect(await refusal(keys.at(-1))).toEqual(LEDGER_UNAVAILABLE);
    expect((await fetch(`${api.url}/readyz`)).status).toBe(503);
    expect((await fetch(`${api.url}/healthz`)).status).toBe(200);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  await postgres.start();
  await until('the API is ready again', async () => (await fetch(`${api.url}/readyz`)).ok);

  expect(await counts()).toMatchObject({ ...before, runs: before.runs });
  for (const runId of held) {
    await world.waitFor(runId, 'completed');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await world.path(runId)).toEqual(['admitted', 'running', 'completed']);
  }
  await allCompleteOnce([retrying ?? '']);
  expect((await world.runRow(unclear)).state).toBe('needs_reconciliation');
  // Each key that was refused is free still: it admits one run, however often it is sent.
  const [key = ''] = keys;
  const [first, second] = [await api.start('nothing', key), await api.start('nothing', key)];
  expect([first.status, second.status]).toEqual([201, 200]);
  expect(await counts()).toMatchObject({ runs: before.runs + 1, keys: before.keys + 1 });
  expect(await judge(world, world.targetLog())).toEqual([]);
}, 90_000);

test('the worker refuses a Postgres that may lose commits, in one line, however that was set (C15)', async () => {
  const database = new URL(postgres.url).pathname.slice(1);
  const user = new URL(postgres.url).username;
  const role = `alter role ${user} in database ${database}`;
  expect(await refusedAfter(`alter database ${database} set synchronous_commit = off`)).toEqual(
    notDurable('synchronous_commit=off'),
  );
  await alter(`alter database ${database} reset synchronous_commit`);
  expect(await refusedAfter(`${role} set synchronous_commit = off`)).toEqual(
    notDurable('synchronous_commit=off'),
  );
  await alter(`${role} reset synchronous_commit`);
  await postgres.restartWith({ fsync: 'off', synchronous_commit: 'off' });
  expect(await refusedAfter('select')).toEqual(notDurable('fsync=off and synchronous_commit=off'));
}, 90_000);

test('the worker that finds no Postgres says so in one line, and ends', async () => {
  await postgres.stop();
  expect(await refusal()).toEqual(LEDGER_UNAVAILABLE);
  expect(await saidByWorker()).toMatch(/^worker: Postgres does not answer at DATABASE_URL\. [^\n]+\n$/);
});

const LEDGER_UNAVAILABLE = { status: 503, retryAfter: '1', code: 'ledger_unavailable', names: false };

interface Answer {
  readonly status: number;
  readonly retryAfter: string | null;
  readonly text: string;
}

async function answerOf(response: Response): Promise<Answer> {
  return {
    status: response.status,
    retryAfter: response.headers.get('retry-after'),
    text: await response.text(),
  };
}

/** A refusal as a client sees it; `names` is whether it tells anything of the server's inside. */
function problemOf({ status, retryAfter, text }: Answer) {
  const { code } = JSON.parse(text) as { readonly code: string };
  return { status, retryAfter, code, names: /\bat \/|pg|postgres|ECONN|terminat/i.test(text) };
}

async function refusal(key: string = randomUUID()) {
  return problemOf(await answerOf(await api.start('nothing', key)));
}

/** What the API answers to reads, one after the other, up to and with the first 200. */
async function answersUntilServed(): Promise<Answer[]> {
  const answers: Answer[] = [];
  await until('the API reads again', async () => {
    answers.push(await answerOf(await fetch(`${api.url}/v1/runs`)));
    return answers.at(-1)?.status === 200;
  });
  return answers;
}

function admitAll(count: number): Promise<string[]> {
  return Promise.all(Array.from({ length: count }, () => api.admit(`each ${randomUUID()}`)));
}

async function allCompleteOnce(runs: readonly string[]): Promise<void> {
  for (const runId of runs) {
    await world.waitFor(runId, 'completed', 60_000);
    const keys = [1, 2, 3, 4].map((step) => keyOf(runId, { step }));
    expect(arrived(world, runId)).toEqual(Object.fromEntries(keys.map((key) => [key, 1])));
    await checkRun(world, runId);
  }
}

async function counts(): Promise<{ readonly runs: number; readonly keys: number; readonly jobs: number }> {
  const [row] = await world.rows<{ runs: number; keys: number; jobs: number }>(
    `select (select count(*)::int from holdfast.runs) as runs, (select count(*)::int from holdfast.jobs) as jobs,
            (select count(*)::int from holdfast.api_requests) as keys`,
  );
  if (row === undefined) throw new Error('bug: counting gave no row');
  return row;
}

async function alter(sql: string): Promise<void> {
  const client = new pg.Client(postgres.url);
  await client.connect();
  await client.query(sql);
  await client.end();
}

async function refusedAfter(sql: string): Promise<string> {
  await alter(sql);
  return await saidByWorker();
}

/** What a worker says that is started now: it must end by itself. */
async function saidByWorker(): Promise<string> {
  const refused = startTestProcess({
    entry: 'workers/worker.ts',
    env: { DATABASE_URL: postgres.url, TEMPORAL_ADDRESS: temporalAddress() },
  });
  expect(await refused.ended).toEqual({ code: 1, signal: null });
  return refused.output();
}

function notDurable(settings: string): unknown {
  return expect.stringMatching(
    new RegExp(`^worker: not_durable: Postgres runs with ${settings}, [^\\n]+\\n$`),
  ) as unknown;
}
