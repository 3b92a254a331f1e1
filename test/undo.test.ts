import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { brokenControl, command, decide, fates, resetRun, settle, untilGated } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';
import { undoKeyOf, UNDO_TOOLS, undosOf } from './support/undo.js';

// Goal: what a run did is undone backwards, each step by an effect of its own, once; what no tool undoes waits for a
// person; and the end says what is undone and what is left (SPEC 3.7, cases 37 and 38). Method: runs with several
// effects are cancelled or fail, with the target refusing, losing and delaying the compensations.

const HELD_MS = 600_000;
let world: World;

beforeAll(async () => {
  world = await startWorld({
    heartbeatSeconds: 1,
    httpTools: UNDO_TOOLS,
    script: script(
      when('both', reply('pay'), reply('book'), { delayMs: HELD_MS, text: 'Late.' }),
      when('mailed', reply('pay'), reply('mail'), { delayMs: HELD_MS, text: 'Late.' }),
      when('fails', reply('pay'), reply('book'), { error: { reason: 'bad_request' } }),
      when('mail', reply('pay'), reply('mail'), DONE),
      when('noreference', reply('plain'), { delayMs: HELD_MS, text: 'Late.' }),
      when('gated', reply('pay'), reply('mail'), DONE),
      when('nothing', { delayMs: HELD_MS, text: 'Late.' }),
    ),
  });
});

/** A run that did what its script says and stands at a model call that never ends. */
async function doneRun(word: string, calls: number, contract: Record<string, unknown> = {}): Promise<string> {
  const runId = await world.run({ input: `${word} ${randomUUID()}`, contract });
  await until('the last model call is made', () => modelRequests(world, runId).length === calls + 1);
  return runId;
}

const cancel = (runId: string) => command(world, runId, 'cancel', { compensate: true });

async function compensated(runId: string): Promise<void> {
  await world.waitFor(runId, 'compensated');
  expect(await world.client.workflow.getHandle(runId).result()).toEqual({ state: 'compensated' });
  await checkRun(world, runId);
}

