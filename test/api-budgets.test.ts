import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { TenantBudgetView } from '../api/views/budget-views.js';
import { ProblemView } from '../api/views/common.js';
import { CommandView, InterruptListView, InterruptView } from '../api/views/desk-views.js';
import { RunView } from '../api/views/run-views.js';
import { BUDGET_AGENT, linesOf, newStepOf, refund, refunds, registerBudgetAgent } from './support/budget.js';
import type { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startBody, startTestApi, type TestApi } from './support/test-api.js';

// Goal: what may be spent is seen, set and changed through the API, by those who may (SPEC 4.3, 11). Method: every
// request that should do something is followed by the ledger's own lines, and so is each that should not.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  await registerBudgetAgent(ledger);
  api = await startTestApi({ databaseUrl: ledger.url });
});

interface Sent {
  readonly key?: string;
  readonly roles?: string;
  readonly tenant?: string;
  readonly method?: string;
}

async function send(path: string, body: unknown, sent: Sent = {}): Promise<Response> {
  return await api.request(path, {
    method: sent.method ?? 'POST',
    tenant: sent.tenant ?? 'default',
    headers: {
      ...{
        'content-type': 'application/json',
        'x-actor': 'olga',
        'idempotency-key': sent.key ?? randomUUID(),
      },
      ...(sent.roles === undefined ? {} : { 'x-roles': sent.roles }),
    },
    body: JSON.stringify(body),
  });
}
const problemOf = async (response: Response) => ProblemView.parse(await response.json());
const readRun = async (runId: string) => RunView.parse(await (await api.request(`/v1/runs/${runId}`)).json());

describe('GET /v1/runs/{run_id}', () => {
  test('shows each limit of the run with what is used and what is reserved', async () => {
    const run = await newStepOf(ledger, [refund(300), refund(200)], {
      ...refunds(3, 1_000),
      ...{ tokens: 9_000, on_reached: 'pause_and_ask' },
    });
    await run.call(0).attempt('succeeded');
    await run.call(1).attempt('unknown');
    const { budget } = await readRun(run.runId);
    expect(budget).toMatchObject({ on_reached: 'pause_and_ask', finishing: null });
    expect(budget.lines.map(({ kind, limit, used, reserved }) => [kind, limit, used, reserved])).toEqual([
      ['steps', 50, 1, 0],
      ['tool_calls', 200, 2, 0],
      ['wall_clock', 3_600, expect.any(Number), 0],
      ['tokens', 9_000, 120, 0],
      ['effect_count', 3, 1, 1],
      ['effect_sum', 1_000, 300, 200],
    ]);
    expect(budget.lines.at(-1)).toMatchObject({ subject: 'tool_opaque', pointer: '/amount' });
  });
});

describe('POST /v1/runs', () => {
  const start = async (budget: unknown) => {
    const { contract } = startBody() as { contract: object };
    return await api.start({
      key: randomUUID(),
      body: JSON.stringify(startBody({ agent: BUDGET_AGENT.name, contract: { ...contract, budget } })),
    });
  };

  test('takes a budget, and keeps it in the contract with its defaults', async () => {
    const response = await start({ effects: [{ tool: 'tool_opaque', count: 3 }] });
    expect(response.status).toBe(201);
    const run = RunView.parse(await response.json());
    expect(run.contract).toMatchObject({
      budget: { on_reached: 'fail', effects: [{ tool: 'tool_opaque', count: 3 }] },
    });
    expect(run.budget.lines.at(-1)).toMatchObject({ kind: 'effect_count', limit: 3, used: 0 });
  });

  test.each([
    ['a tool that the agent does not have', { effects: [{ tool: 'refnud', count: 3 }] }, 'effects/0/tool'],
    ['a currency that the model has no price in', { cost: { micro_units: 1, currency: 'EUR' } }, 'cost'],
    ['no quantity at all', { effects: [{ tool: 'tool_opaque' }] }, 'effects/0'],
    [
      'a pointer that is none',
      { effects: [{ tool: 'tool_opaque', sum: { pointer: 'a', max: 1 } }] },
      'pointer',
    ],
    ['less than nothing', { tokens: -1 }, 'tokens'],
    ['an unknown way', { on_reached: 'crash' }, 'on_reached'],
  ])('refuses a budget over %s', async (_, budget, at) => {
    const response = await start(budget);
    expect(response.status).toBe(422);
    const problem = await problemOf(response);
    expect(problem).toMatchObject({ code: 'contract_invalid' });
    expect(JSON.stringify(problem.errors)).toContain(at);
  });
});

