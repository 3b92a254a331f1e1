import { randomUUID } from 'node:crypto';
import { WebhookVerificationError } from 'standardwebhooks';
import { beforeAll, describe, expect, test } from 'vitest';
import { createWebhookGuard } from '../shared/process/webhook-address.js';
import { createSecretKeys, newWebhookSecret, signWebhook } from '../shared/process/webhook-secrets.js';
import { bringRunTo } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startWebhookReceiver, verify, type WebhookReceiver } from './support/webhook-receiver.js';
import {
  allowPlace,
  deliverAll,
  deliveriesOf,
  type Endpoint,
  keys,
  makeDue,
  newDeliverer,
  newEndpoint,
} from './support/webhook-world.js';

// Goal: a message arrives signed, in order, at least once and at a place that is allowed, whatever the receiver does.
// Method: a real receiver on this machine, the deliverer of a worker, a real ledger.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

let tenants = 0;
interface Told {
  readonly tenantId: string;
  readonly endpoint: Endpoint;
  readonly receiver: WebhookReceiver;
}
/** A receiver that is told everything of a tenant of its own. */
async function newTold(path = '/hook'): Promise<Told> {
  tenants += 1;
  const tenantId = `told-${tenants}`;
  const receiver = await startWebhookReceiver();
  const url = `http://127.0.0.1:${receiver.port}${path}`;
  return { tenantId, receiver, endpoint: await newEndpoint(ledger.db, url, { tenantId }) };
}
async function endedRun(tenantId: string): Promise<string> {
  const run = await ledger.newRun({}, { tenantId });
  await bringRunTo(run, 'failed');
  return run.runId;
}
const stateOf = async (endpoint: Endpoint) =>
  (await deliveriesOf(ledger, endpoint)).map(({ state, failures }) => `${state} ${failures}`);
const lastReason = async (endpoint: Endpoint): Promise<string | null> => {
  const [row] = await ledger.rows<{ reason: string | null }>(
    `select a.reason from holdfast.webhook_attempts a join holdfast.webhook_deliveries d using (delivery_id)
      where d.endpoint_id = $1 order by a.started_at desc limit 1`,
    endpoint.endpointId,
  );
  return row?.reason ?? null;
};

