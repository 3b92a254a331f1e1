import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RefusalListView } from '../api/views/refusal-views.js';
import { decide, newGate } from './support/desk.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { openWay, registerTestAgent, startTestApi, type TestApi } from './support/test-api.js';

// Goal: who tried what and was refused is a row, whatever any log says (case 109).

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  await registerTestAgent(api.pool);
});

interface Said {
  readonly actor?: string;
  readonly roles?: string;
  readonly tenant?: string;
  readonly key?: string;
  readonly body?: string;
}
async function post(path: string, say: Said = {}): Promise<Response> {
  const { actor = 'ben', roles, tenant = 'default', key = randomUUID(), body = '{}' } = say;
  return await api.request(path, {
    ...{ method: 'POST', tenant, body },
    headers: {
      ...{ 'content-type': 'application/json', 'x-actor': actor, 'idempotency-key': key },
      ...(roles === undefined ? {} : { 'x-roles': roles }),
    },
  });
}
async function listed(query = '', tenant = 'default', roles = 'auditor') {
  const response = await api.request(`/v1/refusals${query}`, { tenant, headers: { 'x-roles': roles } });
  if (response.status !== 200) throw new Error(ProblemView.parse(await response.json()).code);
  return RefusalListView.parse(await response.json());
}

describe('case 109: a refused decision', () => {
  test('is one row: actor, roles, route and code, and nobody’s fault of ours', async () => {
    const gate = await newGate(ledger);
    const decided = await newGate(ledger);
    await decide(decided);
    const resolve = (id: string) => `/v1/interrupts/${id}/resolve`;
    const say = (scope: string) => JSON.stringify({ decision: 'approve', scope_sha256: scope });
    const key = randomUUID();
    const used = await newGate(ledger);
    await post(resolve(used.interruptId), { key, body: say(used.scopeSha256) });
    // prettier-ignore
    const refused: (readonly [what: string, path: string, say: Said, status: number, code: string])[] = [
      ['wrong state',   resolve(decided.interruptId), { body: say(decided.scopeSha256) }, 409, 'interrupt_decided'],
      ['wrong tenant',  resolve(gate.interruptId), { tenant: 'other', body: say(gate.scopeSha256) }, 404, 'interrupt_not_found'],
      ['self approval', resolve(gate.interruptId), { actor: 'User:Ada', body: say(gate.scopeSha256) }, 403, 'self_approval'],
      ['no role',       resolve(gate.interruptId), { roles: 'requester', body: say(gate.scopeSha256) }, 403, 'role_required'],
      ['bad body',      resolve(gate.interruptId), { body: '{"decision":"perhaps"}' }, 400, 'invalid_request'],
      ['no JSON',       resolve(gate.interruptId), { body: '{' }, 400, 'invalid_json'],
      ['used key',      resolve(used.interruptId), { key, body: say('a'.repeat(64)) }, 422, 'idempotency_key_reused'],
    ];
    for (const [what, path, said, status, code] of refused) {
      const response = await post(path, said);
      const problem = ProblemView.parse(await response.json());
      expect([what, response.status, problem.code]).toStrictEqual([what, status, code]);
      const tenant = said.tenant ?? 'default';
      const [newest] = (await listed('', tenant)).refusals;
      expect(newest).toMatchObject({
        ...{ code, http_status: status, actor_id: said.actor?.toLowerCase() ?? 'ben' },
        ...{
          route: 'POST /v1/interrupts/{interrupt_id}/resolve',
          request_id: response.headers.get('x-request-id'),
        },
        params: { interrupt_id: path.split('/')[3] },
      });
      if (said.roles !== undefined) expect(newest?.roles).toStrictEqual(said.roles.split(','));
    }
    expect((await listed()).refusals).toHaveLength(refused.length - 1);
    expect((await listed('', 'other')).refusals).toHaveLength(1);
    expect((await listed('?actor=User:ADA')).refusals).toMatchObject([{ code: 'self_approval' }]);
    expect(api.logged()).not.toMatch(/"level":"error"/);
  });

  test('leaves no row for what was done, what only reads, and what may be sent again', async () => {
    const { length: before } = (await listed('?limit=100')).refusals;
    expect((await api.start({ key: randomUUID() })).status).toBe(201);
    expect((await api.request('/v1/runs/run_1')).status).toBe(404);
    const way = await openWay(ledger.url);
    const cut = await startTestApi({ databaseUrl: way.url });
    await way.cut();
    expect((await cut.start({ key: randomUUID() })).status).toBe(503);
    await way.close();
    expect((await listed('?limit=100')).refusals).toHaveLength(before);
  });

  test('is answered all the same when it cannot be kept', async () => {
    const way = await openWay(ledger.url);
    const cut = await startTestApi({ databaseUrl: way.url });
    await way.cut();
    const response = await cut.start({ key: randomUUID(), body: '{' });
    expect([response.status, ProblemView.parse(await response.json()).code]).toStrictEqual([
      400,
      'invalid_json',
    ]);
    expect(cut.logged()).toContain('a refusal could not be kept');
    await way.close();
  });

  test('is listed page by page, to an auditor or admin of the tenant alone', async () => {
    const tenant = 'pages';
    for (let n = 0; n < 3; n += 1) await post('/v1/runs', { tenant, body: '{' });
    const first = await listed('?limit=2', tenant);
    const rest = await listed(`?limit=2&cursor=${first.next_cursor}`, tenant);
    const ids = [...first.refusals, ...rest.refusals].map(({ request_id }) => request_id);
    expect([ids.length, ids]).toStrictEqual([3, ids.toSorted().toReversed()]);
    expect(rest.next_cursor).toBeNull();
    await expect(listed('', tenant, 'operator,approver')).rejects.toThrow('role_required');
    await expect(listed('?cursor=x', tenant)).rejects.toThrow('cursor_invalid');
    await expect(listed('?actor=%00', tenant)).rejects.toThrow('invalid_request');
    expect((await listed('', tenant, 'admin')).refusals).toHaveLength(3);
  });
});
