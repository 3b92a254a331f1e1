import { beforeAll, describe, expect, test } from 'vitest';
import { refusalOf } from '../shared/ledger/refusals.js';
import { closeOrphan, escalateOverdue, sweepCandidates } from '../shared/ledger/sweep.js';
import { commandsOf, makeOverdue, newUndo, newUnknown, settle, submit } from './support/desk.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { intend, intended, next, UNDO, UNDOABLE } from './support/ledger-undo.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: the ledger alone says what is undone next, and lets nothing be undone twice, out of turn or unseen (SPEC 3.7).
// Method: every question and answer of the undoing run is put to the ledger again, at the wrong time and by the wrong one.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

/** A run with three calls that happened, two of which a tool undoes. */
async function newDone(contract = {}): Promise<LedgerRun> {
  const run = await ledger.newStep(
    [callOf('opaque', UNDOABLE), callOf('opaque'), callOf('keyed', UNDOABLE)],
    contract,
  );
  for (const slot of [0, 1, 2]) await run.call(slot).attempt('succeeded');
  return run;
}

async function refused(work: Promise<unknown>): Promise<string> {
  try {
    return JSON.stringify(await work);
  } catch (error) {
    return refusalOf(error) ?? String(error);
  }
}

const leftOf = (call: { effect(): Promise<{ effect_id: string }> }) =>
  call.effect().then(({ effect_id }) => ({ effectId: effect_id, decided: 'left' as const, reference: null }));

