import { beforeAll, describe, expect, test } from 'vitest';
import type { EffectClass } from '../shared/domain/effect-classes.js';
import { EFFECT_STATES } from '../shared/domain/effect-machine.js';
import type { LedgerCall } from './support/ledger-call.js';
import { callOf } from './support/ledger-run.js';
import { type CallOptions, openLedger, type LedgerWorld } from './support/ledger-world.js';

// Goal: what is in doubt is sent again only where its class, its window, its bounds and its series all let it, and what
// is done after all is a new effect.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

describe('an unknown effect is claimed again', () => {
  type Way = (call: LedgerCall) => Promise<unknown>;
  const times =
    (count: number, way: Way): Way =>
    async (call) => {
      for (let time = 0; time < count; time += 1) await way(call);
    };
  const unknown: Way = (call) => call.attempt('unknown');
  const lost: Way = (call) => call.lose();
  const inOrder =
    (...ways: readonly Way[]): Way =>
    async (call) => {
      for (const way of ways) await way(call);
    };
  const withQuery = { query: {} };

  // prettier-ignore
  test.each<[string, EffectClass, CallOptions, Way, string]>([
    // what happened                        class     with what                     how                              next
    ['answered unclearly once',             'keyed',  {},                           unknown,                         'claimed'],
    ['answered unclearly once',             'read',   {},                           unknown,                         'claimed'],
    ['lost with its worker',                'keyed',  {},                           lost,                            'claimed'],
    ['lost with its worker 29 times',       'keyed',  {},                           times(29, lost),                 'claimed'],
    ['lost with its worker 30 times',       'keyed',  {},                           times(30, lost),                 'unknown/person'],
    ['lost with its worker 29 times',       'read',   {},                           times(29, lost),                 'claimed'],
    ['lost with its worker 30 times',       'read',   {},                           times(30, lost),                 'unknown/give_up'],
    ['sent again as often as declared',     'keyed',  {},                           times(3, unknown),               'unknown/person'],
    ['sent again as often as declared',     'keyed',  { policy: withQuery },        times(3, unknown),               'unknown/query'],
    ['sent again once less',                'keyed',  {},                           times(2, unknown),               'claimed'],
    ['tried as often as the contract lets', 'read',   { contract: { retry: { attempts_max: 2 } } }, times(2, unknown), 'unknown/give_up'],
    ['tried as often as the contract lets', 'keyed',  { contract: { retry: { attempts_max: 2 } } }, times(2, unknown), 'unknown/person'],
    ['past the series deadline',            'read',   { contract: { retry: { series_seconds_max: 60 } } }, inOrder(unknown, (call) => call.age(61)), 'unknown/give_up'],
    ['past the series deadline',            'keyed',  { contract: { retry: { series_seconds_max: 60 } } }, inOrder(unknown, (call) => call.age(61)), 'unknown/person'],
    ['lost, past the series deadline',      'keyed',  { contract: { retry: { series_seconds_max: 60 } } }, inOrder(lost, (call) => call.age(61)), 'claimed'],
    ['past the key window',                 'keyed',  {},                           inOrder(lost, (call) => call.age(3_601)), 'unknown/person'],
    ['past the key window',                 'keyed',  { policy: withQuery },        inOrder(lost, (call) => call.age(3_601)), 'unknown/query'],
    ['just within the key window',          'keyed',  {},                           inOrder(lost, (call) => call.age(3_500)), 'claimed'],
    ['told that the key names another body', 'keyed', {},                           (call) => call.attempt('unknown', { reason: 'key_conflict' }), 'unknown/person'],
    ['met with a 500 that the target keeps', 'keyed', { policy: { keyed: { keepsServerErrors: true } } }, (call) => call.attempt('unknown', { reason: 'http_500' }), 'unknown/person'],
    ['met with a 500 that it does not keep', 'keyed', {},                           (call) => call.attempt('unknown', { reason: 'http_500' }), 'claimed'],
    ['refused while an earlier one is in doubt', 'keyed', {},                       inOrder(unknown, (call) => call.attempt('rejected')), 'unknown/person'],
    ['not sent while an earlier one is in doubt', 'keyed', {},                      inOrder(unknown, (call) => call.attempt('not_sent')), 'claimed'],
    ['throttled while an earlier one is in doubt', 'keyed', {},                     inOrder(unknown, (call) => call.attempt('throttled')), 'claimed'],
    ['in progress at the target',           'keyed',  {},                           (call) => call.attempt('in_progress'), 'claimed'],
    ['in progress at the target',           'opaque', {},                           (call) => call.attempt('in_progress'), 'unknown/person'],
    ['in progress at the target',           'queryable', {},                        (call) => call.attempt('in_progress'), 'unknown/query'],
    ['confirmed late',                      'keyed',  {},                           async (call) => call.settle(await call.lose(), 'succeeded'), 'unknown/late_receipt'],
    ['refused late',                        'keyed',  {},                           async (call) => call.settle(await call.lose(), 'rejected'), 'unknown/late_receipt'],
    ['proved late to have sent nothing',    'opaque', {},                           async (call) => call.settle(await call.lose(), 'not_sent'), 'unknown/late_receipt'],
    ['unclear late as well',                'opaque', {},                           async (call) => call.settle(await call.lose(), 'unknown'), 'unknown/person'],
    ['confirmed late',                      'read',   {},                           async (call) => call.settle(await call.lose(), 'succeeded'), 'unknown/late_receipt'],
  ])('%s: %s', async (_, effectClass, options, happen, answer) => {
    const call = await ledger.newCall(effectClass, options);
    await happen(call);
    expect(await call.state()).toBe('unknown');
    const before = await ledger.footprint(call.run.runId);
    expect(await call.ask()).toBe(answer);
    if (answer !== 'claimed') expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
  });

  test('and only what may have reached the target uses up the bounded count', async () => {
    const call = await ledger.newCall('keyed');
    for (const outcome of ['unknown', 'not_sent', 'throttled'] as const) await call.attempt(outcome);
    expect((await call.effect()).resends).toBe(1);
    await call.lose();
    await call.attempt('unknown');
    expect(await call.effect()).toMatchObject({ resends: 1, attempts: 5, lost_attempts: 1 });
    await call.attempt('unknown');
    expect((await call.effect()).resends).toBe(2);
    expect(await call.ask()).toBe('unknown/person');
  });
});

