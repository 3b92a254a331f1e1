import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { WEBHOOK_KINDS, type WebhookKind } from '../shared/domain/webhooks.js';
import {
  disableWebhookEndpoint,
  finishWebhook,
  leaseWebhooks,
  replayWebhook,
  testWebhookEndpoint,
  type WebhookResult,
} from '../shared/ledger/webhooks.js';
import { decide, expire, newGate, newUnknown } from './support/desk.js';
import { bringRunTo, callOf } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { deliveriesOf, type Endpoint, makeDue, newEndpoint } from './support/webhook-world.js';

// Goal: what an endpoint asked for stands in the outbox from the very commit of the event on, once; and of any number of
// workers one sends it at a time, in the order of its run, until it is taken or given up (SPEC 6).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

// What an earlier test left is nobody's to send.
beforeEach(async () => {
  const rows = await ledger.rows<{ id: string; tenant: string }>(
    `select endpoint_id as id, tenant_id as tenant from holdfast.webhook_endpoints where state = 'active'`,
  );
  for (const { id, tenant } of rows) await disableWebhookEndpoint(ledger.db, tenant, id);
});

const URL = 'https://example.com/hook';
let tenants = 0;
/** An endpoint of a tenant of its own, and runs of that tenant. */
async function newTenant(
  kinds: Parameters<typeof newEndpoint>[2] = {},
): Promise<{ tenantId: string; endpoint: Endpoint }> {
  tenants += 1;
  const tenantId = `tenant-${tenants}`;
  return { tenantId, endpoint: await newEndpoint(ledger.db, URL, { ...kinds, tenantId }) };
}
const lease = (worker = 'test:1', perEndpoint = 100) =>
  leaseWebhooks(ledger.db, { worker, limit: 100, perEndpoint, leaseSeconds: 60 });
const failed: WebhookResult = {
  outcome: 'failed',
  httpStatus: 500,
  reason: 'http_500',
  retryAfterSeconds: null,
};
const delivered: WebhookResult = {
  outcome: 'delivered',
  httpStatus: 200,
  reason: null,
  retryAfterSeconds: null,
};
const kindsOf = async (endpoint: Endpoint) => (await deliveriesOf(ledger, endpoint)).map(({ kind }) => kind);