describe('a message', () => {
  test('is signed as Standard Webhooks says, over the very bytes that arrive', async () => {
    // The example of the specification's own libraries.
    const signed = signWebhook('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', {
      ...{
        id: 'msg_p5jXN8AQM9LWM0D4loKWxJek',
        at: new Date(1_614_265_330_999),
        body: '{"test": 2432232314}',
      },
    });
    expect(signed['webhook-signature']).toBe('v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=');

    const { tenantId, endpoint, receiver } = await newTold();
    const runId = await endedRun(tenantId);
    await deliverAll(newDeliverer(ledger.db));
    const [got] = receiver.received();
    expect(verify(endpoint.secret, got!)).toStrictEqual(got?.message);
    expect(got?.message).toMatchObject({ type: 'run.failed', data: { run_id: runId, state: 'failed' } });
    const [row] = await deliveriesOf(ledger, endpoint);
    expect([got?.id, row?.state]).toStrictEqual([row?.delivery_id, 'delivered']);
  });

  test('is refused by a receiver when it is old, of another time, changed, or signed with another secret', async () => {
    const { tenantId, endpoint, receiver } = await newTold();
    await endedRun(tenantId);
    await deliverAll(newDeliverer(ledger.db));
    const got = receiver.received()[0]!;
    const at = (offset: number) => {
      const signed = signWebhook(endpoint.secret, {
        ...{ id: got.id, at: new Date(Date.now() + offset * 1_000), body: got.body },
      });
      return { timestamp: signed['webhook-timestamp']!, signature: signed['webhook-signature']! };
    };
    for (const changes of [at(-310), at(310), { timestamp: at(-60).timestamp }, { body: `${got.body} ` }]) {
      expect(() => verify(endpoint.secret, { ...got, ...changes })).toThrow(WebhookVerificationError);
    }
    expect(() => verify(newWebhookSecret(), got)).toThrow(WebhookVerificationError);
    expect(verify(endpoint.secret, { ...got, ...at(-290) })).toStrictEqual(got.message);
  });

  test('comes again under the same id and the same bytes until it is taken', async () => {
    const { tenantId, endpoint, receiver } = await newTold();
    await endedRun(tenantId);
    const answers = [500, 404, 503, 200];
    receiver.answer(() => answers.shift() ?? 200);
    const deliverer = newDeliverer(ledger.db);
    for (let n = 0; n < 4; n += 1) {
      await deliverAll(deliverer);
      await makeDue(ledger, endpoint);
    }
    const got = receiver.received();
    expect(got).toHaveLength(4);
    expect(new Set(got.map(({ id, body }) => id + body)).size).toBe(1);
    for (const one of got) expect(verify(endpoint.secret, one)).toStrictEqual(one.message);
    expect(await stateOf(endpoint)).toStrictEqual(['delivered 3']);
  });

  test('of a run comes after the earlier ones of it, however often those fail', async () => {
    const { tenantId, endpoint, receiver } = await newTold();
    const run = await ledger.newRun({}, { tenantId });
    await bringRunTo(run, 'needs_reconciliation');
    await run.commit(
      { kind: 'move', to: 'reconciling', reason: 'internal_error' },
      { kind: 'move', to: 'failed', reason: 'internal_error' },
    );
    let refusals = 2;
    receiver.answer(() => ((refusals -= 1) >= 0 ? 500 : 200));
    const deliverers = [newDeliverer(ledger.db), newDeliverer(ledger.db)];
    for (let n = 0; n < 5; n += 1) {
      await Promise.all(deliverers.map(deliverAll));
      await makeDue(ledger, endpoint);
    }
    expect(receiver.received().map(({ message }) => message.type)).toStrictEqual([
      ...['run.needs_reconciliation', 'run.needs_reconciliation', 'run.needs_reconciliation', 'run.failed'],
    ]);
    expect(await stateOf(endpoint)).toStrictEqual(['delivered 2', 'delivered 0']);
  });

  test('follows no redirect', async () => {
    const { tenantId, endpoint, receiver } = await newTold();
    await endedRun(tenantId);
    receiver.answer(() => ({ status: 302, headers: { location: `${receiver.url}/elsewhere` } }));
    await deliverAll(newDeliverer(ledger.db));
    expect(receiver.received().map(({ path }) => path)).toStrictEqual(['/hook']);
    expect([await stateOf(endpoint), await lastReason(endpoint)]).toStrictEqual([
      ['pending 1'],
      'redirect_not_followed',
    ]);
  });

  test('goes to no private address, whatever name stands for it', async () => {
    const { tenantId, endpoint, receiver } = await newTold();
    const named = await newEndpoint(ledger.db, `http://hooks.example:${receiver.port}/`, { tenantId });
    await endedRun(tenantId);
    const guard = createWebhookGuard([allowPlace('10.0.0.1:*')]);
    const resolve = () => Promise.resolve([{ address: '127.0.0.1' }]);
    await deliverAll(newDeliverer(ledger.db, { guard, resolve }));
    expect(receiver.received()).toStrictEqual([]);
    for (const one of [endpoint, named]) {
      expect([await stateOf(one), await lastReason(one)]).toStrictEqual([
        ['pending 1'],
        'address_not_allowed',
      ]);
    }
  });

  test('is not sent where the secret cannot be read, and says so', async () => {
    const { tenantId, endpoint, receiver } = await newTold();
    await endedRun(tenantId);
    const others = createSecretKeys([Buffer.alloc(32, 7)]);
    await deliverAll(newDeliverer(ledger.db, { keys: others }));
    expect(receiver.received()).toStrictEqual([]);
    expect(await lastReason(endpoint)).toBe('secret_unreadable');
  });

  test('that a silent receiver holds keeps no other endpoint waiting', async () => {
    const silent = await newTold();
    const lively = await newTold();
    silent.receiver.answer(() => 'hold');
    for (let n = 0; n < 12; n += 1) await endedRun(silent.tenantId);
    const deliverer = newDeliverer(ledger.db);
    await deliverer.round();
    await endedRun(lively.tenantId);
    await deliverer.round();
    await expect.poll(() => lively.receiver.received().length).toBe(1);
    expect(silent.receiver.received().length).toBeLessThanOrEqual(5);
    silent.receiver.answer(() => 200);
    silent.receiver.release();
    await deliverer.settled();
    await deliverAll(deliverer);
    const ids = silent.receiver.received().map(({ id }) => id);
    expect([ids.length, new Set(ids).size]).toStrictEqual([12, 12]);
  });

  test('is sent once by many workers at work at once', async () => {
    const { tenantId, receiver } = await newTold();
    for (let n = 0; n < 20; n += 1) await endedRun(tenantId);
    await Promise.all(Array.from({ length: 6 }, () => deliverAll(newDeliverer(ledger.db))));
    await deliverAll(newDeliverer(ledger.db));
    const ids = receiver.received().map(({ id }) => id);
    expect([ids.length, new Set(ids).size]).toStrictEqual([20, 20]);
  });
});

describe('a secret', () => {
  test('in the ledger cannot be read without the key, nor for another endpoint, nor when it was touched', () => {
    const [a, b] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)];
    const secret = `whsec_${randomUUID()}`;
    const sealed = createSecretKeys([a]).seal(secret, 'whe_1');
    expect(sealed.sealed.includes(secret)).toBe(false);
    expect(createSecretKeys([b]).open(sealed, 'whe_1')).toBeNull();
    expect(createSecretKeys([a]).open(sealed, 'whe_2')).toBeNull();
    const touched = Buffer.from(sealed.sealed);
    touched[touched.length - 1]! ^= 1;
    expect(createSecretKeys([a]).open({ ...sealed, sealed: touched }, 'whe_1')).toBeNull();
    expect(createSecretKeys([a]).open({ ...sealed, sealed: Buffer.alloc(5) }, 'whe_1')).toBeNull();
    // A newer key seals, the older one opens still.
    expect(createSecretKeys([b, a]).open(sealed, 'whe_1')).toBe(secret);
    expect(createSecretKeys([b, a]).seal(secret, 'whe_1').keyId).not.toBe(sealed.keyId);
    expect(keys.open(keys.seal(secret, 'whe_1'), 'whe_1')).toBe(secret);
  });
});
