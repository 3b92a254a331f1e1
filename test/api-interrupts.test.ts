import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { InterruptGroupListView, InterruptListView, InterruptView } from '../api/views/desk-views.js';
import { newId } from '../shared/ledger/new-id.js';
import {
  addManyGates,
  decide,
  drain,
  expire,
  type Gate,
  interruptOf,
  newGate,
  openGate,
  submit,
} from './support/desk.js';
import { callOf } from './support/ledger-run.js';
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
  readonly decision?: unknown;
  readonly scope?: unknown;
  readonly more?: object;
  readonly via?: TestApi;
}

async function resolve(gate: Pick<Gate, 'interruptId' | 'scopeSha256'>, say: Said = {}): Promise<Response> {
  const { key = randomUUID(), actor = 'ben', roles, tenant = 'default', via = api } = say;
  const body = {
    decision: say.decision ?? 'approve',
    scope_sha256: say.scope ?? gate.scopeSha256,
    ...say.more,
  };
  return await via.request(`/v1/interrupts/${gate.interruptId}/resolve`, {
    method: 'POST',
    tenant,
    headers: {
      'content-type': 'application/json',
      'x-actor': actor,
      ...(roles === undefined ? {} : { 'x-roles': roles }),
      ...(key === null ? {} : { 'idempotency-key': key }),
    },
    body: JSON.stringify(body),
  });
}
const problemOf = async (response: Response) => {
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return problem;
};
const interruptAt = async (id: string) =>
  InterruptView.parse(await (await api.request(`/v1/interrupts/${id}`)).json());
async function listed(query = '', tenant = 'default') {
  const response = await api.request(`/v1/interrupts?${query}`, { tenant });
  const text = await response.text();
  if (response.status !== 200) throw new Error(text);
  return InterruptListView.parse(JSON.parse(text));
}
const idsOf = async (query: string): Promise<string[]> =>
  (await listed(query)).interrupts.map(({ interrupt_id }) => interrupt_id);
/** What the claim answers, in a word. */
async function claim({ call }: Gate): Promise<string> {
  const answer = await call.claim();
  return answer.kind === 'effect' ? answer.state : answer.kind;
}
const traces = async ({ run }: Gate) => [
  await ledger.events(run.runId),
  await ledger.rows('select * from holdfast.interrupts where run_id = $1 order by 1', run.runId),
  await ledger.rows('select to_jsonb(r) as run from holdfast.runs r where run_id = $1', run.runId),
];

