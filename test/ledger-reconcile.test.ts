import { beforeAll, describe, expect, test } from 'vitest';
import { EFFECT_CLASSES, type EffectOutcome } from '../shared/domain/effect-classes.js';
import { EFFECT_STATES, type EffectState } from '../shared/domain/effect-machine.js';
import { CLOSE_TEXTS } from '../shared/ledger/effects.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import type { LedgerCall } from './support/ledger-call.js';
import { callOf } from './support/ledger-run.js';
import { openLedger, type LedgerWorld } from './support/ledger-world.js';

// Goal: an outcome that nobody knows is settled by evidence alone, by a bounded series of questions, and by each of
// them once; what cannot be settled so is a person's (SPEC 3.6).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const toldOf = async (call: LedgerCall): Promise<unknown[]> =>
  (await ledger.messages(call.run.runId))
    .filter(({ position, step }) => position === call.place.slot + 2 && step === call.place.step)
    .map(({ content }) => content['text']);

describe('looking at a call whose activity ended without an answer', () => {
  test.each(EFFECT_STATES)(
    'finds an effect that is %s, and only what is in flight becomes unknown',
    async (from) => {
      const call = await ledger.newCall('keyed');
      await call.bringTo(from);
      const before = await ledger.footprint(call.run.runId);
      const expected: EffectState = from === 'dispatching' ? 'unknown' : from;
      expect(await call.examine()).toMatchObject({ kind: 'effect', state: expected });
      if (from !== 'dispatching') expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
      else
        expect(await ledger.attempts(call.run.runId)).toMatchObject([
          { outcome: 'lost', reason: 'worker_lost' },
        ]);
      // A second look finds what the first one left.
      const after = await ledger.footprint(call.run.runId);
      expect(await call.examine()).toMatchObject({ state: expected });
      expect(await ledger.footprint(call.run.runId)).toStrictEqual(after);
    },
  );

  test('finds nothing where no intent was written, and writes none', async () => {
    const call = await ledger.newCall('opaque');
    expect(await call.examine()).toStrictEqual({ kind: 'absent' });
    expect(await ledger.effects(call.run.runId)).toStrictEqual([]);
  });

  test('shuts the attempt out: what it reports after is evidence', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.lose();
    expect(await call.settle(claim, 'succeeded')).toMatchObject({ state: 'unknown', next: 'late_receipt' });
    expect(await ledger.receipts(call.run.runId)).toStrictEqual([]);
  });

  test('counts a lost worker as no attempt of the series', async () => {
    const call = await ledger.newCall('keyed');
    for (let time = 0; time < 7; time += 1) await call.lose();
    expect(await call.examine()).toMatchObject({ attempt: 0, outcome: 'lost', next: 'resend' });
  });

  test('is refused to others', async () => {
    const call = await ledger.newCall('opaque');
    await call.claimed();
    expect(await call.examine('exec-stranger').catch(refusalOf)).toBe('unknown_execution');
    await call.run.takenOver();
    expect(await call.examine().catch(refusalOf)).toBe('lost_ownership');
  });
});

