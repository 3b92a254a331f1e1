import { beforeAll, describe, expect, test } from 'vitest';
import { EFFECT_OUTCOMES, type EffectOutcome } from '../shared/domain/effect-classes.js';
import { EFFECT_STATES, type EffectState } from '../shared/domain/effect-machine.js';
import { settleEffect } from '../shared/ledger/effects.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import { settlementOf } from './support/ledger-call.js';
import { callOf } from './support/ledger-run.js';
import { openLedger, type LedgerWorld } from './support/ledger-world.js';

// Goal: an attempt settles its effect under its own token and its run's ownership, once; what has lost either is kept
// as evidence and changes no state (SPEC 3.4).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

describe('in time', () => {
  // prettier-ignore
  test.each<[EffectOutcome, EffectState, string | null, boolean | null]>([
    // outcome        leaves it        receipt       the model hears an error
    ['succeeded',   'succeeded',     'succeeded',  false],
    ['rejected',    'rejected',      'rejected',   true],
    ['not_sent',    'intended',      null,         null],
    ['throttled',   'intended',      null,         null],
    ['in_progress', 'unknown',       null,         null],
    ['unknown',     'unknown',       null,         null],
  ])('%s leaves the effect %s, with receipt %s', async (outcome, state, receipt, isError) => {
    // A key space of its own: what asks this run to come later asks every run.
    const call = (await ledger.newStep([{ ...callOf('opaque'), namespace: outcome }])).call(0);
    const claim = await call.claimed();
    const standing = await call.settle(claim, outcome, { retryAfterMs: outcome === 'throttled' ? 7_000 : null });
    expect(standing).toMatchObject({ state, outcome, attempt: 1 });
    expect(await call.state()).toBe(state);

    const receipts = await ledger.receipts(call.run.runId);
    expect(receipts.map(({ status, source }) => [status, source])).toStrictEqual(
      receipt === null ? [] : [[receipt, 'response']],
    );
    const results = (await ledger.messages(call.run.runId)).filter(({ role }) => role === 'tool');
    expect(results.map(({ content }) => content['isError'])).toStrictEqual(isError === null ? [] : [isError]);
    expect((await ledger.attempts(call.run.runId)).map((attempt) => attempt.outcome)).toStrictEqual([outcome]);
    expect(await ledger.lateReceipts(call.run.runId)).toStrictEqual([]);
  });

  test('the receipt keeps what the target sent, byte by byte, whatever it is', async () => {
    const call = await ledger.newCall('opaque');
    const body = Buffer.from([0, 0xff, 0xc0, 0x80, 0x0a, 0]);
    await call.attempt('succeeded', {
      ...{ body, bodySha256: 'b'.repeat(64), contentType: null, truncated: true, reference: 'ch_1' },
    });
    const [receipt] = await ledger.receipts(call.run.runId);
    expect(receipt).toMatchObject({
      reference: 'ch_1',
      body_sha256: 'b'.repeat(64),
      truncated: true,
      content_type: null,
    });
    expect(receipt!.body.equals(body)).toBe(true);
  });

  test.each(['unknown', 'in_progress'] as const)(
    '%s names who must settle it by when, and keeps the evidence',
    async (outcome) => {
      const call = await ledger.newCall('opaque', {
        contract: { reconciliation: { owner: 'ops', deadline_seconds: 60 } },
      });
      const before = Date.now();
      await call.attempt(outcome, { reason: 'timed_out' });
      const { reconciliation_owner, reconciliation_deadline_at } = await call.effect();
      expect(reconciliation_owner).toBe('ops');
      expect(reconciliation_deadline_at!.getTime() - before).toBeGreaterThan(30_000);
      const [attempt] = await ledger.attempts(call.run.runId);
      expect([attempt!.reason, attempt!.evidence?.toString()]).toStrictEqual([
        'timed_out',
        `{"said":"${outcome}"}`,
      ]);
    },
  );

  test('where no one else is named, the owner of the job must settle it', async () => {
    const call = await ledger.newCall('opaque');
    await call.attempt('unknown');
    expect((await call.effect()).reconciliation_owner).toBe('desk');
  });

  test.each(EFFECT_OUTCOMES)('%s may be said again and again: it is settled once', async (outcome) => {
    const call = await ledger.newCall('opaque');
    const claim = await call.attempt(outcome);
    const before = await ledger.footprint(call.run.runId);
    for (let time = 0; time < 3; time += 1) await call.settle(claim, outcome);
    expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
  });

  test('twenty reports of one attempt at once write one receipt', async () => {
    const call = await ledger.newCall('keyed');
    const claim = await call.claimed();
    const standings = await Promise.all(Array.from({ length: 20 }, () => call.settle(claim, 'succeeded')));
    expect(new Set(standings.map(({ state }) => state))).toStrictEqual(new Set(['succeeded']));
    expect(await ledger.receipts(call.run.runId)).toHaveLength(1);
    expect(await ledger.lateReceipts(call.run.runId)).toStrictEqual([]);
  });

  test('of two different reports of one attempt the first settles and the second is evidence', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.attempt('succeeded');
    expect((await call.settle(claim, 'rejected')).state).toBe('succeeded');
    expect(await ledger.receipts(call.run.runId)).toHaveLength(1);
    expect((await ledger.lateReceipts(call.run.runId)).map(({ outcome }) => outcome)).toStrictEqual([
      'rejected',
    ]);
  });

  test('an attempt that nobody opened settles nothing', async () => {
    const ghost = { attemptId: `att_${'0'.repeat(32)}`, fencingToken: 1 };
    const refused = await settleEffect(ledger.db, 'exec', ghost, settlementOf('succeeded')).catch(refusalOf);
    expect(refused).toBe('effect_not_found');
  });
});

