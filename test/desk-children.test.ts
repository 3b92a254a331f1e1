import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { runsToNudge } from '../shared/ledger/commands.js';
import { answerInput } from '../shared/ledger/questions.js';
import { childrenOf, untilDelegated } from './support/child-world.js';
import {
  brokenControl,
  command,
  decide,
  fates,
  heard,
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
  httpTools: {
    pay: { timeoutSeconds: 60 },
    mail: { timeoutSeconds: 60 },
    look: { timeoutSeconds: 60 },
    wire: { description: 'Wires.', class: 'opaque', url: '/opaque' },
    order: { description: 'Orders.', class: 'opaque', url: '/opaque', parallel: true },
  },
  approvals: ['wire', 'order'],
  delegates: {
    help: { agent: 'helper', description: 'Does one thing.' },
    leave: { agent: 'helper', description: 'Goes on by itself.', onCancel: 'leave' },
    beside: {
      agent: 'helper',
      description: 'One of many.',
      parallel: true,
      share: { steps: 0.2, toolCalls: 0.2 },
    },
  },
  helpers: {
    helper: ['pay', 'mail', 'look', 'wire'].map((name) => ({ name, approval: 'not_required' as const })),
  },
  script: script(
    when('one', reply(delegate('pay {{input}}')), DONE),
    when('gated', reply(delegate('both {{input}}')), DONE),
    when('slow', reply(delegate('later {{input}}')), DONE),
    when('left', reply(delegate('later {{input}}', 'leave')), DONE),
    when('breaks', reply(delegate('refuse {{input}}')), DONE),
    when('unclear', reply(delegate('mail {{input}}')), DONE),
    when('wired', reply(delegate('wire {{input}}')), DONE),
    when('then', reply(delegate('pay {{input}}')), reply('mail'), DONE),
    when(
      'three',
      reply(
        delegate('pay a {{input}}', 'beside'),
        delegate('pay b {{input}}', 'beside'),
        delegate('pay c {{input}}', 'beside'),
      ),
      DONE,
    ),
    when('pays-last', reply(delegate('pay {{input}}')), reply('pay'), DONE),
    when('pays-first', reply('pay'), reply(delegate('pay {{input}}')), DONE),
    when('late', reply('wire', delegate('pay {{input}}')), DONE),
    when('mixed', reply(delegate('look {{input}}'), 'pay'), DONE),
    when('beside', reply('order', delegate('pay {{input}}', 'beside')), DONE),
    when('held', reply('order', delegate('later {{input}}', 'beside')), DONE),
    // What children are told to do.
    when('both', reply('look'), reply('pay'), { text: 'Looked and paid.' }),
    when('later', { delayMs: HELD_MS, text: 'Late.' }),
    when('refuse', { error: { reason: 'bad_request' } }),
    ...['pay', 'mail', 'look', 'wire'].map((tool) =>
      when(tool, reply(tool), { text: `The helper used ${tool}.` }),
    ),
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

describe('the result of a child that did not complete', () => {
  test('that was cancelled by itself: the parent hears so and goes on with its own history (case 36)', async () => {
    const { runId, child } = await parentOf('slow');
    await until('the child works', () => modelRequests(world, child).length === 1);
    expect(await command(world, child, 'cancel')).toBe('accepted');
    await childEnds(runId, child);
    await completed(runId);
    expect(told(runId)).toEqual([
      expect.objectContaining({ error: 'child_not_completed', state: 'cancelled', reason: 'wound_down' }),
    ]);
  });

  test('that failed: the parent hears the reason and goes on', async () => {
    const { runId, child } = await parentOf('breaks');
    await childEnds(runId, child);
    await completed(runId);
    expect(told(runId)).toEqual([expect.objectContaining({ state: 'failed', reason: 'model_failed' })]);
  });

  test('whose workflow was terminated: the sweeper ends it, and the parent hears so', async () => {
    const { runId, child } = await parentOf('slow');
    await until('the child works', () => modelRequests(world, child).length === 1);
    await world.client.workflow.getHandle(child).terminate('a test');
    await world.sweeper.round();
    await childEnds(runId, child);
    await completed(runId);
    expect(told(runId)).toEqual([
      expect.objectContaining({ state: 'failed', reason: 'workflow_terminated' }),
    ]);
  });

  test('whose outcome is unclear keeps its parent waiting, and a person settles both', async () => {
    const runId = await world.run({ input: unique('unclear') });
    await until('its child is admitted', async () => (await childrenOf(world, runId)).length === 1);
    const child = (await childrenOf(world, runId))[0]!.child_run_id;
    world.target.dial({ mode: 'drop_after', key: keyOf(child) });
    await world.starter.round();
    await world.waitFor(child, 'needs_reconciliation');
    await tell(world, runId);
    await heardAs(runId, 'running');
    await settle(world, child);
    await childEnds(runId, child);
    await completed(runId);
    expect(applied(world, child)).toEqual({ [keyOf(child)]: 1 });
    expect(toldResults(world, runId)).toEqual(['The helper used mail.']);
  });
});

describe('the policy of a child', () => {
  test('is never looser than its parent’s contract: read runs, pay asks (case 78)', async () => {
    const { runId, child } = await parentOf('gated', { effects: { pay: { approval: 'required' } } });
    const [wait] = await untilGated(world, child);
    expect(wait).toMatchObject({ tool: 'pay', requested_by: 'tester' });
    expect(await world.effects(child)).toMatchObject([
      { tool: 'look', state: 'succeeded' },
      { tool: 'pay', state: 'intended' },
    ]);
    expect(await decide(world, wait, { actorId: 'Tester' })).toBe('self_approval');
    expect(await decide(world, wait)).toBe('decided');
    await childEnds(runId, child);
    await completed(runId);
    expect(toldResults(world, runId)).toEqual(['Looked and paid.']);
  });

  test('is never looser than its parent’s own agent, whatever its own file says', async () => {
    const { runId, child } = await parentOf('wired');
    const [wait] = await untilGated(world, child);
    expect(arrived(world, child)).toEqual({});
    expect(await decide(world, wait, { decision: 'deny' })).toBe('decided');
    await childEnds(runId, child);
    await completed(runId);
    expect(arrived(world, child)).toEqual({});
  });
});

describe('several children of one step', () => {
  test('work beside each other where the delegate says so, and their results stand in call order', async () => {
    const { runId, children } = await parentOf('three', {}, 3);
    expect(children).toHaveLength(3);
    for (const child of [...children].reverse()) await childEnds(runId, child);
    await completed(runId);
    expect(toldResults(world, runId)).toEqual(Array<string>(3).fill('The helper used pay.'));
    for (const child of children) expect(applied(world, child)).toEqual({ [keyOf(child)]: 1 });
  });

  test('and a gate beside one: the child works while a person is waited for', async () => {
    const { runId, child } = await parentOf('beside');
    await world.waitFor(child, 'completed');
    const [wait] = await untilGated(world, runId);
    await tell(world, runId);
    await heardAs(runId, 'awaiting_approval');
    await decide(world, wait);
    await completed(runId);
    expect(toldResults(world, runId)).toHaveLength(2);
    expect(toldResults(world, runId)[1]).toBe('The helper used pay.');
  });

  test('come one after the other otherwise: what stands after a child waits for its end', async () => {
    const { runId, child } = await parentOf('mixed');
    await world.waitFor(child, 'completed');
    expect(arrived(world, runId)).toEqual({});
    await tell(world, runId);
    await completed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId, { slot: 1 })]: 1 });
  });
});

