import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RoleGrantListView, RoleGrantView } from '../api/views/grant-views.js';
import { InterruptView } from '../api/views/desk-views.js';
import { canonicalActor } from '../shared/domain/actors.js';
import type { Role } from '../shared/domain/roles.js';
import { admitRun } from '../shared/ledger/admission.js';
import { grantRole, revokeRole } from '../shared/ledger/role-grants.js';
import { decide, type Gate, interruptOf, newGate, openGate, said } from './support/desk.js';
import { callOf, LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: who may decide is looked at when they decide and again when their word is used (FAULTS E09); where the tenant's
// grants speak of a role, nobody has it by saying so. Method: grants through the API, decisions, then the claim.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

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
      ...{ 'x-actor': as.actor ?? 'olga', 'idempotency-key': as.key ?? randomUUID() },
      ...(as.roles === undefined ? {} : { 'x-roles': as.roles }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
}
const grant = (as: As, actor: string, role: Role) =>
  send('POST', '/v1/role-grants', as, { actor_id: actor, role });
const codeOf = async (response: Response): Promise<string> =>
  response.ok ? String(response.status) : ProblemView.parse(await response.json()).code;
const granted = async (as: As, actor: string, role: Role): Promise<string> => {
  const response = await grant(as, actor, role);
  expect([200, 201]).toContain(response.status);
  return RoleGrantView.parse(await response.json()).role_grant_id;
};
const revoke = (as: As, id: string) => send('DELETE', `/v1/role-grants/${id}`, as);
const live = async (tenant: string): Promise<string[]> => {
  const page = RoleGrantListView.parse(await (await api.request('/v1/role-grants', { tenant })).json());
  return page.role_grants.map(({ actor_id, role }) => `${actor_id} ${role}`);
};
const resolve = (gate: Gate, as: As) =>
  send('POST', `/v1/interrupts/${gate.interruptId}/resolve`, as, {
    ...{ decision: 'approve', scope_sha256: gate.scopeSha256 },
  });

/** A gate of a tenant of its own, so that no other test's grants rule over it. */
async function gateOf(tenant: string, quorum = 1): Promise<Gate> {
  const admitted = await admitRun(ledger.db, ledger.admission({ tenantId: tenant }));
  if (admitted.kind !== 'admitted') throw new Error(admitted.kind);
  const run = new LedgerRun(ledger, admitted.runId, `exec-${randomUUID()}`);
  await run.start();
  await run.plan([callOf('opaque', { approval: 'required' })]);
  return await openGate(run.call(0), quorum);
}
const yes = (gate: Gate, tenantId: string, actorId: string) => said(gate, { tenantId, actorId });

describe('a role without a grant', () => {
  test('is had by whoever’s identity carries it', async () => {
    const gate = await gateOf('free');
    expect(await codeOf(await resolve(gate, { tenant: 'free', actor: 'ben', roles: 'operator' }))).toBe(
      'role_required',
    );
    expect(await codeOf(await resolve(gate, { tenant: 'free', actor: 'ben', roles: 'approver' }))).toBe(
      '200',
    );
  });
});

describe('a role with grants', () => {
  test('is had by those who were granted it, whatever identities claim', async () => {
    const as = { tenant: 'ruled' };
    await granted(as, 'ben', 'approver');
    const gate = await gateOf('ruled');
    expect(await codeOf(await resolve(gate, { ...as, actor: 'cyd', roles: 'approver' }))).toBe(
      'role_required',
    );
    const events = await ledger.events(gate.run.runId);
    expect(events.at(-1)).toMatchObject({ data: { code: 'role_required', actor_id: 'cyd' } });
    expect(await codeOf(await resolve(gate, { ...as, actor: 'BEN ', roles: 'auditor' }))).toBe('200');
    expect(await gate.call.ask()).toBe('claimed');
  });

  test('of one tenant says nothing of another', async () => {
    await granted({ tenant: 'mine' }, 'ben', 'approver');
    const gate = await gateOf('theirs');
    expect(await codeOf(await resolve(gate, { tenant: 'theirs', actor: 'cyd' }))).toBe('200');
    const id = await granted({ tenant: 'mine' }, 'cyd', 'approver');
    expect(await codeOf(await revoke({ tenant: 'theirs' }, id))).toBe('role_grant_not_found');
    expect(await live('theirs')).toStrictEqual([]);
  });

  test('whose last one is revoked is had by nobody, not by everybody', async () => {
    const as = { tenant: 'last' };
    await revoke(as, await granted(as, 'ben', 'approver'));
    expect(await codeOf(await resolve(await gateOf('last'), { ...as, actor: 'ben' }))).toBe('role_required');
  });

  test('rules over commands as over decisions', async () => {
    const as = { tenant: 'ops' };
    await granted(as, 'olga', 'operator');
    await granted(as, 'olga', 'admin');
    const gate = await gateOf('ops');
    const pause = (actor: string) =>
      send('POST', `/v1/runs/${gate.run.runId}/commands`, { ...as, actor }, { kind: 'pause' });
    expect(await codeOf(await pause('mallory'))).toBe('role_required');
    expect((await pause('olga')).status).toBeLessThan(300);
  });
});

describe('an approver who loses the role', () => {
  test('before their word is used has approved nothing: it is asked again (E09)', async () => {
    const as = { tenant: 'e09' };
    const ben = await granted(as, 'ben', 'approver');
    await granted(as, 'cyd', 'approver');
    const gate = await gateOf('e09');
    expect(await yes(gate, 'e09', 'ben')).toBe('decided');
    await revoke(as, ben);
    expect(await gate.call.ask()).toBe('approval_required');
    expect(await ledger.attempts(gate.run.runId)).toStrictEqual([]);
    const events = await ledger.events(gate.run.runId);
    expect(events.filter(({ type }) => type === 'interrupt.revoked')).toMatchObject([
      { data: { interrupt_id: gate.interruptId, reason: 'role_lost', actor_id: 'ben' } },
    ]);
    expect(await interruptOf(gate.call)).toMatchObject({ state: 'revoked' });
    const anew = await openGate(gate.call);
    expect(await yes(anew, 'e09', 'ben')).toBe('role_required');
    expect(await yes(anew, 'e09', 'cyd')).toBe('decided');
    expect(await gate.call.ask()).toBe('claimed');
  });

  test('and has it again by the time it is used has approved', async () => {
    const as = { tenant: 'again' };
    const ben = await granted(as, 'ben', 'approver');
    const gate = await gateOf('again');
    await yes(gate, 'again', 'ben');
    await revoke(as, ben);
    await granted(as, 'ben', 'approver');
    expect(await gate.call.ask()).toBe('claimed');
  });

  test('in the middle of a quorum is counted no more', async () => {
    const as = { tenant: 'quorum' };
    const ben = await granted(as, 'ben', 'approver');
    for (const actor of ['cyd', 'dan']) await granted(as, actor, 'approver');
    const gate = await gateOf('quorum', 2);
    await yes(gate, 'quorum', 'ben');
    await revoke(as, ben);
    await yes(gate, 'quorum', 'cyd');
    const view = await api.request(`/v1/interrupts/${gate.interruptId}`, as);
    expect(InterruptView.parse(await view.json())).toMatchObject({ state: 'open', approvals: 1 });
    expect(await gate.call.ask()).toBe('approval_required');
    await yes(gate, 'quorum', 'dan');
    expect(await gate.call.ask()).toBe('claimed');
  });

  test('at the very moment of the claim: it leaves with the role, or is asked again, never in between', async () => {
    const as = { tenant: 'race' };
    const seen = new Set<string>();
    for (let round = 0; round < 20; round += 1) {
      const ben = await granted(as, `ben-${round}`, 'approver');
      const gate = await gateOf('race');
      await yes(gate, 'race', `ben-${round}`);
      const [answer] = await Promise.all([gate.call.ask(), revoke(as, ben)]);
      const [attempt] = await ledger.attempts(gate.run.runId);
      seen.add(answer);
      expect([answer, (await interruptOf(gate.call)).state]).toStrictEqual(
        answer === 'claimed' ? ['claimed', 'consumed'] : ['approval_required', 'revoked'],
      );
      expect(attempt === undefined).toBe(answer !== 'claimed');
    }
    expect([...seen].every((answer) => ['claimed', 'approval_required'].includes(answer))).toBe(true);
  });
});

describe('granting', () => {
  test('takes admin, and the first grant of admin keeps whoever gives it', async () => {
    const as = { tenant: 'boot' };
    expect(await codeOf(await grant({ ...as, roles: 'operator' }, 'ben', 'approver'))).toBe('role_required');
    await granted(as, 'ada', 'admin');
    expect(await live('boot')).toStrictEqual(['olga admin', 'ada admin']);
    expect(await codeOf(await grant({ ...as, actor: 'mallory' }, 'mallory', 'admin'))).toBe('role_required');
    expect(await codeOf(await grant({ ...as, actor: 'ada' }, 'ben', 'approver'))).toBe('201');
  });

  test('is looked at in the ledger too, whoever the caller says they are', async () => {
    await granted({ tenant: 'inner' }, 'olga', 'admin');
    const by = { tenantId: 'inner', actorId: 'mallory', authority: 'admin' };
    expect(
      await grantRole(ledger.db, {
        ...{ tenantId: 'inner', grantedBy: 'mallory', authority: 'admin', actorId: 'mallory' },
        ...{ role: 'admin', idempotencyKey: randomUUID() },
      }),
    ).toStrictEqual({ kind: 'role_required' });
    const [row] = await ledger.rows<{ role_grant_id: string }>(
      `select role_grant_id from holdfast.role_grants where tenant_id = 'inner'`,
    );
    expect(await revokeRole(ledger.db, by, row!.role_grant_id)).toStrictEqual({ kind: 'role_required' });
  });

  test('twenty times at once is one grant; with its key it is the same, with other words another', async () => {
    const as = { tenant: 'twice' };
    const ids = await Promise.all(Array.from({ length: 20 }, () => granted(as, 'ben', 'approver')));
    expect(new Set(ids).size).toBe(1);
    const key = randomUUID();
    const first = await grant({ ...as, key }, 'cyd', 'approver');
    const again = await grant({ ...as, key }, ' CYD', 'approver');
    expect([first.status, again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([
      201,
      200,
      'true',
    ]);
    expect(await codeOf(await grant({ ...as, key }, 'dan', 'approver'))).toBe('idempotency_key_reused');
    expect(await live('twice')).toStrictEqual(['ben approver', 'cyd approver']);
    // A grant that was revoked is over; its key does not bring it back.
    await revoke(as, RoleGrantView.parse(await again.json()).role_grant_id);
    expect((await grant({ ...as, key }, 'cyd', 'approver')).status).toBe(200);
    expect(await live('twice')).toStrictEqual(['ben approver']);
  });

  test('the last admin is not revoked, not even by two at once', async () => {
    const as = { tenant: 'admins' };
    const ada = await granted(as, 'ada', 'admin');
    const page = RoleGrantListView.parse(
      await (await api.request('/v1/role-grants?role=admin&actor_id=OLGA', as)).json(),
    );
    const olga = page.role_grants[0]!.role_grant_id;
    const codes = await Promise.all([
      revoke(as, ada).then(codeOf),
      revoke({ ...as, actor: 'ada' }, olga).then(codeOf),
    ]);
    expect(codes.toSorted()).toStrictEqual(['200', 'role_required']);
    const [left, gone] = codes[0] === '200' ? [olga, ada] : [ada, olga];
    const admin = { ...as, actor: left === olga ? 'olga' : 'ada' };
    expect(await codeOf(await revoke(admin, left))).toBe('last_admin');
    expect(await live('admins')).toStrictEqual([`${admin.actor} admin`]);
    // Sent again, what is revoked stays as it was.
    const again = RoleGrantView.parse(await (await revoke(admin, gone)).json());
    expect(again).toMatchObject({ revoked_by: admin.actor });
  });

  test.each([
    { actor_id: '', role: 'approver' },
    { actor_id: 'a\u200bda', role: 'approver' },
    { actor_id: 'ada', role: 'boss' },
    { actor_id: 'ada' },
    { actor_id: 'ada', role: 'approver', granted_by: 'root' },
  ])('refuses %j', async (body) => {
    expect(await codeOf(await send('POST', '/v1/role-grants', { tenant: 'bad' }, body))).toBe(
      'invalid_request',
    );
    expect(await live('bad')).toStrictEqual([]);
  });

  test('of nothing that is there is a 404; a PUT is none of it', async () => {
    for (const id of [`rgr_${'0'.repeat(32)}`, 'x']) {
      expect(await codeOf(await revoke({ tenant: 'none' }, id))).toBe('role_grant_not_found');
    }
    const response = await send('PUT', `/v1/role-grants/x`, { tenant: 'none' });
    expect([response.status, response.headers.get('allow')]).toStrictEqual([405, 'DELETE']);
  });
});

describe('one person', () => {
  // prettier-ignore
  const SPELLINGS = ['user:ada', 'USER:Ada', '  user:ada ', 'ｕｓｅｒ：ａｄａ', 'user:ａda', 'user:\u212Aim', 'user:kim', 'user:ada\u00a0'];

  test('is the same to the API and to the ledger, however they are spelt', async () => {
    for (const text of SPELLINGS) {
      const [row] = await ledger.rows<{ actor: string }>(
        'select holdfast.canonical_actor($1) as actor',
        text,
      );
      expect([text, row?.actor]).toStrictEqual([text, canonicalActor(text)]);
    }
  });

  test('does not approve their own call through another spelling (E08)', async () => {
    const gate = await newGate(ledger);
    for (const actorId of ['ｕｓｅｒ：ａｄａ', 'USER:ＡDA', 'user:ada\u00a0']) {
      expect(await said(gate, { actorId })).toBe('self_approval');
    }
    expect(await gate.call.ask()).toBe('approval_required');
    await decide(gate, { actorId: 'ｕser:ben' });
    expect(await gate.call.ask()).toBe('claimed');
  });
});