describe('while an earlier attempt is in doubt', () => {
  // prettier-ignore
  test.each<[EffectOutcome, EffectState]>([
    ['succeeded',   'succeeded'],
    ['rejected',    'unknown'],
    ['not_sent',    'unknown'],
    ['throttled',   'unknown'],
    ['in_progress', 'unknown'],
    ['unknown',     'unknown'],
  ])('%s of the next one leaves a keyed effect %s: it speaks for itself alone', async (outcome, state) => {
    for (const doubt of ['unknown', 'in_progress', 'lost'] as const) {
      const call = await ledger.newCall('keyed');
      if (doubt === 'lost') await call.lose();
      else await call.attempt(doubt);
      await call.attempt(outcome);
      expect([doubt, await call.state()]).toStrictEqual([doubt, state]);
      // What may have happened is never withdrawn with the run, nor told to the model as not done.
      await call.close('withdrawn', 'retries_exhausted');
      expect([doubt, await call.state()]).toStrictEqual([doubt, state]);
    }
  });

  test('nothing is in doubt once the earlier attempts have proved late that they did nothing', async () => {
    const call = await ledger.newCall('keyed');
    const first = await call.lose();
    const second = await call.claimed();
    await call.settle(first, 'not_sent');
    await call.settle(second, 'rejected');
    expect(await call.state()).toBe('rejected');
  });

  test('a refusal does not outweigh a success that came late', async () => {
    const call = await ledger.newCall('keyed');
    const first = await call.lose();
    const second = await call.claimed();
    await call.settle(first, 'succeeded');
    expect(await call.settle(second, 'rejected')).toMatchObject({ state: 'unknown', next: 'late_receipt' });
    await call.beginQuery();
    expect(await call.state()).toBe('committed');
  });

  test('a read carries nothing out, so the newest answer settles it', async () => {
    const refused = await ledger.newCall('read');
    await refused.attempt('unknown');
    await refused.attempt('rejected');
    expect(await refused.state()).toBe('rejected');
    const released = await ledger.newCall('read');
    await released.attempt('unknown');
    await released.attempt('not_sent');
    expect(await released.state()).toBe('intended');
  });
});