describe('closing a call', () => {
  // prettier-ignore
  const LEFT: Record<EffectState, EffectState> = {
    intended: 'withdrawn', dispatching: 'dispatching', succeeded: 'succeeded', rejected: 'rejected', unknown: 'unknown',
    committed: 'committed', not_committed: 'not_committed', denied: 'denied', withdrawn: 'withdrawn', superseded: 'superseded',
  };

  test.each(EFFECT_STATES)(
    'that is %s ends only what never left, and tells the model at most once',
    async (from) => {
      for (const effectClass of ['keyed', 'opaque'] as const) {
        const call = await ledger.newCall(effectClass);
        await call.bringTo(from);
        for (let time = 0; time < 2; time += 1) {
          expect(await call.close('withdrawn', 'retries_exhausted')).toMatchObject({ state: LEFT[from] });
        }
        const told = await toldOf(call);
        const isOpen = from === 'dispatching' || from === 'unknown';
        expect([from, told.length]).toStrictEqual([from, isOpen ? 0 : 1]);
        if (from === 'intended' || from === 'not_committed')
          expect(told).toStrictEqual([CLOSE_TEXTS.retries_exhausted]);
      }
    },
  );

  test.each(['denied', 'withdrawn'] as const)('as %s is an event with its state', async (state) => {
    const call = await ledger.newCall('opaque', { policy: { approval: 'required' } });
    await call.claim();
    expect(await call.close(state, 'approval_expired')).toMatchObject({ state });
    const closed = (await ledger.events(call.run.runId)).filter(({ type }) => type === 'effect.closed');
    expect(closed.map(({ data }) => data['state'])).toStrictEqual([state]);
    expect(await ledger.receipts(call.run.runId)).toStrictEqual([]);
  });

  test('of a lost read settles that read as not committed, by its class, and no other', async () => {
    const run = await ledger.newStep([callOf('read'), callOf('read'), callOf('opaque')]);
    for (const slot of [0, 1, 2]) await run.call(slot).attempt('unknown');
    expect(await run.call(0).close('withdrawn', 'lost_read')).toMatchObject({ state: 'not_committed' });
    expect(await run.call(1).state()).toBe('unknown');
    expect(await run.call(2).state()).toBe('unknown');
    expect(await toldOf(run.call(0))).toStrictEqual([CLOSE_TEXTS.lost_read]);
    expect(await toldOf(run.call(1))).toStrictEqual([]);
    expect(
      await ledger.rows(
        'select decided, source, actor_id from holdfast.reconciliations where run_id = $1',
        run.runId,
      ),
    ).toStrictEqual([{ decided: 'not_committed', source: 'class', actor_id: 'holdfast:ledger' }]);
    const settled = (await ledger.events(run.runId)).filter(({ type }) => type === 'effect.settled');
    expect(settled.map(({ data }) => data['source'])).toStrictEqual(['class']);
  });

  test('that does not exist is refused, as is one of another run’s execution', async () => {
    const call = await ledger.newCall('opaque');
    expect(await call.close('withdrawn', 'not_committed').catch(refusalOf)).toBe('effect_not_found');
    await call.attempt('not_sent');
    expect(await call.close('withdrawn', 'not_committed', 'exec-stranger').catch(refusalOf)).toBe(
      'unknown_execution',
    );
    expect(await call.state()).toBe('intended');
  });
});

describe('a late receipt', () => {
  // prettier-ignore
  test.each<[readonly EffectOutcome[], EffectState]>([
    // late reports of the attempts, in order of their coming     leaves it
    [['succeeded'],                                              'committed'],
    [['rejected'],                                               'not_committed'],
    [['not_sent'],                                               'not_committed'],
    [['throttled'],                                              'not_committed'],
    [['unknown'],                                                'unknown'],
    [['in_progress'],                                            'unknown'],
    [['rejected', 'succeeded'],                                  'committed'],
    [['succeeded', 'rejected'],                                  'committed'],
    [['not_sent', 'rejected'],                                   'not_committed'],
    [['rejected', 'unknown'],                                    'unknown'],
    [['unknown', 'succeeded'],                                   'committed'],
  ])('of attempts that report %j leaves a keyed effect %s', async (reports, state) => {
    const call = await ledger.newCall('keyed');
    const attempts = [];
    for (const _ of reports) attempts.push(await call.lose());
    for (const [index, outcome] of reports.entries()) await call.settle(attempts[index]!, outcome);
    await call.beginQuery();
    expect(await call.state()).toBe(state);
  });

  test('of a read is the answer where there is one, whatever its other attempts met with', async () => {
    const call = await ledger.newCall('read');
    const [first, second] = [await call.lose(), await call.lose()];
    await call.settle(first, 'rejected');
    await call.settle(second, 'succeeded');
    expect(await call.beginQuery()).toMatchObject({ state: 'committed' });
  });

  test('of one attempt settles nothing against another that is silent', async () => {
    const call = await ledger.newCall('keyed');
    const first = await call.lose();
    await call.lose();
    await call.settle(first, 'rejected');
    expect(await call.beginQuery()).toMatchObject({ state: 'unknown', next: 'person' });
  });

  test('settles once, with a receipt, a reconciliation and the result, all of that answer', async () => {
    const call = await ledger.newCall('opaque');
    const lost = await call.lose();
    await call.settle(lost, 'succeeded', { reference: 'ch_77', resultText: 'charged' });
    for (let time = 0; time < 3; time += 1)
      expect(await call.beginQuery()).toMatchObject({ state: 'committed' });
    expect(await ledger.receipts(call.run.runId)).toMatchObject([
      { status: 'committed', source: 'late_receipt', reference: 'ch_77', attempt_id: lost.attemptId },
    ]);
    expect(await toldOf(call)).toStrictEqual(['charged']);
    expect(
      await ledger.rows(
        `select source, evidence ->> 'attempt_id' as attempt from holdfast.reconciliations where run_id = $1`,
        call.run.runId,
      ),
    ).toStrictEqual([{ source: 'late_receipt', attempt: lost.attemptId }]);
    expect(await call.effect()).toMatchObject({
      reconciliation_owner: null,
      reconciliation_deadline_at: null,
    });
  });
});

