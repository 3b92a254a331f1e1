import { beforeAll, describe, expect, test } from 'vitest';
import { EFFECT_CLASSES, type EffectClass } from '../shared/domain/effect-classes.js';
import { EFFECT_STATES, type EffectState } from '../shared/domain/effect-machine.js';
import type { ControlState, RunState } from '../shared/domain/run-machine.js';
import { newId } from '../shared/ledger/new-id.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import type { ClaimOptions, LedgerCall } from './support/ledger-call.js';
import { type CallOptions, callOf, openLedger, type LedgerWorld } from './support/ledger-world.js';

// Goal: the claim is the one door to the outside, so it opens exactly where SPEC 3.1.2 and 3.3 let it.
// Method: from every state of an effect, for every kind of caller and every thing that can forbid it, ask, and look
// at the answer and at what was written.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

/** The answer in a word: `claimed`, a standing as `state/next`, or the refusal. */
async function ask(call: LedgerCall, options: ClaimOptions = {}): Promise<string> {
  try {
    const answer = await call.claim(options);
    switch (answer.kind) {
      case 'effect':
        return answer.next === null ? answer.state : `${answer.state}/${answer.next}`;
      case 'control':
        return answer.control;
      case 'limit':
        return answer.limit;
      default:
        return answer.kind;
    }
  } catch (error) {
    return refusalOf(error) ?? String(error);
  }
}

/** Everything the ledger holds of a run but the time of its last save. */
async function footprint(runId: string): Promise<unknown[]> {
  const tables = [
    'effects',
    'attempts',
    'receipts',
    'late_receipts',
    'run_events',
    'transitions',
    'messages',
  ];
  return await Promise.all([
    ledger.rows(`select to_jsonb(r) - 'updated_at' as run from holdfast.runs r where run_id = $1`, runId),
    ...tables.map((table) =>
      ledger.rows(`select * from holdfast.${table} where run_id = $1 order by 1, 2`, runId),
    ),
  ]);
}

describe('from every state of an effect', () => {
  type Cells = readonly [read: string, keyed: string, queryable: string, opaque: string];
  // prettier-ignore
  const ANSWERS: Record<EffectState | 'absent', Cells> = {
    //              read                  keyed                 queryable             opaque
    absent:        ['claimed',            'claimed',            'claimed',            'claimed'],
    intended:      ['claimed',            'claimed',            'claimed',            'claimed'],
    dispatching:   ['dispatching',        'dispatching',        'dispatching',        'dispatching'],
    succeeded:     ['succeeded',          'succeeded',          'succeeded',          'succeeded'],
    rejected:      ['rejected',           'rejected',           'rejected',           'rejected'],
    unknown:       ['claimed',            'claimed',            'unknown/query',      'unknown/person'],
    committed:     ['committed',          'committed',          'committed',          'committed'],
    not_committed: ['not_committed/redo', 'not_committed/redo', 'not_committed/redo', 'not_committed/redo'],
    denied:        ['denied',             'denied',             'denied',             'denied'],
    withdrawn:     ['withdrawn',          'withdrawn',          'withdrawn',          'withdrawn'],
    superseded:    ['superseded',         'superseded',         'superseded',         'superseded'],
  };
  const cases = EFFECT_CLASSES.flatMap((effectClass, column) =>
    (['absent', ...EFFECT_STATES] as const).map(
      (from) => [effectClass, from, ANSWERS[from][column]!] as const,
    ),
  );

  test.each(cases)('a %s effect that is %s answers its run with %s', async (effectClass, from, answer) => {
    const call = await ledger.newCall(effectClass);
    if (from !== 'absent') await call.bringTo(from);
    const before = await footprint(call.run.runId);
    expect(await ask(call)).toBe(answer);
    if (answer !== 'claimed') expect(await footprint(call.run.runId)).toStrictEqual(before);
    else expect((await call.effect()).state).toBe('dispatching');
  });

  test.each(cases)(
    'a %s effect that is %s is refused to everybody else (to its run: %s)',
    async (effectClass, from) => {
      const call = await ledger.newCall(effectClass);
      if (from !== 'absent') await call.bringTo(from);
      expect(await ask(call, { execution: 'exec-stranger' })).toBe('unknown_execution');
      const before = await footprint(call.run.runId);
      const next = await call.run.takenOver();
      expect(await ask(call)).toBe('lost_ownership');
      expect(await ask(call, { execution: 'exec-stranger' })).toBe('unknown_execution');
      // The takeover moves what was in flight, the refused claims nothing.
      if (from !== 'dispatching') {
        expect((await footprint(call.run.runId)).slice(1, 5)).toStrictEqual(before.slice(1, 5));
      }
      expect(await ask(next.call(0))).toBe(
        from === 'dispatching'
          ? ANSWERS.unknown[EFFECT_CLASSES.indexOf(effectClass)]
          : ANSWERS[from][EFFECT_CLASSES.indexOf(effectClass)],
      );
    },
  );
});

