import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ActiveRunLimitList } from '../api/views/active-run-limit-views.js';
import { ProblemView } from '../api/views/common.js';
import { setActiveRunLimit } from '../shared/ledger/active-run-limits.js';
import { confirmStarts, grantStart, unstartedRuns } from '../shared/ledger/admission.js';
import { bringRunTo, type LedgerRun } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { newestRun, newThread } from './support/threads.js';
import { startWorld } from './support/world.js';

// Goal: a flood from one tenant starves no other, and a limit on active runs holds whoever starts them. Method: the queue's
// order and the grants are asked of the ledger itself, from many connections at once; a flood is then run for real.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

const newTenant = (): string => `t-${randomUUID()}`;

async function admit(tenantId: string, count: number, priority = 3): Promise<LedgerRun[]> {
  const runs: LedgerRun[] = [];
  for (let n = 0; n < count; n += 1) runs.push(await ledger.newRun({ priority }, { tenantId }));
  return runs;
}

async function limit(tenantId: string, activeMax: number | null, agent: string | null = null): Promise<void> {
  await setActiveRunLimit(ledger.db, {
    ...{ tenantId, agent, activeMax, actorId: 'user:olga', authority: 'admin' },
    ...{ endpoint: 'PUT /v1/active-run-limits', idempotencyKey: randomUUID() },
  });
}

const idsOf = (runs: readonly LedgerRun[]): string[] => runs.map(({ runId }) => runId);

/** The queue as a starter sees it, of these tenants alone. */
async function queue(...tenants: readonly string[]): Promise<string[]> {
  const owed = await unstartedRuns(ledger.db, 10_000);
  return owed.filter(({ tenant_id }) => tenants.includes(tenant_id)).map(({ run_id }) => run_id);
}

const granted = async (runs: readonly LedgerRun[]): Promise<string[]> => {
  const answers = await Promise.all(runs.map(({ runId }) => grantStart(ledger.db, runId)));
  return runs.filter((_, index) => answers[index] !== undefined).map(({ runId }) => runId);
};

async function end(run: LedgerRun): Promise<void> {
  await run.start();
  await bringRunTo(run, 'failed');
}

describe('the queue of admitted runs', () => {
  test('takes the tenants in turn, so that a flood of one stands before nobody', async () => {
    const [many, few] = [newTenant(), newTenant()];
    const flood = await admit(many, 6);
    const [first, second] = await admit(few, 2);
    expect(await queue(many, few)).toEqual([
      ...[flood[0]!.runId, first!.runId, flood[1]!.runId, second!.runId],
      ...idsOf(flood.slice(2)),
    ]);
  });

  test('takes what is urgent first, whoever asked for it and when', async () => {
    const [a, b] = [newTenant(), newTenant()];
    const idle = await admit(a, 1, 5);
    const usual = await admit(a, 1);
    const urgent = await admit(b, 1, 1);
    expect(await queue(a, b)).toEqual(idsOf([...urgent, ...usual, ...idle]));
  });
});

describe('a limit on active runs', () => {
  test('is never passed, however many starters ask at once, and lets the next go as one ends', async () => {
    const tenant = newTenant();
    await limit(tenant, 3);
    const runs = await admit(tenant, 12);
    expect(await queue(tenant)).toEqual(idsOf(runs.slice(0, 3)));
    const first = await granted(runs);
    expect(first).toHaveLength(3);
    // Asked again after a crash between the grant and the start, it is the same grant.
    expect(await granted(runs)).toEqual(first);
    expect((await queue(tenant)).sort()).toEqual([...first].sort());
    await confirmStarts(ledger.db, first);
    expect(await queue(tenant)).toEqual([]);
    await end(runs.find(({ runId }) => runId === first[0])!);
    expect(await queue(tenant)).toHaveLength(1);
    expect(await granted(runs)).toHaveLength(1);
  });

  test('lets nobody in before whoever waits longer or is more urgent, were it the next of a thread whose run just ended', async () => {
    const tenant = newTenant();
    const thread = await newThread(ledger, 'enqueue', {}, tenant);
    await limit(tenant, 1);
    await thread.post('one', { tenantId: tenant });
    const talks = await newestRun(ledger, thread);
    expect(await granted([talks])).toHaveLength(1);
    await thread.post('two', { tenantId: tenant });
    const [waits] = await admit(tenant, 1);
    await end(talks);
    const promoted = await newestRun(ledger, thread);
    const [urgent] = await admit(tenant, 1, 1);
    expect(await granted([promoted])).toEqual([]);
    expect(await granted([waits!])).toEqual([]);
    expect(await granted([urgent!])).toEqual([urgent!.runId]);
    await end(urgent!);
    expect(await granted([promoted])).toEqual([]);
    expect(await granted([waits!])).toEqual([waits!.runId]);
    await end(waits!);
    expect(await granted([promoted])).toEqual([promoted.runId]);
  });

  test('of one agent holds back that agent alone, and a backlog of it hides nothing behind it', async () => {
    const tenant = newTenant();
    await limit(tenant, 3);
    await limit(tenant, 1, LEDGER_AGENT.name);
    const held = await admit(tenant, 4);
    await ledger.registerAs('other-desk');
    const other = await ledger.newRun({}, { tenantId: tenant, agent: 'other-desk' });
    expect(await queue(tenant)).toEqual([held[0]!.runId, other.runId]);
    expect(await granted([...held, other])).toHaveLength(2);
  });

  test('of none starts nothing new, and lifted it lets everything go', async () => {
    const tenant = newTenant();
    await limit(tenant, 0);
    const runs = await admit(tenant, 2);
    expect([await queue(tenant), await granted(runs)]).toEqual([[], []]);
    await limit(tenant, null);
    expect(await queue(tenant)).toEqual(idsOf(runs));
    expect(await granted(runs)).toEqual(idsOf(runs));
  });

  test('counts no run of another tenant', async () => {
    const [limited, free] = [newTenant(), newTenant()];
    await limit(limited, 1);
    const others = await admit(free, 3);
    const own = await admit(limited, 2);
    expect(await granted([...others, ...own])).toHaveLength(4);
  });
});