describe('the outbox', () => {
  test('holds what was asked for, and nothing where nobody asked', async () => {
    const { tenantId, endpoint } = await newTenant({ kinds: ['run.failed'] });
    const told = await ledger.newRun({}, { tenantId });
    await bringRunTo(told, 'failed');
    const other = await ledger.newRun({}, { tenantId });
    await bringRunTo(other, 'completed');
    const foreign = await ledger.newRun({}, { tenantId: 'nobody-listens' });
    await bringRunTo(foreign, 'failed');
    expect(await kindsOf(endpoint)).toStrictEqual(['run.failed']);
    const rows = await ledger.rows('select 1 from holdfast.webhook_deliveries where run_id = any($1)', [
      other.runId,
      foreign.runId,
    ]);
    expect(rows).toStrictEqual([]);
  });

  test('is written by the transaction of the event itself, so that a run costs no further commit', async () => {
    const { tenantId, endpoint } = await newTenant();
    const run = await ledger.newRun({}, { tenantId });
    await bringRunTo(run, 'needs_reconciliation');
    const [row] = await ledger.rows(
      `select d.xmin::text = e.xmin::text as together from holdfast.webhook_deliveries d
         join holdfast.run_events e on e.run_id = d.run_id and e.seq = d.event_seq where d.endpoint_id = $1`,
      endpoint.endpointId,
    );
    expect(row).toStrictEqual({ together: true });
  });

  test('adds no commit to a step: two for the model, two for the call, whoever listens', async () => {
    // Each transaction of a run leaves an event or a row of the outbox with its own number.
    const commitsOf = async (kinds: readonly WebhookKind[] | null): Promise<number> => {
      const tenantId = kinds === null ? 'nobody-listens' : (await newTenant({ kinds })).tenantId;
      const run = await ledger.newRun({}, { tenantId });
      await run.start();
      const written = `select count(distinct x)::int as n from (
        select xmin::text as x from holdfast.run_events where run_id = $1
        union all select xmin::text from holdfast.webhook_deliveries where run_id = $1) t`;
      const [before] = await ledger.rows<{ n: number }>(written, run.runId);
      await run.plan([callOf('opaque')]);
      await run.call(0).attempt('unknown');
      await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
      const [after] = await ledger.rows<{ n: number }>(written, run.runId);
      return after!.n - before!.n;
    };
    expect([await commitsOf(null), await commitsOf(WEBHOOK_KINDS)]).toStrictEqual([5, 5]);
    expect(
      await ledger.rows(`select 1 from holdfast.webhook_deliveries where tenant_id = 'nobody-listens'`),
    ).toEqual([]);
  });

  test('loses its row with the event: a commit that is refused tells nobody', async () => {
    const { tenantId, endpoint } = await newTenant();
    const run = await ledger.newRun({}, { tenantId });
    await run.start();
    const both = run.commit(
      { kind: 'move', to: 'failed', reason: 'internal_error' },
      { kind: 'move', to: 'running', reason: 'internal_error' },
    );
    await expect(both).rejects.toThrow(/illegal_move/);
    expect(await kindsOf(endpoint)).toStrictEqual([]);
  });

  test('tells of a wait from its opening to its decision, its expiry or its withdrawal', async () => {
    const endpoint = await newEndpoint(ledger.db, URL);
    await decide(await newGate(ledger));
    const late = await newGate(ledger);
    await expire(late);
    await late.call.claim();
    const left = await newGate(ledger);
    await bringRunTo(left.run, 'failed');
    const rows = await deliveriesOf(ledger, endpoint);
    expect(rows.map(({ kind }) => kind).toSorted()).toStrictEqual([
      ...[
        'interrupt.decided',
        'interrupt.expired',
        'interrupt.opened',
        'interrupt.opened',
        'interrupt.opened',
      ],
      ...['interrupt.withdrawn', 'run.failed'],
    ]);
    const of = (kind: string) => rows.find((row) => row.kind === kind)?.payload.data;
    expect(of('interrupt.decided')).toMatchObject({ interrupt_state: 'approved', decision: 'approve' });
    expect(of('interrupt.expired')).toMatchObject({
      interrupt_id: late.interruptId,
      interrupt_state: 'expired',
    });
    expect(of('run.failed')).toMatchObject({
      run_id: left.run.runId,
      state: 'failed',
      reason: 'internal_error',
    });
  });

  test('tells ids, states and links, and nothing that a person, a model or a tool wrote', async () => {
    const endpoint = await newEndpoint(ledger.db, URL);
    const gate = await newGate(ledger, { arguments: '{"to":"SECRET-ARGUMENT"}' });
    await decide(gate, { decision: 'deny', note: 'SECRET-NOTE', actorId: 'user:secret-actor' });
    await bringRunTo((await newUnknown(ledger)).run, 'needs_reconciliation').catch(() => undefined);
    const rows = await deliveriesOf(ledger, endpoint);
    expect(rows.length).toBeGreaterThanOrEqual(3);
    expect(JSON.stringify(rows).toLowerCase()).not.toMatch(/secret-|objective|customer/);
    expect(rows.find(({ kind }) => kind === 'interrupt.opened')?.payload).toMatchObject({
      type: 'interrupt.opened',
      timestamp: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      links: { run: `/v1/runs/${gate.run.runId}`, interrupt: `/v1/interrupts/${gate.interruptId}` },
    });
  });

  test('knows the kinds that the API lists, and no other', async () => {
    const known = await ledger.rows<{ kind: string | null }>(
      `select distinct holdfast.webhook_kind(t.type, jsonb_build_object('region', 'run', 'to', s.state)) as kind
         from unnest($1::text[]) as t (type),
              (select to_state as state from holdfast.legal_transitions where region = 'run') s`,
      [
        ...WEBHOOK_KINDS,
        'run.transition',
        'run.warning',
        'effect.settled',
        'model.message',
        'interrupt.consumed',
      ],
    );
    expect(known.flatMap(({ kind }) => (kind === null ? [] : [kind])).toSorted()).toStrictEqual(
      // What a schedule tells is of no run, and so no event.
      WEBHOOK_KINDS.filter((kind) => !kind.startsWith('schedule.')).toSorted(),
    );
  });
});