describe('control and approval', () => {
  // prettier-ignore
  const WAYS: Record<Exclude<ControlState, 'active'>, readonly ControlState[]> = {
    pause_requested:  ['pause_requested'],
    pausing:          ['pause_requested', 'pausing'],
    paused:           ['pause_requested', 'pausing', 'paused'],
    resume_requested: ['pause_requested', 'pausing', 'paused', 'resume_requested'],
    claiming:         ['pause_requested', 'pausing', 'paused', 'resume_requested', 'claiming'],
    cancel_requested: ['cancel_requested'],
  };
  const states = Object.keys(WAYS) as (keyof typeof WAYS)[];

  test.each(states)('a run that is %s dispatches nothing, and its intent stays', async (control) => {
    for (const from of ['absent', 'intended', 'unknown'] as const) {
      const call = await ledger.newCall('keyed');
      if (from !== 'absent') await call.bringTo(from);
      await call.run.commit(
        ...WAYS[control].map((to) => ({ kind: 'control', to, reason: 'cancel_requested' }) as const),
      );
      expect([from, await ask(call)]).toStrictEqual([from, control]);
      expect((await call.effect()).state).toBe(from === 'absent' ? 'intended' : from);
    }
  });

  test.each(states)('a run that is %s still hears of what was done before', async (control) => {
    const call = await ledger.newCall('keyed');
    await call.bringTo('succeeded');
    await call.run.commit(
      ...WAYS[control].map((to) => ({ kind: 'control', to, reason: 'cancel_requested' }) as const),
    );
    expect(await ask(call)).toBe('succeeded');
  });

  test('a claim that went through before the pause is still answered to its own attempt', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    await call.run.commit({ kind: 'control', to: 'pause_requested', reason: 'cancel_requested' });
    expect(await call.claim({ attemptId: claim.attemptId })).toStrictEqual(claim);
    expect(await ask(call)).toBe('dispatching');
  });

  test('a call that needs an approval is written as an intent and never claimed, whatever is asked', async () => {
    const call = await ledger.newCall('opaque', { policy: { approval: 'required' } });
    for (let time = 0; time < 3; time += 1) expect(await ask(call)).toBe('approval_required');
    expect(await call.effect()).toMatchObject({ state: 'intended', attempts: 0, first_dispatched_at: null });
    expect(await ledger.attempts(call.run.runId)).toStrictEqual([]);
  });

  test('the wait for an approval ends with the contract, or with the run if that is sooner', async () => {
    const long = { timeouts: { approval_seconds: 60 } };
    const short = { timeouts: { approval_seconds: 9_000 }, limits: { wall_clock_seconds: 100 } };
    for (const [contract, most] of [
      [long, 60_000],
      [short, 100_000],
    ] as const) {
      const call = await ledger.newCall('opaque', { policy: { approval: 'required' }, contract });
      const answer = await call.claim();
      if (answer.kind !== 'approval_required') throw new Error(answer.kind);
      expect(answer.expiresInMs).toBeLessThanOrEqual(most);
      expect(answer.expiresInMs).toBeGreaterThan(most - 30_000);
      await call.age(most / 1_000);
      const later = await call.claim();
      if (most === 60_000)
        expect(later).toMatchObject({ expiresInMs: expect.toSatisfy((ms: number) => ms <= 0) });
    }
  });
});

