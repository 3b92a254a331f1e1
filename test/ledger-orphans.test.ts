import { beforeAll, describe, expect, test } from 'vitest';
import { isTerminal, RUN_STATES, type RunState } from '../shared/domain/run-machine.js';
import { confirmStarts, unstartedRuns } from '../shared/ledger/admission.js';
import { closeOrphan, markSwept, runsWithLateEvidence, sweepCandidates } from '../shared/ledger/sweep.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { bringRunTo, callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: a run that Temporal lost is brought to rest by lawful moves, and nothing that may have happened outside is
// forgotten on the way (SPEC 3.8).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

async function close(run: LedgerRun): Promise<RunState | undefined> {
  const { epoch } = await ledger.runRow(run.runId);
  return await closeOrphan(ledger.db, run.runId, epoch, 'workflow_terminated');
}

describe('an orphan with nothing in doubt', () => {
  // prettier-ignore
  const PATHS: Record<RunState, readonly RunState[]> = {
    admitted:             ['failed'],
    running:              ['failed'],
    waiting_for_input:    ['running', 'failed'],
    awaiting_approval:    ['running', 'failed'],
    retry_wait:           ['failed'],
    compensating:         ['compensated'],
    cancelling:           ['cancelled'],
    needs_reconciliation: ['reconciling', 'failed'],
    reconciling:          ['failed'],
    completed: [], compensated: [], failed: [], cancelled: [],
  };

  test.each(RUN_STATES)('that is %s ends lawfully, and what never left is withdrawn', async (state) => {
    const run = await ledger.newRun();
    if (state !== 'admitted') {
      await run.start();
      await run.plan([callOf('opaque'), callOf('read')]);
      await run.call(0).attempt('not_sent');
      await run.call(1).claimed();
      if (isTerminal(state)) await run.call(1).examine();
    }
    await bringRunTo(run, state);
    const before = await ledger.path(run.runId);
    expect(await close(run)).toBe(isTerminal(state) ? undefined : PATHS[state].at(-1));
    expect((await ledger.path(run.runId)).slice(before.length)).toStrictEqual(PATHS[state]);
    if (state === 'admitted' || isTerminal(state)) return;
    expect((await ledger.effects(run.runId)).map((effect) => effect.state)).toStrictEqual([
      'withdrawn',
      'not_committed',
    ]);
    expect(await ledger.runRow(run.runId)).toMatchObject({ owner_execution: 'sweeper', epoch: 2 });
  });
});

describe('an orphan with an effect in doubt', () => {
  const open = RUN_STATES.filter((state) => !isTerminal(state) && state !== 'admitted');

  test.each(open)(
    'that is %s rests in needs_reconciliation, the effect with its owner and deadline',
    async (state) => {
      const run = await ledger.newStep([callOf('opaque')]);
      await run.call(0).claimed();
      await bringRunTo(run, state);
      expect(await close(run)).toBe('needs_reconciliation');
      expect(await run.call(0).effect()).toMatchObject({
        ...{ state: 'unknown', reconciliation_owner: 'desk', reconciliation_deadline_at: expect.any(Date) },
      });
      expect((await ledger.runRow(run.runId)).ended_at).toBeNull();
      // Looking again changes nothing: a person must settle it.
      const before = await ledger.footprint(run.runId);
      expect(await close(run)).toBe('needs_reconciliation');
      expect(await ledger.footprint(run.runId)).toStrictEqual(before);
    },
  );

  test('never sends it again, and its old execution is shut out', async () => {
    const run = await ledger.newStep([callOf('keyed')]);
    const claim = await run.call(0).claimed();
    await close(run);
    expect(await run.call(0).ask()).toBe('lost_ownership');
    expect(await run.call(0).ask({ execution: 'sweeper' })).toBe('out_of_step');
    expect((await run.call(0).settle(claim, 'succeeded')).state).toBe('unknown');
    expect(await run.commit({ kind: 'warning', code: 'zombie' }).catch(refusalOf)).toBe('lost_ownership');
  });

  test('goes on to its end when an answer comes late, without a workflow', async () => {
    const run = await ledger.newStep([callOf('opaque'), callOf('opaque')]);
    const [first, second] = [await run.call(0).claimed(), await run.call(1).claimed()];
    await close(run);
    await run.call(0).settle(first, 'succeeded');
    expect(await close(run)).toBe('needs_reconciliation');
    expect(await run.call(0).state()).toBe('committed');
    await run.call(1).settle(second, 'rejected');
    expect(await close(run)).toBe('failed');
    expect((await ledger.effects(run.runId)).map(({ state }) => state)).toStrictEqual([
      'committed',
      'not_committed',
    ]);
  });
});

