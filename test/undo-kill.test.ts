import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FaultPoint } from '../activities/fault-points.js';
import type { Fault } from './support/fault-plan.js';
import { judge } from './support/judge.js';
import { applied, arrived, checkRun } from './support/run-checks.js';
import { call, reply, script, when } from './support/scripts.js';
import { UNDO_TOOLS, undoKeyOf, undosOf } from './support/undo.js';
import { startWorld, until, type World } from './support/world.js';

// Goal: kill -9 in the middle of an undo, at any boundary of its second step of three, leaves a run that another worker
// takes up where the ledger says it stands: backwards, each once (FAULTS A24, B12, cases 37 and 38). Method: one real worker
// process holds one run at each boundary and is killed; a second one goes on.

/** What became of the second step, which a queryable target undoes: how often it arrived, and under which keys. */
// prettier-ignore
const CUT_AT: Readonly<Record<string, { readonly hit: number; readonly second: readonly string[]; readonly arrived: number }>> = {
  'undo.before_next':   { hit: 2, second: ['unbook succeeded'],                         arrived: 1 },
  'undo.before_intent': { hit: 2, second: ['unbook succeeded'],                         arrived: 1 },
  'undo.after_intent':  { hit: 2, second: ['unbook succeeded'],                         arrived: 1 },
  'act.before_claim':   { hit: 5, second: ['unbook succeeded'],                         arrived: 1 },
  // Nobody can prove that nothing left: the target is asked, and says so.
  'act.after_claim':    { hit: 5, second: ['unbook not_committed', 'unbook succeeded'], arrived: 1 },
  'act.after_call':     { hit: 5, second: ['unbook committed'],                         arrived: 1 },
  'act.after_settle':   { hit: 5, second: ['unbook succeeded'],                         arrived: 1 },
  'query.before_begin': { hit: 1, second: ['unbook committed'],                         arrived: 1 },
  'query.after_record': { hit: 1, second: ['unbook committed'],                         arrived: 1 },
};

let world: World;
const runs = new Map<string, string>();

beforeAll(async () => {
  // Told apart from the first by its arguments.
  const again = call('pay', { note: '{{input}} again' });
  world = await startWorld({
    workers: 0,
    heartbeatSeconds: 2,
    httpTools: UNDO_TOOLS,
    script: script(
      when('fails', reply('pay'), reply('book'), reply(again), { error: { reason: 'bad_request' } }),
    ),
  });
  const faults: Fault[] = [];
  for (const [point, { hit }] of Object.entries(CUT_AT)) {
    const runId = await world.admit({
      input: `fails ${randomUUID()}`,
      contract: { on_failure: 'compensate' },
    });
    runs.set(point, runId);
    faults.push({ point: point as FaultPoint, mode: 'hang', runId, hit });
    if (point.startsWith('query.')) {
      world.target.dial({ mode: 'drop_after', key: undoKeyOf(runId, { step: 2 }), times: 1 });
    }
  }
  const worker = world.startWorkerProcess({ faults });
  await until(
    'every run is where the worker is to be killed',
    () =>
      worker.messages().filter((message) => (message as { kind?: unknown }).kind === 'fault').length ===
      runs.size,
    60_000,
  );
  await worker.signal('SIGKILL');
  // Without a cache it replays every task from the start (FAULTS B12).
  await world.startWorker({ options: { maxCachedWorkflows: 0 } });
}, 120_000);

describe('a worker that is killed while its run undoes what it did (A24)', () => {
  test.each(Object.entries(CUT_AT))(
    'at %s leaves the rest to another',
    async (point, expected) => {
      const runId = runs.get(point) ?? '';
      // A workflow task lost with its worker is missed after ten seconds, and there may be two.
      await world.waitFor(runId, 'compensated', 60_000);
      await checkRun(world, runId);
      const undos = await undosOf(world, runId);
      expect(undos.map(({ tool, state }) => `${tool} ${state}`)).toEqual([
        ...['unpay succeeded', ...expected.second, 'unpay succeeded'],
      ]);
      const second = Object.entries(arrived(world, runId)).filter(([key]) => key.includes(':s2:c0:undo'));
      expect(second.reduce((sum, [, times]) => sum + times, 0)).toBe(expected.arrived);
      // Backwards, each once: the target saw three things done and three undone.
      const seen = world.targetLog(runId).filter(({ kind }) => kind === 'applied');
      expect(seen.map(({ key }) => /:s(\d)/.exec(key)?.[1])).toEqual(['1', '2', '3', '3', '2', '1']);
      expect(Object.values(applied(world, runId))).toEqual(Array(6).fill(1));
      expect(await world.runRow(runId)).toMatchObject({ reason: 'compensation_done' });
    },
    70_000,
  );
});

test('when all is said, ledger and target agree', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
});
