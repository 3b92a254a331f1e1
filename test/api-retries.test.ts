import { beforeAll, describe, expect, test } from 'vitest';
import { RetrySeriesListView } from '../api/views/retry-views.js';
import { failModel } from './support/input.js';
import { submit } from './support/desk.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: what stopped, why, who owns it, what is done about it and when can be read as one object, for one run and across
// all of them (SPEC 3.5). Method: runs stop in the ledger in every way there is; the API is read.

let ledger: LedgerWorld;
let api: TestApi;
/** Waits for a tool; asks a person about its model; gave up a model and failed; gave up an unknown effect. */
let waiting: LedgerRun;
let asking: LedgerRun;
let failed: LedgerRun;
let unknown: LedgerRun;

const stopOf = { kind: 'retry', turn: 1, step: 1, attemptsMax: 5 } as const;

beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  waiting = await ledger.newStep([callOf('opaque')]);
  await waiting.call(0).attempt('throttled');
  const throttled = { ...stopOf, slot: 0, reason: 'throttled', action: 'retry' } as const;
  await waiting.commit(
    { kind: 'move', to: 'retry_wait', reason: 'limit_stop' },
    { ...throttled, attempt: 1, waitMs: 0, retryAfterSeconds: 90 },
    { kind: 'move', to: 'running', reason: 'retry_due' },
  );
  await waiting.call(0).attempt('throttled');
  await waiting.commit(
    { kind: 'move', to: 'retry_wait', reason: 'limit_stop' },
    { ...throttled, attempt: 2, waitMs: 600_000, retryAfterSeconds: 600 },
  );
  asking = await ledger.newRun();
  await asking.start();
  await failModel(asking, 'billing');
  await asking.commit(
    { ...stopOf, reason: 'billing', action: 'ask_person', attempt: 1 },
    { kind: 'move', to: 'waiting_for_input', reason: 'input_needed' },
  );
  failed = await ledger.newStep([]);
  await failModel(failed, 'server_error', { step: 2 });
  await failed.commit(
    { kind: 'move', to: 'retry_wait', reason: 'transient_fault' },
    { ...stopOf, step: 2, reason: 'server_error', action: 'give_up', attempt: 5 },
    { kind: 'move', to: 'failed', reason: 'retries_exhausted' },
  );
  unknown = await ledger.newStep([callOf('opaque')]);
  await unknown.call(0).attempt('unknown');
  await unknown.commit({ ...stopOf, slot: 0, reason: 'unknown', action: 'give_up', attempt: 1 });
});

const read = async (path: string, tenant = 'default') => {
  const response = await api.request(path, { tenant });
  return RetrySeriesListView.parse(await response.json());
};
const ofRun = async (run: LedgerRun) => (await read(`/v1/runs/${run.runId}/retries`)).retries;

describe('a retry series', () => {
  test('that waits says for what, how often, since when, until when, and in whose words', async () => {
    const [series, ...others] = await ofRun(waiting);
    expect(others).toStrictEqual([]);
    expect(series).toMatchObject({
      ...{ state: 'waiting', reason: 'throttled', action: 'retry', owner: 'desk', tool: 'tool_opaque' },
      ...{ attempt: 2, attempts_max: 5, retry_after_seconds: 600, next_step: 'wait', uncertain_effects: [] },
      stops: [
        { attempt: 1, retry_after_seconds: 90 },
        { attempt: 2, retry_after_seconds: 600 },
      ],
    });
    expect(series!.effect_id).toBe((await waiting.call(0).effect()).effect_id);
    expect(Date.parse(series!.next_at!)).toBeGreaterThan(Date.now() + 500_000);
    expect(Date.parse(series!.deadline_at)).toBeGreaterThan(Date.parse(series!.next_at!));
  });

  test('that a person must mend names the wait', async () => {
    expect(await ofRun(asking)).toMatchObject([
      { state: 'asking', slot: null, tool: null, next_step: 'answer_interrupt', next_at: null },
    ]);
  });

  test('that is exhausted keeps what there is and names the next step', async () => {
    expect(await ofRun(failed)).toMatchObject([
      {
        ...{ state: 'exhausted', run_state: 'failed', next_step: 'start_new_run', attempt: 5 },
        partial_result: { parts: [{ type: 'text', text: 'Done.' }] },
      },
    ]);
    const { effect_id } = await unknown.call(0).effect();
    expect(await ofRun(unknown)).toMatchObject([
      {
        state: 'exhausted',
        next_step: 'settle_effect',
        uncertain_effects: [effect_id],
        partial_result: null,
      },
    ]);
  });
});

describe('the list across runs', () => {
  test('shows those that wait unless asked otherwise, by filters, page by page, and of this tenant alone', async () => {
    const runsOf = async (query = '') => (await read(`/v1/retries${query}`)).retries.map((s) => s.run_id);
    expect(await runsOf()).toStrictEqual([waiting.runId]);
    expect(await runsOf('?state=exhausted')).toStrictEqual([unknown.runId, failed.runId]);
    expect(await runsOf('?state=any&reason=billing')).toStrictEqual([asking.runId]);
    expect(await runsOf('?state=any&agent=nobody')).toStrictEqual([]);
    expect((await read('/v1/retries?state=any', 'other')).retries).toStrictEqual([]);
    const first = await read('/v1/retries?state=exhausted&limit=1');
    const second = await read(`/v1/retries?state=exhausted&limit=1&cursor=${first.next_cursor}`);
    expect([...first.retries, ...second.retries].map((s) => s.run_id)).toStrictEqual([
      unknown.runId,
      failed.runId,
    ]);
    const wrong = await api.request(`/v1/retries?state=any&limit=1&cursor=${first.next_cursor}`);
    expect(wrong.status).toBe(400);
  });

  test('says of a paused run that nobody goes on before it is resumed', async () => {
    await submit(waiting, 'pause');
    expect((await ofRun(waiting))[0]).toMatchObject({ state: 'waiting', next_step: 'resume_run' });
  });
});