test('a flood of one tenant is worked off under its limit, while another goes straight through', async () => {
  const world = await startWorld({ script: script(when('quick', reply('look'), DONE)) });
  await setActiveRunLimit(world.db, {
    ...{ tenantId: 'many', agent: null, activeMax: 2, actorId: 'user:olga', authority: 'admin' },
    ...{ endpoint: 'PUT /v1/active-run-limits', idempotencyKey: randomUUID() },
  });
  const flood: string[] = [];
  for (let n = 0; n < 5; n += 1) flood.push(await world.admit({ input: 'quick', tenantId: 'many' }));
  const single = await world.admit({ input: 'quick', tenantId: 'few' });
  await world.startWorkerProcess().ready;
  await world.waitFor(single, 'completed');
  for (const runId of flood) await world.waitFor(runId, 'completed');
  const [most] = await world.rows<{ active: number; before: number }>(
    `select (select max((select count(*) from holdfast.runs b where b.tenant_id = 'many'
                           and b.start_granted_at <= a.start_granted_at and b.ended_at > a.start_granted_at))::int
               from holdfast.runs a where a.tenant_id = 'many') as active,
            (select count(*)::int from holdfast.runs r
              where r.tenant_id = 'many' and r.started_at < (select started_at from holdfast.runs where run_id = $1)) as before`,
    single,
  );
  expect(most!.active).toBe(2);
  expect(most!.before).toBeLessThanOrEqual(2);
});

describe('PUT /v1/active-run-limits', () => {
  const PATH = '/v1/active-run-limits';
  const put = async (body: unknown, tenant: string, sent: { key?: string; roles?: string } = {}) =>
    await api.request(PATH, {
      method: 'PUT',
      tenant,
      headers: {
        ...{ 'content-type': 'application/json', 'x-actor': 'olga' },
        ...{ 'idempotency-key': sent.key ?? randomUUID() },
        ...(sent.roles === undefined ? {} : { 'x-roles': sent.roles }),
      },
      body: JSON.stringify(body),
    });

  test('sets, shows and lifts limits, once under a key', async () => {
    const tenant = newTenant();
    const key = randomUUID();
    expect((await put({ active_max: 1 }, tenant, { key })).status).toBe(200);
    expect((await put({ agent: 'other-desk', active_max: 7 }, tenant)).status).toBe(200);
    await granted(await admit(tenant, 3));
    const shown = ActiveRunLimitList.parse(await (await api.request(PATH, { tenant })).json());
    expect(shown.items).toMatchObject([
      { agent: null, active_max: 1, active: 1, queued: 2, changed_by: 'olga' },
      { agent: 'other-desk', active_max: 7, active: 0, queued: 0 },
    ]);
    const again = await put({ active_max: 1 }, tenant, { key });
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    const reused = await put({ active_max: 2 }, tenant, { key });
    expect(ProblemView.parse(await reused.json()).code).toBe('idempotency_key_reused');
    const left = await put({ active_max: null }, tenant);
    expect(ActiveRunLimitList.parse(await left.json()).items).toHaveLength(1);
  });

  test('takes an admin, and refuses what is no limit', async () => {
    const tenant = newTenant();
    for (const roles of ['operator', 'requester', 'auditor', 'approver']) {
      const refused = await put({ active_max: 1 }, tenant, { roles });
      expect(ProblemView.parse(await refused.json()).code).toBe('role_required');
    }
    for (const body of [{}, { active_max: -1 }, { active_max: 1.5 }, { active_max: 1, agent: '' }]) {
      expect((await put(body, tenant)).status).toBe(400);
    }
    expect(
      await ledger.rows('select 1 from holdfast.active_run_limits where tenant_id = $1', tenant),
    ).toEqual([]);
  });
});
