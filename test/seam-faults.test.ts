import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FaultPoint } from '../activities/fault-points.js';
import { EFFECT_CLASSES, type EffectClass } from '../shared/domain/effect-classes.js';
import type { Dial, TargetMode } from './support/http-target.js';
import { judge } from './support/judge.js';
import { keyOf, startWorld, type World } from './support/world.js';
import { TOOL_OF_CLASS, usualScript } from './support/world-project.js';

// Goal: whatever ends an attempt, wherever, the outside sees what the effect's class allows and no more, and the ledger
// says what the outside saw, or that it does not know. Method: one run for each fault point × class × cut, and for
// each behaviour of the target × class, all at once in one worker; when all rest, the ledger is held against the
// target's own log. The same cuts by kill -9 stand in seam-kill.test.ts.

type ActPoint = Extract<FaultPoint, `act.${string}`>;
type ThinkPoint = Extract<FaultPoint, `think.${string}`>;
type QueryPoint = Extract<FaultPoint, `query.${string}`>;

/** `arrived/applied`, then each effect's state and the source of its receipt, then where the run rests. */
type Summary = string;

// prettier-ignore
const CUT_AT: Record<ActPoint, Record<EffectClass, Summary>> = {
  'act.before_claim': {
    keyed:     '1/1 succeeded by response, completed',
    queryable: '1/1 succeeded by response, completed',
    opaque:    '1/1 succeeded by response, completed',
    read:      '1/0 succeeded by response, completed',
  },
  // Nothing has left, but nobody can know.
  'act.after_claim': {
    keyed:     '1/1 succeeded by response, completed',
    queryable: '1/1 not_committed by probe + succeeded by response, completed',
    opaque:    '0/0 unknown, needs_reconciliation',
    read:      '1/0 succeeded by response, completed',
  },
  // Applied, and the answer is gone.
  'act.after_call': {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '1/1 committed by probe, completed',
    opaque:    '1/1 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
  'act.after_settle': {
    keyed:     '1/1 succeeded by response, completed',
    queryable: '1/1 succeeded by response, completed',
    opaque:    '1/1 succeeded by response, completed',
    read:      '1/0 succeeded by response, completed',
  },
};

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

/** Requests that the model saw, and attempts that the ledger counted, of the first of the run's two model calls. */
// prettier-ignore
const THINK_CUT_AT: Record<ThinkPoint, Summary> = {
  'think.before_claim': '1 asked, 1 attempts, 0 lost; 1/1 succeeded by response, completed',
  'think.after_claim':  '1 asked, 2 attempts, 1 lost; 1/1 succeeded by response, completed',
  'think.after_answer': '2 asked, 2 attempts, 1 lost; 1/1 succeeded by response, completed',
  // The committed answer is given again: nobody pays twice.
  'think.after_commit': '1 asked, 1 attempts, 0 lost; 1/1 succeeded by response, completed',
};

/** An effect that was done, and one that never left, each with the reconciler cut once. */
// prettier-ignore
const QUERY_CUT_AT: Record<QueryPoint, Record<'done' | 'never left', Summary>> = {
  'query.before_begin': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
  'query.after_begin': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
  'query.after_probe': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
  'query.after_record': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
};

let world: World;
const played = new Map<string, Promise<Summary>>();

beforeAll(async () => {
  world = await startWorld({
    script: { ...usualScript(), log: 'model.jsonl' },
    heartbeatSeconds: 30,
  });
  for (const [point, byClass] of entries(CUT_AT)) {
    for (const kind of EFFECT_CLASSES) await cutRun(`${point} ${kind}`, kind, [point]);
    expect(Object.keys(byClass)).toHaveLength(EFFECT_CLASSES.length);
  }
  for (const mode of Object.keys(TARGET_DOES) as TargetMode[]) {
    for (const kind of EFFECT_CLASSES) await dialRun(`${mode} ${kind}`, kind, { mode, delayMs: 20_000 });
  }
  for (const [point] of entries(THINK_CUT_AT)) await cutRun(point, 'keyed', [point], withModel);
  for (const [point] of entries(QUERY_CUT_AT)) {
    await cutRun(`${point} done`, 'queryable', ['act.after_call', point]);
    await cutRun(`${point} never left`, 'queryable', ['act.after_claim', point]);
  }
  await world.starter.round();
});

describe('an attempt that is cut off', () => {
  test.each(cells(CUT_AT))('at %s, class %s: %s', async (point, kind, expected) => {
    expect(await played.get(`${point} ${kind}`)).toBe(expected);
  });
});

describe('a target that answers', () => {
  test.each(cells(TARGET_DOES))('%s, class %s: %s', async (mode, kind, expected) => {
    expect(await played.get(`${mode} ${kind}`)).toBe(expected);
  });
});

describe('a model call that is cut off', () => {
  test.each(entries(THINK_CUT_AT))('at %s: %s', async (point, expected) => {
    expect(await played.get(point)).toBe(expected);
  });
});

describe('a reconciler that is cut off', () => {
  test.each(cells(QUERY_CUT_AT))('at %s, where the effect was %s: %s', async (point, truth, expected) => {
    expect(await played.get(`${point} ${truth}`)).toBe(expected);
  });
});

test('every fault came about, and the ledger says what the target saw', async () => {
  await Promise.all(played.values());
  const cuts = cells(CUT_AT).length + entries(THINK_CUT_AT).length + 2 * cells(QUERY_CUT_AT).length;
  expect(world.faults.reached()).toHaveLength(cuts);
  expect(await judge(world, world.targetLog())).toEqual([]);
});

async function cutRun(
  name: string,
  kind: EffectClass,
  points: readonly FaultPoint[],
  summarize: (runId: string) => Promise<Summary> = summaryOf,
): Promise<void> {
  const runId = await world.admit({ input: `${TOOL_OF_CLASS[kind]} ${randomUUID()}` });
  for (const point of points) world.faults.add({ point, runId, mode: 'throw' });
  play(name, runId, summarize);
}

async function dialRun(name: string, kind: EffectClass, dial: Dial): Promise<void> {
  // Longer than the target's late answer would never end, shorter than its delay.
  const contract = dial.mode === 'late' ? { timeouts: { tool_seconds: 1 } } : {};
  const runId = await world.admit({ input: `${TOOL_OF_CLASS[kind]} ${randomUUID()}`, contract });
  world.target.dial({ ...dial, key: keyOf(runId), times: 1 });
  play(name, runId, summaryOf);
}

function play(name: string, runId: string, summarize: (runId: string) => Promise<Summary>): void {
  const summary = summarize(runId);
  // Each is awaited by its own test; until then its failure is nobody's.
  summary.catch(() => undefined);
  played.set(name, summary);
}

async function summaryOf(runId: string): Promise<Summary> {
  const run = await world.waitFor(
    runId,
    async ({ state, ended_at }) => {
      if (ended_at !== null) return true;
      // Only a class that no machine can settle rests there.
      const effects = await world.effects(runId);
      return state === 'needs_reconciliation' && effects.some((each) => each.effect_class === 'opaque');
    },
    60_000,
  );
  const receipts = new Map((await world.receipts(runId)).map((receipt) => [receipt.effect_id, receipt]));
  const effects = (await world.effects(runId)).map(({ effect_id, state }) => {
    const receipt = receipts.get(effect_id);
    return receipt === undefined ? state : `${state} by ${receipt.source}`;
  });
  const log = world.targetLog(runId);
  const count = (wanted: 'arrived' | 'applied') => log.filter(({ kind }) => kind === wanted).length;
  return `${count('arrived')}/${count('applied')} ${effects.join(' + ')}, ${run.state}`;
}

async function withModel(runId: string): Promise<Summary> {
  const summary = await summaryOf(runId);
  const lines = (await readFile(join(world.folder, 'model.jsonl'), 'utf8')).trim().split('\n');
  const asked = lines
    .map((line) => JSON.parse(line) as { readonly callKey: string })
    .filter(({ callKey }) => callKey === `${runId}:t1:s1`).length;
  const [call] = await world.rows<{ attempts: number; lost_attempts: number }>(
    'select attempts, lost_attempts from holdfast.model_calls where run_id = $1 and step = 1',
    runId,
  );
  return `${asked} asked, ${call?.attempts} attempts, ${call?.lost_attempts} lost; ${summary}`;
}

function entries<K extends string, V>(table: Partial<Record<K, V>>): [K, V][] {
  return Object.entries(table) as [K, V][];
}

/** The cells of a table, row by row. */
function cells<Row extends string, Column extends string>(
  table: Partial<Record<Row, Record<Column, Summary>>>,
): [Row, Column, Summary][] {
  return entries(table).flatMap(([row, columns]) =>
    entries<Column, Summary>(columns).map(([column, cell]): [Row, Column, Summary] => [row, column, cell]),
  );
}
