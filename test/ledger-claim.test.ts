import { beforeAll, describe, expect, test } from 'vitest';
import { EFFECT_CLASSES } from '../shared/domain/effect-classes.js';
import { EFFECT_STATES, type EffectState } from '../shared/domain/effect-machine.js';
import type { ControlState, RunState } from '../shared/domain/run-machine.js';
import { newId } from '../shared/ledger/new-id.js';
import { openLedger, type LedgerWorld } from './support/ledger-world.js';

// Goal: the claim is the one door to the outside, so it opens exactly where SPEC 3.1.2 and 3.3 let it.
// Method: from every state of an effect, for every kind of caller and every thing that can forbid it, ask, and look
// at the answer and at what was written.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

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
    const before = await ledger.footprint(call.run.runId);
    expect(await call.ask()).toBe(answer);
    if (answer !== 'claimed') expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
    else expect((await call.effect()).state).toBe('dispatching');
  });

  test.each(cases.filter(([effectClass]) => effectClass === 'keyed' || effectClass === 'opaque'))(
    'a %s effect that is %s is refused to everybody else (to its run: %s)',
    async (effectClass, from) => {
      const call = await ledger.newCall(effectClass);
      if (from !== 'absent') await call.bringTo(from);
      expect(await call.ask({ execution: 'exec-stranger' })).toBe('unknown_execution');
      const { effects, attempts } = await ledger.footprint(call.run.runId);
      const next = await call.run.takenOver();
      expect(await call.ask()).toBe('lost_ownership');
      expect(await call.ask({ execution: 'exec-stranger' })).toBe('unknown_execution');
      // The takeover moves what was in flight, the refused claims nothing.
      if (from !== 'dispatching') {
        expect(await ledger.footprint(call.run.runId)).toMatchObject({ effects, attempts });
      }
      expect(await next.call(0).ask()).toBe(
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
      expect([from, await call.ask()]).toStrictEqual([from, control]);
      expect((await call.effect()).state).toBe(from === 'absent' ? 'intended' : from);
    }
  });

  test.each(states)('a run that is %s still hears of what was done before', async (control) => {
    const call = await ledger.newCall('keyed');
    await call.bringTo('succeeded');
    await call.run.commit(
      ...WAYS[control].map((to) => ({ kind: 'control', to, reason: 'cancel_requested' }) as const),
    );
    expect(await call.ask()).toBe('succeeded');
  });

  test('a claim that went through before the pause is still answered to its own attempt', async () => {
    const call = await ledger.newCall('opaque');
    const claim = await call.claimed();
    await call.run.commit({ kind: 'control', to: 'pause_requested', reason: 'cancel_requested' });
    expect(await call.claim({ attemptId: claim.attemptId })).toStrictEqual(claim);
    expect(await call.ask()).toBe('dispatching');
  });

  test('a call that needs an approval is written as an intent and never claimed, whatever is asked', async () => {
    const call = await ledger.newCall('opaque', { policy: { approval: 'required' } });
    for (let time = 0; time < 3; time += 1) expect(await call.ask()).toBe('approval_required');
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
      if (answer.kind !== 'approval_required' || answer.needed === null) throw new Error(answer.kind);
      const leftMs = new Date(answer.needed.expires_at).getTime() - Date.now();
      expect(leftMs).toBeLessThanOrEqual(most);
      expect(leftMs).toBeGreaterThan(most - 30_000);
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
      const before = await ledger.footprint(call.run.runId);
      expect(await call.ask()).toBe('out_of_step');
      expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
    },
  );

  test('that is compensating dispatches no call of the model', async () => {
    const call = await ledger.newCall('keyed');
    await call.run.commit({ kind: 'move', to: 'compensating', reason: 'compensation_needed' });
    expect(await call.ask()).toBe('out_of_step');
  });

  test('that ended dispatches nothing for its owner, nor for anybody', async () => {
    const call = await ledger.newCall('opaque');
    await call.run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
    expect(await call.ask()).toBe('out_of_step');
    expect(await call.ask({ execution: 'exec-stranger' })).toBe('run_ended');
    expect(await call.ask({ entries: [{ kind: 'move', to: 'running', reason: 'retry_due' }] })).toBe(
      'run_ended',
    );
  });

  test('past its deadline begins nothing new, and may still ask what became of the old', async () => {
    const fresh = await ledger.newCall('keyed');
    const doubtful = await ledger.newCall('keyed');
    await doubtful.attempt('unknown');
    await ledger.rows(`update holdfast.runs set deadline_at = now() - interval '1 second'`);
    expect(await fresh.ask()).toBe('limit_wall_clock');
    expect((await fresh.effect()).attempts).toBe(0);
    expect(await doubtful.ask()).toBe('claimed');
  });

  test('has its trail committed with the claim, and not with a refused one', async () => {
    const call = await ledger.newCall('read');
    const wait = { kind: 'move', to: 'retry_wait', reason: 'transient_fault' } as const;
    const due = { kind: 'move', to: 'running', reason: 'retry_due' } as const;
    expect(await call.ask({ entries: [wait, due] })).toBe('claimed');
    expect(await ledger.path(call.run.runId)).toStrictEqual(['admitted', 'running', 'retry_wait', 'running']);
    expect(await call.ask({ entries: [wait] })).toBe('out_of_step');
    expect((await ledger.runRow(call.run.runId)).state).toBe('running');
  });

  test('that nobody planned a call for is told so', async () => {
    const { run } = await ledger.newCall('read');
    expect(await run.call(1).ask()).toBe('effect_not_found');
    expect(await run.call(0, 7).ask()).toBe('effect_not_found');
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
    expect(await call.ask()).toBe('dispatching');
    expect(await ledger.attempts(call.run.runId)).toHaveLength(1);
  });

  test.each(EFFECT_CLASSES)(
    'one whose attempt of a %s effect has ended gets nothing under its name',
    async (effectClass) => {
      const call = await ledger.newCall(effectClass);
      const lost = await call.lose();
      expect(await call.ask({ attemptId: lost.attemptId })).toMatch(/^unknown/);
      const released = await ledger.newCall(effectClass);
      const { attemptId } = await released.attempt('not_sent');
      expect(await released.ask({ attemptId })).toBe('intended');
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

test('an id of an attempt belongs to one attempt for ever', async () => {
  const attemptId = newId('att');
  await (await ledger.newCall('opaque')).claimed({ attemptId });
  const other = await ledger.newCall('opaque');
  expect(await other.ask({ attemptId })).not.toBe('claimed');
  expect(await ledger.attempts(other.run.runId)).toStrictEqual([]);
});
