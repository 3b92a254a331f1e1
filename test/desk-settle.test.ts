import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { decide, settle, tell, toldResults, untilGated } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, type World } from './support/world.js';

// Goal: what no machine can find out waits for a person, whose word settles it once; then the run goes on as its
// contract says (SPEC 3.6). Method: opaque calls lose their answer, done or not; people settle them by the ledger's
// own function, with a workflow and without one.

let world: World;

beforeAll(async () => {
  world = await startWorld({ script: script(when('mail', reply('mail'), DONE)) });
});

/** A run whose one call lost its answer, after it was done or before. @returns its id, once it waits for a person */
async function unclear(
  was: 'done' | 'not done',
  contract: Readonly<Record<string, unknown>> = {},
): Promise<string> {
  const runId = await world.admit({ input: `mail ${randomUUID()}`, contract });
  const mode = was === 'done' ? 'drop_after' : 'drop_before';
  world.target.dial({ mode, key: keyOf(runId), times: 1 });
  await world.starter.round();
  await world.waitFor(runId, 'needs_reconciliation');
  expect(await world.effects(runId)).toMatchObject([
    { state: 'unknown', reconciliation_owner: 'owner', reconciliation_deadline_at: expect.any(Date) },
  ]);
  return runId;
}

const notCommitted = { decided: 'not_committed', reference: null, note: 'Not in the statement.' } as const;

describe('a person who settles an unclear call', () => {
  test('as committed lets the run go on, and the model hears it with its reference', async () => {
    const runId = await unclear('done');
    expect(await settle(world, runId)).toBe('settled');
    await world.waitFor(runId, 'completed');
    expect(await world.effects(runId)).toMatchObject([{ state: 'committed', attempts: 1 }]);
    expect(await world.receipts(runId)).toMatchObject([
      { status: 'committed', source: 'person', reference: 'pay_77' },
    ]);
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('pay_77')]);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect((await world.path(runId)).slice(2)).toEqual([
      ...['needs_reconciliation', 'reconciling', 'running', 'completed'],
    ]);
    await checkRun(world, runId);
  });

  test('as not committed has it made under a new key that supersedes the old one, once', async () => {
    const runId = await unclear('not done');
    expect(await settle(world, runId, notCommitted)).toBe('settled');
    await world.waitFor(runId, 'completed');
    const [old, redo] = await world.effects(runId);
    expect(old).toMatchObject({ state: 'not_committed', attempts: 1 });
    expect(redo).toMatchObject({ state: 'succeeded', attempts: 1, redo: 1, supersedes: old?.effect_id });
    expect(applied(world, runId)).toEqual({ [keyOf(runId, { redo: 1 })]: 1 });
    expect(toldResults(world, runId)).toHaveLength(1);
    await checkRun(world, runId);
  });

  test('as not committed only has the model told, where the contract says so', async () => {
    const runId = await unclear('not done', { reconciliation: { after_not_committed: 'tell_model' } });
    await settle(world, runId, notCommitted);
    await world.waitFor(runId, 'completed');
    expect(await world.effects(runId)).toMatchObject([{ state: 'not_committed', attempts: 1 }]);
    expect(applied(world, runId)).toEqual({});
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('Not done')]);
    await checkRun(world, runId);
  });

  test('as not committed ends the run, where the contract says so', async () => {
    const runId = await unclear('not done', { reconciliation: { after_not_committed: 'fail' } });
    await settle(world, runId, notCommitted);
    await world.waitFor(runId, 'failed');
    expect(await world.runRow(runId)).toMatchObject({ reason: 'settled_not_committed' });
    expect(modelRequests(world, runId)).toHaveLength(1);
    await checkRun(world, runId);
  });

  test('of a gated call has its redo approved anew', async () => {
    const contract = { effects: { mail: { approval: 'required' } } };
    const runId = await world.admit({ input: `mail ${randomUUID()}`, contract });
    world.target.dial({ mode: 'drop_before', key: keyOf(runId), times: 1 });
    await world.starter.round();
    const [first] = await untilGated(world, runId);
    await decide(world, first);
    await world.waitFor(runId, 'needs_reconciliation');
    await settle(world, runId, notCommitted);
    const [second] = await untilGated(world, runId);
    expect(second?.scope_sha256).not.toBe(first?.scope_sha256);
    await decide(world, second);
    await world.waitFor(runId, 'completed');
    expect(applied(world, runId)).toEqual({ [keyOf(runId, { redo: 1 })]: 1 });
    await checkRun(world, runId);
  });

  test('twice at once is told that it is settled', async () => {
    const runId = await unclear('done');
    const [effect] = await world.effects(runId);
    const words = { effectId: effect?.effect_id ?? '' };
    const both = await Promise.all([settle(world, runId, words), settle(world, runId, words)]);
    expect(both.sort()).toEqual(['already_settled', 'settled']);
    await world.waitFor(runId, 'completed');
    await checkRun(world, runId);
  });

  test('is waited for: a nudge without news moves nothing on', async () => {
    const runId = await unclear('done');
    await tell(world, runId);
    await world.waitFor(runId, async ({ state }) => {
      const asked = (await world.path(runId)).filter((each) => each === 'reconciling').length;
      return state === 'needs_reconciliation' && asked === 1;
    });
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await settle(world, runId);
    await world.waitFor(runId, 'completed');
  });
});

describe('a run whose workflow is gone', () => {
  test.each([
    ['committed', {}],
    ['not_committed', notCommitted],
  ] as const)(
    'and whose call a person finds %s is ended truthfully by the sweeper',
    async (decided, words) => {
      const runId = await unclear(decided === 'committed' ? 'done' : 'not done');
      await world.client.workflow.getHandle(runId).terminate();
      await world.sweeper.round();
      expect(await world.runRow(runId)).toMatchObject({
        state: 'needs_reconciliation',
        owner_execution: 'sweeper',
      });
      expect(await settle(world, runId, words)).toBe('settled');
      await world.sweeper.round();
      expect(await world.waitFor(runId, 'ended')).toMatchObject({
        state: 'failed',
        reason: 'person_settled',
      });
      expect(await world.effects(runId)).toMatchObject([{ state: decided, attempts: 1 }]);
      await checkRun(world, runId);
    },
  );
});

test('when all is said, ledger and target agree', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
});