describe('a cancel that asks to compensate', () => {
  test('undoes what happened, the newest first, each under a key of its own, once', async () => {
    const runId = await doneRun('both', 2);
    const before = await world.effects(runId);
    expect(await cancel(runId)).toBe('accepted');
    await compensated(runId);
    expect(await undosOf(world, runId)).toEqual([
      { tool: 'unbook', state: 'succeeded', of: keyOf(runId, { step: 2 }) },
      { tool: 'unpay', state: 'succeeded', of: keyOf(runId) },
    ]);
    // Backwards: the target saw the undo of the second before that of the first.
    const seen = world.targetLog(runId).filter(({ kind }) => kind === 'applied');
    expect(seen.map(({ key }) => key)).toEqual([
      keyOf(runId),
      keyOf(runId, { step: 2 }),
      undoKeyOf(runId, { step: 2 }),
      undoKeyOf(runId),
    ]);
    expect(applied(world, runId)[undoKeyOf(runId)]).toBe(1);
    expect((await world.path(runId)).slice(1)).toEqual(['running', 'compensating', 'compensated']);
    expect(await fates(world, runId)).toEqual(['cancel applied']);
    // What was undone stays as it happened.
    expect((await world.effects(runId)).filter(({ slot }) => slot < 1_000)).toEqual(before);
  });

  test('makes the arguments of each from those it undoes and from its receipt', async () => {
    const runId = await doneRun('both', 2);
    const receipts = await world.receipts(runId);
    await cancel(runId);
    await compensated(runId);
    const made = await world.rows<{ tool: string; arguments: string }>(
      'select tool, arguments from holdfast.effects where run_id = $1 and compensates is not null order by step',
      runId,
    );
    expect(made.map((row) => [row.tool, JSON.parse(row.arguments)])).toEqual([
      ['unpay', { note: `undo ${receipts[0]?.reference} of ${keyOf(runId)}` }],
      ['unbook', { note: expect.stringMatching(/^both /) }],
    ]);
  });

  test('leaves out what the target refused (case 38)', async () => {
    const runId = await world.admit({ input: `both ${randomUUID()}` });
    world.target.dial({ mode: 'refuse_422', key: keyOf(runId, { step: 2 }) });
    await world.starter.round();
    await until('the last model call is made', () => modelRequests(world, runId).length === 3);
    await cancel(runId);
    await compensated(runId);
    expect((await undosOf(world, runId)).map(({ tool }) => tool)).toEqual(['unpay']);
  });

  test('of a run that did nothing ends compensated, with nothing undone', async () => {
    const runId = await doneRun('nothing', 0);
    await cancel(runId);
    await compensated(runId);
    expect(await world.effects(runId)).toEqual([]);
  });

  test('withdraws what was asked of people and what had not left', async () => {
    const contract = { effects: { mail: { approval: 'required' } } };
    const runId = await world.run({ input: `gated ${randomUUID()}`, contract });
    const [wait] = await untilGated(world, runId);
    await cancel(runId);
    await compensated(runId);
    expect(await decide(world, wait)).toBe('run_ended');
    expect(await undosOf(world, runId)).toMatchObject([{ tool: 'unpay', state: 'succeeded' }]);
    expect((await world.path(runId)).slice(1)).toEqual([
      ...['running', 'awaiting_approval', 'compensating', 'compensated'],
    ]);
  });

  test('finds out first what is in flight, and undoes it when it was done', async () => {
    const runId = await world.admit({ input: `both ${randomUUID()}` });
    world.target.dial({ mode: 'hold_after', key: keyOf(runId, { step: 2 }) });
    await world.starter.round();
    await until('the target has it', () => keyOf(runId, { step: 2 }) in arrived(world, runId));
    await cancel(runId);
    await compensated(runId);
    expect((await undosOf(world, runId)).map(({ tool }) => tool)).toEqual(['unbook', 'unpay']);
    expect((await world.path(runId)).slice(2)).toEqual([
      ...['compensating', 'needs_reconciliation', 'reconciling', 'compensating', 'compensated'],
    ]);
  });

  test('of a run that rests on an unclear effect waits for its settlement, and then undoes it', async () => {
    const runId = await world.admit({ input: `mail ${randomUUID()}` });
    world.target.dial({ mode: 'drop_after', key: keyOf(runId, { step: 2 }), times: 1 });
    await world.starter.round();
    await world.waitFor(runId, 'needs_reconciliation');
    await cancel(runId);
    expect(await settle(world, runId)).toBe('settled');
    // Mail has no compensation, so the person who settled it is asked again: is it undone?
    await world.waitFor(
      runId,
      async ({ state }) => state === 'needs_reconciliation' && (await waiting(runId)) === 1,
    );
    expect(arrived(world, runId)).not.toHaveProperty(undoKeyOf(runId));
    const mail = (await world.effects(runId)).find(({ tool }) => tool === 'mail');
    expect(
      await settle(world, runId, {
        effectId: mail?.effect_id ?? '',
        decided: 'compensated',
        reference: 'letter 7',
      }),
    ).toBe('settled');
    await compensated(runId);
    expect((await undosOf(world, runId)).map(({ tool }) => tool)).toEqual(['unpay']);
  });

  test('twice is the same as once, also while it undoes (case 37)', async () => {
    const runId = await doneRun('both', 2);
    world.target.dial({ mode: 'throttle_429', key: undoKeyOf(runId), times: 1, retryAfter: '1' });
    await cancel(runId);
    await until(
      'the second compensation waits',
      async () => (await world.rows('select 1 from holdfast.retries where run_id = $1', runId)).length === 1,
    );
    expect(await world.runRow(runId)).toMatchObject({ state: 'compensating' });
    expect(await cancel(runId)).toBe('applied');
    expect(await command(world, runId, 'cancel')).toBe('applied');
    await compensated(runId);
    expect(arrived(world, runId)).toMatchObject({
      [undoKeyOf(runId)]: 2,
      [undoKeyOf(runId, { step: 2 })]: 1,
    });
    expect(applied(world, runId)).toMatchObject({ [undoKeyOf(runId)]: 1 });
    expect((await world.path(runId)).filter((state) => state === 'compensating')).toHaveLength(1);
    expect(await command(world, runId, 'cancel')).toBe('applied');
  });

  test('is held by a pause and goes on after the resume', async () => {
    const runId = await doneRun('both', 2);
    world.faults.add({ point: 'undo.before_next', mode: 'hang', runId, hit: 2 });
    await cancel(runId);
    await until('it is about to undo the first', () => world.faults.reached().some((f) => f.runId === runId));
    expect(await command(world, runId, 'pause')).toBe('accepted');
    world.faults.release(runId);
    await world.waitFor(runId, ({ control }) => control === 'paused');
    expect(arrived(world, runId)).not.toHaveProperty(undoKeyOf(runId));
    expect(await command(world, runId, 'resume')).toBe('accepted');
    await compensated(runId);
  });
});