describe('closing', () => {
  test('leaves alone a run whose epoch moved, that ended, or that is not there', async () => {
    const run = await ledger.newRun();
    await run.start();
    await run.takenOver();
    const before = await ledger.footprint(run.runId);
    expect(await closeOrphan(ledger.db, run.runId, 1, 'workflow_failed')).toBeUndefined();
    expect(await ledger.footprint(run.runId)).toStrictEqual(before);
    expect(await closeOrphan(ledger.db, `run_${'0'.repeat(32)}`, 1, 'workflow_failed')).toBeUndefined();
  });

  test('is done again when a run that was swept is taken over and lost once more', async () => {
    const run = await ledger.newStep([callOf('opaque')]);
    await run.call(0).claimed();
    let owner = run;
    for (let time = 0; time < 3; time += 1) {
      expect(await close(run)).toBe('needs_reconciliation');
      owner = await owner.takenOver();
      expect((await owner.call(0).examine()).kind).toBe('effect');
    }
    expect(await ledger.runRow(run.runId)).toMatchObject({ epoch: 7, owner_execution: owner.execution });
  });

  test('by twenty sweepers at once is one ending', async () => {
    const run = await ledger.newRun();
    await run.start();
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => closeOrphan(ledger.db, run.runId, 1, 'workflow_vanished')),
    );
    expect(answers.filter((answer) => answer !== undefined)).toStrictEqual(['failed']);
    expect(await ledger.path(run.runId)).toStrictEqual(['admitted', 'running', 'failed']);
  });

  test('and taking over at once leaves one owner, never two', async () => {
    for (let time = 0; time < 10; time += 1) {
      const run = await ledger.newRun();
      await run.start();
      const [taken, closed] = await Promise.allSettled([
        run.takenOver(),
        closeOrphan(ledger.db, run.runId, 1, 'workflow_vanished'),
      ]);
      const row = await ledger.runRow(run.runId);
      const sweptFirst = closed.status === 'fulfilled' && closed.value === 'failed';
      expect([sweptFirst, row.state, row.epoch]).toStrictEqual([
        sweptFirst,
        sweptFirst ? 'failed' : 'running',
        2,
      ]);
      expect(taken.status).toBe(sweptFirst ? 'rejected' : 'fulfilled');
    }
  });
});

describe('who is looked at', () => {
  test('open runs that were started and are quiet, the longest unseen first', async () => {
    const fresh = await openLedger();
    const [waiting, started] = [await fresh.newRun(), await fresh.newRun()];
    const [quiet, ended] = [await fresh.newRun(), await fresh.newRun()];
    await confirmStarts(fresh.db, [started.runId]);
    for (const run of [quiet, ended]) await run.start();
    await bringRunTo(ended, 'failed');
    const seen = async (quietSeconds = 0) =>
      (await sweepCandidates(fresh.db, 10, quietSeconds)).map(({ runId }) => runId);
    expect(await seen()).toStrictEqual([started.runId, quiet.runId]);
    expect(await seen(3_600)).toStrictEqual([]);
    await markSwept(fresh.db, [started.runId]);
    expect(await seen()).toStrictEqual([quiet.runId, started.runId]);
    expect((await unstartedRuns(fresh.db, 10)).map(({ run_id }) => run_id)).toStrictEqual([waiting.runId]);
  });

  test('a swept run that waits for a person is left alone until evidence settles what it waits for', async () => {
    const fresh = await openLedger();
    const run = await fresh.newStep([callOf('opaque')]);
    const claim = await run.call(0).claimed();
    const look = async () => (await sweepCandidates(fresh.db, 10, 0)).map(({ runId }) => runId);
    expect(await look()).toStrictEqual([run.runId]);
    await closeOrphan(fresh.db, run.runId, 1, 'workflow_terminated');
    expect(await look()).toStrictEqual([]);
    await run.call(0).settle(claim, 'unknown');
    expect(await look()).toStrictEqual([]);
    const other = await fresh.newStep([callOf('opaque')]);
    await other.call(0).settle(await other.call(0).lose(), 'succeeded');
    // A workflow is told of evidence; a swept run has none, and is closed by the next sweep.
    expect(await runsWithLateEvidence(fresh.db, 10)).toStrictEqual([other.runId]);
  });

  test('a swept run whose evidence came is looked at, and its workflow is not called', async () => {
    const fresh = await openLedger();
    const run = await fresh.newStep([callOf('opaque')]);
    const claim = await run.call(0).claimed();
    await closeOrphan(fresh.db, run.runId, 1, 'workflow_terminated');
    await run.call(0).settle(claim, 'succeeded');
    expect((await sweepCandidates(fresh.db, 10, 0)).map(({ runId }) => runId)).toStrictEqual([run.runId]);
    expect(await runsWithLateEvidence(fresh.db, 10)).toStrictEqual([]);
  });
});
