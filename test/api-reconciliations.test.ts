import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { ReconciliationItemView, ReconciliationListView } from '../api/views/desk-views.js';
import { newUnknown } from './support/desk.js';
import { type LedgerCall } from './support/ledger-call.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

interface Said {
  readonly key?: string | null;
  readonly actor?: string;
  readonly roles?: string;
  readonly tenant?: string;
  readonly body?: unknown;
  readonly via?: TestApi;
}
const COMMITTED = { decided: 'committed', reference: 'pay_77', note: 'Seen in the statement.' };
const NOT_COMMITTED = { decided: 'not_committed', note: 'The provider has no such payment.' };

const idOf = async (call: LedgerCall): Promise<string> => (await call.effect()).effect_id;
async function settle(effectId: string, say: Said = {}): Promise<Response> {
  const { key = randomUUID(), actor = 'olga', roles, tenant = 'default', via = api } = say;
  return await via.request(`/v1/reconciliations/${effectId}/settle`, {
    method: 'POST',
    tenant,
    headers: {
      'content-type': 'application/json',
      'x-actor': actor,
      ...(roles === undefined ? {} : { 'x-roles': roles }),
      ...(key === null ? {} : { 'idempotency-key': key }),
    },
    body: JSON.stringify(say.body ?? COMMITTED),
  });
}
const problemOf = async (response: Response) => {
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return problem;
};
async function listed(query: string, tenant = 'default') {
  const response = await api.request(`/v1/reconciliations?${query}`, { tenant });
  const text = await response.text();
  if (response.status !== 200) throw new Error(text);
  return ReconciliationListView.parse(JSON.parse(text));
}
const idsOf = async (query: string): Promise<string[]> =>
  (await listed(query)).reconciliations.map(({ effect_id }) => effect_id);
const itemAt = async (id: string) =>
  ReconciliationItemView.parse(await (await api.request(`/v1/reconciliations/${id}`)).json());
/** Moves the deadline, as if so many seconds had gone by. */
const makeOverdue = (call: LedgerCall, seconds: number) =>
  ledger.rows(
    `update holdfast.effects set reconciliation_deadline_at = clock_timestamp() - make_interval(secs => $2)
      where run_id = $1`,
    call.run.runId,
    seconds,
  );