describe('a cancel of the parent', () => {
  test('cancels the child first, by a command of its own (case 36)', async () => {
    const { runId, child } = await parentOf('slow');
    await until('the child works', () => modelRequests(world, child).length === 1);
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    await tell(world, child);
    await childEnds(runId, child);
    await world.waitFor(runId, 'cancelled');
    const [parent, ended] = [await world.runRow(runId), await world.runRow(child)];
    expect(ended.state).toBe('cancelled');
    expect(ended.ended_at!.getTime()).toBeLessThanOrEqual(parent.ended_at!.getTime());
    expect(await fates(world, child)).toEqual(['cancel applied']);
    expect(
      await world.rows('select actor_id, authority from holdfast.commands where run_id = $1', child),
    ).toEqual([{ actor_id: 'holdfast:parent', authority: 'parent' }]);
    expect(await world.path(runId)).toEqual(['admitted', 'running', 'cancelling', 'cancelled']);
    expect(modelRequests(world, runId)).toHaveLength(1);
    await checkRun(world, runId);
    await checkRun(world, child);
  });

  test('waits in `cancelling` for a child of which something is unclear', async () => {
    const runId = await world.run({ input: unique('unclear') });
    await until('its child is admitted', async () => (await childrenOf(world, runId)).length === 1);
    const child = (await childrenOf(world, runId))[0]!.child_run_id;
    world.target.dial({ mode: 'drop_after', key: keyOf(child) });
    await world.starter.round();
    await world.waitFor(child, 'needs_reconciliation');
    await command(world, runId, 'cancel');
    await tell(world, child);
    await heardAs(runId, 'cancelling');
    await settle(world, child);
    await childEnds(runId, child);
    await world.waitFor(runId, 'cancelled');
    expect(await world.runRow(child)).toMatchObject({ state: 'cancelled' });
  });

  test('is not forgotten when the parent is reset while its child winds down', async () => {
    const runId = await world.run({ input: unique('unclear') });
    await until('its child is admitted', async () => (await childrenOf(world, runId)).length === 1);
    const child = (await childrenOf(world, runId))[0]!.child_run_id;
    world.target.dial({ mode: 'drop_after', key: keyOf(child) });
    await world.starter.round();
    await world.waitFor(child, 'needs_reconciliation');
    await command(world, runId, 'cancel');
    await world.waitFor(runId, 'cancelling');
    await resetRun(world, runId);
    await world.waitFor(runId, ({ epoch, state }) => epoch === 2 && state === 'cancelling');
    await tell(world, child);
    await settle(world, child);
    await childEnds(runId, child);
    await world.waitFor(runId, 'cancelled');
    await checkRun(world, runId);
  });

  test('ends a child that nobody has started, at once', async () => {
    const runId = await world.run({ input: unique('one') });
    await until('its child is admitted', async () => (await childrenOf(world, runId)).length === 1);
    await command(world, runId, 'cancel');
    await world.waitFor(runId, 'cancelled');
    expect(await childrenOf(world, runId)).toMatchObject([{ state: 'cancelled' }]);
    await world.starter.round();
    expect(modelRequests(world, (await childrenOf(world, runId))[0]!.child_run_id)).toEqual([]);
  });

  test('of one that waits for an approval beside its child ends it after the child all the same', async () => {
    const { runId, child } = await parentOf('held');
    await until('the child works', () => modelRequests(world, child).length === 1);
    await untilGated(world, runId);
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    await tell(world, child);
    await childEnds(runId, child);
    await world.waitFor(runId, 'cancelled');
    expect(await world.path(runId)).toEqual([
      ...['admitted', 'running', 'awaiting_approval', 'running', 'cancelling', 'cancelled'],
    ]);
    expect(arrived(world, runId)).toEqual({});
    await checkRun(world, runId);
  });

  test('lets a child go on that is to be left, and says so', async () => {
    const { runId, child } = await parentOf('left');
    await until('the child works', () => modelRequests(world, child).length === 1);
    await command(world, runId, 'cancel');
    await world.waitFor(runId, 'cancelled');
    expect(await world.runRow(child)).toMatchObject({ state: 'running', control: 'active' });
    expect(await world.events(runId)).toContainEqual(
      expect.objectContaining({
        type: 'child.left',
        data: expect.objectContaining({ child_run_id: child }) as unknown,
      }),
    );
    await command(world, child, 'cancel');
    await world.waitFor(child, 'cancelled');
    await checkRun(world, runId);
  });
});

