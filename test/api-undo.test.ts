import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { CommandView, ReconciliationItemView, ReconciliationListView } from '../api/views/desk-views.js';
import { RunView } from '../api/views/run-views.js';
import { EffectListView } from '../api/views/trail-views.js';
import { escalateOverdue } from '../shared/ledger/sweep.js';
import { makeOverdue, newUndo, newUnknown } from './support/desk.js';
import type { LedgerCall } from './support/ledger-call.js';
import { callOf } from './support/ledger-run.js';
import { intend, next, UNDO, UNDOABLE } from './support/ledger-undo.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: an operator asks for an undo, sees what is undone and what is left, and says what no tool undid, all through
// the API. Method: runs that the ledger brought there; every answer is read by its published schema.

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

async function post(
  path: string,
  body: unknown,
  actor = 'olga',
  key: string = randomUUID(),
): Promise<Response> {
  return await api.request(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key, 'x-actor': actor },
    body: JSON.stringify(body),
  });
}
const idOf = async (call: LedgerCall): Promise<string> => (await call.effect()).effect_id;
const settle = async (call: LedgerCall, body: unknown, actor?: string, key?: string) =>
  await post(`/v1/reconciliations/${await idOf(call)}/settle`, body, actor, key);
const get = async (path: string): Promise<unknown> => await (await api.request(path)).json();
const itemOf = async (call: LedgerCall) =>
  ReconciliationItemView.parse(await get(`/v1/reconciliations/${await idOf(call)}`));
const problemOf = async (response: Response) => {
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return problem;
};
const LEFT = { decided: 'left', note: 'The customer keeps it.' };
const UNDONE = { decided: 'compensated', reference: 'letter 7', note: 'Called them back.' };

describe('a cancel with compensate', () => {
  const command = async (runId: string, body: unknown) => await post(`/v1/runs/${runId}/commands`, body);

  test('is stored as what it is, and in force at once', async () => {
    const call = await ledger.newCall('opaque');
    const response = await command(call.run.runId, { kind: 'cancel', compensate: true });
    expect(response.status).toBe(202);
    expect(CommandView.parse(await response.json())).toMatchObject({ fate: 'accepted', compensate: true });
    expect(await call.ask()).toBe('cancel_requested');
  });

  test('is refused while a cancel without it is carried out, and by a run that ended', async () => {
    const { run } = await ledger.newCall('opaque');
    expect((await command(run.runId, { kind: 'cancel' })).status).toBe(202);
    const refused = await command(run.runId, { kind: 'cancel', compensate: true });
    expect(await problemOf(refused)).toMatchObject({ status: 409, code: 'cancel_in_force' });
    expect((await command(run.runId, { kind: 'cancel' })).status).toBe(200);
  });

  test.each([
    { kind: 'pause', compensate: true },
    { kind: 'resume', compensate: false },
    { kind: 'cancel', compensate: 'yes' },
  ])('is a cancel’s alone, and yes or no: %j', async (body) => {
    const { run } = await ledger.newCall('opaque');
    expect(await problemOf(await command(run.runId, body))).toMatchObject({ code: 'invalid_request' });
  });
});

describe('a run that undoes what it did', () => {
  test('says what is undone, by whom, what is left and what is still open', async () => {
    const run = await ledger.newStep([
      ...[callOf('opaque', UNDOABLE), callOf('opaque'), callOf('opaque'), callOf('opaque', UNDOABLE)],
    ]);
    for (const slot of [0, 1, 2, 3]) await run.call(slot).attempt('succeeded');
    const read = async () => RunView.parse(await get(`/v1/runs/${run.runId}`));
    expect((await read()).compensation).toBeNull();
    await next(run, UNDO);
    await intend(run, await idOf(run.call(3)));
    await run.call(1_003).attempt('succeeded', { reference: 'undo-3' });
    await next(run);
    await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'undo_needs_person' });
    expect((await settle(run.call(2), UNDONE)).status).toBe(200);
    await next(run);
    expect((await settle(run.call(1), LEFT)).status).toBe(200);
    const { compensation } = await read();
    expect(compensation).toMatchObject({
      cause: 'cancel_requested',
      undone: {
        count: 2,
        effects: [
          {
            effect_id: await idOf(run.call(3)),
            by: 'tool',
            undo_reference: 'undo-3',
            reference: 'ref-1',
            why: null,
          },
          {
            effect_id: await idOf(run.call(2)),
            by: 'person',
            undo_reference: 'letter 7',
            actor_id: 'olga',
          },
        ],
      },
      left: {
        count: 1,
        effects: [{ by: 'person', why: 'no_compensation', note: LEFT.note, undo_reference: null }],
      },
      open: { count: 1, effects: [{ effect_id: await idOf(run.call(0)), by: null }] },
    });
    const { effects } = EffectListView.parse(await get(`/v1/runs/${run.runId}/effects`));
    expect(effects.map(({ slot, compensates }) => [slot, compensates])).toStrictEqual([
      ...[0, 1, 2, 3].map((slot) => [slot, null]),
      [1_003, await idOf(run.call(3))],
    ]);
  });
});