describe('the desk', () => {
  test('shows the intent, every attempt with its evidence, the answers, and who must see to it', async () => {
    const call = await ledger.newCall('queryable', {
      policy: { query: { queriesMax: 2 } },
      contract: { reconciliation: { owner: 'finance', deadline_seconds: 600 } },
    });
    await call.attempt('unknown', { body: Buffer.from('half an ans') });
    await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    await call.query('absent');
    await call.query('inconclusive', { body: Buffer.from([0, 1]) });
    await makeOverdue(call, -300);
    const effectId = await idOf(call);
    const item = await itemAt(effectId);
    expect(item).toMatchObject({
      ...{
        effect_id: effectId,
        run_id: call.run.runId,
        run_state: 'needs_reconciliation',
        effect_state: 'unknown',
      },
      intent: { tool: 'tool_queryable', arguments: { slot: 0 }, requested_by: 'user:ada', redo: 0 },
      waiting: { owner: 'finance', overdue: false },
      settlement: null,
      attempts: [
        {
          ...{ attempt: 1, outcome: 'unknown', reason: 'timed_out' },
          evidence: { body_bytes: 11, body_start: 'half an ans', content_type: 'application/json' },
        },
      ],
      queries: [
        { query: 1, answer: 'absent', counts: false, body_start: '{"status":"absent"}' },
        { query: 2, answer: 'inconclusive', reason: 'http_503', body_start: null },
      ],
      late_receipts: [],
    });
    expect(item.intent.idempotency_key).toContain(call.run.runId);
    expect(item.waiting!.age_seconds).toBeLessThan(60);
    expect((await listed(`run_id=${call.run.runId}`)).reconciliations).toMatchObject([
      { ...item, waiting: { owner: 'finance' } },
    ]);
  });

  test('shows an answer that came late and settles nothing by itself', async () => {
    const call = await ledger.newCall('opaque');
    const first = await call.lose();
    await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    await call.settle(first, 'in_progress', { body: Buffer.from('still at it') });
    expect(await itemAt(await idOf(call))).toMatchObject({
      attempts: [{ outcome: 'lost', reason: 'worker_lost', evidence: null }],
      late_receipts: [{ attempt_id: first.attemptId, outcome: 'in_progress', body_start: 'still at it' }],
    });
  });

  test('lists the most urgent first, and finds by run, agent, tool, owner and what is overdue', async () => {
    const tool = 'tool_queryable';
    const calls = [await newUnknown(ledger), await newUnknown(ledger), await newUnknown(ledger)];
    const other = await newUnknown(ledger, 'queryable', {
      contract: { reconciliation: { owner: 'the risk desk' } },
    });
    for (const [index, call] of calls.entries()) await makeOverdue(call, 1_000 + index);
    const [a, b, c] = await Promise.all(calls.map(idOf));
    expect(await idsOf('overdue=true&agent=ledger-agent')).toStrictEqual([c, b, a]);
    expect(await idsOf('overdue=false&owner=the%20risk%20desk')).toStrictEqual([await idOf(other)]);
    expect(await idsOf(`overdue=false&tool=${tool}`)).toContain(await idOf(other));
    expect(await idsOf(`run_id=${calls[0]!.run.runId}`)).toStrictEqual([a]);
    expect(await idsOf(`run_id=${calls[0]!.run.runId}&agent=another`)).toStrictEqual([]);
    const walked: string[] = [];
    for (let cursor: string | null = ''; cursor !== null;) {
      const page = await listed(`overdue=true&limit=1${cursor === '' ? '' : `&cursor=${cursor}`}`);
      walked.push(...page.reconciliations.map(({ effect_id }) => effect_id));
      cursor = page.next_cursor;
    }
    expect(walked).toStrictEqual([c, b, a]);
    expect((await listed('', 'other')).reconciliations).toStrictEqual([]);
  });

  test('leaves out what its run still finds out by itself', async () => {
    const retried = await ledger.newCall('keyed');
    await retried.attempt('unknown');
    expect(await idsOf(`run_id=${retried.run.runId}`)).toStrictEqual([]);
    const done = await ledger.newCall('opaque');
    await done.attempt('succeeded');
    expect((await api.request(`/v1/reconciliations/${await idOf(done)}`)).status).toBe(404);
  });

  test.each(['state=x', 'run_id=x', 'tool=a%00b', 'owner=', 'overdue=yes', 'owner=a%0Ab', 'ovrdue=true'])(
    'refuses ?%s',
    async (query) => {
      expect(await problemOf(await api.request(`/v1/reconciliations?${query}`))).toMatchObject({
        code: 'invalid_request',
      });
    },
  );

  test('refuses a cursor that it never gave', async () => {
    const { next_cursor: cursor } = await listed('limit=1');
    for (const query of [`state=settled&cursor=${cursor}`, `owner=x&cursor=${cursor}`, 'cursor=garbage']) {
      expect(await problemOf(await api.request(`/v1/reconciliations?${query}`))).toMatchObject({
        code: 'cursor_invalid',
      });
    }
  });
});

