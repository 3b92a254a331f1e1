import { beforeAll, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RunView } from '../api/views/run-views.js';
import { trimEvents } from '../shared/ledger/sweep.js';
import { takeOver } from '../shared/ledger/trail.js';
import { type RunExport, verifyExport } from '../shared/ledger/verify-export.js';
import { holdfast } from './support/cli.js';
import { openStream, openTenantStream } from './support/event-stream.js';
import { callOf, LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url, limits: { heartbeatMs: 50 } });
});

const DAY = 86_400;
const upTo = (last: number): number[] => Array.from({ length: last }, (_, index) => index + 1);
const seqsOf = (reader: { readonly events: readonly { readonly seq: number }[] }): number[] =>
  reader.events.map(({ seq }) => seq);
const lastOf = async ({ runId }: LedgerRun): Promise<number> =>
  RunView.parse(await (await api.request(`/v1/runs/${runId}`)).json()).recovery.event_seq;
/** Lets the run's end be so many days ago. */
const age = (run: LedgerRun, days: number): Promise<void> =>
  ledger.tamper(async (change) => {
    await change(
      `update holdfast.runs set ended_at = ended_at - make_interval(days => $2) where run_id = $1`,
      run.runId,
      days,
    );
  });
async function endedRun(days: number): Promise<LedgerRun> {
  const run = await ledger.newStep([callOf('opaque')]);
  await run.call(0).attempt('succeeded');
  await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
  await age(run, days);
  return run;
}
const gone = async (path: string, lastEventId?: string) => {
  const headers = lastEventId === undefined ? {} : { 'last-event-id': lastEventId };
  const response = await api.request(path, { headers });
  const problem = ProblemView.parse(await response.json()) as ReturnType<typeof ProblemView.parse> & {
    readonly resume_from: unknown;
    readonly snapshot: Record<string, unknown>;
  };
  expect([response.status, problem.code]).toStrictEqual([410, 'events_gone']);
  return problem;
};

test('G13: events that were let go are 410 with the state of the run, and the feed goes on where it says', async () => {
  const run = await endedRun(31);
  const last = await lastOf(run);
  const record = async () =>
    await ledger.rows(
      `select (select jsonb_agg(t order by seq) from holdfast.transitions t where run_id = $1) as transitions,
              (select jsonb_agg(x) from holdfast.receipts x where run_id = $1) as receipts,
              (select jsonb_agg(m order by step, position) from holdfast.messages m where run_id = $1) as messages`,
      run.runId,
    );
  const before = await record();
  expect(await trimEvents(ledger.db, 30 * DAY, 100)).toBe(1);
  expect(await ledger.events(run.runId)).toStrictEqual([]);
  // Everything that was the record is so still, and the story and the export stand without the feed.
  expect(await record()).toStrictEqual(before);
  const story = (await (await api.request(`/v1/runs/${run.runId}/story`)).json()) as {
    chain: { holds: boolean };
  };
  expect(story.chain.holds).toBe(true);
  const whole = (await (await api.request(`/v1/runs/${run.runId}/export`)).json()) as RunExport;
  expect(verifyExport(whole)).toStrictEqual([]);

  for (const [path, id] of [
    [`/v1/runs/${run.runId}/stream`, undefined],
    [`/v1/runs/${run.runId}/stream`, '1'],
    [`/v1/runs/${run.runId}/stream?from=2`, undefined],
    [`/v1/runs/${run.runId}/events`, undefined],
    [`/v1/runs/${run.runId}/events?cursor=1`, undefined],
  ] as const) {
    const { resume_from, snapshot } = await gone(path, id);
    expect(resume_from).toBe(last);
    expect(snapshot).toMatchObject({
      as_of: last,
      execution: { state: 'failed' },
      terminal: { outcome: 'failed' },
    });
  }
  expect((await openStream(api, run.runId, { lastEventId: last })).status).toBe(204);
  expect((await api.request(`/v1/runs/${run.runId}/events?cursor=${last}`)).status).toBe(200);
  const watched = await holdfast(api.url, ['runs', 'watch', run.runId]);
  expect([watched.code, watched.out]).toStrictEqual([1, '']);
  expect(watched.err).toContain(`events 1 to ${last} were let go`);
});

test('only what ended long enough ago is let go, once, and never what is open', async () => {
  const [young, old, open] = [await endedRun(29), await endedRun(31), await ledger.newRun()];
  await open.start();
  expect(await trimEvents(ledger.db, 30 * DAY, 100)).toBe(1);
  expect(await trimEvents(ledger.db, 30 * DAY, 100)).toBe(0);
  expect(await ledger.events(old.runId)).toStrictEqual([]);
  const reader = await openStream(api, young.runId);
  await reader.ended;
  expect(seqsOf(reader)).toStrictEqual(upTo(await lastOf(young)));
  expect((await ledger.events(open.runId)).length).toBe(await lastOf(open));
});

test('a tenant’s feed with a hole is 410 with the newest runs, and goes on without one', async () => {
  const before = await openTenantStream(api);
  await before.opened();
  before.cut();
  const run = await endedRun(31);
  const quiet = await openTenantStream(api);
  await quiet.opened();
  quiet.cut();
  await trimEvents(ledger.db, 30 * DAY, 100);
  const { resume_from, snapshot } = await gone('/v1/stream', before.ids[0]);
  expect(snapshot['runs']).toEqual(
    expect.arrayContaining([expect.objectContaining({ run_id: run.runId, state: 'failed' })]),
  );
  const next = await ledger.newRun();
  for (const lastEventId of [String(resume_from), quiet.ids[0] ?? '']) {
    const reader = await openTenantStream(api, { lastEventId });
    await reader.seen(1);
    expect(reader.events.map(({ runId }) => runId)).toStrictEqual([next.runId]);
    reader.cut();
  }
  const start = await openTenantStream(api, { query: '?from=start' });
  await start.seen(1);
  start.cut();
});

test('G13: sequences go on over executions of one run, and a stream does not notice', async () => {
  const run = await ledger.newRun();
  const reader = await openStream(api, run.runId);
  await run.start();
  await run.commit({ kind: 'warning', code: 'first' });
  const second = new LedgerRun(ledger, run.runId, 'exec-continued', run.position);
  await takeOver(ledger.db, second, 1, 'continued');
  await second.commit({ kind: 'warning', code: 'second' });
  await second.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
  await reader.ended;
  expect(seqsOf(reader)).toStrictEqual(upTo(await lastOf(run)));
  expect(reader.events.map(({ type }) => type)).toContain('run.taken_over');
});