describe('the command change_budget', () => {
  const change = async (run: LedgerRun, body: object, sent: Sent = {}): Promise<Response> =>
    await send(`/v1/runs/${run.runId}/commands`, body, sent);
  const TO_FIVE = { kind: 'change_budget', budget: refunds(5, 900) };

  test('is applied at once, and once under its key', async () => {
    const run = await newStepOf(ledger, [], refunds(3, 1_000));
    const key = randomUUID();
    const first = await change(run, { ...TO_FIVE, reason: 'Easter.' }, { key });
    expect(first.status).toBe(200);
    expect(CommandView.parse(await first.json())).toMatchObject({ fate: 'applied', reason: 'Easter.' });
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+0/5', 'effect_sum: 0+0/900']);
    expect(
      (await change(run, { ...TO_FIVE, reason: 'Easter.' }, { key })).headers.get('idempotent-replayed'),
    ).toBe('true');
    expect(await problemOf(await change(run, TO_FIVE, { key }))).toMatchObject({
      code: 'idempotency_key_reused',
    });
  });

  test('takes an operator: a requester gives themselves nothing', async () => {
    const run = await newStepOf(ledger, [], refunds(3, 1_000));
    const body = await problemOf(await change(run, TO_FIVE, { roles: 'requester,approver,admin' }));
    expect(body).toMatchObject({ code: 'role_required', status: 403 });
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+0/3', 'effect_sum: 0+0/1000']);
  });

  test.each([
    ['without its budget', { kind: 'change_budget' }, 'body/budget'],
    ['with no limit in it', { kind: 'change_budget', budget: {} }, 'body/budget'],
    ['with a deadline', { ...TO_FIVE, deadline_at: '2030-01-01T00:00:00Z' }, 'body/deadline_at'],
    ['a pause with a budget', { ...TO_FIVE, kind: 'pause' }, 'body/budget'],
    ['a deadline that is none', { kind: 'change_deadline', deadline_at: 'soon' }, 'body/deadline_at'],
  ])('is refused as a request: %s', async (_, body, at) => {
    const run = await newStepOf(ledger, [], refunds(3, 1_000));
    const problem = await problemOf(await change(run, body));
    expect(problem).toMatchObject({ code: 'invalid_request', errors: [{ at }] });
  });

  test('is refused over a limit that the run could not count', async () => {
    const run = await newStepOf(ledger, [], refunds(3, 1_000));
    const response = await change(run, {
      kind: 'change_budget',
      budget: { effects: [{ tool: 'no_tool', count: 1 }] },
    });
    expect([response.status, (await problemOf(response)).code]).toEqual([409, 'budget_not_set']);
  });

  test('of another tenant’s run finds no run', async () => {
    const run = await newStepOf(ledger, [], refunds(3, 1_000));
    expect((await change(run, TO_FIVE, { tenant: 'other' })).status).toBe(404);
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+0/3', 'effect_sum: 0+0/1000']);
  });

  test('change_deadline moves when the run must be over', async () => {
    const run = await newStepOf(ledger, []);
    const response = await change(run, { kind: 'change_deadline', deadline_at: '2031-02-03T04:05:06+01:00' });
    expect(response.status).toBe(200);
    expect((await readRun(run.runId)).control.deadline_at).toBe('2031-02-03T03:05:06.000Z');
  });
});

