import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import {
  InterruptGroupListView,
  InterruptListView,
  InterruptView,
  ReconciliationItemView,
} from '../api/views/desk-views.js';
import { RunView } from '../api/views/run-views.js';
import type { JsonObject } from '../shared/domain/json.js';
import { digestOf } from '../shared/ledger/digest.js';
import { escalateOverdue } from '../shared/ledger/sweep.js';
import { compileSchema } from '../shared/schema/compile-schema.js';
import { answerBudget } from './support/budget.js';
import {
  decide,
  expire,
  type Gate,
  makeOverdue,
  newGate,
  newUndo,
  newUnknown,
  openGate,
  settle,
} from './support/desk.js';
import type { LedgerCall } from './support/ledger-call.js';
import { ask, answer as answerInput, newWait } from './support/input.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { deliveriesOf, type Endpoint, newEndpoint } from './support/webhook-world.js';

// Goal: whoever is waited for stands in one list and answers at one place, also who must settle what no machine can
// find out or undo (SPEC 3.6, 3.7, 4), and the answer is the same settlement as at the desk.

let ledger: LedgerWorld;
let api: TestApi;
let endpoint: Endpoint;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  endpoint = await newEndpoint(ledger.db, 'https://example.com/hook');
});

const COMMITTED = { decided: 'committed', reference: 'pay_77', note: 'Seen in the statement.' };
const NOT_COMMITTED = { decided: 'not_committed', note: 'The provider has no such payment.' };
const LEFT = { decided: 'left', note: 'The customer keeps it.' };
const TWO = { contract: { reconciliation: { two_people: ['opaque' as const] } } };

interface Said {
  readonly actor?: string;
  readonly roles?: string;
  readonly key?: string;
  readonly tenant?: string;
  readonly more?: object;
}
async function post(path: string, body: unknown, say: Said): Promise<Response> {
  return await api.request(path, {
    method: 'POST',
    tenant: say.tenant ?? 'default',
    headers: {
      ...{ 'content-type': 'application/json', 'x-actor': say.actor ?? 'olga' },
      ...(say.roles === undefined ? {} : { 'x-roles': say.roles }),
      'idempotency-key': say.key ?? randomUUID(),
    },
    body: JSON.stringify(body),
  });
}
const answer = (id: string, words: unknown, say: Said = {}) =>
  post(`/v1/interrupts/${id}/resolve`, { decision: 'answer', answer: words, ...say.more }, say);
const settleAtDesk = async (call: LedgerCall, words: unknown, say: Said = {}) =>
  post(`/v1/reconciliations/${(await call.effect()).effect_id}/settle`, words, say);
const problemOf = async (response: Response) => {
  const { status, code } = ProblemView.parse(await response.json());
  expect(status).toBe(response.status);
  return [status, code];
};
const waitsOf = async ({ run }: LedgerCall, query = 'kind=reconciliation&state=any') => {
  const response = await api.request(`/v1/interrupts?run_id=${run.runId}&${query}`);
  return InterruptListView.parse(await response.json()).interrupts;
};
/** The open wait over a call's effect. */
const waitOf = async (call: LedgerCall) => {
  const open = await waitsOf(call, 'kind=reconciliation');
  expect(open).toHaveLength(1);
  return await wait(open[0]!.interrupt_id);
};
const wait = async (id: string) =>
  InterruptView.parse(await (await api.request(`/v1/interrupts/${id}`)).json());
const controlOf = async ({ runId }: LedgerRun) =>
  RunView.parse(await (await api.request(`/v1/runs/${runId}`)).json()).control;
const toldOf = async ({ run }: LedgerCall) =>
  (await deliveriesOf(ledger, endpoint))
    .filter(({ payload }) => payload.data['run_id'] === run.runId)
    .map(({ kind, payload }) => [kind, payload.data['interrupt_state']].filter(Boolean).join(' '));

