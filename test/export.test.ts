import { createHash, randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RunExportView } from '../api/views/export-views.js';
import type { JsonValue } from '../shared/domain/json.js';
import { canonicalJson } from '../shared/domain/strict-json.js';
import { EXPORTED_BY_WAY, NOT_EXPORTED } from '../shared/ledger/reads/export-run.js';
import { type RunExport, verifyExport } from '../shared/ledger/verify-export.js';
import { acceptJob, decide, newGate, settle, submit } from './support/desk.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { newEndpoint } from './support/webhook-world.js';

// Goal: what the ledger holds of a run can be taken elsewhere and believed there, with no ledger at hand (the operational
// test of portability). Method: a run that has something in every table; its export is read back and checked alone.

let ledger: LedgerWorld;
let api: TestApi;
let run: LedgerRun;
let text: string;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  await newEndpoint(ledger.db, 'https://example.com/hook');
  // Something in every table.
  const gate = await newGate(ledger, { effectClass: 'queryable', policy: { query: { settlingSeconds: 0 } } });
  run = gate.run;
  await decide(gate, { note: 'Seen.' });
  await gate.call.attempt('unknown');
  await gate.call.query('inconclusive', { body: Buffer.from([0, 255, 10]) });
  await submit(run, 'pause');
  await submit(run, 'resume');
  const row = { kind: 'retry', turn: 1, step: 1, reason: 'throttled', attempt: 1, attemptsMax: 5 } as const;
  await run.commit(
    { ...row, slot: 0, action: 'give_up' },
    { kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' },
  );
  await settle(gate.call);
  await run.commit(
    { kind: 'move', to: 'reconciling', reason: 'person_settled' },
    { kind: 'move', to: 'failed', reason: 'internal_error' },
  );
  await acceptJob(ledger, run);
  text = await exported(run.runId);
});

async function exported(runId: string): Promise<string> {
  const response = await api.request(`/v1/runs/${runId}/export`);
  expect([response.status, response.headers.get('content-type')]).toStrictEqual([
    ...[200, 'application/json; charset=utf-8'],
  ]);
  return await response.text();
}
const readBack = (json: string): RunExport => RunExportView.parse(JSON.parse(json)) as unknown as RunExport;
type Rows = Record<string, Record<string, unknown>[]>;
/** The export with something changed, and its digest made to fit again. */
function forged(change: (tables: Rows) => void, resigned = true): RunExport {
  const copy = JSON.parse(text) as { document: { tables: Rows }; sha256: string };
  change(copy.document.tables);
  const whole = copy as unknown as RunExport;
  return resigned ? { ...whole, sha256: digestOf(whole) } : whole;
}
function digestOf({ document }: RunExport): string {
  return createHash('sha256')
    .update(canonicalJson(document as unknown as JsonValue))
    .digest('hex');
}

