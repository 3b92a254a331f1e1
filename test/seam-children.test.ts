import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FaultPoint } from '../activities/fault-points.js';
import { childrenOf } from './support/child-world.js';
import { toldResults } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { applied, checkRun } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World, type WorldOptions } from './support/world.js';

// Goal: kill -9 of a worker anywhere between a parent and its child leaves one child, one effect and one result. Method:
// one worker process after the other, as production runs it, with its own starter and listener, kills itself at one more
// point of one more run, while it goes on with what those before it left; the last one lives.

const OPTIONS: WorldOptions = {
  workers: 0,
  delegates: {
    help: { agent: 'helper', description: 'Does one thing.' },
    again: { agent: 'desk', description: 'Once more.' },
  },
  helpers: { helper: [{ name: 'pay', approval: 'not_required' }] },
  script: script(
    when('parent', reply(call('help', { task: 'pay {{input}}' })), DONE),
    when('pay', reply('pay'), { text: 'The helper paid.' }),
    when('deep', reply(call('again', { task: 'deep' })), { text: 'Below: {{lastResult.text}}' }),
  ),
};
const TAKES_OVER_MS = 40_000;

const CUTS: readonly (readonly [what: string, point: FaultPoint, hit: number])[] = [
  ['before the child is admitted', 'child.before_start', 1],
  ['after it was admitted, and before anybody heard', 'child.after_start', 1],
  ['after the child’s end, before the parent takes its result', 'child.before_start', 2],
  ['after the result was written, and before the parent heard', 'child.after_start', 2],
];
const HELD = 'while the target has the child’s call';

let world: World;
const parents = new Map<string, string>();

beforeAll(async () => {
  world = await startWorld(OPTIONS);
  for (const [what, point, hit] of CUTS) {
    const runId = await world.admit({ input: `parent ${randomUUID()}` });
    parents.set(what, runId);
    const worker = world.startWorkerProcess({ faults: [{ point, mode: 'kill', hit, runId }] });
    expect(await worker.ended).toMatchObject({ signal: 'SIGKILL' });
  }
  const runId = await world.admit({ input: `parent ${randomUUID()}` });
  parents.set(HELD, runId);
  const worker = world.startWorkerProcess({ faults: [{ point: 'child.after_start', mode: 'hang', runId }] });
  const child = await untilChild(runId);
  world.target.dial({ mode: 'hold_after', key: keyOf(child), times: 1 });
  await until('the target has the call', () => keyOf(child) in applied(world, child), TAKES_OVER_MS);
  await worker.signal('SIGKILL');
  world.startWorkerProcess();
}, 240_000);

async function untilChild(runId: string): Promise<string> {
  await until(
    'the child is admitted',
    async () => (await childrenOf(world, runId)).length === 1,
    TAKES_OVER_MS,
  );
  return (await childrenOf(world, runId))[0]!.child_run_id;
}

describe('a worker that is killed', () => {
  test.each([...CUTS.map(([what]) => what), HELD])(
    '%s leaves one child, one effect, one result',
    async (what) => {
      const runId = parents.get(what)!;
      await world.waitFor(runId, 'completed', TAKES_OVER_MS);
      const children = await childrenOf(world, runId);
      expect(children).toHaveLength(1);
      const child = children[0]!.child_run_id;
      expect(applied(world, child)).toEqual({ [keyOf(child)]: 1 });
      expect(toldResults(world, runId)).toEqual(['The helper paid.']);
      await checkRun(world, runId);
      await checkRun(world, child);
    },
    60_000,
  );
});

test('an agent that starts itself ends five runs below its root, and every parent hears of it', async () => {
  const runId = await world.admit({ input: 'deep' });
  await world.waitFor(runId, 'completed', TAKES_OVER_MS);
  const [tree] = await world.rows<{ runs: number; depth: number }>(
    'select count(*)::int as runs, max(depth) as depth from holdfast.child_runs where root_run_id = $1',
    runId,
  );
  expect(tree).toEqual({ runs: 5, depth: 5 });
  expect(toldResults(world, runId)[0]).toMatch(/^(Below: ){4}Below: \{.*limit_depth/);
}, 60_000);

test('when all is said, ledger and target agree', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
});