describe('what is undone next', () => {
  test('is the newest that happened, with all that its arguments are made of', async () => {
    const run = await newDone();
    expect(await next(run, UNDO)).toStrictEqual({
      ...{ kind: 'plan', effectId: (await run.call(2).effect()).effect_id, arguments: '{"slot":2}' },
      ...{ reference: 'ref-1', idempotencyKey: `${run.runId}:t1:s1:c2`, rule: null },
    });
  });

  test('is the same however often it is asked, and its intent is written once', async () => {
    const run = await newDone();
    await next(run, UNDO);
    const { effect_id } = await run.call(2).effect();
    await Promise.all([
      intend(run, effect_id),
      intend(run, effect_id),
      intend(run, effect_id, '{"other":1}'),
    ]);
    for (let round = 0; round < 3; round += 1) {
      expect(await next(run)).toStrictEqual({ kind: 'call', turn: 1, step: 1, slot: 1_002 });
    }
    const undos = (await ledger.effects(run.runId)).filter(({ slot }) => slot >= 1_000);
    expect(undos).toMatchObject([{ idempotency_key: `${run.runId}:t1:s1:c2:undo`, compensates: effect_id }]);
  });

  test('comes only when what came after it is undone or left', async () => {
    const run = await newDone();
    await next(run, UNDO);
    await intend(run, (await run.call(2).effect()).effect_id);
    await run.call(1_002).attempt('succeeded');
    expect(await next(run)).toStrictEqual({ kind: 'person' });
    expect(await next(run)).toStrictEqual({ kind: 'person' });
    await run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'undo_needs_person' });
    expect(await settle(run.call(1), await leftOf(run.call(1)))).toMatchObject({ kind: 'settled' });
    expect(await next(run)).toMatchObject({ kind: 'plan', arguments: '{"slot":0}' });
    await run.commit(
      { kind: 'move', to: 'reconciling', reason: 'person_settled' },
      { kind: 'move', to: 'compensating', reason: 'person_settled' },
    );
    await intend(run, (await run.call(0).effect()).effect_id);
    await run.call(1_000).attempt('succeeded');
    expect(await next(run)).toStrictEqual({ kind: 'done', left: 1 });
  });

  test('waits for what is in doubt, also for a dispatch that nobody reports on', async () => {
    const run = await ledger.newStep([callOf('opaque', UNDOABLE), callOf('opaque')]);
    await run.call(0).attempt('succeeded');
    const claim = await run.call(1).claimed();
    expect(await next(run, UNDO)).toStrictEqual({ kind: 'doubt' });
    await run.call(1).settle(claim, 'unknown');
    expect(await next(run)).toStrictEqual({ kind: 'doubt' });
  });

  test('leaves out what never happened, and reads', async () => {
    const run = await ledger.newStep([
      ...[callOf('opaque', UNDOABLE), callOf('opaque', UNDOABLE), callOf('read')],
      ...[callOf('opaque', UNDOABLE), callOf('opaque', UNDOABLE)],
    ]);
    await run.call(0).attempt('rejected');
    await run.call(1).attempt('not_sent');
    await run.call(2).attempt('succeeded');
    await run.call(3).bringTo('not_committed');
    expect(await next(run, UNDO)).toStrictEqual({ kind: 'done', left: 0 });
    expect((await ledger.effects(run.runId)).map(({ state }) => state)).toStrictEqual([
      ...['rejected', 'withdrawn', 'succeeded', 'not_committed'],
    ]);
  });

  test.each([
    [
      'refused',
      'rejected',
      async (undo: Awaited<ReturnType<typeof intended>>) => void (await undo.attempt('rejected')),
    ],
    [
      'given up',
      'given_up',
      async (undo: Awaited<ReturnType<typeof intended>>) =>
        void (await undo.close('withdrawn', 'retries_exhausted')),
    ],
  ])('is a person’s when its compensation was %s', async (_, why, end) => {
    const undo = await intended(await ledger.newCall('opaque', { policy: UNDOABLE }));
    await end(undo);
    expect(await next(undo.run)).toStrictEqual({ kind: 'person' });
    const waiting = await ledger.rows(
      'select why, owner, state from holdfast.undos where run_id = $1',
      undo.run.runId,
    );
    expect(waiting).toStrictEqual([{ why, owner: 'desk', state: 'waiting' }]);
  });

  test('is a new compensation when the last was found not to have happened, so often and no more', async () => {
    const call = await ledger.newCall('opaque', {
      policy: UNDOABLE,
      contract: { reconciliation: { redos_max: 1, after_not_committed: 'fail' } },
    });
    const undo = await intended(call);
    for (const redo of [0, 1]) {
      expect(await next(call.run)).toMatchObject({ kind: 'call', slot: 1_000 });
      expect(await undo.effect()).toMatchObject({ redo, state: 'intended' });
      await undo.attempt('unknown');
      await undo.query('absent');
    }
    expect(await next(call.run)).toStrictEqual({ kind: 'person' });
  });

  test('is a person’s when something else stands under the key of its compensation', async () => {
    const call = await ledger.newCall('opaque', { policy: UNDOABLE });
    await call.attempt('succeeded');
    await next(call.run, UNDO);
    const taken = await ledger.newCall('opaque', { policy: UNDOABLE });
    const other = await intended(taken);
    await ledger.tamper(async (change) => {
      await change(
        `update holdfast.effects set idempotency_key = $2 where effect_id = $1`,
        (await other.effect()).effect_id,
        `${call.run.runId}:t1:s1:c0:undo`,
      );
    });
    await intend(call.run, (await call.effect()).effect_id);
    expect(await next(call.run)).toStrictEqual({ kind: 'person' });
  });
});