describe('the desk', () => {
  test('shows what no tool undid with intent, evidence, owner and deadline, and takes one word', async () => {
    const call = await newUndo(ledger);
    const item = await itemOf(call);
    expect(item).toMatchObject({
      ...{ effect_state: 'succeeded', run_state: 'needs_reconciliation', settlement: null },
      intent: { tool: 'tool_opaque', arguments: { slot: 0 } },
      attempts: [{ attempt: 1, outcome: 'succeeded' }],
      waiting: { about: 'undo', owner: 'desk', overdue: false, overdue_since: null, two_people: false },
      undo: { state: 'waiting', why: 'no_compensation', compensation_effect_id: null },
    });
    const listed = async (query: string) =>
      ReconciliationListView.parse(
        await get(`/v1/reconciliations?run_id=${call.run.runId}&${query}`),
      ).reconciliations.map(({ effect_id }) => effect_id);
    expect(await listed('owner=desk&overdue=false')).toStrictEqual([await idOf(call)]);
    expect(await listed('state=settled')).toStrictEqual([]);
    const key = randomUUID();
    const settled = await settle(call, LEFT, 'olga', key);
    expect(settled.status).toBe(200);
    expect(ReconciliationItemView.parse(await settled.json())).toMatchObject({
      waiting: null,
      undo: { state: 'left', actor_id: 'olga', note: LEFT.note, reference: null },
    });
    expect(await listed('state=open')).toStrictEqual([]);
    expect(await listed('state=settled')).toStrictEqual([await idOf(call)]);
    const again = await settle(call, LEFT, 'olga', key);
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(await problemOf(await settle(call, UNDONE))).toMatchObject({
      ...{ code: 'already_settled', detail: expect.stringContaining('left') },
    });
  });

  test('says since when an item is overdue, and when that was told', async () => {
    for (const call of [await newUndo(ledger), await newUnknown(ledger)]) {
      await makeOverdue(call);
      const before = (await itemOf(call)).waiting;
      expect(before).toMatchObject({ overdue: true, overdue_since: before?.deadline_at, escalated_at: null });
      while ((await escalateOverdue(ledger.db)) !== undefined);
      expect((await itemOf(call)).waiting?.escalated_at).toMatch(/^\d{4}-/);
      const overdue = ReconciliationListView.parse(
        await get(`/v1/reconciliations?run_id=${call.run.runId}&overdue=true`),
      );
      expect(overdue.reconciliations).toHaveLength(1);
    }
  });

  test('takes `compensated` with its reference for an unknown outcome, and no word that is not asked', async () => {
    const call = await newUnknown(ledger);
    expect(await problemOf(await settle(call, LEFT))).toMatchObject({ status: 409, code: 'word_not_asked' });
    const item = await settle(call, UNDONE);
    expect(item.status).toBe(200);
    expect(ReconciliationItemView.parse(await item.json())).toMatchObject({
      effect_state: 'committed',
      settlement: { decided: 'compensated', note: UNDONE.note },
      undo: { state: 'compensated', why: 'by_hand', reference: 'letter 7' },
    });
  });

  test.each([
    { decided: 'compensated', note: 'No reference.' },
    { decided: 'compensated', reference: ' ', note: 'A blank one.' },
    { decided: 'compensated', reference: 'r' },
    { decided: 'left' },
    { decided: 'left', note: ' ' },
    { decided: 'left', reference: 'r', note: 'With one.' },
  ])('wants a note, and a reference of what undid it: %j', async (body) => {
    expect(await problemOf(await settle(await newUndo(ledger), body))).toMatchObject({
      code: 'invalid_request',
    });
  });

  test('with two people shows the first word, and refuses an unequal one with both', async () => {
    const contract = { reconciliation: { two_people: ['opaque'] } };
    const call = await newUnknown(ledger, 'opaque', { contract });
    const said = { decided: 'committed', reference: 'pay_77', note: 'In the statement.' };
    const first = await settle(call, said);
    expect(first.status).toBe(202);
    expect(ReconciliationItemView.parse(await first.json())).toMatchObject({
      ...{ effect_state: 'unknown', settlement: null },
      waiting: { two_people: true, first_word: { ...said, actor_id: 'olga' } },
    });
    expect(await problemOf(await settle(call, said))).toMatchObject({ code: 'second_person_needed' });
    const other = { decided: 'not_committed', note: 'They have no such payment.' };
    expect(await problemOf(await settle(call, other, 'ben'))).toMatchObject({
      ...{ status: 409, code: 'words_differ', first_word: { ...said, actor_id: 'olga' } },
      your_word: other,
    });
    const second = await settle(call, { ...said, note: 'I see it too.' }, 'ben');
    expect(second.status).toBe(200);
    expect(ReconciliationItemView.parse(await second.json())).toMatchObject({
      settlement: {
        ...{ actor_id: 'ben', note: 'I see it too.' },
        evidence: { first_word: { actor_id: 'olga', note: said.note } },
      },
    });
  });

  test('decides nothing by GET or HEAD, with or without a body of a decision (case 29)', async () => {
    const call = await newUndo(ledger);
    const before = await ledger.footprint(call.run.runId);
    const path = `/v1/reconciliations/${await idOf(call)}`;
    for (const method of ['GET', 'HEAD']) {
      expect((await api.request(path, { method })).status).toBe(200);
      expect((await api.request(`${path}/settle?decided=left&note=Yes`, { method })).status).toBe(405);
      expect((await api.request(`/v1/runs/${call.run.runId}/commands?kind=cancel`, { method })).status).toBe(
        400,
      );
    }
    expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
    expect(await itemOf(call)).toMatchObject({ undo: { state: 'waiting' } });
  });

  test('of another tenant is not there', async () => {
    const call = await newUndo(ledger);
    const path = `/v1/reconciliations/${await idOf(call)}`;
    expect((await api.request(path, { tenant: 'other' })).status).toBe(404);
  });
});
