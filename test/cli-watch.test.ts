import { beforeAll, expect, test } from 'vitest';
import type { RunEvent } from '../cli/api-types.js';
import type { TrailEntry } from '../shared/domain/protocol.js';
import { holdfast } from './support/cli.js';
import type { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestProcess, type TestProcess } from './support/processes.js';
import { startTcpProxy } from './support/tcp-proxy.js';
import { startTestApi, type TestApi, until } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  // An API of its own process refuses a ledger that could forget.
  await ledger.owner.query(
    `alter database ${new URL(ledger.url).pathname.slice(1)} reset synchronous_commit`,
  );
  api = await startTestApi({ databaseUrl: ledger.url, limits: { reconnectMs: 20 } });
});

const warnings = (count: number): TrailEntry[] =>
  Array.from({ length: count }, (_, index) => ({ kind: 'warning', code: `seen_${index}` }) as const);
const ended = (run: LedgerRun, to: 'completed' | 'failed'): Promise<unknown> =>
  run.commit({ kind: 'move', to, reason: to === 'completed' ? 'answer_final' : 'model_failed' });
const seen = (text: string): RunEvent[] =>
  text
    .split('\n')
    .slice(0, -1)
    .flatMap((line) => (line.startsWith('{"run_id"') ? [JSON.parse(line) as RunEvent] : []));
const upTo = (last: number): number[] => Array.from({ length: last }, (_, index) => index + 1);
const eventsOf = async (runId: string): Promise<RunEvent[]> =>
  ((await (await api.request(`/v1/runs/${runId}/events?limit=100`)).json()) as { events: RunEvent[] }).events;

test('two `holdfast runs watch` show every event once while API processes are killed under them on one port', async () => {
  const port = String(20_000 + (process.pid % 20_000));
  const startApi = async (): Promise<TestProcess> => {
    const child = startTestProcess({
      entry: 'api/server.ts',
      env: { DATABASE_URL: ledger.url, TEMPORAL_ADDRESS: '127.0.0.1:1', HOLDFAST_API_PORT: port },
    });
    await child.ready;
    return child;
  };
  const run = await ledger.newRun();
  await run.start();
  let server = await startApi();
  const [first, second] = [1, 2].map(() =>
    startTestProcess({
      entry: 'cli/main.ts',
      args: ['runs', 'watch', run.runId, '--api', `http://127.0.0.1:${port}`],
    }),
  ) as [TestProcess, TestProcess];
  const bothSaw = async (what: string): Promise<void> => {
    for (const watch of [first, second]) {
      await until(`a watch shows ${what}`, () => watch.output().includes(what));
    }
  };
  for (const [index, entry] of warnings(2).entries()) {
    await run.commit(entry);
    await bothSaw(`seen_${index}`);
    // While nobody serves, the run goes on.
    await server.signal('SIGKILL');
    await run.commit({ kind: 'warning', code: `away_${index}` });
    server = await startApi();
    await bothSaw(`away_${index}`);
  }
  await ended(run, 'failed');
  for (const watch of [first, second]) {
    expect(await watch.ended).toStrictEqual({ code: 1, signal: null });
    expect(seen(watch.output())).toStrictEqual(await eventsOf(run.runId));
  }
  expect(seen(first.output()).map(({ seq }) => seq)).toStrictEqual(upTo(seen(second.output()).length));
  await server.signal('SIGTERM');
});

test('a watch from the last event it saw tells the rest, and of an ended run the end alone', async () => {
  const run = await ledger.newRun();
  await run.start();
  await run.commit(...warnings(2));
  await ended(run, 'completed');
  const whole = await holdfast(api.url, ['runs', 'watch', run.runId]);
  const all = seen(whole.out);
  expect([whole.code, all]).toStrictEqual([0, await eventsOf(run.runId)]);
  const rest = await holdfast(api.url, ['runs', 'watch', run.runId, '--from', '3']);
  expect([rest.code, seen(rest.out)]).toStrictEqual([0, all.slice(3)]);
  const end = await holdfast(api.url, ['runs', 'watch', run.runId, '--from', String(all.length), '--table']);
  expect([end.code, end.out]).toStrictEqual([0, 'The run is completed.\n']);
  const past = await holdfast(api.url, ['runs', 'watch', run.runId, '--from', '99']);
  expect([past.code, past.err.includes('last_event_id_invalid')]).toStrictEqual([4, true]);
});

test('a watch through cuts in mid-event shows each event once, and ends by Ctrl-C without touching the run', async () => {
  const run = await ledger.newRun();
  await run.start();
  const proxy = await startTcpProxy(api.url);
  const stop = new AbortController();
  let shown = '';
  const watching = holdfast(proxy.via(api.url), ['runs', 'watch', run.runId], {
    interrupted: stop.signal,
    onOut: (all) => (shown = all),
  });
  for (let round = 0; round < 10; round += 1) {
    await run.commit({ kind: 'warning', code: `round_${round}` });
    // Half of the cuts come whenever they come.
    if (round % 2 === 0) await until('the watch shows it', () => shown.includes(`round_${round}`));
    proxy.resetAll();
  }
  await until('the watch shows the last one', () => shown.includes('round_9'));
  const before = await eventsOf(run.runId);
  stop.abort();
  const { code, out } = await watching;
  expect(code).toBe(130);
  expect(seen(out)).toStrictEqual(before);
  expect(await eventsOf(run.runId)).toStrictEqual(before);
});

test('a watch gives up when the API stays away for longer than its patience, and says where to go on', async () => {
  const run = await ledger.newRun();
  await run.start();
  const proxy = await startTcpProxy(api.url);
  const watching = holdfast(proxy.via(api.url), ['runs', 'watch', run.runId, '--patience', '1']);
  await until('the watch reads', () => api.hub.subscriptions() > 0);
  await proxy.refuse();
  proxy.resetAll();
  const { code, err } = await watching;
  expect(code).toBe(3);
  expect(err).toMatch(/Go on with --from [0-9]+/);
});