describe('the intent', () => {
  test('names the logical effect: run, turn, step, slot and redo, and nothing of the arguments', async () => {
    const run = await ledger.newStep([callOf('keyed'), { ...callOf('keyed'), arguments: '{"amount":2}' }]);
    const [first, second] = [await run.call(0).claimed(), await run.call(1).claimed()];
    expect(first.idempotencyKey).toBe(`${run.runId}:t1:s1:c0`);
    expect(second).toMatchObject({ idempotencyKey: `${run.runId}:t1:s1:c1`, arguments: '{"amount":2}' });
    expect((await run.call(0).effect()).effect_id).toMatch(/^eff_[0-9a-f]{32}$/);
  });

  test('under a key that names another request is a conflict, and the first one stays', async () => {
    const call = await ledger.newCall('keyed');
    const other = await ledger.newCall('keyed');
    await other.bringTo('intended');
    const taken = await other.effect();
    await ledger.rows(
      'update holdfast.effects set idempotency_key = $1 where effect_id = $2',
      `${call.run.runId}:t1:s1:c0`,
      taken.effect_id,
    );
    const before = await ledger.footprint(call.run.runId);
    expect(await call.ask()).toBe('key_conflict');
    expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
    expect((await other.effect()).run_id).toBe(other.run.runId);
  });

  test('carries a lease of the shorter time-out and the margin, and a whole series from its first attempt', async () => {
    const call = await ledger.newCall('opaque', {
      policy: { timeoutSeconds: 1.5, approval: 'not_required' },
      contract: { timeouts: { tool_seconds: 2 }, retry: { series_seconds_max: 100 } },
    });
    await call.run.commit({ kind: 'control', to: 'pause_requested', reason: 'cancel_requested' });
    await call.ask();
    // Paused for longer than the series may last: that is no attempt.
    await call.age(1_000);
    const back = (['pausing', 'paused', 'resume_requested', 'claiming', 'active'] as const).map(
      (to) => ({ kind: 'control', to, reason: 'retry_due' }) as const,
    );
    const claim = await call.claimed({ entries: back });
    const [row] = await ledger.rows<{ lease: number; series: number }>(
      `select extract(epoch from lease_until - started_at)::float8 as lease,
              extract(epoch from e.series_deadline_at - started_at)::float8 as series
         from holdfast.attempts a join holdfast.effects e using (effect_id) where attempt_id = $1`,
      claim.attemptId,
    );
    expect(row!.lease).toBeCloseTo(2.5, 1);
    expect(row!.series).toBeCloseTo(100, 0);
  });

  test('counts against the tool calls of the run once, however often it is tried', async () => {
    const call = await ledger.newCall('keyed');
    for (const outcome of ['not_sent', 'unknown', 'unknown'] as const) await call.attempt(outcome);
    expect((await ledger.runRow(call.run.runId)).tool_calls).toBe(1);
  });
});