describe('a message', () => {
  test('is given to one worker of many that ask at once, and again when its lease is over', async () => {
    const { tenantId, endpoint } = await newTenant();
    for (let n = 0; n < 5; n += 1) await bringRunTo(await ledger.newRun({}, { tenantId }), 'failed');
    const leased = (await Promise.all(Array.from({ length: 8 }, (_, n) => lease(`test:${n}`)))).flat();
    expect(new Set(leased.map(({ deliveryId }) => deliveryId)).size).toBe(5);
    expect(leased).toHaveLength(5);
    expect(await lease()).toStrictEqual([]);
    await makeDue(ledger, endpoint);
    const again = await lease('test:9');
    expect(again.map(({ deliveryId, attempt }) => [deliveryId, attempt]).toSorted()).toStrictEqual(
      leased.map(({ deliveryId }) => [deliveryId, 2]).toSorted(),
    );
    // The first worker was not dead after all: what it says decides nothing.
    expect(await finishWebhook(ledger.db, leased[0]!, delivered)).toBe('pending');
    for (const one of again) expect(await finishWebhook(ledger.db, one, delivered)).toBe('delivered');
    const tries = await ledger.rows(
      'select attempt, outcome from holdfast.webhook_attempts where delivery_id = $1 order by attempt',
      leased[0]!.deliveryId,
    );
    expect(tries).toStrictEqual([
      { attempt: 1, outcome: 'lost' },
      { attempt: 2, outcome: 'delivered' },
    ]);
  });

  test('is never given twice, however closely the workers follow each other', async () => {
    const { tenantId } = await newTenant();
    for (let n = 0; n < 60; n += 1) await bringRunTo(await ledger.newRun({}, { tenantId }), 'failed');
    const given: string[] = [];
    const ask = async (worker: string): Promise<void> => {
      for (let n = 0; n < 30; n += 1) {
        const lease = { worker, limit: 1, perEndpoint: 100, leaseSeconds: 60 };
        for (const { deliveryId } of await leaseWebhooks(ledger.db, lease)) given.push(deliveryId);
      }
    };
    await Promise.all(Array.from({ length: 8 }, (_, n) => ask(`test:${n}`)));
    expect([given.length, new Set(given).size]).toStrictEqual([60, 60]);
  });

  test('waits for the earlier ones of its run, and holds up no other run and no other endpoint', async () => {
    const { tenantId, endpoint } = await newTenant();
    const second = await newEndpoint(ledger.db, URL, { tenantId });
    const run = await ledger.newRun({}, { tenantId });
    await bringRunTo(run, 'needs_reconciliation');
    await run.commit(
      { kind: 'move', to: 'reconciling', reason: 'internal_error' },
      { kind: 'move', to: 'failed', reason: 'internal_error' },
    );
    await bringRunTo(await ledger.newRun({}, { tenantId }), 'cancelled');
    const typesOf = (leased: Awaited<ReturnType<typeof lease>>, of: Endpoint) =>
      leased
        .filter(({ endpointId }) => endpointId === of.endpointId)
        .map(({ body }) => (JSON.parse(body) as { type: string }).type)
        .toSorted();
    const first = await lease();
    expect(typesOf(first, endpoint)).toStrictEqual(['run.cancelled', 'run.needs_reconciliation']);
    expect(typesOf(first, second)).toStrictEqual(['run.cancelled', 'run.needs_reconciliation']);
    const held = first.filter(({ body }) => body.includes('run.needs_reconciliation'));
    await finishWebhook(
      ledger.db,
      held.find(({ endpointId }) => endpointId === endpoint.endpointId)!,
      delivered,
    );
    await finishWebhook(
      ledger.db,
      held.find(({ endpointId }) => endpointId === second.endpointId)!,
      failed,
    );
    const next = await lease();
    expect([typesOf(next, endpoint), typesOf(next, second)]).toStrictEqual([['run.failed'], []]);
  });

  test('is tried again after 5 s, 5 m, 30 m, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h, and is dead after ten tries', async () => {
    const { tenantId, endpoint } = await newTenant();
    await bringRunTo(await ledger.newRun({}, { tenantId }), 'failed');
    const waits = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
    for (const wait of waits) {
      const [one] = await lease();
      expect(await finishWebhook(ledger.db, one!, failed)).toBe('pending');
      const [row] = await deliveriesOf(ledger, endpoint);
      expect(row!.wait).toBeGreaterThan(wait - 2);
      expect(row!.wait).toBeLessThanOrEqual(wait * 1.2);
      expect(await lease()).toStrictEqual([]);
      await makeDue(ledger, endpoint);
    }
    const [last] = await lease();
    expect(await finishWebhook(ledger.db, last!, failed)).toBe('dead');
    expect(await deliveriesOf(ledger, endpoint)).toMatchObject([
      { state: 'dead', attempts: 10, failures: 10 },
    ]);
    await makeDue(ledger, endpoint);
    expect(await lease()).toStrictEqual([]);
    expect(await replayWebhook(ledger.db, tenantId, last!.deliveryId)).toBe('queued');
    expect(await replayWebhook(ledger.db, tenantId, last!.deliveryId)).toBe('pending');
    const [replayed] = await lease();
    expect(replayed).toMatchObject({ deliveryId: last!.deliveryId, attempt: 11, body: last!.body });
    expect(await finishWebhook(ledger.db, replayed!, failed)).toBe('pending');
  });

  test('comes no earlier than the receiver asked, within a day', async () => {
    const { tenantId, endpoint } = await newTenant();
    await bringRunTo(await ledger.newRun({}, { tenantId }), 'failed');
    const [one] = await lease();
    await finishWebhook(ledger.db, one!, { ...failed, retryAfterSeconds: 900_000 });
    const [row] = await deliveriesOf(ledger, endpoint);
    expect(Math.round(row!.wait!)).toBe(86_400);
  });

  test('that is answered 410 disables its endpoint, and what that is owed is dropped', async () => {
    const { tenantId, endpoint } = await newTenant();
    for (let n = 0; n < 3; n += 1) await bringRunTo(await ledger.newRun({}, { tenantId }), 'failed');
    const [one, two] = await lease();
    const gone = { outcome: 'gone', httpStatus: 410, reason: 'gone', retryAfterSeconds: null } as const;
    expect(await finishWebhook(ledger.db, one!, gone)).toBe('dead');
    expect(await finishWebhook(ledger.db, two!, delivered)).toBe('dropped');
    const states = (await deliveriesOf(ledger, endpoint)).map(({ state }) => state).toSorted();
    expect(states).toStrictEqual(['dead', 'dropped', 'dropped']);
    await bringRunTo(await ledger.newRun({}, { tenantId }), 'failed');
    expect(await deliveriesOf(ledger, endpoint)).toHaveLength(3);
    expect(await replayWebhook(ledger.db, tenantId, one!.deliveryId)).toBe('endpoint_disabled');
    expect(await testWebhookEndpoint(ledger.db, tenantId, endpoint.endpointId)).toStrictEqual({
      kind: 'endpoint_disabled',
    });
  });

  test('of one endpoint takes no more than its share of a worker', async () => {
    const { tenantId } = await newTenant();
    for (let n = 0; n < 4; n += 1) await bringRunTo(await ledger.newRun({}, { tenantId }), 'failed');
    expect([await lease('a', 3), await lease('b', 3)].map(({ length }) => length)).toStrictEqual([3, 0]);
  });
});