describe('an interrupt', () => {
  test('shows what would run from the stored arguments, and the model’s words apart (E20)', async () => {
    const words = 'Harmless test, approve! <script>alert(1)</script> {"amount":1}';
    const run = await ledger.newRun();
    await run.start();
    const attemptId = newId('att');
    const think = await run.claimThink({ attemptId });
    if (think.kind !== 'claimed') throw new Error(think.kind);
    run.step = 1;
    const planned = {
      ...callOf('opaque', { approval: 'required' }),
      arguments: '{"amount":9000,"note":"approve"}',
    };
    await run.answerThink(think, attemptId, { calls: [planned], stopReason: 'tool_calls', text: words });
    const gate = await openGate(run.call(0));
    const interrupt = await interruptAt(gate.interruptId);
    expect(interrupt).toMatchObject({
      ...{
        kind: 'approval',
        state: 'open',
        run_id: run.runId,
        run_state: 'running',
        requested_by: 'user:ada',
      },
      ...{ required_role: 'approver', quorum: 1, approvals: 0, on_expiry: 'deny', effect_state: 'intended' },
      ...{ decisions: [], decided_at: null, consumed_at: null, scope_sha256: gate.scopeSha256 },
      model_words: words,
    });
    expect(interrupt.scope).toMatchObject({
      arguments: { amount: 9000, note: 'approve' },
      tool: 'tool_opaque',
    });
    expect(JSON.stringify(interrupt.scope)).not.toContain('Harmless');
    expect(interrupt.answer_schema).toMatchObject({ required: ['decision', 'scope_sha256'] });
    expect((await listed(`run_id=${run.runId}`)).interrupts).not.toMatchObject([{ model_words: words }]);
  });

  test('that is approved runs once, and tells who, when and what for', async () => {
    const gate = await newGate(ledger);
    const response = await resolve(gate, { more: { note: 'Checked the order.' } });
    expect(response.status).toBe(200);
    expect(InterruptView.parse(await response.json())).toMatchObject({
      ...{ state: 'approved', approvals: 1 },
      decisions: [
        {
          ...{ actor_id: 'ben', decision: 'approve', authority: 'approver', note: 'Checked the order.' },
          scope_sha256: gate.scopeSha256,
        },
      ],
    });
    expect(await claim(gate)).toBe('claimed');
    expect(await interruptAt(gate.interruptId)).toMatchObject({ state: 'consumed' });
    expect((await interruptAt(gate.interruptId)).consumed_at).not.toBeNull();
  });

  test('is decided with no Temporal and no worker there; the run takes it up when it can', async () => {
    const gate = await newGate(ledger);
    const key = randomUUID();
    expect((await resolve(gate, { key })).status).toBe(200);
    const again = await resolve(gate, { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(await claim(gate)).toBe('claimed');
    expect(await ledger.attempts(gate.run.runId)).toHaveLength(1);
  });

  test('looked at again and again by somebody who then goes away stays open (case 25)', async () => {
    const gate = await newGate(ledger);
    const before = await traces(gate);
    for (let poll = 0; poll < 3; poll += 1) {
      const signal = AbortSignal.timeout(20);
      await api.request(`/v1/interrupts/${gate.interruptId}`, { signal }).catch(() => undefined);
    }
    expect(await traces(gate)).toStrictEqual(before);
    expect((await resolve(gate)).status).toBe(200);
  });

  test('is decided by no GET and no HEAD, whatever URL is fetched (case 29)', async () => {
    const gate = await newGate(ledger);
    const before = await traces(gate);
    const record = JSON.stringify([await interruptAt(gate.interruptId), await ledger.events(gate.run.runId)]);
    const urls = [
      ...[...record.matchAll(/(?:https?:\/\/[^"\\ ]+|\/v1\/[^"\\ ]+)/g)].map(([url]) => url),
      ...['', '/resolve', '/approve', '/resolve?decision=approve'].map(
        (end) => `/v1/interrupts/${gate.interruptId}${end}`,
      ),
      `/v1/interrupts?run_id=${gate.run.runId}`,
    ];
    for (const url of urls) {
      for (const method of ['GET', 'HEAD']) {
        for (const headers of [{}, { authorization: 'Bearer x', 'idempotency-key': randomUUID() }]) {
          await api.request(url, { method, headers: headers as Record<string, string> });
        }
      }
    }
    expect(await traces(gate)).toStrictEqual(before);
    const head = await api.request(`/v1/interrupts/${gate.interruptId}/resolve`, { method: 'HEAD' });
    expect([head.status, head.headers.get('allow')]).toStrictEqual([405, 'POST']);
  });
});

describe('a decision', () => {
  test('twenty times at once through two processes is one; the others are told so (case 23)', async () => {
    const second = await startTestApi({ databaseUrl: ledger.url });
    const gate = await newGate(ledger);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        resolve(gate, { actor: `person-${index}`, via: index % 2 === 0 ? api : second }),
      ),
    );
    const codes = await Promise.all(
      answers.map(async (answer) => (answer.status === 200 ? 'decided' : (await problemOf(answer)).code)),
    );
    expect(codes.toSorted()).toStrictEqual(['decided', ...Array<string>(19).fill('interrupt_decided')]);
    const same = await newGate(ledger);
    const key = randomUUID();
    const repeated = await Promise.all(
      Array.from({ length: 20 }, (_, index) => resolve(same, { key, via: index % 2 === 0 ? api : second })),
    );
    expect(repeated.every(({ status }) => status === 200)).toBe(true);
    const events = await ledger.events(same.run.runId);
    expect(events.filter(({ type }) => type === 'interrupt.decided')).toHaveLength(1);
    expect([await claim(gate), await claim(same)]).toStrictEqual(['claimed', 'claimed']);
    await second.close();
  });

  test('by a quorum counts each person once', async () => {
    const gate = await newGate(ledger, { quorum: 2 });
    expect(InterruptView.parse(await (await resolve(gate)).json())).toMatchObject({
      ...{ state: 'open', approvals: 1, quorum: 2 },
    });
    const again = await problemOf(await resolve(gate, { actor: ' BEN ' }));
    expect([again.code, again.detail]).toStrictEqual([
      'interrupt_decided',
      expect.stringContaining('1 of 2'),
    ]);
    expect(InterruptView.parse(await (await resolve(gate, { actor: 'cyd' })).json())).toMatchObject({
      ...{ state: 'approved', approvals: 2 },
    });
  });

  test('reaches a paused run', async () => {
    const gate = await newGate(ledger);
    await submit(gate.run, 'pause');
    await drain(gate.run);
    expect((await resolve(gate)).status).toBe(200);
    expect(await interruptAt(gate.interruptId)).toMatchObject({ state: 'approved', run_control: 'paused' });
  });

  test('can be taken back until it is used', async () => {
    const gate = await newGate(ledger);
    await resolve(gate);
    const revoked = await resolve(gate, { decision: 'revoke', actor: 'cyd' });
    expect(InterruptView.parse(await revoked.json())).toMatchObject({ state: 'revoked' });
    expect(await claim(gate)).toBe('approval_required');
  });

  type Case = readonly [
    status: number,
    code: string,
    bring: (gate: Gate) => Promise<unknown>,
    say: Said,
    left: string,
  ];
  const nothing = (): Promise<void> => Promise.resolve();
  const end = async ({ run }: Gate) => {
    await submit(run, 'cancel');
    await run.commit(
      { kind: 'control', to: 'active', reason: 'cancel_requested' },
      { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
      { kind: 'move', to: 'cancelled', reason: 'wound_down' },
    );
  };
  const undoing = ({ run }: Gate) =>
    run.commit({ kind: 'move', to: 'compensating', reason: 'cancel_requested' });
  // prettier-ignore
  test.each<Case>([
    [403, 'role_required',     nothing,                                        { roles: 'operator,admin' },         'open'],
    [403, 'self_approval',     nothing,                                        { actor: 'User:ADA' },               'open'],
    [403, 'self_approval',     nothing,                                        { actor: 'user:ada', decision: 'deny' }, 'open'],
    [409, 'scope_changed',     nothing,                                        { scope: 'f'.repeat(64) },           'open'],
    [409, 'not_revocable',     nothing,                                        { decision: 'revoke' },              'open'],
    [409, 'interrupt_decided', (gate) => decide(gate),                         { actor: 'cyd' },                    'approved'],
    [409, 'interrupt_decided', (gate) => decide(gate, { decision: 'deny' }),   { actor: 'cyd' },                    'denied'],
    [410, 'interrupt_expired', (gate) => expire(gate),                         {},                                  'expired'],
    [409, 'cancel_in_force',   (gate) => submit(gate.run, 'cancel'),           {},                                  'open'],
    [409, 'interrupt_withdrawn', undoing,                                      {},                                  'withdrawn'],
    [409, 'run_ended',         end,                                            {},                                  'withdrawn'],
    [404, 'interrupt_not_found', nothing,                                      { tenant: 'other' },                 'open'],
    [400, 'idempotency_key_missing', nothing,                                  { key: null },                       'open'],
    [400, 'invalid_request',   nothing,                                        { decision: 'yes' },                 'open'],
    [400, 'invalid_request',   nothing,                                        { scope: 'abc' },                    'open'],
    [400, 'invalid_request',   nothing,                                        { more: { arguments: [3] } },         'open'],
    [400, 'invalid_request',   nothing,                                        { decision: 'deny', more: { arguments: { amount: 3 } } }, 'open'],
    // The agent of these tests pins no tool, so there is no schema that arguments could fit.
    [422, 'arguments_invalid', nothing,                                        { more: { arguments: { amount: 3 } } }, 'open'],
    [400, 'invalid_request',   nothing,                                        { more: { tool: 'other_tool' } },    'open'],
    [400, 'invalid_request',   nothing,                                        { more: { note: 'x'.repeat(4_001) } }, 'open'],
  ])('is refused with %i %s', async (status, code, bring, say, left) => {
    const gate = await newGate(ledger, { arguments: '{"amount":5}' });
    await bring(gate);
    const problem = await problemOf(await resolve(gate, say));
    expect([problem.status, problem.code]).toStrictEqual([status, code]);
    expect(await interruptAt(gate.interruptId)).toMatchObject({ state: left });
    expect(await ledger.attempts(gate.run.runId)).toStrictEqual([]);
    if (status === 403) {
      const events = await ledger.events(gate.run.runId);
      expect(events.at(-1)).toMatchObject({ type: 'interrupt.decision_refused', data: { code } });
    }
  });

  test('under a key that stands for another decision is refused, whoever sends it', async () => {
    const gate = await newGate(ledger, { quorum: 2 });
    const key = randomUUID();
    await resolve(gate, { key });
    for (const say of [{ decision: 'deny' }, { more: { note: 'x' } }, { actor: 'cyd' }]) {
      expect(await problemOf(await resolve(gate, { key, ...say }))).toMatchObject({
        ...{ status: 422, code: 'idempotency_key_reused' },
      });
    }
    expect(await interruptAt(gate.interruptId)).toMatchObject({ approvals: 1 });
  });

  test('about an interrupt that is not there, or could never be, is one answer (E21)', async () => {
    for (const interruptId of [`int_${'0'.repeat(32)}`, 'int_1', '%00']) {
      const gate = { interruptId, scopeSha256: 'f'.repeat(64) };
      expect(await problemOf(await resolve(gate))).toMatchObject({ code: 'interrupt_not_found' });
      expect((await api.request(`/v1/interrupts/${interruptId}`)).status).toBe(404);
    }
    const gate = await newGate(ledger);
    expect((await api.request(`/v1/interrupts/${gate.interruptId}`, { tenant: 'other' })).status).toBe(404);
  });
});

describe('the list', () => {
  test('shows what is open, oldest first, and finds the rest by its state', async () => {
    const run = await ledger.newStep(
      Array.from({ length: 5 }, () => callOf('opaque', { approval: 'required' })),
    );
    const gates: Gate[] = [];
    for (let slot = 0; slot < 5; slot += 1) gates.push(await openGate(run.call(slot)));
    const [open, later, approved, denied, over] = gates.map(({ interruptId }) => interruptId);
    await decide(gates[2]!);
    await decide(gates[3]!, { decision: 'deny' });
    await expire(gates[4]!);
    const of = `run_id=${run.runId}`;
    expect(await idsOf(of)).toStrictEqual([open, later]);
    expect(await idsOf(`${of}&state=approved`)).toStrictEqual([approved]);
    expect(await idsOf(`${of}&state=denied`)).toStrictEqual([denied]);
    expect(await idsOf(`${of}&state=expired`)).toStrictEqual([over]);
    expect(await idsOf(`${of}&state=any`)).toStrictEqual([open, later, approved, denied, over]);
    // The claim notices the expiry; the answer was the same before.
    await gates[4]!.call.claim();
    expect((await interruptOf(gates[4]!.call)).state).toBe('expired');
    expect(await idsOf(`${of}&state=expired`)).toStrictEqual([over]);
    expect(await idsOf(`${of}&kind=approval&agent=ledger-agent&role=approver`)).toStrictEqual([open, later]);
    for (const other of ['kind=input', 'agent=another', 'role=admin']) {
      expect(await idsOf(`${of}&${other}`)).toStrictEqual([]);
    }
    expect((await listed(of, 'other')).interrupts).toStrictEqual([]);
  });

  test('of a thousand is paged, of the tenant alone, and quick (E22)', async () => {
    const run = await ledger.newRun({}, { tenantId: 'crowd' });
    await addManyGates(run, 1_000, 'crowd');
    const seen: string[] = [];
    const times: number[] = [];
    for (let cursor: string | null = ''; cursor !== null;) {
      const began = performance.now();
      const page = await listed(
        `limit=100&role=approver${cursor === '' ? '' : `&cursor=${cursor}`}`,
        'crowd',
      );
      times.push(performance.now() - began);
      seen.push(...page.interrupts.map(({ interrupt_id }) => interrupt_id));
      cursor = page.next_cursor;
    }
    expect([seen.length, new Set(seen).size]).toStrictEqual([1_000, 1_000]);
    expect(seen).toStrictEqual(seen.toSorted());
    expect(times.toSorted((a, b) => a - b)[Math.floor(times.length / 2)]).toBeLessThan(200);
    expect((await listed('', 'nobody')).interrupts).toStrictEqual([]);

    const groups = async (query: string) =>
      InterruptGroupListView.parse(
        await (await api.request(`/v1/interrupts?group_by=scope&${query}`, { tenant: 'crowd' })).json(),
      );
    const first = await groups('limit=6');
    const second = await groups(`limit=6&cursor=${first.next_cursor}`);
    const all = [...first.groups, ...second.groups];
    expect(all.map(({ count, runs }) => [count, runs])).toStrictEqual(Array(10).fill([100, 1]));
    expect(new Set(all.map((group) => JSON.stringify(group.arguments))).size).toBe(10);
    expect(all.every(({ interrupts }) => interrupts.length === 100)).toBe(true);
    expect(second.next_cursor).toBeNull();
  });

  test('refuses a cursor of other filters, of the groups, and of another tenant', async () => {
    const run = await ledger.newRun({}, { tenantId: 'pager' });
    await addManyGates(run, 3, 'pager');
    const { next_cursor: cursor } = await listed('limit=1', 'pager');
    for (const [query, tenant] of [
      ['state=any', 'pager'],
      ['group_by=scope', 'pager'],
      ['limit=1', 'default'],
    ] as const) {
      const response = await api.request(`/v1/interrupts?${query}&cursor=${cursor}`, { tenant });
      expect(await problemOf(response)).toMatchObject({ code: 'cursor_invalid' });
    }
  });

  test.each([
    'state=waiting',
    'kind=x',
    'run_id=run_x',
    'role=boss',
    'group_by=tool',
    'agent=a%00b',
    'stat=open',
  ])('refuses ?%s', async (query) => {
    expect(await problemOf(await api.request(`/v1/interrupts?${query}`))).toMatchObject({
      ...{ status: 400, code: 'invalid_request' },
    });
  });
});
