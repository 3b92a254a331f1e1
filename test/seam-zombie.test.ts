import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FaultPoint } from '../activities/fault-points.js';
import { EFFECT_CLASSES, type EffectClass } from '../shared/domain/effect-classes.js';
import type { Fault, ReachedFault } from './support/fault-plan.js';
import { judge } from './support/judge.js';
import type { TestProcess } from './support/processes.js';
import { Playing, rows, type Summary, summaryOf } from './support/seam-table.js';
import { keyOf, startWorld, until, type World, type WorldWorker } from './support/world.js';
import { TOOL_OF_CLASS } from './support/world-project.js';

// Goal: a worker that was taken for dead and comes back (FAULTS B01–B03) settles nothing, sends nothing, and what it
// knows is kept as evidence. Method: one worker process holds, for each class, one run whose target has answered and
// one that has its claim and has sent nothing; it is frozen, another worker takes the runs over until they rest, and
// only then the first one goes on from where it stood.

/** Frozen with the answer in memory: where the run rests without it, and what the late answer makes of that. */
// prettier-ignore
const FROZEN_AFTER_CALL: Record<EffectClass, { readonly taken: Summary; readonly thawed: Summary }> = {
  keyed:     { taken:  '2/1 succeeded by response, completed',
               thawed: '2/1 succeeded by response, completed' },
  queryable: { taken:  '1/1 committed by probe, completed',
               thawed: '1/1 committed by probe, completed' },
  // Evidence, never authority: it settles through reconciliation what nothing else could.
  opaque:    { taken:  '1/1 unknown, needs_reconciliation',
               thawed: '1/1 committed by late_receipt, completed' },
  read:      { taken:  '2/0 succeeded by response, completed',
               thawed: '2/0 succeeded by response, completed' },
};

/** Frozen between the claim and the first byte. What another worker took over is not sent any more. */
// prettier-ignore
const FROZEN_AFTER_CLAIM: Record<EffectClass, { readonly taken: Summary; readonly thawed: Summary }> = {
  keyed:     { taken:  '1/1 succeeded by response, completed',
               thawed: '1/1 succeeded by response, completed' },
  queryable: { taken:  '1/1 not_committed by probe + succeeded by response, completed',
               thawed: '1/1 not_committed by probe + succeeded by response, completed' },
  opaque:    { taken:  '0/0 unknown, needs_reconciliation',
               thawed: '0/0 unknown, needs_reconciliation' },
  read:      { taken:  '1/0 succeeded by response, completed',
               thawed: '1/0 succeeded by response, completed' },
};

let world: World;
let zombie: TestProcess;
let rescuer: WorldWorker;
const runs = new Map<string, string>();
const taken = new Playing();
const thawed = new Playing();

beforeAll(async () => {
  world = await startWorld({ workers: 0, heartbeatSeconds: 2 });
  zombie = world.startWorkerProcess({ faults: await place() });
  await freeze();
  rescuer = await world.startWorker();
  for (const [name, runId] of runs) taken.add(name, summaryOf(world, runId));
  await taken.all();
  await zombie.signal('SIGCONT');
  zombie.send({ kind: 'release' });
  for (const [name, runId] of runs) thawed.add(name, lateSummaryOf(runId));
}, 120_000);

describe('a worker that is frozen', () => {
  test.each(rows(FROZEN_AFTER_CALL))(
    'with the answer of class %s leaves what another one finishes',
    async (kind, expected) => {
      expect(await taken.of(`act.after_call ${kind}`)).toBe(expected.taken);
    },
  );

  test.each(rows(FROZEN_AFTER_CLAIM))(
    'with a claim of class %s leaves what another one finishes',
    async (kind, expected) => {
      expect(await taken.of(`act.after_claim ${kind}`)).toBe(expected.taken);
    },
  );
});

describe('a worker that comes back', () => {
  test.each(rows(FROZEN_AFTER_CALL))(
    'with the answer of class %s adds a late receipt and nothing else',
    async (kind, expected) => {
      expect(await thawed.of(`act.after_call ${kind}`)).toBe(`${expected.thawed}; late: succeeded`);
    },
  );

  test.each(rows(FROZEN_AFTER_CLAIM))(
    'with a claim of class %s sends nothing any more',
    async (kind, expected) => {
      expect(await thawed.of(`act.after_claim ${kind}`)).toBe(`${expected.thawed}; late: not_sent`);
    },
  );
});

test('the ledger says what the target saw, and nothing was applied after an end', async () => {
  await thawed.all();
  expect(await judge(world, world.targetLog())).toEqual([]);
});

// FAULTS B05, by the worker that came back: it works on like any other.
test('a worker that is asked to stop lets its effect finish, stores the receipt and ends with code 0', async () => {
  await thawed.all();
  await rescuer.stop();
  const runId = await world.admit({ input: `mail ${randomUUID()}` });
  world.target.dial({ mode: 'hold_after', key: keyOf(runId), times: 1 });
  await world.starter.round();
  await until('the target holds the request', () => world.target.held() === 1);
  const ended = zombie.signal('SIGTERM');
  await until('the worker has heard it', () => zombie.output().includes('the worker stops'));
  world.target.release();
  await ended;
  expect(await zombie.ended).toEqual({ code: 0, signal: null });
  expect(await world.receipts(runId)).toMatchObject([{ status: 'succeeded', source: 'response' }]);
  await world.startWorker();
  expect(await summaryOf(world, runId)).toBe('1/1 succeeded by response, completed');
  expect(await judge(world, world.targetLog())).toEqual([]);
});

/** Admits a run for each class and point, to be held there. */
async function place(): Promise<Fault[]> {
  const faults: Fault[] = [];
  for (const point of ['act.after_call', 'act.after_claim'] as const satisfies FaultPoint[]) {
    for (const kind of EFFECT_CLASSES) {
      const runId = await world.admit({ input: `${TOOL_OF_CLASS[kind]} ${randomUUID()}` });
      runs.set(`${point} ${kind}`, runId);
      if (runId !== stopperOf(runs)) faults.push({ point, runId, mode: 'hang' });
      else {
        faults.push({ point: 'act.before_claim', runId, mode: 'hang' }, { point, runId, mode: 'stop' });
      }
    }
  }
  return faults;
}

/**
 * The run that freezes the worker, once all others are in place: between its claim and its first byte, where nothing
 * but the worker's own clock can tell it afterwards that it slept.
 */
function stopperOf(placed: ReadonlyMap<string, string>): string | undefined {
  return placed.get('act.after_claim opaque');
}

async function freeze(): Promise<void> {
  const reached = (mode: Fault['mode']): number =>
    zombie.messages().filter((message) => (message as Partial<ReachedFault>).mode === mode).length;
  await until('every run is in its place', () => reached('hang') === runs.size, 60_000);
  zombie.send({ kind: 'release', runId: stopperOf(runs) });
  await until('the worker is frozen', () => reached('stop') === 1);
}

/** The summary once the late answer is there, and has settled what it can. */
async function lateSummaryOf(runId: string): Promise<Summary> {
  await world.waitFor(runId, async ({ state }) => {
    const [late] = await world.lateReceipts(runId);
    return late !== undefined && (late.outcome === 'not_sent' || state === 'completed');
  });
  const late = await world.lateReceipts(runId);
  return `${await summaryOf(world, runId)}; late: ${late.map(({ outcome }) => outcome).join()}`;
}