describe('a parent and its child', () => {
  const once = { budget: { effects: [{ tool: 'pay', count: 1 }] } };

  test('spend from one budget: what the child has done the parent may not do again', async () => {
    const { runId, child } = await parentOf('pays-last', once);
    await childEnds(runId, child);
    await world.waitFor(runId, 'failed');
    expect(await world.runRow(runId)).toMatchObject({ reason: 'limit_effects' });
    expect(applied(world, child)).toEqual({ [keyOf(child)]: 1 });
    expect(arrived(world, runId)).toEqual({});
    await checkRun(world, runId);
  });

  test('spend from one budget: a child that finds nothing left ends over it, and the parent hears so', async () => {
    const { runId, child } = await parentOf('pays-first', once);
    await childEnds(runId, child);
    await completed(runId);
    expect(await world.runRow(child)).toMatchObject({ state: 'failed', reason: 'limit_effects' });
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('limit_effects')]);
    expect([applied(world, runId), arrived(world, child)]).toEqual([{ [keyOf(runId)]: 1 }, {}]);
  });

  /** A run whose time is over between a call that was refused and the call of its delegate. */
  async function outOfTime(onReached: string): Promise<string> {
    const runId = await world.run({ input: unique('late'), contract: { budget: { on_reached: onReached } } });
    const [wait] = await untilGated(world, runId);
    await world.rows(`update holdfast.runs set deadline_at = clock_timestamp() where run_id = $1`, runId);
    await decide(world, wait, { decision: 'deny', note: 'No.' });
    return runId;
  }

  test('whose time is over finishes without starting the child, where its contract says so', async () => {
    const runId = await outOfTime('finish');
    await completed(runId);
    expect(await world.runRow(runId)).toMatchObject({ reason: 'answer_at_limit' });
    expect(toldResults(world, runId)[1]).toContain('limit_wall_clock');
    expect(await childrenOf(world, runId)).toEqual([]);
  });

  test('whose time is over asks for more, where its contract says so, and starts the child then', async () => {
    const runId = await outOfTime('pause_and_ask');
    await world.waitFor(runId, 'waiting_for_input');
    const [asked] = await world.rows<{ interrupt_id: string }>(
      `select interrupt_id from holdfast.interrupts where run_id = $1 and kind = 'budget' and state = 'open'`,
      runId,
    );
    await answerInput(world.db, {
      ...{ tenantId: 'default', interruptId: asked!.interrupt_id, actorId: 'user:olga' },
      ...{ authority: 'operator', answer: { action: 'raise', limit: 3_600 }, fits: true, note: '' },
      ...{ endpoint: 'POST /v1/interrupts/resolve', idempotencyKey: randomUUID() },
    });
    await tell(world, runId);
    const [child] = await untilDelegated(world, runId);
    await childEnds(runId, child!);
    await completed(runId);
    expect(applied(world, child!)).toEqual({ [keyOf(child!)]: 1 });
  });
});