describe('an export', () => {
  test('verifies by itself: digest, chain, receipts, scopes, contract and agent', () => {
    expect(verifyExport(readBack(text))).toStrictEqual([]);
    const { document } = readBack(text);
    expect(document).toMatchObject({ run_id: run.runId, schema: 'holdfast.run-export/1' });
    // What was written is the very form that is digested.
    expect(text).toBe(canonicalJson(JSON.parse(text) as JsonValue));
  });

  test('holds every row of the run that the ledger holds, of every table', async () => {
    const { tables } = readBack(text).document;
    for (const [table, rows] of Object.entries(tables)) {
      const way = EXPORTED_BY_WAY[table] ?? 'run_id = $run';
      const [count] = await ledger.rows<{ n: number }>(
        `select count(*)::int as n from holdfast.${table} where ${way.replaceAll('$run', `'${run.runId}'`)}`,
      );
      expect([table, rows.length]).toStrictEqual([table, count!.n]);
    }
    const empty = Object.keys(tables).filter((table) => tables[table]!.length === 0);
    expect(empty).toStrictEqual([
      ...[
        'budget_reservations',
        'budgets',
        'child_runs',
        'escalations',
        'forks',
        'inherited_effects',
        'late_receipts',
        'resume_blocks',
        'schedule_occurrences',
        'standing_grant_uses',
        'thread_messages',
        'threads',
        'undos',
      ],
      'webhook_attempts',
    ]);
    const names = await ledger.rows<{ name: string }>(
      `select relname as name from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p')`,
    );
    expect([...Object.keys(tables), ...NOT_EXPORTED].toSorted()).toStrictEqual(
      names.map(({ name }) => name).toSorted(),
    );
  });

  test('keeps bytes, microseconds and numbers as they are', async () => {
    const { tables } = readBack(text).document;
    const [query] = tables['status_queries']!;
    expect(Buffer.from(query!['body'] as string, 'base64')).toStrictEqual(Buffer.from([0, 255, 10]));
    const [stored] = await ledger.rows<{ at: string; tokens: string }>(
      `select to_char(t.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at, r.input_tokens as tokens
         from holdfast.transitions t join holdfast.runs r using (run_id) where t.run_id = $1 and t.seq = 1`,
      run.runId,
    );
    expect(tables['transitions']![0]!['created_at']).toBe(stored!.at);
    expect(tables['runs']![0]!['input_tokens']).toBe(Number(stored!.tokens));
  });

  test('of an ended run is the same bytes whenever it is taken', async () => {
    expect(await exported(run.runId)).toBe(text);
  });

  test('holds no secret of a webhook', () => {
    expect(text).not.toMatch(/whsec_|secret_sealed/);
  });

  // prettier-ignore
  test.each<readonly [what: string, change: (tables: Rows) => void, says: RegExp]>([
    ['an actor in the chain',   (t) => { t['transitions']![1]!['actor_id'] = 'user:eve'; },            /transition 2: content_changed/],
    ['a transition taken out',  (t) => { t['transitions']!.splice(1, 1); },                           /transition 2: gap/],
    ['the end of the chain',    (t) => { t['transitions']!.pop(); },                                  /transition \d+: run_differs/],
    ['the body of a receipt',   (t) => { t['receipts']![0]!['body'] = 'AAAA'; },                      /the body in receipts/],
    ['the status of a receipt', (t) => { t['receipts']![0]!['status'] = 'not_committed'; },           /is not its receipt's/],
    ['an argument',             (t) => { t['effects']![0]!['arguments'] = '{"slot":1}'; },            /the arguments of eff_/],
    ['an effect taken out',     (t) => { t['effects'] = []; },                                        /the effect of receipts .* is missing/],
    ['what was approved',       (t) => { (t['interrupts']![0]!['scope'] as Rows)['tool'] = []; },     /the scope of int_/],
    ['the contract',            (t) => { (t['runs']![0]!['contract'] as Rows)['owner'] = []; },       /the contract/],
    ['the agent',               (t) => { (t['agent_versions']![0]!['manifest'] as Rows)['name'] = []; }, /the agent/],
    ['an event taken out',      (t) => { t['run_events']!.splice(2, 1); },                            /gap/],
  ])('in which somebody changed %s is found out, even with a new digest', (_what, change, says) => {
    expect(verifyExport(forged(change)).join('\n')).toMatch(says);
    expect(verifyExport(forged(change, false))).toContain('the digest of the document');
  });

  test('of a run of another tenant, or of none, is not there', async () => {
    for (const [id, tenant] of [
      [run.runId, 'other'],
      ['run_1', 'default'],
      [`run_${'0'.repeat(32)}`, 'default'],
    ] as const) {
      const response = await api.request(`/v1/runs/${id}/export`, { tenant });
      expect(ProblemView.parse(await response.json())).toMatchObject({ status: 404, code: 'run_not_found' });
    }
  });

  test('asked for by HEAD gives its connection back', async () => {
    for (let n = 0; n < 8; n += 1) {
      expect((await api.request(`/v1/runs/${run.runId}/export`, { method: 'HEAD' })).status).toBe(200);
    }
    expect(await exported(run.runId)).toBe(text);
  });
});

describe('an export that is larger than its reader takes', () => {
  let large: LedgerRun;
  beforeAll(async () => {
    const calls = Array.from({ length: 16 }, () => callOf('opaque'));
    large = await ledger.newStep(calls);
    const body = Buffer.alloc(1_048_576, randomUUID());
    const bodySha256 = createHash('sha256').update(body).digest('hex');
    for (let slot = 0; slot < 16; slot += 1)
      await large.call(slot).attempt('succeeded', { body, bodySha256 });
  });

  test('arrives whole', async () => {
    expect(verifyExport(readBack(await exported(large.runId)))).toStrictEqual([]);
  });

  test('breaks off without its digest when its connection dies, and hurts nobody else', async () => {
    const response = await api.request(`/v1/runs/${large.runId}/export`);
    await expect
      .poll(async () => {
        const rows = await ledger.rows(
          `select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and application_name = 'test-api' and state = 'idle in transaction'`,
        );
        return rows.length;
      })
      .toBe(1);
    await expect(response.text()).rejects.toThrow();
    expect(await exported(run.runId)).toBe(text);
  });

  test('is bounded: two at once, and the reader who leaves makes room', async () => {
    const readers = [new AbortController(), new AbortController()];
    const open = readers.map(({ signal }) => api.request(`/v1/runs/${large.runId}/export`, { signal }));
    await Promise.all(open);
    const third = await api.request(`/v1/runs/${run.runId}/export`);
    expect([third.status, third.headers.get('retry-after') !== null]).toStrictEqual([429, true]);
    for (const reader of readers) reader.abort();
    await expect.poll(async () => (await api.request(`/v1/runs/${run.runId}/export`)).status).toBe(200);
  });
});