describe('a redo', () => {
  test('is a new effect under a new key that supersedes the one settled as not committed', async () => {
    const call = await ledger.newCall('opaque');
    await call.bringTo('not_committed');
    const claim = await call.claimed({ redo: 1 });
    const [first, second] = await ledger.effects(call.run.runId);
    expect(claim.idempotencyKey).toBe(`${call.run.runId}:t1:s1:c0:r1`);
    expect(second).toMatchObject({ redo: 1, supersedes: first!.effect_id, state: 'dispatching' });
    expect(first!.state).toBe('not_committed');
    // The redo is the call from now on; another one of the same number is no third effect.
    expect(await call.ask({ redo: 1 })).toBe('dispatching');
  });

  test.each(EFFECT_STATES.filter((state) => state !== 'not_committed'))(
    'of an effect that is %s makes no second effect',
    async (from) => {
      const call = await ledger.newCall('opaque');
      await call.bringTo(from);
      await call.ask({ redo: 1 });
      expect(await ledger.effects(call.run.runId)).toHaveLength(1);
    },
  );

  test('of a call whose result the model has read is not made', async () => {
    const call = await ledger.newCall('read');
    await call.attempt('unknown');
    await call.close('withdrawn', 'lost_read');
    expect(await call.ask()).toBe('not_committed/tell_model');
    expect(await call.ask({ redo: 1 })).toBe('not_committed/tell_model');
    expect(await ledger.effects(call.run.runId)).toHaveLength(1);
  });

  test('is offered as often as the contract says, and then the model is told', async () => {
    const call = await ledger.newCall('opaque', { contract: { reconciliation: { redos_max: 1 } } });
    await call.bringTo('not_committed');
    expect(await call.ask()).toBe('not_committed/redo');
    const redo = await call.claimed({ redo: 1 });
    await call.examine();
    await call.settle(redo, 'rejected');
    await call.beginQuery();
    expect(await call.ask()).toBe('not_committed/tell_model');
    expect(await call.ask({ redo: 2 })).toBe('not_committed/tell_model');
    expect(await ledger.effects(call.run.runId)).toHaveLength(2);
  });

  test.each(['tell_model', 'fail'] as const)(
    'is neither offered nor made where the contract says %s',
    async (rule) => {
      const call = await ledger.newCall('opaque', {
        contract: { reconciliation: { after_not_committed: rule } },
      });
      await call.bringTo('not_committed');
      expect(await call.ask()).toBe(`not_committed/${rule}`);
      expect(await call.ask({ redo: 1 })).toBe(`not_committed/${rule}`);
      expect(await ledger.effects(call.run.runId)).toHaveLength(1);
    },
  );
});
