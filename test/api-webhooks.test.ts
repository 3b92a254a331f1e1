import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import {
  NewWebhookEndpointView,
  WebhookDeliveryListView,
  WebhookDeliveryView,
  WebhookEndpointListView,
  WebhookEndpointView,
} from '../api/views/webhook-views.js';
import { bringRunTo } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { startWebhookReceiver, verify } from './support/webhook-receiver.js';
import { allowPlace, deliverAll, keys, newDeliverer } from './support/webhook-world.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({
    databaseUrl: ledger.url,
    webhooks: { keys, allow: [allowPlace('127.0.0.1:*'), allowPlace('localhost:8080')] },
  });
});

interface Said {
  readonly key?: string | null;
  readonly roles?: string;
  readonly tenant?: string;
  readonly body?: unknown;
  readonly via?: TestApi;
}
const BODY = { url: 'https://example.com/hook', kinds: ['run.failed'] };
const headersOf = ({ key = randomUUID(), roles }: Said) => ({
  'content-type': 'application/json',
  ...(roles === undefined ? {} : { 'x-roles': roles }),
  ...(key === null ? {} : { 'idempotency-key': key }),
});
async function create(say: Said = {}): Promise<Response> {
  const { tenant = 'default', via = api, body = BODY } = say;
  const init = { method: 'POST', tenant, headers: headersOf(say), body: JSON.stringify(body) };
  return await via.request('/v1/webhook-endpoints', init);
}
async function made(body: unknown = BODY, tenant = 'default') {
  const response = await create({ body, tenant });
  expect(response.status).toBe(201);
  return NewWebhookEndpointView.parse(await response.json());
}
const problemOf = async (response: Response) => {
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return problem;
};
const post = (path: string, tenant = 'default', roles?: string) =>
  api.request(path, { method: 'POST', tenant, headers: roles === undefined ? {} : { 'x-roles': roles } });
const logOf = async (id: string, query = '') =>
  WebhookDeliveryListView.parse(
    await (await api.request(`/v1/webhook-endpoints/${id}/deliveries${query}`)).json(),
  );

