import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { judge } from './support/judge.js';
import { summaryOf } from './support/seam-table.js';
import { keyOf, startWorld, until, type World } from './support/world.js';
import { usualScript } from './support/world-project.js';

test('a worker whose grace runs out during an effect leaves an unknown outcome, not a failed run', async () => {
  const world = await startWorld({ workers: 0 });
  const inputs = ['mail', 'pay', 'book'].map((tool) => `${tool} ${randomUUID()}`);
  const runIds = await Promise.all(inputs.map((input) => world.admit({ input })));
  for (const runId of runIds) world.target.dial({ mode: 'hold_after', key: keyOf(runId), times: 1 });
  const first = await world.startWorker({ options: { shutdownGraceTime: '100 milliseconds' } });
  await world.starter.round();
  await until('the target holds the requests', () => world.target.held() === runIds.length);
  await first.stop();
  for (const runId of runIds) {
    expect(await world.attempts(runId)).toMatchObject([{ outcome: 'unknown', reason: 'aborted' }]);
  }
  await world.startWorker();
  expect(await Promise.all(runIds.map((runId) => summaryOf(world, runId)))).toEqual([
    '1/1 unknown, needs_reconciliation',
    '2/1 succeeded by response, completed',
    '1/1 committed by probe, completed',
  ]);
  expect(await judge(world, world.targetLog())).toEqual([]);
});

// Goal: no number of dead workers loses a run or repeats an effect (FAULTS B04). Method: ten times over, a new worker
// process is killed with -9 as soon as the target has heard from it, with runs of five effects on the way and new ones
// coming; then one worker lives.
describe('killing every worker with -9, ten times (B04)', () => {
  const KILLS = 10;
  const trips: string[] = [];
  const mails: string[] = [];
  let world: World;

  beforeAll(async () => {
    world = await startWorld({ workers: 0, heartbeatSeconds: 2, script: scriptOfTrips() });
    for (let n = 0; n < 4; n += 1) await admitBoth();
    for (let kill = 0; kill < KILLS; kill += 1) {
      const worker = world.startWorkerProcess();
      await worker.ready;
      const before = world.targetLog().length;
      await admitTrip();
      await until('the target hears from the new worker', () => world.targetLog().length > before, 60_000);
      await worker.signal('SIGKILL');
    }
    await world.startWorker();
  }, 240_000);

  test('every run whose effects a machine can settle ends as if nothing had happened', async () => {
    for (const runId of trips) {
      expect((await world.waitFor(runId, 'ended', 60_000)).state).toBe('completed');
      const results = (await world.messages(runId)).filter(({ role }) => role === 'tool');
      expect(results.map(({ content }) => content['isError'])).toEqual(Array(5).fill(false));
      expect(await appliedCalls(runId)).toBe(4);
    }
  }, 120_000);

  test('every mail was sent at most once, and one that nobody knows of waits for a person', async () => {
    for (const runId of mails) {
      const summary = await summaryOf(world, runId);
      expect([
        '1/1 succeeded by response, completed',
        '1/1 unknown, needs_reconciliation',
        '0/0 unknown, needs_reconciliation',
      ]).toContain(summary);
    }
  });

  test('the ledger says what the target saw, and workers did die in the middle', async () => {
    expect(await judge(world, world.targetLog())).toEqual([]);
    const [lost] = await world.rows<{ effects: number; model_calls: number }>(
      `select (select count(*)::int from holdfast.attempts where outcome = 'lost') as effects,
              (select count(*)::int from holdfast.model_attempts where outcome = 'lost') as model_calls`,
    );
    expect((lost?.effects ?? 0) + (lost?.model_calls ?? 0)).toBeGreaterThanOrEqual(3);
  });

  async function admitTrip(): Promise<void> {
    trips.push(await world.admit({ input: `trip ${randomUUID()}` }));
  }

  async function admitBoth(): Promise<void> {
    await admitTrip();
    mails.push(await world.admit({ input: `mail ${randomUUID()}` }));
  }

  /** Calls of a run that the target applied, each under one key or another. */
  async function appliedCalls(runId: string): Promise<number> {
    const effects = await world.effects(runId);
    const applied = new Set(
      world.targetLog(runId).flatMap(({ kind, key }) => (kind === 'applied' ? [key] : [])),
    );
    const calls = effects.flatMap(({ idempotency_key, step, slot }) =>
      applied.has(idempotency_key) ? [`${step}/${slot}`] : [],
    );
    expect(new Set(calls).size).toBe(calls.length);
    return calls.length;
  }
});

/** The usual script, and `trip`: five effects of the classes that a machine can settle, each in a step of its own. */
function scriptOfTrips(): Record<string, unknown> {
  const { scenarios } = usualScript() as { readonly scenarios: readonly unknown[] };
  const call = (name: string, n: number) => ({
    toolCalls: [{ name, arguments: { note: `{{input}} ${n}` } }],
  });
  const replies = [...['pay', 'book', 'look', 'book', 'pay'].map(call), { text: 'Done.' }];
  return { scenarios: [{ name: 'trip', when: { inputMatches: '^trip\\b' }, replies }, ...scenarios] };
}