describe('a settlement', () => {
  test('is 200 with the effect as it stands, and moves it to the settled ones', async () => {
    const call = await newUnknown(ledger);
    const effectId = await idOf(call);
    const key = randomUUID();
    const response = await settle(effectId, { key });
    expect(response.status).toBe(200);
    const item = ReconciliationItemView.parse(await response.json());
    expect(item).toMatchObject({
      ...{ effect_state: 'committed', waiting: null },
      settlement: {
        ...{ decided: 'committed', source: 'person', actor_id: 'olga', note: COMMITTED.note },
        evidence: { reference: 'pay_77', authority: 'operator' },
      },
    });
    const again = await settle(effectId, { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(ReconciliationItemView.parse(await again.json())).toStrictEqual(item);
    const of = `run_id=${call.run.runId}`;
    expect([await idsOf(of), await idsOf(`${of}&state=settled`)]).toStrictEqual([[], [effectId]]);
  });

  test('as not committed names no reference, and an admin may say it', async () => {
    const call = await newUnknown(ledger);
    const response = await settle(await idOf(call), { body: NOT_COMMITTED, roles: 'admin' });
    expect(ReconciliationItemView.parse(await response.json())).toMatchObject({
      ...{ effect_state: 'not_committed', settlement: { evidence: { authority: 'admin', reference: null } } },
    });
  });

  test('two ways at once through two processes is one', async () => {
    const second = await startTestApi({ databaseUrl: ledger.url });
    for (let round = 0; round < 5; round += 1) {
      const effectId = await idOf(await newUnknown(ledger));
      const answers = await Promise.all([
        settle(effectId),
        settle(effectId, { body: NOT_COMMITTED, actor: 'ben', via: second }),
      ]);
      expect(answers.map(({ status }) => status).toSorted()).toStrictEqual([200, 409]);
      const refused = await problemOf(answers.find(({ status }) => status === 409)!);
      const { effect_state: stands, settlement } = await itemAt(effectId);
      expect(refused).toMatchObject({ code: 'already_settled', effect_state: stands });
      expect(refused.detail).toContain(settlement!.actor_id);
    }
    await second.close();
  });

  type Case = readonly [what: string, status: number, code: string, say: Said];
  // prettier-ignore
  test.each<Case>([
    ['no key',                400, 'idempotency_key_missing', { key: null }],
    ['no note',               400, 'invalid_request', { body: { decided: 'committed', reference: 'x' } }],
    ['an empty note',         400, 'invalid_request', { body: { ...COMMITTED, note: '' } }],
    ['a note of blanks',      400, 'invalid_request', { body: { ...COMMITTED, note: ' \n ' } }],
    ['a note of 4,001',       400, 'invalid_request', { body: { ...COMMITTED, note: 'x'.repeat(4_001) } }],
    ['no reference',          400, 'invalid_request', { body: { decided: 'committed', note: 'x' } }],
    ['a blank reference',     400, 'invalid_request', { body: { ...COMMITTED, reference: ' ' } }],
    ['a needless reference',  400, 'invalid_request', { body: { ...NOT_COMMITTED, reference: 'x' } }],
    ['another verdict',       400, 'invalid_request', { body: { ...COMMITTED, decided: 'succeeded' } }],
    ['an approver',           403, 'role_required',   { roles: 'approver,requester' }],
    ['another tenant',        404, 'effect_not_found', { tenant: 'other' }],
  ])('is refused for %s', async (_what, status, code, say) => {
    const call = await newUnknown(ledger);
    expect(await problemOf(await settle(await idOf(call), say))).toMatchObject({ status, code });
    expect(await call.state()).toBe('unknown');
  });

  test('is refused for what there is not, and for what is not in doubt', async () => {
    for (const id of [`eff_${'0'.repeat(32)}`, 'eff_1', '%00']) {
      expect(await problemOf(await settle(id))).toMatchObject({ status: 404, code: 'effect_not_found' });
    }
    const done = await ledger.newCall('opaque');
    await done.attempt('succeeded');
    expect(await problemOf(await settle(await idOf(done)))).toMatchObject({
      ...{ status: 409, code: 'not_unknown', effect_state: 'succeeded' },
    });
    const retried = await ledger.newCall('keyed');
    await retried.attempt('unknown');
    const problem = await problemOf(await settle(await idOf(retried)));
    expect([problem.code, problem.detail]).toStrictEqual([
      'not_unknown',
      expect.stringContaining('still finds out by itself'),
    ]);
  });

  test('in other words under a used key is refused', async () => {
    const effectId = await idOf(await newUnknown(ledger));
    const key = randomUUID();
    await settle(effectId, { key });
    for (const say of [
      { body: NOT_COMMITTED },
      { body: { ...COMMITTED, note: 'Else.' } },
      { actor: 'ben' },
    ]) {
      expect(await problemOf(await settle(effectId, { key, ...say }))).toMatchObject({
        ...{ status: 422, code: 'idempotency_key_reused' },
      });
    }
  });
});