describe('the run', () => {
  const WAYS: Partial<Record<RunState, readonly RunState[]>> = {
    waiting_for_input: ['waiting_for_input'],
    awaiting_approval: ['awaiting_approval'],
    retry_wait: ['retry_wait'],
    cancelling: ['cancelling'],
    needs_reconciliation: ['needs_reconciliation'],
    reconciling: ['needs_reconciliation', 'reconciling'],
  };

  test.each(Object.entries(WAYS))(
    'that is %s dispatches nothing, and the refused claim writes nothing',
    async (_, way) => {
      const call = await ledger.newCall('read');
      await call.run.commit(...way.map((to) => ({ kind: 'move', to, reason: 'internal_error' }) as const));
      const before = await footprint(call.run.runId);
      expect(await ask(call)).toBe('out_of_step');
      expect(await footprint(call.run.runId)).toStrictEqual(before);
    },
  );

  test('that is compensating may dispatch', async () => {
    const call = await ledger.newCall('keyed');
    await call.run.commit({ kind: 'move', to: 'compensating', reason: 'compensation_needed' });
    expect(await ask(call)).toBe('claimed');
  });

  test('that ended dispatches nothing for its owner, nor for anybody', async () => {
    const call = await ledger.newCall('opaque');
    await call.run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
    expect(await ask(call)).toBe('out_of_step');
    expect(await ask(call, { execution: 'exec-stranger' })).toBe('run_ended');
    expect(await ask(call, { entries: [{ kind: 'move', to: 'running', reason: 'retry_due' }] })).toBe(
      'run_ended',
    );
  });

  test('past its deadline begins nothing new, and may still ask what became of the old', async () => {
    const fresh = await ledger.newCall('keyed');
    const doubtful = await ledger.newCall('keyed');
    await doubtful.attempt('unknown');
    await ledger.rows(`update holdfast.runs set deadline_at = now() - interval '1 second'`);
    expect(await ask(fresh)).toBe('limit_wall_clock');
    expect((await fresh.effect()).attempts).toBe(0);
    expect(await ask(doubtful)).toBe('claimed');
  });

  test('has its trail committed with the claim, and not with a refused one', async () => {
    const call = await ledger.newCall('read');
    const wait = { kind: 'move', to: 'retry_wait', reason: 'transient_fault' } as const;
    const due = { kind: 'move', to: 'running', reason: 'retry_due' } as const;
    expect(await ask(call, { entries: [wait, due] })).toBe('claimed');
    expect(await ledger.path(call.run.runId)).toStrictEqual(['admitted', 'running', 'retry_wait', 'running']);
    expect(await ask(call, { entries: [wait] })).toBe('out_of_step');
    expect((await ledger.runRow(call.run.runId)).state).toBe('running');
  });

  test('that nobody planned a call for is told so', async () => {
    const { run } = await ledger.newCall('read');
    expect(await ask(run.call(1))).toBe('effect_not_found');
    expect(await ask(run.call(0, 7))).toBe('effect_not_found');
  });
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
    const before = await footprint(call.run.runId);
    expect(await ask(call)).toBe(answer);
    if (answer !== 'claimed') expect(await footprint(call.run.runId)).toStrictEqual(before);
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
    expect(await ask(call)).toBe('unknown/person');
  });
});

