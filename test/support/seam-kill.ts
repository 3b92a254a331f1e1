import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FaultPoint } from '../../activities/fault-points.js';
import { EFFECT_CLASSES, type EffectClass } from '../../shared/domain/effect-classes.js';
import type { Fault } from './fault-plan.js';
import { judge } from './judge.js';
import type { ProcessEnd, TestProcess } from './processes.js';
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
import { keyOf, startWorld, until, type World } from './world.js';
import { type Lane, TOOL_OF_CLASS, usualScript } from './world-project.js';

// Goal: kill -9 of a worker at any point of an attempt leaves what seam-faults.test.ts says, to be finished by another
// worker. Method: one real worker process holds one run at each point × class, and at the target for the time between
// request and answer; when all are in place it kills itself, at one more point; a second worker takes over.

/** Plays it in one lane of the workflow; every test is named after what it asserts. */
export function killedWorkers(lane: Lane): void {
  /** Killed while the target has the request (FAULTS A06, A07): it applied it, or it never does. */
  // prettier-ignore
  const KILLED_WHILE: Record<'hold_after' | 'hold_before', Record<EffectClass, Summary>> = {
  hold_after: {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '1/1 committed by probe, completed',
    opaque:    '1/1 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
  hold_before: {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '2/1 not_committed by probe + succeeded by response, completed',
    opaque:    '1/0 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
};

  let world: World;
  let firstWorkerEnd: ProcessEnd;
  const playing = new Playing();
  const faults: Fault[] = [];
  const summaries = new Map<string, { readonly runId: string; readonly summarize: typeof summaryOf }>();

  beforeAll(async () => {
    // What is short may take no longer.
    const patient = { timeoutSeconds: lane === 'fast' ? 10 : 60, parallel: true };
    world = await startWorld({
      lane,
      workers: 0,
      heartbeatSeconds: 2,
      script: { ...usualScript(), log: 'model.jsonl' },
      // Longer than it takes to put every run in its place.
      httpTools: { pay: patient, book: patient, mail: patient, look: patient },
    });
    const killer = await place();
    const worker = world.startWorkerProcess({ faults });
    await allInPlace(worker);
    worker.send({ kind: 'release', runId: killer });
    firstWorkerEnd = await worker.ended;
    await world.startWorker();
    for (const [name, { runId, summarize }] of summaries) playing.add(name, summarize(world, runId));
  }, 120_000);

  test('the first worker was killed by kill -9, at the point that was meant', () => {
    expect(firstWorkerEnd).toEqual({ code: null, signal: 'SIGKILL' });
  });

  describe('a worker that is killed', () => {
    test.each(cells(CUT_AT))(
      'at %s, class %s: %s (A01, A03, A05, A10, A12)',
      async (point, kind, expected) => {
        expect(await playing.of(`${point} ${kind}`)).toBe(expected);
      },
    );

    test.each(cells(KILLED_WHILE))(
      'in the middle of a request (%s), class %s: %s (A06, A07)',
      async (mode, kind, expected) => {
        expect(await playing.of(`${mode} ${kind}`)).toBe(expected);
      },
    );

    test.each(rows(THINK_CUT_AT))('at %s: %s', async (point, expected) => {
      expect(await playing.of(point)).toBe(expected);
    });

    test.each(cells(QUERY_CUT_AT))(
      'at %s, where the effect was %s: %s (A22)',
      async (point, truth, expected) => {
        expect(await playing.of(`${point} ${truth}`)).toBe(expected);
      },
    );

    // In call order: what is behind the one that waits for a person waits too.
    test('with four calls of one step in the air leaves each to the rule of its class', async () => {
      expect(await playing.of('together')).toBe(
        '5/3 succeeded by response + committed by probe + unknown + unknown, needs_reconciliation',
      );
    });

    test('by itself, at act.after_settle: 1/1 succeeded by response, completed', async () => {
      expect(await playing.of('killer')).toBe('1/1 succeeded by response, completed');
    });
  });

  test('what nobody can know waits for its owner, with a deadline', async () => {
    const open = await world.rows<{ reconciliation_owner: string; left: boolean }>(
      `select reconciliation_owner, reconciliation_deadline_at > clock_timestamp() as left
       from holdfast.effects where state = 'unknown'`,
    );
    const rests = await playing.all();
    const inDoubt = rests.flatMap((rest) => rest.match(/unknown/g) ?? []);
    expect(inDoubt).toHaveLength(6);
    expect(open).toEqual(inDoubt.map(() => ({ reconciliation_owner: 'owner', left: true })));
  });

  test('the ledger says what the target saw', async () => {
    await playing.all();
    expect(await judge(world, world.targetLog())).toEqual([]);
  });

  /** Admits every run and notes where it is to be cut. @returns the run whose release kills the worker */
  async function place(): Promise<string> {
    const hang = (runId: string, point: FaultPoint) => faults.push({ point, runId, mode: 'hang' });
    for (const [point, kind] of cells(CUT_AT)) hang(await admit(`${point} ${kind}`, kind), point);
    for (const [point] of rows(THINK_CUT_AT)) hang(await admit(point, 'keyed', summaryWithModel), point);
    for (const [point, truth] of cells(QUERY_CUT_AT)) {
      const runId = await admit(`${point} ${truth}`, 'queryable');
      faults.push({ point: CUT_THAT_LEAVES[truth], runId, mode: 'throw' });
      hang(runId, point);
    }
    for (const mode of ['hold_after', 'hold_before'] as const) {
      for (const kind of EFFECT_CLASSES) {
        world.target.dial({ mode, key: keyOf(await admit(`${mode} ${kind}`, kind)), times: 1 });
      }
    }
    const together = await world.admit({ input: `together ${randomUUID()}` });
    summaries.set('together', { runId: together, summarize: summaryOf });
    for (const hit of [1, 2, 3, 4])
      faults.push({ point: 'act.after_call', runId: together, mode: 'hang', hit });
    const killer = await admit('killer', 'keyed');
    hang(killer, 'act.before_claim');
    faults.push({ point: 'act.after_settle', runId: killer, mode: 'kill' });
    return killer;
  }

  async function admit(name: string, kind: EffectClass, summarize = summaryOf): Promise<string> {
    const runId = await world.admit({ input: `${TOOL_OF_CLASS[kind]} ${randomUUID()}` });
    summaries.set(name, { runId, summarize });
    return runId;
  }

  async function allInPlace(worker: TestProcess): Promise<void> {
    const hanging = faults.filter(({ mode }) => mode === 'hang').length;
    await until(
      'every run is where the worker is to be killed',
      () => {
        const reached = worker
          .messages()
          .filter((message) => (message as { readonly mode?: unknown }).mode === 'hang');
        return reached.length === hanging && world.target.held() === cells(KILLED_WHILE).length;
      },
      60_000,
    );
  }
}