test('a parent that is swept takes its children with it', async () => {
  const { runId, child } = await parentOf('slow');
  await until('the child works', () => modelRequests(world, child).length === 1);
  await world.client.workflow.getHandle(runId).terminate('a test');
  await world.sweeper.round();
  expect(await world.runRow(runId)).toMatchObject({ state: 'failed', reason: 'workflow_terminated' });
  await tell(world, child);
  expect(await world.waitFor(child, 'ended')).toMatchObject({ state: 'cancelled' });
});

describe('a pause of the parent', () => {
  test('is complete when its child is paused too; a resume wakes both', async () => {
    const { runId, child } = await parentOf('gated', { effects: { pay: { approval: 'required' } } });
    const [wait] = await untilGated(world, child);
    expect(await command(world, runId, 'pause')).toBe('accepted');
    await heardAs(runId, 'running');
    expect((await world.runRow(runId)).control).not.toBe('paused');
    await tell(world, child);
    await world.waitFor(child, ({ control }) => control === 'paused');
    await tell(world, runId);
    await world.waitFor(runId, ({ control }) => control === 'paused');
    expect(await decide(world, wait)).toBe('decided');
    expect(await command(world, runId, 'resume')).toBe('accepted');
    await tell(world, child);
    await childEnds(runId, child);
    await completed(runId);
    expect(await fates(world, child)).toEqual(['pause applied', 'resume applied']);
  });

  test('does not wake, when it is over, a child that a person paused', async () => {
    const { runId, child } = await parentOf('gated', { effects: { pay: { approval: 'required' } } });
    await untilGated(world, child);
    await command(world, child, 'pause');
    await world.waitFor(child, ({ control }) => control === 'paused');
    await command(world, runId, 'pause');
    await world.waitFor(runId, ({ control }) => control === 'paused');
    await command(world, runId, 'resume');
    await world.waitFor(runId, ({ control }) => control === 'active');
    expect(await world.runRow(child)).toMatchObject({ control: 'paused' });
    await command(world, runId, 'cancel');
    await tell(world, child);
    await childEnds(runId, child);
    await world.waitFor(runId, 'cancelled');
  });
});

