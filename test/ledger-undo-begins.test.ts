import { beforeAll, describe, expect, test } from 'vitest';
import { RUN_STATES, type RunState } from '../shared/domain/run-machine.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { closeOrphan, sweepCandidates } from '../shared/ledger/sweep.js';
import { commandsOf, fates, newUndo, settle, submit } from './support/desk.js';
import { bringRunTo, callOf, type LedgerRun } from './support/ledger-run.js';
import { intend, intended, next, UNDO, UNDOABLE } from './support/ledger-undo.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: a run undoes what it did exactly when a cancel or its contract says so, also when nobody drives it any more.
// Method: cancels, failures and the loss of the workflow meet runs with effects that stand, in every order.

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

  test('and a compensation in doubt waits for its settlement first', async () => {
    const undo = await intended(await ledger.newCall('opaque', { policy: UNDOABLE }));
    await undo.claimed();
    expect(await close(undo.run)).toBe('needs_reconciliation');
    expect(await ledger.rows('select 1 from holdfast.undos where run_id = $1', undo.run.runId)).toStrictEqual(
      [],
    );
    await settle(undo, { decided: 'not_committed', reference: null });
    expect(await close(undo.run)).toBe('needs_reconciliation');
    const call = undo.run.call(0);
    expect(await settle(call, { decided: 'compensated' })).toMatchObject({ kind: 'settled' });
    expect(await close(undo.run)).toBe('compensated');
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

describe('a cancel with compensate, twice, of a run that is', () => {
  const twice = { payload: { compensate: true } };

  // prettier-ignore
  const FATES: Readonly<Record<RunState, readonly string[]>> = {
    admitted:             ['applied', 'rejected run_ended'],
    running:              ['accepted', 'applied'],
    waiting_for_input:    ['accepted', 'applied'],
    awaiting_approval:    ['accepted', 'applied'],
    retry_wait:           ['accepted', 'applied'],
    compensating:         ['applied', 'applied'],
    cancelling:           ['rejected cancel_in_force', 'rejected cancel_in_force'],
    needs_reconciliation: ['accepted', 'applied'],
    reconciling:          ['accepted', 'applied'],
    completed:            ['rejected run_ended', 'rejected run_ended'],
    compensated:          ['applied', 'applied'],
    failed:               ['rejected run_ended', 'rejected run_ended'],
    cancelled:            ['rejected run_ended', 'rejected run_ended'],
  };

  test.each(RUN_STATES)('%s has one lawful fate, and the same after it (E11)', async (state) => {
    const run = await ledger.newRun();
    await bringRunTo(run, state);
    await submit(run, 'cancel', twice);
    await submit(run, 'cancel', twice);
    expect(await fates(run)).toStrictEqual(FATES[state].map((fate) => `cancel ${fate}`));
  });
});