describe('a new endpoint', () => {
  test('is 201 with the secret that its messages are signed with, shown this once', async () => {
    const receiver = await startWebhookReceiver();
    const key = randomUUID();
    const body = { url: receiver.url, kinds: ['run.failed', 'interrupt.opened'] };
    const response = await create({ key, body });
    expect(response.status).toBe(201);
    const { secret, ...endpoint } = NewWebhookEndpointView.parse(await response.json());
    expect(secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
    const location = response.headers.get('location')!;
    expect(WebhookEndpointView.parse(await (await api.request(location)).json())).toStrictEqual(endpoint);
    await bringRunTo(await ledger.newRun(), 'failed');
    await deliverAll(newDeliverer(ledger.db));
    const [got] = receiver.received();
    expect(verify(secret!, got!)).toStrictEqual(got?.message);

    const again = await create({ key, body });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(await again.json()).toMatchObject({ endpoint_id: endpoint.endpoint_id, secret: null });
    const stored = await ledger.rows('select e::text as row from holdfast.webhook_endpoints e');
    const bytes = Buffer.from(secret!.slice(6), 'base64').toString('hex');
    for (const text of [JSON.stringify(stored), api.logged()]) {
      expect([text.includes(secret!), text.includes(bytes)]).toStrictEqual([false, false]);
    }
    await api.request(location, { method: 'DELETE' });
  });

  // prettier-ignore
  test.each<readonly [what: string, status: number, code: string, say: Said]>([
    ['no key',               400, 'idempotency_key_missing', { key: null }],
    ['no kind',              400, 'invalid_request', { body: { ...BODY, kinds: [] } }],
    ['a kind there is not',  400, 'invalid_request', { body: { ...BODY, kinds: ['run.started'] } }],
    ['a kind twice',         400, 'invalid_request', { body: { ...BODY, kinds: ['run.failed', 'run.failed'] } }],
    ['a secret of its own',  400, 'invalid_request', { body: { ...BODY, secret: 'whsec_x' } }],
    ['a long url',           400, 'invalid_request', { body: { ...BODY, url: `https://example.com/${'x'.repeat(2_000)}` } }],
    ['no url',               422, 'webhook_url_refused', { body: { ...BODY, url: 'example.com' } }],
    ['plain http',           422, 'webhook_url_refused', { body: { ...BODY, url: 'http://example.com/' } }],
    ['another scheme',       422, 'webhook_url_refused', { body: { ...BODY, url: 'file:///etc/passwd' } }],
    ['a password',           422, 'webhook_url_refused', { body: { ...BODY, url: 'https://a:b@example.com/' } }],
    ['the metadata service', 422, 'webhook_url_refused', { body: { ...BODY, url: 'https://169.254.169.254/' } }],
    ['a private address',    422, 'webhook_url_refused', { body: { ...BODY, url: 'https://10.1.2.3/' } }],
    ['an address in hex',    422, 'webhook_url_refused', { body: { ...BODY, url: 'https://0x0a010203/' } }],
    ['this machine by IPv6', 422, 'webhook_url_refused', { body: { ...BODY, url: 'https://[::1]/' } }],
    ['localhost elsewhere',  422, 'webhook_url_refused', { body: { ...BODY, url: 'https://localhost:9999/' } }],
    ['a requester',          403, 'role_required', { roles: 'requester,approver' }],
  ])('is refused for %s', async (_what, status, code, say) => {
    const before = await ledger.rows('select endpoint_id from holdfast.webhook_endpoints');
    expect(await problemOf(await create(say))).toMatchObject({ status, code });
    expect(await ledger.rows('select endpoint_id from holdfast.webhook_endpoints')).toStrictEqual(before);
  });

  test('is refused where the API has no key to seal a secret with', async () => {
    const keyless = await startTestApi({ databaseUrl: ledger.url });
    expect(await problemOf(await create({ via: keyless }))).toMatchObject({ code: 'secret_key_missing' });
  });

  test('under a used key with another body is refused', async () => {
    const key = randomUUID();
    await create({ key });
    const other = { ...BODY, kinds: ['run.completed'] };
    expect(await problemOf(await create({ key, body: other }))).toMatchObject({
      ...{ status: 422, code: 'idempotency_key_reused' },
    });
    expect((await create({ key, tenant: 'other' })).status).toBe(201);
  });
});

describe('endpoints', () => {
  test('are listed oldest first, page by page, to their own tenant', async () => {
    const tenant = 'lister';
    const ids: string[] = [];
    for (let n = 0; n < 3; n += 1) ids.push((await made(BODY, tenant)).endpoint_id);
    const walked: string[] = [];
    for (let cursor: string | null = ''; cursor !== null;) {
      const query: string = cursor === '' ? '?limit=2' : `?limit=2&cursor=${cursor}`;
      const response = await api.request(`/v1/webhook-endpoints${query}`, { tenant });
      const page = WebhookEndpointListView.parse(await response.json());
      walked.push(...page.endpoints.map(({ endpoint_id }) => endpoint_id));
      cursor = page.next_cursor;
    }
    expect(walked).toStrictEqual(ids);
    for (const path of ['', '/deliveries']) {
      const found = await api.request(`/v1/webhook-endpoints/${ids[0]}${path}`);
      expect(await problemOf(found)).toMatchObject({ status: 404, code: 'webhook_endpoint_not_found' });
    }
  });

  test('that are disabled stay so, and are told nothing more', async () => {
    const { endpoint_id: id } = await made({ ...BODY, kinds: ['run.cancelled'] });
    await bringRunTo(await ledger.newRun(), 'cancelled');
    const path = `/v1/webhook-endpoints/${id}`;
    expect((await api.request(path, { method: 'DELETE', tenant: 'other' })).status).toBe(404);
    for (let n = 0; n < 2; n += 1) {
      const endpoint = WebhookEndpointView.parse(
        await (await api.request(path, { method: 'DELETE' })).json(),
      );
      expect(endpoint).toMatchObject({
        state: 'disabled',
        disabled_by: 'person',
        deliveries: { dropped: 1 },
      });
    }
    await bringRunTo(await ledger.newRun(), 'cancelled');
    expect((await logOf(id)).deliveries).toHaveLength(1);
    expect(await problemOf(await post(`${path}/test`))).toMatchObject({ code: 'webhook_endpoint_disabled' });
    const [dropped] = (await logOf(id)).deliveries;
    expect(
      await problemOf(await post(`/v1/webhook-deliveries/${dropped!.delivery_id}/replay`)),
    ).toMatchObject({
      ...{ status: 409, code: 'webhook_endpoint_disabled' },
    });
  });

  test('take DELETE and GET, and say so', async () => {
    const response = await api.request(`/v1/webhook-endpoints/whe_1`, { method: 'PUT' });
    expect([response.status, response.headers.get('allow')]).toStrictEqual([405, 'GET, HEAD, DELETE']);
  });
});

describe('the delivery log', () => {
  test('shows each message with its tries, newest first, and a replay of it under the same id', async () => {
    const receiver = await startWebhookReceiver();
    const { endpoint_id: id, secret } = await made({ url: receiver.url, kinds: ['run.compensated'] });
    const runs = [await ledger.newRun(), await ledger.newRun(), await ledger.newRun()];
    for (const run of runs) await bringRunTo(run, 'compensated');
    receiver.answer(({ message }) => (message.data['run_id'] === runs[0]!.runId ? 500 : 204));
    await deliverAll(newDeliverer(ledger.db));
    const { deliveries } = await logOf(id);
    expect(deliveries.map(({ run_id, state }) => [run_id, state])).toStrictEqual([
      [runs[2]!.runId, 'delivered'],
      [runs[1]!.runId, 'delivered'],
      [runs[0]!.runId, 'pending'],
    ]);
    const [newest, , failing] = deliveries;
    expect(newest).toMatchObject({
      ...{ kind: 'run.compensated', attempts: 1, payload: { type: 'run.compensated' } },
      attempt_list: [{ attempt: 1, outcome: 'delivered', http_status: 204, reason: null }],
    });
    expect(failing).toMatchObject({
      ...{ attempts: 1, failures: 1, next_attempt_at: expect.any(String) },
      attempt_list: [{ attempt: 1, outcome: 'failed', http_status: 500, reason: 'http_500' }],
    });
    expect((await logOf(id, '?state=pending')).deliveries).toHaveLength(1);
    const page = await logOf(id, '?limit=2');
    expect((await logOf(id, `?limit=2&cursor=${page.next_cursor}`)).deliveries).toStrictEqual([failing]);

    const response = await post(`/v1/webhook-deliveries/${newest!.delivery_id}/replay`);
    expect(response.status).toBe(202);
    expect(WebhookDeliveryView.parse(await response.json())).toMatchObject({ state: 'pending', replays: 1 });
    await deliverAll(newDeliverer(ledger.db));
    const got = receiver.received().filter(({ id }) => id === newest!.delivery_id);
    expect(got).toHaveLength(2);
    expect(got[0]!.body).toBe(got[1]!.body);
    expect(verify(secret!, got[1]!)).toStrictEqual(got[1]!.message);
    expect((await logOf(id)).deliveries[0]).toMatchObject({ state: 'delivered', attempts: 2 });
  });

  test('shows a test message, which belongs to no run', async () => {
    const receiver = await startWebhookReceiver();
    const { endpoint_id: id } = await made({ ...BODY, url: receiver.url });
    expect((await post(`/v1/webhook-endpoints/${id}/test`)).status).toBe(202);
    await deliverAll(newDeliverer(ledger.db));
    expect(receiver.received()).toMatchObject([
      { message: { type: 'webhook.test', data: { endpoint_id: id } } },
    ]);
    expect((await logOf(id)).deliveries).toMatchObject([
      { kind: 'webhook.test', run_id: null, state: 'delivered' },
    ]);
  });

  test('is not there for others, and refuses what it never gave', async () => {
    const { endpoint_id: id } = await made();
    const path = `/v1/webhook-endpoints/${id}`;
    expect(await problemOf(await api.request(`${path}/deliveries?cursor=x`))).toMatchObject({
      code: 'cursor_invalid',
    });
    expect(await problemOf(await api.request(`${path}/deliveries?state=x`))).toMatchObject({
      code: 'invalid_request',
    });
    for (const one of [path, `${path}/deliveries`, '/v1/webhook-endpoints']) {
      const response = await api.request(one, { headers: { 'x-roles': 'requester,auditor' } });
      expect(await problemOf(response)).toMatchObject({ status: 403, code: 'role_required' });
    }
    expect((await post(`${path}/test`, 'default', 'approver')).status).toBe(403);
    for (const unknown of [`whd_${'0'.repeat(32)}`, 'whd_1', '%00']) {
      expect(await problemOf(await post(`/v1/webhook-deliveries/${unknown}/replay`))).toMatchObject({
        ...{ status: 404, code: 'webhook_delivery_not_found' },
      });
    }
  });
});
