import { beforeAll, describe, expect, test } from 'vitest';
import { refusalOf } from '../shared/ledger/refusals.js';
import { newUndo, settle } from './support/desk.js';
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