describe('a compensation', () => {
  test('is claimed in `compensating` alone, whatever the deadline of the run says', async () => {
    const undo = await intended(await ledger.newCall('opaque', { policy: UNDOABLE }));
    await ledger.rows(`update holdfast.runs set deadline_at = now() where run_id = $1`, undo.run.runId);
    await undo.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    expect(await undo.ask()).toBe('out_of_step');
    await undo.run.commit(
      { kind: 'move', to: 'reconciling', reason: 'taken_over' },
      { kind: 'move', to: 'compensating', reason: 'taken_over' },
    );
    expect(await undo.ask()).toBe('claimed');
  });

  test('tells the model nothing, and leaves what it undoes as it happened', async () => {
    const call = await ledger.newCall('opaque', { policy: UNDOABLE });
    const undo = await intended(call);
    const before = { messages: await ledger.messages(call.run.runId), effect: await call.effect() };
    await undo.attempt('succeeded');
    expect({ messages: await ledger.messages(call.run.runId), effect: await call.effect() }).toStrictEqual(
      before,
    );
  });

  test('is no other run’s or execution’s to write', async () => {
    const run = await newDone();
    const { effect_id } = await run.call(2).effect();
    expect(await refused(intend(run, effect_id))).toBe('out_of_step');
    expect(await refused(next(run))).toBe('out_of_step');
    await next(run, UNDO);
    const other = await newDone();
    await next(other, UNDO);
    expect(await refused(intend(other, effect_id))).toBe('effect_not_found');
    const taken = await run.takenOver();
    expect(await refused(intend(run, effect_id))).toBe('lost_ownership');
    expect(await refused(intend(taken, (await run.call(1).effect()).effect_id))).toBe('out_of_step');
    expect((await ledger.effects(run.runId)).filter(({ slot }) => slot >= 1_000)).toStrictEqual([]);
  });

  test('that is unclear is settled as done or not done, never as undone again', async () => {
    const undo = await intended(await ledger.newCall('opaque', { policy: UNDOABLE }));
    await undo.attempt('unknown');
    await undo.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
    expect(await settle(undo, { decided: 'compensated' })).toMatchObject({ kind: 'word_not_asked' });
    expect(await settle(undo)).toMatchObject({ kind: 'settled', state: 'committed' });
    expect(await next(undo.run)).toStrictEqual({ kind: 'done', left: 0 });
  });

  test('that is not over keeps its run from ending, and so does a person who is waited for', async () => {
    const undo = await intended(await ledger.newCall('opaque', { policy: UNDOABLE }));
    await undo.claimed();
    const end = { kind: 'move', to: 'compensated', reason: 'compensation_done' } as const;
    await expect(undo.run.commit(end)).rejects.toThrow(/^unresolved_effects/);
    const call = await newUndo(ledger);
    await expect(
      call.run.commit({ kind: 'move', to: 'reconciling', reason: 'person_settled' }, end),
    ).rejects.toThrow(/^unresolved_effects/);
  });
});

describe('a contract that has a failing run compensate', () => {
  const contract = { on_failure: 'compensate' };
  const fails = { kind: 'move', to: 'failed', reason: 'model_failed' } as const;

  test('lets it fail only when nothing that happened stands', async () => {
    const done = await newDone(contract);
    expect(await refused(done.commit(fails))).toBe('must_compensate');
    expect(await ledger.runRow(done.runId)).toMatchObject({ state: 'running' });
    const none = await ledger.newStep([callOf('read'), callOf('opaque')], contract);
    await none.call(0).attempt('succeeded');
    await none.call(1).attempt('rejected');
    await none.commit(fails);
    expect(await ledger.runRow(none.runId)).toMatchObject({ state: 'failed' });
  });

  test('is no reason to undo once a cancel is in force that leaves what happened', async () => {
    const run = await newDone(contract);
    await submit(run, 'cancel');
    await run.commit(fails);
    expect(await ledger.runRow(run.runId)).toMatchObject({ state: 'failed' });
    const orphan = await newDone(contract);
    await submit(orphan, 'cancel');
    expect(await closeOrphan(ledger.db, orphan.runId, 1, 'workflow_terminated')).toBe('failed');
  });

  test('takes a cancel along that came while the run was on its way to undo', async () => {
    const run = await newDone(contract);
    await submit(run, 'cancel');
    await next(run, { kind: 'move', to: 'compensating', reason: 'model_failed' });
    expect(await ledger.runRow(run.runId)).toMatchObject({ state: 'compensating', control: 'active' });
    expect(await commandsOf(run)).toMatchObject([{ fate: 'applied' }]);
    await intend(run, (await run.call(2).effect()).effect_id);
    expect(await run.call(1_002).ask()).toBe('claimed');
  });

  test('lets it fail once it compensates', async () => {
    const call = await newUndo(ledger, 'opaque', { contract });
    await settle(call, await leftOf(call));
    await call.run.commit({ kind: 'move', to: 'reconciling', reason: 'person_settled' }, fails);
    expect(await ledger.runRow(call.run.runId)).toMatchObject({ state: 'failed' });
  });
});