describe('of any number of callers', () => {
  test.each(EFFECT_CLASSES)('one gets a new %s effect, and one its redispatch', async (effectClass) => {
    const call = await ledger.newCall(effectClass);
    for (const round of [1, 2]) {
      const answers = await Promise.all(Array.from({ length: 20 }, () => call.claim()));
      const claims = answers.flatMap((answer) => (answer.kind === 'claimed' ? [answer] : []));
      expect(claims).toHaveLength(1);
      expect(claims[0]!.attempt).toBe(round);
      await call.settle(claims[0]!, 'not_sent');
    }
    expect(await ledger.effects(call.run.runId)).toHaveLength(1);
  });

  test('the one whose acknowledgement was lost gets its own claim again, under the same token', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    expect(await call.claim({ attemptId: claim.attemptId })).toStrictEqual(claim);
    expect(await ask(call)).toBe('dispatching');
    expect(await ledger.attempts(call.run.runId)).toHaveLength(1);
  });

  test.each(EFFECT_CLASSES)(
    'one whose attempt of a %s effect has ended gets nothing under its name',
    async (effectClass) => {
      const call = await ledger.newCall(effectClass);
      const lost = await call.lose();
      expect(await ask(call, { attemptId: lost.attemptId })).toMatch(/^unknown/);
      const released = await ledger.newCall(effectClass);
      const { attemptId } = await released.attempt('not_sent');
      expect(await ask(released, { attemptId })).toBe('intended');
    },
  );

  test('the fencing token rises with every claim and every loss', async () => {
    const call = await ledger.newCall('keyed');
    const tokens: number[] = [];
    for (let time = 0; time < 4; time += 1) tokens.push((await call.lose()).fencingToken);
    expect(tokens).toStrictEqual([1, 3, 5, 7]);
    expect((await call.effect()).fencing_token).toBe(8);
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
    const before = await footprint(call.run.runId);
    expect(await ask(call)).toBe('key_conflict');
    expect(await footprint(call.run.runId)).toStrictEqual(before);
    expect((await other.effect()).run_id).toBe(other.run.runId);
  });

  test('carries a lease of the shorter time-out and the margin, and a whole series from its first attempt', async () => {
    const call = await ledger.newCall('opaque', {
      policy: { timeoutSeconds: 1.5, approval: 'not_required' },
      contract: { timeouts: { tool_seconds: 2 }, retry: { series_seconds_max: 100 } },
    });
    await call.run.commit({ kind: 'control', to: 'pause_requested', reason: 'cancel_requested' });
    await ask(call);
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
    expect(await ask(call, { redo: 1 })).toBe('dispatching');
  });

  test.each(EFFECT_STATES.filter((state) => state !== 'not_committed'))(
    'of an effect that is %s makes no second effect',
    async (from) => {
      const call = await ledger.newCall('opaque');
      await call.bringTo(from);
      await ask(call, { redo: 1 });
      expect(await ledger.effects(call.run.runId)).toHaveLength(1);
    },
  );

  test('of a call whose result the model has read is not made', async () => {
    const call = await ledger.newCall('read');
    await call.attempt('unknown');
    await call.close('withdrawn', 'lost_read');
    expect(await ask(call)).toBe('not_committed/tell_model');
    expect(await ask(call, { redo: 1 })).toBe('not_committed/tell_model');
    expect(await ledger.effects(call.run.runId)).toHaveLength(1);
  });

  test('is offered as often as the contract says, and then the model is told', async () => {
    const call = await ledger.newCall('opaque', { contract: { reconciliation: { redos_max: 1 } } });
    await call.bringTo('not_committed');
    expect(await ask(call)).toBe('not_committed/redo');
    const redo = await call.claimed({ redo: 1 });
    await call.examine();
    await call.settle(redo, 'rejected');
    await call.beginQuery();
    expect(await ask(call)).toBe('not_committed/tell_model');
  });

  test.each(['tell_model', 'fail'] as const)('is not offered where the contract says %s', async (rule) => {
    const call = await ledger.newCall('opaque', {
      contract: { reconciliation: { after_not_committed: rule } },
    });
    await call.bringTo('not_committed');
    expect(await ask(call)).toBe(`not_committed/${rule}`);
  });
});

test('an id of an attempt belongs to one attempt for ever', async () => {
  const attemptId = newId('att');
  await (await ledger.newCall('opaque')).claimed({ attemptId });
  const other = await ledger.newCall('opaque');
  expect(await ask(other, { attemptId })).not.toBe('claimed');
  expect(await ledger.attempts(other.run.runId)).toStrictEqual([]);
});
