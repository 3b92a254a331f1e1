import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FaultPoint } from '../../activities/fault-points.js';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { Dial, TargetMode } from './http-target.js';
import { judge } from './judge.js';
import {
  cells,
  CUT_AT,
  CUT_THAT_LEAVES,
  Playing,
  QUERY_CUT_AT,
  rows,
  type Summary,
  summaryOf,
  summaryWithModel,
  THINK_CUT_AT,
} from './seam-table.js';
import { keyOf, startWorld, type World } from './world.js';
import { type Lane, TOOL_OF_CLASS, usualScript } from './world-project.js';

// Goal: whatever ends an attempt, wherever, the outside sees what the effect's class allows and no more, and the ledger
// says what the outside saw, or that it does not know. Method: one run for each fault point × class, and for each
// behaviour of the target × class, all at once in one worker; when all rest, the ledger is held against the target's
// own log. The same cuts by kill -9 stand in seam-kill.test.ts.

/** Plays it in one lane of the workflow; every test is named after what it asserts. */
export function cutAttempts(lane: Lane): void {
  /** What the target does to a run's first request, by class. */
  // prettier-ignore
  const TARGET_DOES: Partial<Record<TargetMode, Record<EffectClass, Summary>>> = {
  ok: {
    keyed:     '1/1 succeeded by response, completed',
    queryable: '1/1 succeeded by response, completed',
    opaque:    '1/1 succeeded by response, completed',
    read:      '1/0 succeeded by response, completed',
  },
  drop_after: {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '1/1 committed by probe, completed',
    opaque:    '1/1 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
  // A 500 is no refusal: here it comes after the commit, there before it, and nobody can tell which.
  error_500_after: {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '1/1 committed by probe, completed',
    opaque:    '1/1 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
  error_500_before: {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '2/1 not_committed by probe + succeeded by response, completed',
    opaque:    '1/0 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
  refuse_422: {
    keyed:     '1/0 rejected by response, completed',
    queryable: '1/0 rejected by response, completed',
    opaque:    '1/0 rejected by response, completed',
    read:      '1/0 rejected by response, completed',
  },
  drop_before: {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '2/1 not_committed by probe + succeeded by response, completed',
    opaque:    '1/0 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
  // Applied, answered only after the call's own time-out: the late answer is heard by nobody.
  late: {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '1/1 committed by probe, completed',
    opaque:    '1/1 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
};

  let world: World;
  const playing = new Playing();

  beforeAll(async () => {
    world = await startWorld({
      lane,
      script: { ...usualScript(), log: 'model.jsonl' },
      // An attempt that throws is heard of at once; silence is not what is tried here.
      heartbeatSeconds: 30,
    });
    for (const [point, kind] of cells(CUT_AT)) await cut(`${point} ${kind}`, kind, [point]);
    for (const [mode, kind] of cells(TARGET_DOES)) await dial(`${mode} ${kind}`, kind, { mode });
    for (const [point] of rows(THINK_CUT_AT)) await cut(point, 'keyed', [point], summaryWithModel);
    for (const [point, truth] of cells(QUERY_CUT_AT)) {
      await cut(`${point} ${truth}`, 'queryable', [CUT_THAT_LEAVES[truth], point]);
    }
    await world.starter.round();
  });

  describe('an attempt that is cut off', () => {
    test.each(cells(CUT_AT))('at %s, class %s: %s', async (point, kind, expected) => {
      expect(await playing.of(`${point} ${kind}`)).toBe(expected);
    });
  });

  describe('a target that answers', () => {
    test.each(cells(TARGET_DOES))('%s, class %s: %s', async (mode, kind, expected) => {
      expect(await playing.of(`${mode} ${kind}`)).toBe(expected);
    });
  });

  describe('a model call that is cut off', () => {
    test.each(rows(THINK_CUT_AT))('at %s: %s', async (point, expected) => {
      expect(await playing.of(point)).toBe(expected);
    });
  });

  describe('A22: a reconciler that is cut off', () => {
    test.each(cells(QUERY_CUT_AT))('at %s, where the effect was %s: %s', async (point, truth, expected) => {
      expect(await playing.of(`${point} ${truth}`)).toBe(expected);
    });
  });

  test('every cut came about, and the ledger says what the target saw', async () => {
    await playing.all();
    const cuts = cells(CUT_AT).length + rows(THINK_CUT_AT).length + 2 * cells(QUERY_CUT_AT).length;
    expect(world.faults.reached()).toHaveLength(cuts);
    expect(await judge(world, world.targetLog())).toEqual([]);
  });

  async function cut(
    name: string,
    kind: EffectClass,
    points: readonly FaultPoint[],
    summarize = summaryOf,
  ): Promise<void> {
    const runId = await world.admit({ input: `${TOOL_OF_CLASS[kind]} ${randomUUID()}` });
    for (const point of points) world.faults.add({ point, runId, mode: 'throw' });
    playing.add(name, summarize(world, runId));
  }

  async function dial(name: string, kind: EffectClass, fault: Dial): Promise<void> {
    const contract = fault.mode === 'late' ? { timeouts: { tool_seconds: 1 } } : {};
    const runId = await world.admit({ input: `${TOOL_OF_CLASS[kind]} ${randomUUID()}`, contract });
    // Only `late` waits, far longer than the call does.
    world.target.dial({ ...fault, key: keyOf(runId), times: 1, delayMs: 20_000 });
    playing.add(name, summaryOf(world, runId));
  }
}