describe('a status query', () => {
  const ask = { settlingSeconds: 60, equalAnswers: 2, intervalSeconds: 1, queriesMax: 4 };
  const unknownCall = async (query: Partial<typeof ask> = {}): Promise<LedgerCall> => {
    const call = await ledger.newCall('queryable', { policy: { query: { ...ask, ...query } } });
    await call.attempt('unknown');
    return call;
  };

  test.each(EFFECT_STATES.filter((state) => state !== 'unknown'))(
    'is not asked of an effect that is %s',
    async (from) => {
      const call = await ledger.newCall('queryable');
      await call.bringTo(from);
      expect(await call.beginQuery()).toMatchObject({ kind: 'effect', state: from });
    },
  );

  test('hands out what to ask and with which key', async () => {
    const call = await unknownCall();
    expect(await call.beginQuery()).toMatchObject({
      ...{ kind: 'query', tool: 'tool_queryable', arguments: '{"slot":0}', query: 1 },
      idempotencyKey: `${call.run.runId}:t1:s1:c0`,
    });
  });

  test('that finds the key settles the effect at once, before the settling time as well', async () => {
    const call = await unknownCall();
    expect(await call.query('found', { resultText: 'it is there' })).toMatchObject({
      state: 'committed',
      next: null,
    });
    expect(await ledger.receipts(call.run.runId)).toMatchObject([
      { status: 'committed', source: 'probe', reference: 'ref-found', attempt_id: null },
    ]);
    expect(await toldOf(call)).toStrictEqual(['it is there']);
  });

  test('that finds nothing before the settling time says nothing, and the wait covers what is left of it', async () => {
    const call = await unknownCall();
    for (let time = 0; time < 3; time += 1) {
      const standing = await call.query('absent');
      expect(standing).toMatchObject({ state: 'unknown', next: 'query' });
      expect(standing.queryWaitMs).toBeGreaterThan(30_000);
      expect(standing.queryWaitMs).toBeLessThanOrEqual(60_000);
    }
    await call.age(61);
    expect(await call.query('absent')).toMatchObject({ state: 'unknown', next: 'person' });
  });

  test('A23: settles as not committed after equal answers past the settling time, and not one sooner', async () => {
    const call = await unknownCall({ equalAnswers: 3 });
    await call.age(61);
    expect(await call.query('absent')).toMatchObject({ state: 'unknown', queryWaitMs: 1_000 });
    expect(await call.query('absent')).toMatchObject({ state: 'unknown' });
    expect(await call.query('absent')).toMatchObject({ state: 'not_committed', next: 'redo' });
    expect(await toldOf(call)).toStrictEqual([]);
    expect(await ledger.receipts(call.run.runId)).toMatchObject([
      { status: 'not_committed', source: 'probe' },
    ]);
  });

  test('that is inconclusive begins the count anew', async () => {
    const call = await unknownCall();
    await call.age(61);
    const answers = ['absent', 'inconclusive', 'absent'] as const;
    for (const answer of answers) expect((await call.query(answer)).state).toBe('unknown');
    expect((await call.query('absent')).state).toBe('not_committed');
  });

  test('is asked at most as often as declared, then a person must settle', async () => {
    const call = await unknownCall({ queriesMax: 2 });
    expect(await call.query('inconclusive')).toMatchObject({ next: 'query' });
    expect(await call.query('inconclusive')).toMatchObject({ next: 'person' });
    expect(await call.beginQuery()).toMatchObject({ kind: 'effect', state: 'unknown', next: 'person' });
  });

  test('whose record is repeated is one answer', async () => {
    const call = await unknownCall();
    await call.age(61);
    const question = await call.beginQuery();
    if (question.kind !== 'query') throw new Error(question.state);
    for (let time = 0; time < 3; time += 1) {
      expect(await call.record(question, 'absent')).toMatchObject({ state: 'unknown', next: 'query' });
    }
    expect(
      await ledger.rows('select query from holdfast.status_queries where run_id = $1', call.run.runId),
    ).toStrictEqual([{ query: 1 }]);
  });

  test('that two ask at once counts once where they agree, and a finding is never dropped', async () => {
    const call = await unknownCall();
    await call.age(61);
    const [first, second] = [await call.beginQuery(), await call.beginQuery()];
    if (first.kind !== 'query' || second.kind !== 'query') throw new Error('no query');
    await call.record(first, 'absent');
    expect((await call.record(second, 'absent')).state).toBe('unknown');
    expect((await call.record(second, 'found')).state).toBe('committed');
  });

  test('is as old as its question: an answer that was slow to be stored counts as of when it was asked', async () => {
    const call = await unknownCall({ equalAnswers: 1 });
    const early = await call.beginQuery();
    if (early.kind !== 'query') throw new Error(early.state);
    // The outcome was lost so long ago that by now an absent would count; the question is from before.
    await ledger.rows(
      `update holdfast.effects set unknown_at = $2::timestamptz - interval '59 seconds' where run_id = $1`,
      ...[call.run.runId, early.askedAt],
    );
    expect((await call.record(early, 'absent')).state).toBe('unknown');
    await call.age(61);
    expect((await call.query('absent')).state).toBe('not_committed');
  });

  test('from before the last dispatch says nothing of it', async () => {
    const call = await ledger.newCall('keyed', {
      policy: { query: ask, keyed: { windowSeconds: 600, resendsMax: 1 } },
    });
    await call.lose();
    await call.age(601);
    expect((await call.query('absent')).state).toBe('unknown');
    // Sent again after all, by an owner who found it still in its window.
    await ledger.rows(
      'update holdfast.effects set first_dispatched_at = now() where run_id = $1',
      call.run.runId,
    );
    await call.lose();
    await call.age(601);
    expect((await call.query('absent')).state).toBe('unknown');
    expect((await call.query('absent')).state).toBe('not_committed');
  });

  test('yields to a success that came late while the target was asked', async () => {
    const call = await ledger.newCall('queryable', { policy: { query: { ...ask, equalAnswers: 1 } } });
    const lost = await call.lose();
    await call.age(61);
    const question = await call.beginQuery();
    if (question.kind !== 'query') throw new Error(question.state);
    await call.settle(lost, 'succeeded');
    expect(await call.record(question, 'absent')).toMatchObject({ state: 'unknown', next: 'late_receipt' });
    expect(await call.beginQuery()).toMatchObject({ state: 'committed' });
  });

  test('that was answered after the effect was settled changes nothing, nor does it reach a redo', async () => {
    const call = await unknownCall({ equalAnswers: 1 });
    await call.age(61);
    const [zombie, question] = [await call.beginQuery(), await call.beginQuery()];
    if (zombie.kind !== 'query' || question.kind !== 'query') throw new Error('no query');
    await call.record(question, 'absent');
    await call.claimed({ redo: 1 });
    await call.examine();
    const before = await ledger.footprint(call.run.runId);
    expect(await call.record(zombie, 'found')).toMatchObject({ state: 'not_committed', redo: 0 });
    expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
    expect(await call.state()).toBe('unknown');
  });

  test('takes fractions of a second for its times', async () => {
    const call = await unknownCall({ settlingSeconds: 0, intervalSeconds: 0.05, equalAnswers: 2 });
    expect(await call.query('absent')).toMatchObject({ state: 'unknown', queryWaitMs: 50 });
    expect(await call.query('absent')).toMatchObject({ state: 'not_committed' });
  });

  test('is refused to others, when it is opened and when it is answered', async () => {
    const call = await unknownCall();
    expect(await call.beginQuery('exec-stranger').catch(refusalOf)).toBe('unknown_execution');
    const question = await call.beginQuery();
    if (question.kind !== 'query') throw new Error(question.state);
    expect(await call.record(question, 'found', {}, 'exec-stranger').catch(refusalOf)).toBe(
      'unknown_execution',
    );
    await call.run.takenOver();
    expect(await call.record(question, 'found').catch(refusalOf)).toBe('lost_ownership');
    const other = await unknownCall();
    expect(await other.record(question, 'found').catch(refusalOf)).toBe('effect_not_found');
    expect(await call.state()).toBe('unknown');
  });

  test.each(EFFECT_CLASSES)('is opened for no %s effect that does not declare how', async (effectClass) => {
    const call = await ledger.newCall(effectClass, { policy: { query: null, keyed: { windowSeconds: 1 } } });
    await call.attempt('unknown');
    await call.age(10_000);
    const standing = await call.beginQuery();
    expect(standing).toMatchObject({ kind: 'effect', state: 'unknown', next: 'person' });
  });
});