describe('a run that fails', () => {
  test('undoes what it did first, where its contract says so, and says why it did', async () => {
    const runId = await world.run({ input: `fails ${randomUUID()}`, contract: { on_failure: 'compensate' } });
    await compensated(runId);
    expect((await undosOf(world, runId)).map(({ tool }) => tool)).toEqual(['unbook', 'unpay']);
    const moves = (await world.transitions(runId)).map(({ to_state, reason }) => `${to_state} ${reason}`);
    expect(moves.slice(-2)).toEqual(['compensating model_failed', 'compensated compensation_done']);
  });

  test('leaves what it did, where its contract says nothing', async () => {
    const runId = await world.run({ input: `fails ${randomUUID()}` });
    await world.waitFor(runId, 'failed');
    expect(await undosOf(world, runId)).toEqual([]);
    await checkRun(world, runId);
  });
});

describe('an effect that no tool undoes', () => {
  const waits = (runId: string) =>
    world.waitFor(
      runId,
      async ({ state }) => state === 'needs_reconciliation' && (await waiting(runId)) === 1,
    );
  const ofTool = async (runId: string, tool: string): Promise<string> =>
    (await world.effects(runId)).find((effect) => effect.tool === tool)?.effect_id ?? '';

  test('for want of a compensation holds back what came before it, until a person undid it', async () => {
    const runId = await doneRun('mailed', 2);
    await cancel(runId);
    await waits(runId);
    expect(arrived(world, runId)).not.toHaveProperty(undoKeyOf(runId));
    expect(await whys(runId)).toEqual(['no_compensation']);
    const words = {
      effectId: await ofTool(runId, 'mail'),
      decided: 'compensated',
      reference: 'call 12',
    } as const;
    expect(await settle(world, runId, words)).toBe('settled');
    await compensated(runId);
    expect((await undosOf(world, runId)).map(({ tool }) => tool)).toEqual(['unpay']);
  });

  test('and that a person leaves as it is ends the run failed, with the rest undone', async () => {
    const runId = await doneRun('mailed', 2);
    await cancel(runId);
    await waits(runId);
    const words = { effectId: await ofTool(runId, 'mail'), decided: 'left', reference: null } as const;
    expect(await settle(world, runId, words)).toBe('settled');
    await world.waitFor(runId, 'failed');
    expect(await world.runRow(runId)).toMatchObject({ reason: 'compensation_failed' });
    expect((await undosOf(world, runId)).map(({ tool }) => tool)).toEqual(['unpay']);
    await checkRun(world, runId);
  });

  test('since the target refuses goes to a person, and is not tried again (case 38)', async () => {
    const runId = await doneRun('both', 2);
    world.target.dial({ mode: 'refuse_422', key: undoKeyOf(runId, { step: 2 }) });
    await cancel(runId);
    await waits(runId);
    expect(await whys(runId)).toEqual(['rejected']);
    expect(arrived(world, runId)[undoKeyOf(runId, { step: 2 })]).toBe(1);
    await resetRun(world, runId);
    await world.waitFor(runId, ({ epoch, state }) => epoch === 2 && state === 'needs_reconciliation');
    expect(arrived(world, runId)[undoKeyOf(runId, { step: 2 })]).toBe(1);
    await settle(world, runId, { effectId: await ofTool(runId, 'book'), decided: 'left', reference: null });
    await world.waitFor(runId, 'failed');
    expect((await undosOf(world, runId)).map(({ tool, state }) => `${tool} ${state}`)).toEqual([
      'unbook rejected',
      'unpay succeeded',
    ]);
    await checkRun(world, runId);
  });

  test('and whose run lost its workflow is a person’s still, and the sweeper ends the run', async () => {
    const runId = await doneRun('mailed', 2);
    await cancel(runId);
    await waits(runId);
    await world.client.workflow.getHandle(runId).terminate();
    await world.sweeper.round();
    expect(await world.runRow(runId)).toMatchObject({
      ...{ state: 'needs_reconciliation', owner_execution: 'sweeper' },
    });
    for (const tool of ['mail', 'pay']) {
      const words = { effectId: await ofTool(runId, tool), decided: 'compensated', reference: tool } as const;
      expect(await settle(world, runId, words)).toBe('settled');
    }
    await world.sweeper.round();
    await world.waitFor(runId, 'compensated');
    expect(arrived(world, runId)).not.toHaveProperty(undoKeyOf(runId));
    await checkRun(world, runId);
  });

  test('that is overdue is told about by the sweeper, once, and settled by nobody', async () => {
    const runId = await doneRun('mailed', 2, { reconciliation: { deadline_seconds: 1 } });
    await cancel(runId);
    await waits(runId);
    const told = async () =>
      (await world.events(runId)).filter(({ type }) => type === 'reconciliation.overdue').length;
    await until('it is told', async () => {
      await world.sweeper.escalateOverdue();
      return (await told()) > 0;
    });
    await world.sweeper.escalateOverdue();
    expect([await told(), await waiting(runId)]).toEqual([1, 1]);
    await settle(world, runId, { effectId: await ofTool(runId, 'mail'), decided: 'left', reference: null });
    await world.waitFor(runId, 'failed');
  });

  test('since its receipt names nothing that the rule needs goes to a person', async () => {
    const runId = await doneRun('noreference', 1);
    await cancel(runId);
    await waits(runId);
    expect(await whys(runId)).toEqual(['arguments_missing']);
    await settle(world, runId, { effectId: await ofTool(runId, 'plain'), decided: 'compensated' });
    await compensated(runId);
  });

  test('and whose compensation is unclear is found out about like any other', async () => {
    const runId = await doneRun('both', 2);
    world.target.dial({ mode: 'drop_after', key: undoKeyOf(runId, { step: 2 }), times: 1 });
    world.target.dial({ mode: 'drop_after', key: undoKeyOf(runId), times: 1 });
    await cancel(runId);
    // The queryable one is asked about, and the keyed one sent again under its key.
    await compensated(runId);
    expect((await undosOf(world, runId)).map(({ tool, state }) => `${tool} ${state}`)).toEqual([
      'unbook committed',
      'unpay succeeded',
    ]);
    expect(applied(world, runId)).toMatchObject({
      [undoKeyOf(runId)]: 1,
      [undoKeyOf(runId, { step: 2 })]: 1,
    });
  });

  test('and whose compensation was found not to have happened is undone under a new key', async () => {
    const runId = await doneRun('both', 2);
    world.target.dial({ mode: 'drop_before', key: undoKeyOf(runId, { step: 2 }), times: 1 });
    await cancel(runId);
    await compensated(runId);
    expect((await undosOf(world, runId)).map(({ tool, state }) => `${tool} ${state}`)).toEqual([
      'unbook not_committed',
      'unbook succeeded',
      'unpay succeeded',
    ]);
  });

  const whys = async (runId: string): Promise<string[]> =>
    (await world.rows<{ why: string }>(`select why from holdfast.undos where run_id = $1`, runId)).map(
      ({ why }) => why,
    );
});

async function waiting(runId: string): Promise<number> {
  const rows = await world.rows(
    `select 1 from holdfast.undos where run_id = $1 and state = 'waiting'`,
    runId,
  );
  return rows.length;
}

test('when all is said, ledger and target agree, and only compensations left after a cancel', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});
