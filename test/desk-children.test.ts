import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { runsToNudge } from '../shared/ledger/commands.js';
import { childrenOf, untilDelegated } from './support/child-world.js';
import {
  brokenControl,
  command,
  decide,
  fates,
  resetRun,
  settle,
  tell,
  toldResults,
  untilGated,
} from './support/desk-world.js';
import { judge } from './support/judge.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World, type WorldOptions } from './support/world.js';

// Goal: an agent starts another as a tool; whatever becomes of the child, its parent's call gets exactly one result, no
// child is looser than its parent, and none outlives the parent's cancel (SPEC 4). Method: scripted parents and children
// on real servers; either is cancelled, paused, reset or swept; ledger, target and the parent's next prompt are compared.

const HELD_MS = 600_000;
const delegate = (task: string, name = 'help') => call(name, { task });
const OPTIONS: WorldOptions = {
  heartbeatSeconds: 1,
  httpTools: { pay: { timeoutSeconds: 60 }, mail: { timeoutSeconds: 60 }, look: { timeoutSeconds: 60 } },
  delegates: {
    help: { agent: 'helper', description: 'Does one thing.' },
    leave: { agent: 'helper', description: 'Goes on by itself.', onCancel: 'leave' },
    beside: { agent: 'helper', description: 'One of many.', parallel: true, share: { steps: 0.2, toolCalls: 0.2 } },
  },
  helpers: {
    helper: ['pay', 'mail', 'look', 'book'].map((name) => ({ name, approval: 'not_required' as const })),
  },
  script: script(
    when('one', reply(delegate('pay {{input}}')), DONE),
    when('gated', reply(delegate('both {{input}}')), DONE),
    when('slow', reply(delegate('later {{input}}')), DONE),
    when('left', reply(delegate('later {{input}}', 'leave')), DONE),
    when('breaks', reply(delegate('refuse {{input}}')), DONE),
    when('unclear', reply(delegate('mail {{input}}')), DONE),
    when(
      'three',
      reply(
        delegate('pay a {{input}}', 'beside'),
        delegate('pay b {{input}}', 'beside'),
        delegate('pay c {{input}}', 'beside'),
      ),
      DONE,
    ),
    when('mixed', reply(delegate('look {{input}}'), 'pay'), DONE),
    // What children are told to do.
    when('both', reply('look'), reply('pay'), { text: 'Looked and paid.' }),
    when('later', { delayMs: HELD_MS, text: 'Late.' }),
    when('refuse', { error: { reason: 'bad_request' } }),
    ...['pay', 'mail', 'look'].map((tool) => when(tool, reply(tool), { text: `The helper used ${tool}.` })),
  ),
};

let world: World;
beforeAll(async () => {
  world = await startWorld(OPTIONS);
});

const unique = (word: string): string => `${word} ${randomUUID()}`;

async function parentOf(
  word: string,
  contract: Readonly<Record<string, unknown>> = {},
  count = 1,
): Promise<{ readonly runId: string; readonly child: string; readonly children: readonly string[] }> {
  const runId = await world.run({ input: unique(word), contract });
  const children = await untilDelegated(world, runId, count);
  return { runId, child: children[0]!, children };
}

/** The child comes to its end and its parent is told, as the listener of a worker does. */
async function childEnds(runId: string, child: string): Promise<void> {
  await world.waitFor(child, 'ended');
  await tell(world, runId);
}

async function completed(runId: string): Promise<void> {
  await world.waitFor(runId, 'completed');
  await checkRun(world, runId);
}

describe('a child run', () => {
  test('is a tool to the model, a run of its own in the ledger, and its last words the tool’s one result', async () => {
    const { runId, child } = await parentOf('one');
    expect(modelRequests(world, runId)[0]?.tools.find(({ name }) => name === 'help')).toMatchObject({
      description: 'Does one thing.',
      inputSchema: { required: ['task'] },
    });
    await childEnds(runId, child);
    await completed(runId);
    await checkRun(world, child);
    expect(toldResults(world, runId)).toEqual(['The helper used pay.']);
    expect(applied(world, child)).toEqual({ [keyOf(child)]: 1 });
    expect(arrived(world, runId)).toEqual({});
    expect(await world.path(runId)).toEqual(['admitted', 'running', 'completed']);
    expect(await childrenOf(world, runId)).toMatchObject([
      { child_run_id: child, root_run_id: runId, depth: 1, step: 1, slot: 0, state: 'completed' },
    ]);
  });
});