describe('a run that compensates and whose workflow is gone', () => {
  const close = async (run: LedgerRun): Promise<string | undefined> =>
    await closeOrphan(ledger.db, run.runId, (await ledger.runRow(run.runId)).epoch, 'workflow_terminated');

  test.each([
    [
      'a cancel asked for it',
      {},
      async (run: LedgerRun) => void (await submit(run, 'cancel', { payload: { compensate: true } })),
    ],
    ['its contract does', { on_failure: 'compensate' }, async () => undefined],
    ['it was at it', {}, async (run: LedgerRun) => void (await next(run, UNDO))],
  ])('hands all that stands to people, since %s', async (_, contract, begin) => {
    const run = await newDone(contract);
    await begin(run);
    expect(await close(run)).toBe('needs_reconciliation');
    const waiting = await ledger.rows<{ why: string }>(
      'select why from holdfast.undos where run_id = $1',
      run.runId,
    );
    expect(waiting).toStrictEqual(Array(3).fill({ why: 'workflow_gone' }));
    expect((await sweepCandidates(ledger.db, 1_000, 0)).map(({ runId }) => runId)).not.toContain(run.runId);
    for (const slot of [0, 1])
      await settle(run.call(slot), {
        ...(await leftOf(run.call(slot))),
        decided: 'compensated',
        reference: `by hand ${slot}`,
      });
    await settle(run.call(2), await leftOf(run.call(2)));
    expect((await sweepCandidates(ledger.db, 1_000, 0)).map(({ runId }) => runId)).toContain(run.runId);
    expect(await close(run)).toBe('failed');
  });

  test('ends compensated when people undid all that no tool had', async () => {
    const call = await ledger.newCall('opaque', { policy: UNDOABLE });
    const undo = await intended(call);
    await undo.attempt('succeeded');
    expect(await close(call.run)).toBe('compensated');
  });
});

describe('a cancel', () => {
  test('that asks to compensate is no change of one that does not, nor the other way round', async () => {
    const run = await newDone();
    await submit(run, 'cancel');
    await submit(run, 'cancel', { payload: { compensate: true } });
    const other = await newDone();
    await submit(other, 'cancel', { payload: { compensate: true } });
    await submit(other, 'cancel', { payload: { compensate: true } });
    await submit(other, 'cancel');
    expect((await commandsOf(run)).map(({ fate, code }) => [fate, code])).toStrictEqual([
      ['accepted', null],
      ['rejected', 'cancel_in_force'],
    ]);
    expect((await commandsOf(other)).map(({ fate }) => fate)).toStrictEqual([
      'accepted',
      'applied',
      'applied',
    ]);
  });

  test('of a run that rests on a person while it compensates is no news', async () => {
    const call = await newUndo(ledger);
    await submit(call.run, 'cancel');
    expect(await ledger.runRow(call.run.runId)).toMatchObject({ control: 'active' });
    expect(await commandsOf(call.run)).toMatchObject([{ fate: 'applied' }]);
  });
});

describe('an overdue item', () => {
  const told = async (call: { run: LedgerRun }) =>
    (await ledger.events(call.run.runId)).filter(({ type }) => type === 'reconciliation.overdue');
  const tellAll = async (): Promise<void> => {
    while ((await escalateOverdue(ledger.db)) !== undefined);
  };

  test.each([
    ['outcome', () => newUnknown(ledger)],
    ['undo', () => newUndo(ledger)],
  ] as const)('is told of once for each deadline, and settled by nobody (%s)', async (about, item) => {
    const call = await item();
    await tellAll();
    expect(await told(call)).toStrictEqual([]);
    await makeOverdue(call);
    await Promise.all([tellAll(), tellAll(), tellAll()]);
    expect(await told(call)).toMatchObject([{ data: { about, owner: 'desk' } }]);
    const state = await call.state();
    await makeOverdue(call, 500);
    await tellAll();
    expect(await told(call)).toHaveLength(2);
    expect(await call.state()).toBe(state);
  });

  test('that somebody settled is told of no more', async () => {
    const call = await newUnknown(ledger);
    await makeOverdue(call);
    await settle(call);
    await tellAll();
    expect(await told(call)).toStrictEqual([]);
  });

  test('that a run still finds out by itself is none', async () => {
    const call = await ledger.newCall('opaque');
    await call.attempt('unknown');
    await makeOverdue(call);
    await tellAll();
    expect(await told(call)).toStrictEqual([]);
  });
});
