import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FaultPoint } from '../../activities/fault-points.js';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { Fault, ReachedFault } from './fault-plan.js';
import { judge } from './judge.js';
import type { TestProcess } from './processes.js';
import {
  type ActPoint,
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
import { keyOf, startWorld, until, type World, type WorldWorker } from './world.js';
import { type Lane, TOOL_OF_CLASS, usualScript } from './world-project.js';

// Goal: a worker that was taken for dead and comes back (FAULTS B01–B03) settles nothing, sends nothing, and what it
// knows is kept as evidence. Method: one worker process holds one run at each point × class and is frozen there;
// another worker takes the runs over until they rest, as after a kill; only then the first one goes on from where it
// stood. Its polls stay open while it is frozen, so that some of what it would have done is handed to it once more.

/** Plays it in one lane of the workflow; every test is named after what it asserts. */
export function frozenWorkers(lane: Lane): void {
  /** The late receipt that the worker leaves when it comes back. */
  // prettier-ignore
  const LATE: Record<ActPoint, Record<EffectClass, string>> = {
  'act.before_claim': { keyed: '',          queryable: '',          opaque: '',          read: '' },
  // It has its claim and has sent nothing; what another worker took over is not sent any more.
  'act.after_claim':  { keyed: 'not_sent',  queryable: 'not_sent',  opaque: 'not_sent',  read: 'not_sent' },
  'act.after_call':   { keyed: 'succeeded', queryable: 'succeeded', opaque: 'succeeded', read: 'succeeded' },
  'act.after_settle': { keyed: '',          queryable: '',          opaque: '',          read: '' },
};

  /** Where nothing else could settle the effect, the late evidence does, through reconciliation. */
  const SETTLED_LATE: Partial<Record<ActPoint, Summary>> = {
    // Proof that nothing left: done after all, under a key of its own.
    'act.after_claim': '1/1 not_committed by late_receipt + succeeded by response, completed',
    'act.after_call': '1/1 committed by late_receipt, completed',
  };

  let world: World;
  let zombie: TestProcess;
  let rescuer: WorldWorker;
  const runs = new Map<string, string>();
  const taken = new Playing();
  const thawed = new Playing();

  beforeAll(async () => {
    world = await startWorld({
      lane,
      workers: 0,
      heartbeatSeconds: 2,
      script: { ...usualScript(), log: 'model.jsonl' },
    });
    zombie = world.startWorkerProcess({ faults: await place() });
    await freeze();
    rescuer = await world.startWorker();
    for (const [name, runId] of runs) {
      taken.add(name, (name.startsWith('think') ? summaryWithModel : summaryOf)(world, runId));
    }
    await taken.all();
    await zombie.signal('SIGCONT');
    zombie.send({ kind: 'release' });
    for (const [point, kind] of cells(LATE)) thawed.add(`${point} ${kind}`, lateSummaryOf(point, kind));
  }, 120_000);

  describe('a worker that is frozen (B01, B02, B03)', () => {
    test.each(cells(CUT_AT))(
      'at %s, class %s, leaves it to another one: %s',
      async (point, kind, expected) => {
        expect(await taken.of(`${point} ${kind}`)).toBe(expected);
      },
    );

    test.each(rows(THINK_CUT_AT))('at %s leaves it to another one: %s', async (point, expected) => {
      expect(await taken.of(point)).toBe(expected);
    });

    test.each(cells(QUERY_CUT_AT))('at %s, where the effect was %s: %s', async (point, truth, expected) => {
      expect(await taken.of(`${point} ${truth}`)).toBe(expected);
    });
  });

  describe('a worker that comes back', () => {
    const late = cells(LATE).filter(([, , outcome]) => outcome !== '');

    test.each(late)(
      'at %s, class %s, sends and settles nothing by itself, and leaves its evidence: %s',
      async (point, kind, outcome) => {
        expect(await thawed.of(`${point} ${kind}`)).toBe(`${restOf(point, kind)}; late: ${outcome}`);
      },
    );

    test('with an answer of the model adds what it cost, and not its text', async () => {
      const runId = runs.get('think.after_answer')!;
      const [first, second] = await until('the lost attempt has its cost', async () => {
        const attempts = await attemptsAtModel(runId);
        return attempts[0]?.input_tokens === 0 ? undefined : attempts;
      });
      expect([first?.outcome, second?.outcome]).toEqual(['lost', 'answered']);
      expect((await world.messages(runId)).filter(({ role }) => role === 'assistant')).toHaveLength(2);
    });
  });

  // FAULTS B05, by the worker that came back: it works on like any other.
  test('a worker that is asked to stop lets its effect finish, stores the receipt and ends with code 0 (B05)', async () => {
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
  });

  test('when it is gone, every run rests where it did, and the ledger says what the target saw', async () => {
    await zombie.ended;
    for (const [point, kind, outcome] of cells(LATE)) {
      const runId = runs.get(`${point} ${kind}`)!;
      expect(await summaryOf(world, runId)).toBe(restOf(point, kind));
      expect((await world.lateReceipts(runId)).map((late) => late.outcome).join()).toBe(outcome);
    }
    expect(await judge(world, world.targetLog())).toEqual([]);
  });

  function restOf(point: ActPoint, kind: EffectClass): Summary {
    return (kind === 'opaque' ? SETTLED_LATE[point] : undefined) ?? CUT_AT[point][kind];
  }

  /** Admits a run for each place where the worker is to be frozen. */
  async function place(): Promise<Fault[]> {
    const faults: Fault[] = [];
    const admit = async (name: string, kind: EffectClass, point: FaultPoint): Promise<string> => {
      const runId = await world.admit({ input: `${TOOL_OF_CLASS[kind]} ${randomUUID()}` });
      runs.set(name, runId);
      if (runId !== stopper()) faults.push({ point, runId, mode: 'hang' });
      else faults.push({ point: 'act.before_claim', runId, mode: 'hang' }, { point, runId, mode: 'stop' });
      return runId;
    };
    for (const [point, kind] of cells(CUT_AT)) await admit(`${point} ${kind}`, kind, point);
    for (const [point] of rows(THINK_CUT_AT)) await admit(point, 'keyed', point);
    for (const [point, truth] of cells(QUERY_CUT_AT)) {
      const runId = await admit(`${point} ${truth}`, 'queryable', point);
      faults.push({ point: CUT_THAT_LEAVES[truth], runId, mode: 'throw' });
    }
    return faults;
  }

  /**
   * The run that freezes the worker, once all others are in place: between its claim and its first byte, where nothing
   * but the worker's own clock can tell it afterwards that it slept.
   */
  function stopper(): string | undefined {
    return runs.get('act.after_claim opaque');
  }

  async function freeze(): Promise<void> {
    const reached = (mode: Fault['mode']): number =>
      zombie.messages().filter((message) => (message as Partial<ReachedFault>).mode === mode).length;
    await until('every run is in its place', () => reached('hang') === runs.size, 60_000);
    zombie.send({ kind: 'release', runId: stopper() });
    await until('the worker is frozen', () => reached('stop') === 1);
  }

  /** The summary once the late answer is there, and has settled what it can. */
  async function lateSummaryOf(point: ActPoint, kind: EffectClass): Promise<Summary> {
    const runId = runs.get(`${point} ${kind}`)!;
    if (LATE[point][kind] === '') return await summaryOf(world, runId);
    await world.waitFor(runId, async ({ state }) => {
      const [late] = await world.lateReceipts(runId);
      return late !== undefined && state === 'completed';
    });
    const late = await world.lateReceipts(runId);
    return `${await summaryOf(world, runId)}; late: ${late.map(({ outcome }) => outcome).join()}`;
  }

  async function attemptsAtModel(runId: string): Promise<{ outcome: string; input_tokens: number }[]> {
    return await world.rows<{ outcome: string; input_tokens: number }>(
      `select outcome, input_tokens::int from holdfast.model_attempts where run_id = $1 and step = 1 order by attempt`,
      runId,
    );
  }
}