describe('too late', () => {
  const settled = EFFECT_STATES.filter((state) => state !== 'intended' && state !== 'dispatching');

  test.each(settled.flatMap((state) => EFFECT_OUTCOMES.map((outcome) => [outcome, state] as const)))(
    '%s of an attempt that lost its effect leaves it %s and is kept',
    async (outcome, state) => {
      const call = await ledger.newCall('keyed');
      const lost = await call.lose();
      if (state === 'succeeded') await call.attempt('succeeded');
      else if (state !== 'unknown') {
        // Settled otherwise meanwhile, by whoever may.
        await ledger.rows(
          `update holdfast.effects set state = $2, settled_at = now(), unknown_at = null, reconciliation_owner = null,
                  reconciliation_deadline_at = null where run_id = $1`,
          ...[call.run.runId, state],
        );
      }
      const { effects, receipts, messages } = await ledger.footprint(call.run.runId);
      for (let time = 0; time < 3; time += 1) await call.settle(lost, outcome);
      expect(await ledger.footprint(call.run.runId)).toMatchObject({ effects, receipts, messages });
      expect((await ledger.lateReceipts(call.run.runId)).map((late) => late.outcome)).toStrictEqual([
        outcome,
      ]);
      const events = (await ledger.events(call.run.runId)).filter(
        ({ type }) => type === 'effect.late_receipt',
      );
      expect(events.map(({ data }) => data['effect_state'])).toStrictEqual([state]);
    },
  );

  test('is an answer under the token of another attempt', async () => {
    const call = await ledger.newCall('keyed');
    const first = await call.lose();
    const second = await call.claimed();
    for (const wrong of [
      { attemptId: first.attemptId, fencingToken: second.fencingToken },
      { attemptId: second.attemptId, fencingToken: first.fencingToken },
      { attemptId: second.attemptId, fencingToken: second.fencingToken + 1 },
    ]) {
      expect((await call.settle(wrong, 'succeeded')).state).toBe('dispatching');
    }
    expect(await ledger.receipts(call.run.runId)).toStrictEqual([]);
    expect((await call.settle(second, 'succeeded')).state).toBe('succeeded');
  });

  test('is an answer from an execution that lost the run, and the new owner hears of the evidence', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    const next = await call.run.takenOver();
    expect(await call.settle(claim, 'succeeded')).toMatchObject({ state: 'unknown', next: 'late_receipt' });
    expect(await ledger.receipts(call.run.runId)).toStrictEqual([]);
    expect(await next.call(0).beginQuery()).toMatchObject({ state: 'committed' });
    expect(await ledger.receipts(call.run.runId)).toMatchObject([
      { source: 'late_receipt', attempt_id: claim.attemptId },
    ]);
  });

  test('is an answer from a stranger that names the attempt and the token right', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    expect((await call.settle(claim, 'succeeded', {}, 'exec-stranger')).state).toBe('dispatching');
    expect(await ledger.receipts(call.run.runId)).toStrictEqual([]);
  });

  test('is an answer for a run that ended: kept, with no state, event or end touched', async () => {
    const call = await ledger.newCall('read');
    const claim = await call.claimed();
    const { epoch } = await ledger.runRow(call.run.runId);
    expect(await closeOrphan(ledger.db, call.run.runId, epoch, 'workflow_vanished')).toBe('failed');
    const before = await ledger.footprint(call.run.runId);
    await call.settle(claim, 'succeeded');
    const { late_receipts: late, ...after } = await ledger.footprint(call.run.runId);
    expect(late).toMatchObject([{ outcome: 'succeeded', attempt_id: claim.attemptId }]);
    const { late_receipts: none, ...rest } = before;
    expect(none).toStrictEqual([]);
    expect(after).toStrictEqual(rest);
  });
});