describe('a wait over a budget', () => {
  test('is listed with the others, says what is reached, and takes an answer that fits its schema', async () => {
    const run = await newStepOf(ledger, [refund(10)], { ...refunds(0, 100), on_reached: 'pause_and_ask' });
    await run.call(0).ask();
    const list = await (await api.request(`/v1/interrupts?kind=budget&run_id=${run.runId}`)).json();
    const [wait] = InterruptListView.parse(list).interrupts;
    expect(wait).toMatchObject({
      tool: 'budget/effect_count',
      effect_id: null,
      slot: null,
      required_role: 'operator',
    });
    const path = `/v1/interrupts/${wait!.interrupt_id}`;
    expect(InterruptView.parse(await (await api.request(path)).json()).scope).toMatchObject({
      arguments: {
        limit: 'limit_effects',
        limit_value: 0,
        used: 0,
        reserved: 0,
        needed: 1,
        subject: 'tool_opaque',
      },
    });
    expect((await readRun(run.runId)).control.interrupts).toMatchObject([{ kind: 'budget' }]);
    const resolve = async (answer: unknown, sent: Sent = {}) =>
      await send(`${path}/resolve`, { decision: 'answer', answer }, sent);
    for (const unfit of [
      { action: 'raise' },
      { action: 'raise', limit: 0 },
      { action: 'refuse', limit: 3 },
      'yes',
    ]) {
      expect((await problemOf(await resolve(unfit))).code).toBe('answer_invalid');
    }
    expect((await problemOf(await resolve({ action: 'refuse' }, { roles: 'approver' }))).code).toBe(
      'role_required',
    );
    const approve = { decision: 'approve', scope_sha256: wait!.scope_sha256 };
    expect((await problemOf(await send(`${path}/resolve`, approve))).code).toBe('decision_mismatch');
    expect((await resolve({ action: 'raise', limit: 1 })).status).toBe(200);
    expect(await run.call(0).ask()).toBe('claimed');
  });
});

describe('PUT /v1/budgets/tenant', () => {
  const PATH = '/v1/budgets/tenant';
  const put = async (body: unknown, sent: Sent) => await send(PATH, body, { method: 'PUT', ...sent });

  test('sets the whole budget for the tenant alone, and GET shows it with what is used', async () => {
    const tenant = `t-${randomUUID()}`;
    const response = await put({ window: 'day', limits: { steps: 9, ...refunds(2, 500) } }, { tenant });
    expect(response.status).toBe(200);
    const run = await newStepOf(ledger, [refund(100)], {}, { tenantId: tenant });
    await run.call(0).attempt('unknown');
    const read = TenantBudgetView.parse(await (await api.request(PATH, { tenant })).json());
    expect(read).toMatchObject({ window: 'day', changed_by: 'olga' });
    expect(read.lines.map(({ kind, limit, used, reserved }) => [kind, limit, used, reserved])).toEqual([
      ['steps', 9, 1, 0],
      ['effect_count', 2, 0, 1],
      ['effect_sum', 500, 0, 100],
    ]);
    const other = TenantBudgetView.parse(await (await api.request(PATH, { tenant: 'nobody' })).json());
    expect(other).toEqual({ window: 'total', lines: [], changed_by: null, changed_at: null });
  });

  test('of yesterday is shown as nothing used today', async () => {
    const tenant = `t-${randomUUID()}`;
    await put({ window: 'day', limits: { steps: 9 } }, { tenant });
    await newStepOf(ledger, [], {}, { tenantId: tenant });
    await ledger.rows('update holdfast.budgets set day = day - 1 where tenant_id = $1', tenant);
    const read = TenantBudgetView.parse(await (await api.request(PATH, { tenant })).json());
    expect(read.lines).toMatchObject([{ kind: 'steps', limit: 9, used: 0 }]);
  });

  test('is done once under its key, takes an admin, and refuses what it does not understand', async () => {
    const tenant = `t-${randomUUID()}`;
    const key = randomUUID();
    expect((await put({ limits: { steps: 9 } }, { tenant, key })).status).toBe(200);
    expect((await put({ limits: { steps: 5 } }, { tenant })).status).toBe(200);
    const again = await put({ limits: { steps: 9 } }, { tenant, key });
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect(await linesOf(ledger, tenant)).toEqual(['steps: 0+0/5']);
    expect((await problemOf(await put({ limits: {} }, { tenant, key }))).code).toBe('idempotency_key_reused');
    for (const roles of ['operator', 'requester', 'auditor']) {
      expect((await problemOf(await put({ limits: {} }, { tenant, roles }))).code).toBe('role_required');
    }
    expect((await problemOf(await put({ limits: { wall_clock: 5 } }, { tenant }))).code).toBe(
      'invalid_request',
    );
    expect(await linesOf(ledger, tenant)).toEqual(['steps: 0+0/5']);
    const denied = await api.request(PATH, { tenant, headers: { 'x-roles': 'requester' } });
    expect(denied.status).toBe(403);
    const wrong = await api.request(PATH, { method: 'DELETE', tenant });
    expect([wrong.status, wrong.headers.get('allow')]).toEqual([405, 'PUT, GET, HEAD']);
  });
});
