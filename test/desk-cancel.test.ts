import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { submitCommand } from '../shared/ledger/commands.js';
import { commitTrail } from '../shared/ledger/trail.js';
import {
  brokenControl,
  command,
  decide,
  fates,
  heard,
  resetRun,
  settle,
  tell,
  untilGated,
  waits,
} from './support/desk-world.js';
import { judge } from './support/judge.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: after a cancel nothing new leaves, what is in flight is aborted, and the run ends `cancelled` only when the
// outside truth of every effect is known (SPEC 4, case 31, I14). Method: a cancel meets a run in every place where it
// can stand; target, ledger and commands are compared.

/** A heartbeat brings the abort to the activity; the rest is room for a busy machine. */
const ABORTED_WITHIN_MS = 8_000;
const HELD_MS = 600_000;

let world: World;

beforeAll(async () => {
  const patient = { timeoutSeconds: 60 };
  world = await startWorld({
    heartbeatSeconds: 1,
    httpTools: {
      ...{ pay: patient, mail: patient, look: patient, book: patient },
      // Keyed, and its target can be asked as well.
      traced: {
        ...{ description: 'Pays.', class: 'keyed', url: '/queryable', timeoutSeconds: 60 },
        keyed: { windowSeconds: 3_600, resendsMax: 3 },
        query: { settlingSeconds: 0.2, equalAnswers: 2, intervalSeconds: 0.1, queriesMax: 20 },
        probe: {
          url: '/queryable/{$key}',
          answers: [
            { status: 200, outcome: 'found' },
            { status: 404, outcome: 'absent' },
          ],
        },
      },
    },
    script: script(
      ...['pay', 'book', 'mail', 'look', 'traced'].map((tool) => when(tool, reply(tool), DONE)),
      when('slow', { delayMs: HELD_MS, text: 'Late.' }),
      when('later', { error: { reason: 'rate_limited', retryAfter: 3_000 } }),
    ),
  });
});

const unique = (word: string): string => `${word} ${randomUUID()}`;

/** A run whose first call is held by the target, before or after it did it. @returns its id, once the call is there */
async function heldRun(word: string, mode: 'hold_before' | 'hold_after'): Promise<string> {
  const runId = await world.admit({ input: unique(word) });
  world.target.dial({ mode, key: keyOf(runId) });
  await world.starter.round();
  await until('the target has the call', () => keyOf(runId) in arrived(world, runId));
  return runId;
}

async function cancelled(runId: string): Promise<void> {
  await world.waitFor(runId, 'cancelled', ABORTED_WITHIN_MS);
  expect(await world.client.workflow.getHandle(runId).result()).toEqual({ state: 'cancelled' });
  await checkRun(world, runId);
}

