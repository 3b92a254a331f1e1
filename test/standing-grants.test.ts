import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { StandingGrantListView, StandingGrantView } from '../api/views/grant-views.js';
import type { JsonValue } from '../shared/domain/json.js';
import { canonicalJson } from '../shared/domain/strict-json.js';
import { admitRun } from '../shared/ledger/admission.js';
import { sha256 } from '../shared/ledger/digest.js';
import { grantRole, revokeRole } from '../shared/ledger/role-grants.js';
import { giveStandingGrant } from '../shared/ledger/standing-grants.js';
import { openGate, said } from './support/desk.js';
import type { LedgerCall } from './support/ledger-call.js';
import { callOf, LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: a yes given beforehand lets go what is within its bounds and nothing else, as often as it says (SPEC 4.1).
// Method: grants through the API in a tenant of each test's own, then claims, which are the only door.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

const VERSION = 'a'.repeat(64);
const inHours = (hours: number): string => new Date(Date.now() + hours * 3_600_000).toISOString();

interface As {
  readonly tenant: string;
  readonly actor?: string;
  readonly roles?: string;
  readonly key?: string;
}
async function send(method: string, path: string, as: As, body?: object): Promise<Response> {
  return await api.request(path, {
    ...{ method, tenant: as.tenant },
    headers: {
      ...{ 'x-actor': as.actor ?? 'ben', 'idempotency-key': as.key ?? randomUUID() },
      ...(as.roles === undefined ? {} : { 'x-roles': as.roles }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
}
const bodyOf = (changes: object = {}) => ({
  ...{ tool: 'tool_opaque', tool_version: VERSION, constraints: [{ at: '/amount', maximum: 50 }] },
  ...{ count: 5, expires_at: inHours(1), note: 'Small ones need nobody.' },
  ...changes,
});
const give = (as: As, changes: object = {}) => send('POST', '/v1/standing-grants', as, bodyOf(changes));
const given = async (as: As, changes: object = {}): Promise<string> => {
  const response = await give(as, changes);
  expect(response.status).toBe(201);
  return StandingGrantView.parse(await response.json()).standing_grant_id;
};
const codeOf = async (response: Response): Promise<string> =>
  response.ok ? String(response.status) : ProblemView.parse(await response.json()).code;
const listed = async (tenant: string, query = '?state=any') =>
  StandingGrantListView.parse(await (await api.request(`/v1/standing-grants${query}`, { tenant })).json())
    .standing_grants;

/** A planned call of a tenant that needs an approval nobody was asked for. */
async function callIn(
  tenant: string,
  args: JsonValue,
  changes: { readonly plan?: object; readonly policy?: object; readonly actorId?: string } = {},
): Promise<LedgerCall> {
  const { actorId = 'user:ada' } = changes;
  const admitted = await admitRun(ledger.db, ledger.admission({ tenantId: tenant, actorId }));
  if (admitted.kind !== 'admitted') throw new Error(admitted.kind);
  const run = new LedgerRun(ledger, admitted.runId, `exec-${randomUUID()}`);
  await run.start();
  await run.plan([
    {
      ...callOf('opaque', { approval: 'required', ...changes.policy }),
      arguments: canonicalJson(args),
      ...changes.plan,
    },
  ]);
  return run.call(0);
}
const ask = async (...of: Parameters<typeof callIn>): Promise<string> => (await callIn(...of)).ask();

describe('a standing grant', () => {
  test('lets a call within its bounds go without asking, and writes down which', async () => {
    const id = await given({ tenant: 'first' });
    const call = await callIn('first', { amount: 50 });
    expect(await call.ask()).toBe('claimed');
    const effect = await call.effect();
    const [grant] = await listed('first');
    expect(grant).toMatchObject({
      ...{ standing_grant_id: id, state: 'live', count: 5, used: 1, granted_by: 'ben', agent: null },
      ...{ constraints: [{ at: '/amount', maximum: 50 }], authority: 'approver' },
      uses: [
        {
          use: 1,
          effect_id: effect.effect_id,
          run_id: call.run.runId,
          arguments_sha256: sha256('{"amount":50}'),
        },
      ],
    });
    const events = await ledger.events(call.run.runId);
    expect(events.filter(({ type }) => type === 'standing_grant.used')).toMatchObject([
      { data: { standing_grant_id: id, effect_id: effect.effect_id, granted_by: 'ben', use: 1 } },
    ]);
    expect(
      await ledger.rows('select from holdfast.interrupts where run_id = $1', call.run.runId),
    ).toHaveLength(0);
    // Asked again, given back and tried again: it is the same call, and one use.
    expect(await call.ask()).toBe('dispatching');
    expect((await listed('first'))[0]).toMatchObject({ used: 1 });
  });

  test('is used once by a call that is given back and tried again', async () => {
    await given({ tenant: 'back' });
    const call = await callIn('back', { amount: 1 });
    await call.attempt('not_sent');
    expect(await call.ask()).toBe('claimed');
    expect((await listed('back'))[0]).toMatchObject({ used: 1 });
  });

  test('is used up by what it counts, and never past it, by any number at once', async () => {
    await given({ tenant: 'count' }, { count: 3 });
    const calls = await Promise.all(Array.from({ length: 12 }, (_, n) => callIn('count', { amount: n })));
    const answers = await Promise.all(calls.map((call) => call.ask()));
    expect(answers.filter((answer) => answer === 'claimed')).toHaveLength(3);
    expect(answers.filter((answer) => answer === 'approval_required')).toHaveLength(9);
    expect(await listed('count')).toMatchObject([
      { state: 'used_up', used: 3, uses: [{ use: 1 }, { use: 2 }, { use: 3 }] },
    ]);
    const late = await callIn('count', { amount: 1 });
    expect(await said(await openGate(late), { tenantId: 'count' })).toBe('decided');
  });

  test('gives way to the next when it is used up in the very moment', async () => {
    await given({ tenant: 'next' }, { count: 1, expires_at: inHours(1) });
    await given({ tenant: 'next' }, { count: 1, expires_at: inHours(2) });
    const calls = await Promise.all([1, 2, 3].map((amount) => callIn('next', { amount })));
    const answers = await Promise.all(calls.map((call) => call.ask()));
    expect(answers.toSorted()).toStrictEqual(['approval_required', 'claimed', 'claimed']);
  });

  // prettier-ignore
  test.each<readonly [why: string, constraints: readonly object[], inside: JsonValue, outside: readonly JsonValue[]]>([
    ['a maximum',       [{ at: '/amount', maximum: 50 }],             { amount: 50 },            [{ amount: 50.01 }, { amount: '5' }, {}, { amount: null }, { amount: [5] }]],
    ['a minimum',       [{ at: '/amount', minimum: 0 }],              { amount: 0 },             [{ amount: -1 }, {}]],
    ['a range',         [{ at: '/amount', minimum: 1 }, { at: '/amount', maximum: 5 }], { amount: 3 }, [{ amount: 0 }, { amount: 6 }]],
    ['a value',         [{ at: '/to', equals: 'desk' }],              { to: 'desk', cc: 'x' },   [{ to: 'Desk' }, {}, { to: ['desk'] }]],
    ['one of several',  [{ at: '/to', one_of: ['a', 'b', null] }],    { to: null },              [{ to: 'c' }, {}, { to: ['a'] }]],
    ['a number, however written', [{ at: '/n', equals: 1 }],          { n: 1.0 },                [{ n: '1' }, { n: true }]],
    ['an object whole', [{ at: '', equals: { a: [1, 2] } }],          { a: [1, 2] },             [{ a: [2, 1] }, { a: [1, 2], b: 1 }]],
    ['a place in a list', [{ at: '/lines/0/sku', equals: 'A' }],      { lines: [{ sku: 'A' }] }, [{ lines: [] }, { lines: { 0: { sku: 'B' } } }, { lines: 'A' }]],
    ['an odd key',      [{ at: '/a~1b/~0', equals: 1 }],              { 'a/b': { '~': 1 } },     [{ a: { b: 1 } }]],
    ['no end of a list', [{ at: '/lines/-1', equals: 'A' }],          { lines: { '-1': 'A' } },  [{ lines: ['A'] }]],
  ])('keeps to %s', async (why, constraints, inside, outside) => {
    await given({ tenant: why }, { constraints });
    expect(await ask(why, inside)).toBe('claimed');
    for (const args of outside) expect([args, await ask(why, args)]).toStrictEqual([args, 'approval_required']);
  });

  test('covers one tool in one version, of an agent where it names one', async () => {
    const tenant = 'which';
    await given({ tenant }, { agent: 'another' });
    expect(await ask(tenant, { amount: 1 })).toBe('approval_required');
    await given({ tenant }, { agent: 'ledger-agent' });
    expect(await ask(tenant, { amount: 1 })).toBe('claimed');
    for (const plan of [{ toolName: 'tool_read' }, { toolVersion: 'b'.repeat(64) }]) {
      expect(await ask(tenant, { amount: 1 }, { plan })).toBe('approval_required');
    }
  });

  test('for a tool of one server says nothing of the tool of that name on another (case 15)', async () => {
    await given({ tenant: 'servers' }, { tool: 'delete' });
    // The server is part of what a tool's version is the digest of.
    const plan = { toolName: 'delete', namespace: 'server-b', toolVersion: sha256('delete on server b') };
    const call = await callIn('servers', { amount: 1 }, { plan });
    expect(await call.ask()).toBe('approval_required');
    expect(await ledger.attempts(call.run.runId)).toStrictEqual([]);
  });

  test('never goes past its tenant', async () => {
    await given({ tenant: 'mine' });
    expect(await ask('theirs', { amount: 1 })).toBe('approval_required');
    expect(await listed('theirs')).toStrictEqual([]);
  });

  test('is not for the run of whoever gave it, however they are spelt', async () => {
    await given({ tenant: 'self', actor: 'ADA' });
    for (const actorId of ['ada', 'Ada ', 'ａda']) {
      expect(await ask('self', { amount: 1 }, { actorId })).toBe('approval_required');
    }
    expect(await ask('self', { amount: 1 }, { actorId: 'eve' })).toBe('claimed');
  });

  test('stands in for one approver of its role: more people, or another role, are asked', async () => {
    const tenant = 'more';
    await given({ tenant });
    expect(await ask(tenant, { amount: 1 }, { policy: { asked: { quorum: 2 } } })).toBe('approval_required');
    expect(await ask(tenant, { amount: 1 }, { policy: { asked: { role: 'releaser' } } })).toBe(
      'approval_required',
    );
    expect(await ask(tenant, { amount: 1 }, { policy: { asked: { role: 'approver', quorum: 1 } } })).toBe(
      'claimed',
    );
  });

  test('that expired or was revoked is asked about as usual', async () => {
    const tenant = 'over';
    const as = { tenant };
    const id = await given(as);
    await ledger.rows(
      `update holdfast.standing_grants set created_at = created_at - interval '1 day', expires_at = clock_timestamp()
        where standing_grant_id = $1`,
      id,
    );
    expect(await ask(tenant, { amount: 1 })).toBe('approval_required');
    expect(await listed(tenant)).toMatchObject([{ state: 'expired' }]);
    const other = await given(as);
    const revoked = await send('DELETE', `/v1/standing-grants/${other}`, {
      ...as,
      actor: 'olga',
      roles: 'operator',
    });
    expect(StandingGrantView.parse(await revoked.json())).toMatchObject({
      state: 'revoked',
      revoked_by: 'olga',
    });
    expect(await ask(tenant, { amount: 1 })).toBe('approval_required');
    const again = await send('DELETE', `/v1/standing-grants/${other}`, as);
    expect(StandingGrantView.parse(await again.json())).toMatchObject({ revoked_by: 'olga' });
  });

  test('counts only while whoever gave it has the role', async () => {
    const tenant = 'role';
    const grant = async (actorId: string) =>
      await grantRole(ledger.db, {
        ...{ tenantId: tenant, grantedBy: 'olga', authority: 'admin', actorId, role: 'approver' },
        idempotencyKey: randomUUID(),
      });
    const ben = await grant('ben');
    if (!('role_grant_id' in ben)) throw new Error(ben.kind);
    await given({ tenant });
    expect(await codeOf(await give({ tenant, actor: 'cyd' }))).toBe('role_required');
    expect(await ask(tenant, { amount: 1 })).toBe('claimed');
    await revokeRole(ledger.db, { tenantId: tenant, actorId: 'olga', authority: 'admin' }, ben.role_grant_id);
    expect(await ask(tenant, { amount: 1 })).toBe('approval_required');
  });

  test('does not take the word of a person from them: what was asked, revoked or changed is asked again', async () => {
    const tenant = 'asked';
    const call = await callIn(tenant, { amount: 1 });
    const gate = await openGate(call);
    await given({ tenant });
    expect(await call.ask()).toBe('approval_required');
    await said(gate, { tenantId: tenant });
    await said(gate, { tenantId: tenant, decision: 'revoke' });
    expect(await call.ask()).toBe('approval_required');
    expect((await listed(tenant))[0]).toMatchObject({ used: 0 });
  });

  test('lets no later call go before an earlier one that waits', async () => {
    const tenant = 'order';
    await given({ tenant });
    const planned = (amount: number) => ({
      ...callOf('opaque', { approval: 'required' }),
      arguments: `{"amount":${amount}}`,
    });
    const admitted = await admitRun(ledger.db, ledger.admission({ tenantId: tenant }));
    if (admitted.kind !== 'admitted') throw new Error(admitted.kind);
    const run = new LedgerRun(ledger, admitted.runId, `exec-${randomUUID()}`);
    await run.start();
    await run.plan([planned(90), planned(10)]);
    const first = await openGate(run.call(0));
    expect(await run.call(1).claim()).toMatchObject({ kind: 'approval_required', needed: null });
    await said(first, { tenantId: tenant, decision: 'deny' });
    expect([await run.call(0).ask(), await run.call(1).ask()]).toStrictEqual(['denied', 'claimed']);
  });

  test('is not used by what the run’s own limits hold back', async () => {
    const tenant = 'limit';
    await given({ tenant });
    const call = await callIn(tenant, { amount: 1 });
    await ledger.rows(
      'update holdfast.runs set deadline_at = clock_timestamp() where run_id = $1',
      call.run.runId,
    );
    expect(await call.ask()).toBe('limit_wall_clock');
    expect((await listed(tenant))[0]).toMatchObject({ used: 0 });
  });

  test('lets nothing leave whose stored arguments are not those of its digest', async () => {
    const tenant = 'tamper';
    await given({ tenant });
    const call = await callIn(tenant, { amount: 90 });
    await call.ask();
    await ledger.rows(
      `update holdfast.effects set arguments = '{"amount":1}' where run_id = $1`,
      call.run.runId,
    );
    expect(await call.ask()).toBe('approval_required');
    expect(await ledger.attempts(call.run.runId)).toStrictEqual([]);
  });
});

describe('giving one', () => {
  test('takes the role approver, here and in the ledger', async () => {
    expect(await codeOf(await give({ tenant: 'who', roles: 'operator,admin' }))).toBe('role_required');
    const refused = await giveStandingGrant(ledger.db, {
      ...{
        tenantId: 'who',
        grantedBy: 'ben',
        authority: 'admin',
        agent: null,
        tool: 'pay',
        toolVersion: VERSION,
      },
      ...{ constraints: [{ at: '/a', equals: 1 }], usesMax: 1, expiresAt: inHours(1), note: 'x' },
      idempotencyKey: randomUUID(),
    });
    expect(refused).toStrictEqual({ kind: 'role_required' });
    expect(await listed('who')).toStrictEqual([]);
  });

  test('twice with one key is one, twenty times at once; in other words it is refused', async () => {
    const as = { tenant: 'key', key: randomUUID() };
    const body = bodyOf();
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => send('POST', '/v1/standing-grants', as, body)),
    );
    expect(answers.map(({ status }) => status).toSorted()).toStrictEqual([
      ...Array<number>(19).fill(200),
      201,
    ]);
    for (const changes of [{ count: 6 }, { note: 'y' }, { constraints: [{ at: '/amount', maximum: 51 }] }]) {
      expect(await codeOf(await send('POST', '/v1/standing-grants', as, { ...body, ...changes }))).toBe(
        'idempotency_key_reused',
      );
    }
    expect(await codeOf(await send('POST', '/v1/standing-grants', { ...as, actor: 'cyd' }, body))).toBe(
      'idempotency_key_reused',
    );
    expect(await listed('key')).toHaveLength(1);
  });

  // prettier-ignore
  test.each<object>([
    { constraints: [] }, { constraints: undefined }, { count: 0 }, { count: 10_001 }, { count: undefined }, { note: ' ' },
    { expires_at: undefined }, { expires_at: 'tomorrow' }, { expires_at: inHours(-1) }, { expires_at: inHours(367 * 24) },
    { tool_version: 'latest' }, { tool_version: undefined }, { tool: '' },
    { constraints: [{ at: 'amount', maximum: 1 }] }, { constraints: [{ at: '/a~2', equals: 1 }] },
    { constraints: [{ at: '/amount' }] }, { constraints: [{ at: '/amount', maximum: '50' }] },
    { constraints: [{ at: '/amount', maximum: 1, minimum: 0 }] }, { constraints: [{ at: '/a', one_of: [] }] },
    { granted_by: 'root' }, { tenant_id: 'other' },
  ])('unbounded or misspelt is refused: %j', async (changes) => {
    expect(await codeOf(await give({ tenant: 'bad' }, changes))).toBe('invalid_request');
    expect(await listed('bad')).toStrictEqual([]);
  });

  test('lists by state and tool, page by page', async () => {
    const as = { tenant: 'pages' };
    const ids = [await given(as), await given(as, { tool: 'other' }), await given(as)];
    await send('DELETE', `/v1/standing-grants/${ids[0]}`, as);
    const idsOf = async (query: string) =>
      (await listed('pages', query)).map((each) => each.standing_grant_id);
    expect(await idsOf('')).toStrictEqual(ids.slice(1));
    expect(await idsOf('?tool=other')).toStrictEqual([ids[1]]);
    expect(await idsOf('?state=revoked')).toStrictEqual([ids[0]]);
    const first = StandingGrantListView.parse(
      await (await api.request('/v1/standing-grants?state=any&limit=2', as)).json(),
    );
    expect(await idsOf(`?state=any&limit=2&cursor=${first.next_cursor}`)).toStrictEqual([ids[2]]);
    expect(await codeOf(await send('DELETE', '/v1/standing-grants/x', as))).toBe('standing_grant_not_found');
    expect(await codeOf(await send('DELETE', `/v1/standing-grants/${ids[1]}`, { tenant: 'none' }))).toBe(
      'standing_grant_not_found',
    );
  });
});