describe('an effect that comes to rest for a person', () => {
  test('is one wait in the one list, with its owner, its deadline and what may be answered', async () => {
    const contract = { reconciliation: { owner: 'finance', deadline_seconds: 600 } };
    const call = await newUnknown(ledger, 'opaque', { contract });
    const effect = await call.effect();
    const it = await waitOf(call);
    expect(it).toMatchObject({
      ...{ kind: 'reconciliation', asks: 'outcome', state: 'open', owner: 'finance', overdue: false },
      ...{ effect_id: effect.effect_id, effect_state: 'unknown', on_expiry: 'escalate', quorum: 1 },
      ...{ required_role: 'operator', requested_by: 'user:ada', decisions: [] },
      scope: { asks: 'outcome', arguments: { slot: 0 }, arguments_sha256: digestOf({ slot: 0 }) },
    });
    expect(it.scope_sha256).toBe(digestOf(it.scope as JsonObject));
    const fits = compileSchema(it.answer_schema as JsonObject);
    expect([COMMITTED, NOT_COMMITTED].map((words) => fits(words))).toStrictEqual([[], []]);
    expect(fits(LEFT)).not.toStrictEqual([]);
    const run = (await (await api.request(`/v1/runs/${call.run.runId}`)).json()) as {
      control: { interrupts: unknown };
    };
    expect(run.control.interrupts).toMatchObject([{ interrupt_id: it.interrupt_id, kind: 'reconciliation' }]);
  });

  test('is waited for past its deadline too, which is told once and decides nothing', async () => {
    const call = await newUnknown(ledger);
    await makeOverdue(call);
    while ((await escalateOverdue(ledger.db)) !== undefined);
    const it = await waitOf(call);
    expect(it).toMatchObject({ state: 'open', overdue: true });
    expect(await waitsOf(call, 'state=expired')).toStrictEqual([]);
    expect(await toldOf(call)).toStrictEqual([
      ...['interrupt.opened open', 'run.needs_reconciliation', 'reconciliation.overdue'],
    ]);
    const [overdue] = (await ledger.events(call.run.runId)).filter(
      ({ type }) => type === 'reconciliation.overdue',
    );
    expect(overdue?.data['interrupt_id']).toBe(it.interrupt_id);
    expect((await answer(it.interrupt_id, COMMITTED)).status).toBe(200);
  });

  test('is settled by the answer as by the desk, once, whoever of both comes first', async () => {
    const call = await newUnknown(ledger);
    const { interrupt_id: id, effect_id: effectId } = await waitOf(call);
    const key = randomUUID();
    const [first, second] = await Promise.all([
      answer(id, COMMITTED, { key }),
      settleAtDesk(call, NOT_COMMITTED, { actor: 'pia' }),
    ]);
    expect([first.status, second.status].toSorted()).toStrictEqual([200, 409]);
    const said = first.status === 200 ? COMMITTED : NOT_COMMITTED;
    const item = await api.request(`/v1/reconciliations/${effectId ?? ''}`);
    expect(ReconciliationItemView.parse(await item.json())).toMatchObject({
      ...{ effect_state: said.decided, waiting: null, settlement: { source: 'person', note: said.note } },
    });
    expect(await wait(id)).toMatchObject({
      ...{ state: 'answered', approvals: 1, decisions: [{ decision: 'answer', answer: said }] },
    });
    expect(await problemOf(await answer(id, COMMITTED))).toStrictEqual([409, 'already_settled']);
    expect(await toldOf(call)).toStrictEqual([
      ...['interrupt.opened open', 'run.needs_reconciliation', 'interrupt.decided answered'],
    ]);
  });

  test('is one word under one key, at either place', async () => {
    const call = await newUnknown(ledger);
    const { interrupt_id: id } = await waitOf(call);
    const key = randomUUID();
    expect((await settleAtDesk(call, COMMITTED, { key })).status).toBe(200);
    const again = await answer(id, COMMITTED, { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(InterruptView.parse(await again.json())).toMatchObject({ state: 'answered' });
    expect(await problemOf(await answer(id, NOT_COMMITTED, { key }))).toStrictEqual([
      ...[422, 'idempotency_key_reused'],
    ]);
  });

  test('takes the same word of two people where the contract says so', async () => {
    const call = await newUnknown(ledger, 'opaque', TWO);
    const { interrupt_id: id, quorum } = await waitOf(call);
    expect(quorum).toBe(2);
    const first = await answer(id, COMMITTED);
    expect(first.status).toBe(202);
    expect(InterruptView.parse(await first.json())).toMatchObject({
      ...{ state: 'open', approvals: 1, decisions: [{ actor_id: 'olga', answer: COMMITTED }] },
    });
    expect(await problemOf(await answer(id, COMMITTED))).toStrictEqual([409, 'second_person_needed']);
    expect(await problemOf(await answer(id, NOT_COMMITTED, { actor: 'pia' }))).toStrictEqual([
      ...[409, 'words_differ'],
    ]);
    expect((await answer(id, COMMITTED, { actor: 'pia' })).status).toBe(200);
    expect(await wait(id)).toMatchObject({ state: 'answered', approvals: 2 });
    expect(await call.state()).toBe('committed');
  });

  // prettier-ignore
  test.each<readonly [status: number, code: string, words: unknown, say: Said]>([
    [422, 'answer_invalid',      LEFT,                                            {}],
    [422, 'answer_invalid',      { decided: 'committed', note: 'No reference.' }, {}],
    [422, 'answer_invalid',      { ...NOT_COMMITTED, note: ' ' },                 {}],
    [422, 'answer_invalid',      COMMITTED,                                       { more: { note: 'Elsewhere.' } }],
    [422, 'decision_mismatch',   undefined,                                       { more: { decision: 'approve', scope_sha256: 'f'.repeat(64) } }],
    [403, 'role_required',       COMMITTED,                                       { roles: 'approver,requester' }],
    [404, 'interrupt_not_found', COMMITTED,                                       { tenant: 'other' }],
  ])('refuses with %i %s and waits still', async (status, code, words, say) => {
    const call = await newUnknown(ledger);
    const { interrupt_id: id } = await waitOf(call);
    expect(await problemOf(await answer(id, words, say))).toStrictEqual([status, code]);
    expect(await waitOf(call)).toMatchObject({ state: 'open', decisions: [] });
    expect(await call.state()).toBe('unknown');
  });

  test.each<readonly [string, (call: LedgerCall) => Promise<unknown>]>([
    ['an answer that came late', (call) => call.beginQuery()],
    ['the target', (call) => call.query('found')],
  ])('is waited for no more once %s has settled it', async (by, settled) => {
    const query = { settlingSeconds: 0, equalAnswers: 1 };
    const call = await ledger.newCall('queryable', { policy: { query } });
    const claim = await call.lose();
    await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    const { interrupt_id: id } = await waitOf(call);
    if (by !== 'the target') await call.settle(claim, 'succeeded');
    await settled(call);
    expect(await call.state()).toBe('committed');
    expect(await wait(id)).toMatchObject({ state: 'withdrawn', decisions: [] });
    expect(await problemOf(await answer(id, COMMITTED))).toStrictEqual([409, 'already_settled']);
    expect((await toldOf(call)).at(-1)).toBe('interrupt.withdrawn withdrawn');
  });

  test('is asked about anew when its run had gone on and comes to rest again', async () => {
    const run = await ledger.newStep([callOf('opaque'), callOf('keyed')]);
    const [opaque, keyed] = [run.call(0), run.call(1)];
    await opaque.attempt('unknown');
    await keyed.attempt('unknown');
    await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    const [one, other] = await waitsOf(opaque, 'kind=reconciliation');
    expect((await answer(one!.interrupt_id, COMMITTED)).status).toBe(200);
    await run.commit(
      { kind: 'move', to: 'reconciling', reason: 'person_settled' },
      { kind: 'move', to: 'running', reason: 'settled_committed' },
    );
    // The run sends it again under its key: nobody has to know.
    expect(await wait(other!.interrupt_id)).toMatchObject({ state: 'withdrawn', effect_state: 'unknown' });
    expect(await problemOf(await answer(other!.interrupt_id, COMMITTED))).toStrictEqual([
      ...[409, 'interrupt_withdrawn'],
    ]);
    await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    const again = await waitOf(keyed);
    expect(again.interrupt_id).not.toBe(other!.interrupt_id);
    expect(await problemOf(await answer(other!.interrupt_id, COMMITTED))).toStrictEqual([
      ...[409, 'interrupt_withdrawn'],
    ]);
    expect((await answer(again.interrupt_id, COMMITTED)).status).toBe(200);
  });

  test('that is lost while its run rests over another is waited for from then on', async () => {
    const run = await ledger.newStep([callOf('opaque'), callOf('opaque')]);
    await run.call(0).attempt('unknown');
    await run.call(1).claimed();
    await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    expect(await waitsOf(run.call(0), 'kind=reconciliation')).toHaveLength(1);
    await run.call(1).examine();
    expect(await waitsOf(run.call(0), 'kind=reconciliation')).toHaveLength(2);
  });
});

describe('an effect that no tool undoes', () => {
  test('is a wait in the one list, whose answer says whether it is undone', async () => {
    const call = await newUndo(ledger);
    const it = await waitOf(call);
    expect(it).toMatchObject({ asks: 'undo', scope: { why: 'no_compensation' }, effect_state: 'succeeded' });
    expect(await problemOf(await answer(it.interrupt_id, COMMITTED))).toStrictEqual([422, 'answer_invalid']);
    expect((await answer(it.interrupt_id, LEFT)).status).toBe(200);
    expect(await wait(it.interrupt_id)).toMatchObject({ state: 'answered', decisions: [{ answer: LEFT }] });
    expect(await waitsOf(call, 'kind=reconciliation')).toStrictEqual([]);
  });
});

describe('a wait that is over', () => {
  type Case = readonly [
    kind: string,
    state: string,
    over: () => Promise<readonly [LedgerRun, () => Promise<unknown>]>,
  ];
  const gateThat = async (becomes: (gate: Gate) => Promise<unknown>) => {
    const gate = await newGate(ledger);
    await becomes(gate);
    return [gate.run, () => gate.call.claim()] as const;
  };
  const waiting = (run: LedgerRun) =>
    run.commit({ kind: 'move', to: 'waiting_for_input', reason: 'budget_needed' });
  const goesOn = (run: LedgerRun) => run.commit({ kind: 'move', to: 'running', reason: 'input_received' });
  // prettier-ignore
  test.each<Case>([
    ['approval', 'approved', () => gateThat((gate) => decide(gate))],
    ['approval', 'denied',   () => gateThat((gate) => decide(gate, { decision: 'deny' }))],
    ['approval', 'expired',  () => gateThat((gate) => expire(gate))],
    ['input',    'answered', async () => {
      const input = await newWait(ledger);
      await answerInput(input);
      return [input.run, () => ask(input.run)] as const;
    }],
    ['reconciliation', 'answered', async () => {
      const call = await newUnknown(ledger);
      await settle(call);
      return [call.run, () => call.run.commit({ kind: 'move', to: 'reconciling', reason: 'person_settled' })] as const;
    }],
    ['budget',   'answered', async () => {
      const run = await ledger.newStep([callOf('opaque')], { limits: { tool_calls_max: 1 }, budget: { on_reached: 'pause_and_ask' } });
      await run.call(0).attempt('succeeded');
      await run.plan([callOf('opaque')]);
      await run.call(0).claim();
      await waiting(run);
      await answerBudget(run, { action: 'raise', limit: 5 });
      return [run, () => goesOn(run)] as const;
    }],
  ])('over %s and %s is no longer waited for, and being taken up until the run has', async (kind, state, over) => {
    const [run, takesUp] = await over();
    expect(await controlOf(run)).toMatchObject({ interrupts: [], taking_up: [{ kind, state }] });
    await takesUp();
    expect(await controlOf(run)).toMatchObject({ interrupts: [], taking_up: [] });
  });
});

test('waits for the same act are one group only where the same is asked of them', async () => {
  const planned = { ...callOf('opaque', { approval: 'required' }), arguments: '{"amount":5}' };
  const run = await ledger.newStep([planned, planned]);
  await decide(await openGate(run.call(0)));
  await run.call(0).attempt('unknown');
  await openGate(run.call(1));
  await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
  const groups = [];
  for (let cursor: string | null = ''; cursor !== null;) {
    const query = `group_by=scope&limit=1&run_id=${run.runId}${cursor === '' ? '' : `&cursor=${cursor}`}`;
    const page = InterruptGroupListView.parse(await (await api.request(`/v1/interrupts?${query}`)).json());
    groups.push(...page.groups);
    cursor = page.next_cursor;
  }
  expect(groups.map(({ kind, asks, count }) => [kind, asks, count])).toStrictEqual([
    ['approval', null, 1],
    ['reconciliation', 'outcome', 1],
  ]);
  expect(groups[0]?.arguments_sha256).toBe(groups[1]?.arguments_sha256);
});