describe('a cancel of a working run', () => {
  test('between two steps ends it before the next one begins', async () => {
    const runId = await world.admit({ input: unique('pay') });
    world.faults.add({ point: 'think.before_claim', mode: 'hang', runId, hit: 2 });
    await world.starter.round();
    await until('the second step is near', () => world.faults.reached().some((f) => f.runId === runId));
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    world.faults.release(runId);
    await cancelled(runId);
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await world.path(runId)).toEqual(['admitted', 'running', 'cancelling', 'cancelled']);
    expect(await fates(world, runId)).toEqual(['cancel applied']);
  });

  test('aborts a model call in flight (case 33)', async () => {
    const runId = await world.run({ input: unique('slow') });
    await until('the model is asked', () => modelRequests(world, runId).length === 1);
    await command(world, runId, 'cancel');
    await cancelled(runId);
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(await fates(world, runId)).toEqual(['cancel applied']);
  });

  test('aborts a read in flight, and needs nobody for it', async () => {
    const runId = await heldRun('look', 'hold_before');
    await command(world, runId, 'cancel');
    await cancelled(runId);
    expect(await world.path(runId)).not.toContain('needs_reconciliation');
    expect(await world.effects(runId)).toMatchObject([{ state: 'not_committed' }]);
  });

  test.each(['traced', 'book'])(
    'A26: aborts %s in flight and finds out by a query that it was done',
    async (tool) => {
      const runId = await heldRun(tool, 'hold_after');
      await command(world, runId, 'cancel');
      await cancelled(runId);
      expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
      expect(await world.effects(runId)).toMatchObject([{ state: 'committed', attempts: 1 }]);
      expect((await world.path(runId)).slice(2)).toEqual([
        ...['cancelling', 'needs_reconciliation', 'reconciling', 'cancelled'],
      ]);
      expect(modelRequests(world, runId)).toHaveLength(1);
    },
  );

  test('aborts book in flight and finds out by a query that it was never done: no redo', async () => {
    const runId = await world.admit({ input: unique('book') });
    world.faults.add({ point: 'act.after_claim', mode: 'throw', runId });
    world.faults.add({ point: 'query.before_begin', mode: 'hang', runId });
    await world.starter.round();
    await until(
      'it is asked about',
      () => world.faults.reached().filter((f) => f.runId === runId).length === 2,
    );
    await command(world, runId, 'cancel');
    world.faults.release(runId);
    await cancelled(runId);
    expect(arrived(world, runId)).toEqual({});
    expect(await world.effects(runId)).toMatchObject([{ state: 'not_committed' }]);
  });

  test.each([
    ['mail', 'committed'],
    ['mail', 'not_committed'],
    ['pay', 'committed'],
  ] as const)(
    'leaves an unclear %s to a person, who finds it %s (case 33, A26, E12)',
    async (tool, decided) => {
      const runId = decided === 'committed' ? await heldRun(tool, 'hold_after') : await cutRun(tool);
      await command(world, runId, 'cancel');
      await world.waitFor(runId, 'needs_reconciliation', ABORTED_WITHIN_MS);
      await heard(world, runId);
      await world.waitFor(runId, 'needs_reconciliation');
      expect(await command(world, runId, 'pause')).toBe('rejected cancel_in_force');
      expect(await world.effects(runId)).toMatchObject([{ state: 'unknown', attempts: 1 }]);
      expect(await settle(world, runId, { decided })).toBe('settled');
      await cancelled(runId);
      expect(await world.effects(runId)).toMatchObject([{ state: decided, attempts: 1 }]);
      expect(modelRequests(world, runId)).toHaveLength(1);
      expect((await fates(world, runId))[0]).toBe('cancel applied');
    },
  );

  test('is not forgotten by an execution that takes over while the outcome is unclear', async () => {
    const runId = await heldRun('mail', 'hold_after');
    await command(world, runId, 'cancel');
    await world.waitFor(runId, 'needs_reconciliation', ABORTED_WITHIN_MS);
    await resetRun(world, runId);
    await world.waitFor(runId, ({ epoch, state }) => epoch === 2 && state === 'needs_reconciliation');
    expect(await settle(world, runId)).toBe('settled');
    await cancelled(runId);
    expect(modelRequests(world, runId)).toHaveLength(1);
  });
});