describe('a parent that waits for a child', () => {
  test('and is reset keeps the one child it has', async () => {
    const { runId, child } = await parentOf('one');
    await resetRun(world, runId);
    await world.waitFor(runId, ({ epoch }) => epoch === 2);
    await childEnds(runId, child);
    await completed(runId);
    expect((await childrenOf(world, runId)).map(({ child_run_id }) => child_run_id)).toEqual([child]);
    expect(applied(world, child)).toEqual({ [keyOf(child)]: 1 });
  });

  test('hears of its end from the sweeper when the message was lost', async () => {
    const { runId, child } = await parentOf('one');
    expect(await runsToNudge(world.db, 1_000, 0)).not.toContain(runId);
    await world.waitFor(child, 'completed');
    expect(await runsToNudge(world.db, 1_000, 0)).toContain(runId);
    await tell(world, runId);
    await completed(runId);
    expect(await runsToNudge(world.db, 1_000, 0)).not.toContain(runId);
  });

  test('is not woken later by its end: a gate stays shut (case 67)', async () => {
    const { runId, child } = await parentOf('then', { effects: { mail: { approval: 'required' } } });
    await childEnds(runId, child);
    const [wait] = await untilGated(world, runId);
    await tell(world, runId);
    await heardAs(runId, 'awaiting_approval');
    expect(arrived(world, runId)).toEqual({});
    await decide(world, wait);
    await completed(runId);
  });

  test('goes on as new when its history grows, and loses nothing', async () => {
    const own = await startWorld({ ...OPTIONS, historyEventsMax: 50 });
    const runId = await own.run({ input: 'one' });
    await until('its child is admitted', async () => (await childrenOf(own, runId)).length === 1);
    await until('another execution waits', async () => {
      await tell(own, runId);
      return (await own.runRow(runId)).epoch > 1;
    });
    const [child] = await untilDelegated(own, runId);
    await own.waitFor(child!, 'completed');
    await tell(own, runId);
    await own.waitFor(runId, 'completed');
    await checkRun(own, runId);
    await own.close();
  });
});

test('when all is said, ledger and target agree, and nothing left after a cancel', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});

/** The results that the model of the run was told last, as the objects they are. */
function told(runId: string): unknown[] {
  return toldResults(world, runId).map((text) => JSON.parse(text) as unknown);
}

/** Waits until the run has done with what it was told, and is in this state all the same. */
async function heardAs(runId: string, state: string): Promise<void> {
  await heard(world, runId);
  await world.waitFor(runId, (run) => run.state === state);
}