describe('a cancel of a waiting run', () => {
  test('ends a wait for the next attempt at once', async () => {
    const runId = await world.run({ input: unique('later') });
    await world.waitFor(runId, 'retry_wait');
    await command(world, runId, 'cancel');
    await cancelled(runId);
    expect(await world.path(runId)).toEqual(['admitted', 'running', 'retry_wait', 'cancelling', 'cancelled']);
    expect(modelRequests(world, runId)).toHaveLength(1);
  });

  test('withdraws what was asked of people, and a yes that comes later counts for nothing', async () => {
    const contract = { effects: { mail: { approval: 'required' } } };
    const runId = await world.run({ input: unique('mail'), contract });
    const [wait] = await untilGated(world, runId);
    await command(world, runId, 'cancel');
    await cancelled(runId);
    expect(await waits(world, runId)).toMatchObject([{ state: 'withdrawn' }]);
    expect(await decide(world, wait)).toBe('run_ended');
    expect(arrived(world, runId)).toEqual({});
    expect(await world.effects(runId)).toMatchObject([{ state: 'withdrawn', attempts: 0 }]);
    expect(await world.path(runId)).toEqual(['admitted', 'running', 'awaiting_approval', 'cancelled']);
  });

  test('goes before a yes that nobody has taken up', async () => {
    const own = await startWorld({ workers: 0, script: script(when('mail', reply('mail'), DONE)) });
    const first = await own.startWorker();
    const contract = { effects: { mail: { approval: 'required' } } };
    const runId = await own.run({ input: 'mail', contract });
    const [wait] = await untilGated(own, runId);
    await first.stop();
    expect(await decide(own, wait)).toBe('decided');
    await command(own, runId, 'cancel');
    await own.startWorker();
    await own.waitFor(runId, 'cancelled');
    expect(await waits(own, runId)).toMatchObject([{ state: 'withdrawn' }]);
    expect(own.targetLog(runId)).toEqual([]);
    await checkRun(own, runId);
    await own.close();
  });

  test('of a paused run ends it', async () => {
    const runId = await world.run({ input: unique('later') });
    await world.waitFor(runId, 'retry_wait');
    await command(world, runId, 'pause');
    await world.waitFor(runId, ({ control }) => control === 'paused');
    await command(world, runId, 'cancel');
    await cancelled(runId);
  });

  // Temporal may refuse the end of a workflow task, a signal having come meanwhile; it is run again, from before its commits.
  test('whose last workflow task was lost after its commits ends all the same', async () => {
    const runId = await world.run({ input: unique('later') });
    await world.waitFor(runId, 'retry_wait');
    const [at] = await world.rows<{ execution: string; position: number }>(
      `select owner_execution as execution, trail_position::int as position from holdfast.runs where run_id = $1`,
      runId,
    );
    await submitCommand(world.db, {
      ...{ tenantId: 'default', runId, kind: 'cancel', payload: {} },
      ...{ actorId: 'user:olga', authority: 'operator', expectedStateVersion: null },
      ...{ endpoint: `POST /v1/runs/${runId}/commands`, idempotencyKey: randomUUID() },
    });
    await commitTrail(
      world.db,
      { runId, execution: at!.execution },
      {
        from: at!.position + 1,
        entries: [
          { kind: 'control', to: 'active', reason: 'cancel_requested' },
          { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
          { kind: 'move', to: 'cancelled', reason: 'wound_down' },
        ],
      },
    );
    await tell(world, runId);
    await cancelled(runId);
  });

  test('that no worker has taken up ends it without one (E16)', async () => {
    const own = await startWorld({ workers: 0, script: script(when('mail', reply('mail'), DONE)) });
    const unstarted = await own.admit({ input: 'mail' });
    const started = await own.run({ input: 'mail' });
    const untold = await own.admit({ input: 'mail' });
    for (const runId of [unstarted, started, untold]) {
      expect(await command(own, runId, 'cancel')).toBe('applied');
      expect(await own.runRow(runId)).toMatchObject({ state: 'cancelled', owner_execution: null });
    }
    await own.starter.round();
    await expect(own.client.workflow.getHandle(untold).describe()).rejects.toThrow(/not found/i);
    await own.startWorker();
    expect(await own.client.workflow.getHandle(started).result()).toEqual({ state: 'cancelled' });
    for (const runId of [unstarted, started, untold]) {
      expect(own.targetLog(runId)).toEqual([]);
      expect(modelRequests(own, runId)).toEqual([]);
      await checkRun(own, runId);
    }
    await own.close();
  });
});

test('a second cancel is the same as the first', async () => {
  const runId = await heldRun('mail', 'hold_after');
  expect(await command(world, runId, 'cancel')).toBe('accepted');
  expect(await command(world, runId, 'cancel')).toBe('applied');
  await world.waitFor(runId, 'needs_reconciliation', ABORTED_WITHIN_MS);
  expect(await command(world, runId, 'cancel')).toBe('applied');
  await settle(world, runId);
  await cancelled(runId);
  expect(await command(world, runId, 'cancel')).toBe('applied');
  expect((await world.path(runId)).filter((state) => state === 'cancelling')).toHaveLength(1);
});

test('a cancel that races the last step: one end each, and its fate says which (case 31)', async () => {
  const outcomes = await Promise.all(
    Array.from({ length: 20 }, async (_, index) => {
      const runId = await world.run({ input: unique('pay') });
      // At a different place of the last stretch each time.
      await world.waitFor(runId, async ({ state, model_calls }) =>
        index % 4 === 0
          ? keyOf(runId) in arrived(world, runId)
          : index % 4 === 1
            ? (await world.receipts(runId)).length === 1
            : index % 4 === 2
              ? model_calls === 2
              : state === 'completed' || modelRequests(world, runId).length === 2,
      );
      await command(world, runId, 'cancel');
      const { state } = await world.waitFor(runId, 'ended');
      await checkRun(world, runId);
      const [fate] = await fates(world, runId);
      return `${state}: ${fate}`;
    }),
  );
  for (const outcome of outcomes) {
    expect([
      'cancelled: cancel applied',
      'completed: cancel rejected run_ended',
      'completed: cancel expired run_ended',
    ]).toContain(outcome);
  }
}, 60_000);

test('when all is said, ledger and target agree, and nothing left after a cancel', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});

/** A run whose call never left, and of which nobody knows. */
async function cutRun(tool: string): Promise<string> {
  const runId = await world.admit({ input: unique(tool) });
  world.faults.add({ point: 'act.after_claim', mode: 'throw', runId });
  await world.starter.round();
  await world.waitFor(runId, 'needs_reconciliation');
  return runId;
}
