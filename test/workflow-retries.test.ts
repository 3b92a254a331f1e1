import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Dial } from './support/http-target.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { type SkippingWorld, startSkippingWorld } from './support/skipping-world.js';
import { keyOf, type World } from './support/world.js';

// Goal: every wait of a run ends as its contract says, however long it is. Method: Temporal's time and the ledger's
// clock are skipped together; the target counts what really arrived.

const MINUTE = 60;
const DAY = 86_400;

let skipping: SkippingWorld;
let world: World;

beforeAll(async () => {
  skipping = await startSkippingWorld({
    limits: { wallClockSecondsMax: 120 * DAY },
    httpTools: {
      pay: { limiterRunsBeforeExecution: true },
      look: { limiterRunsBeforeExecution: true },
      /** Its target keeps a key for a minute only. */
      brief: {
        ...{ description: 'Pays.', class: 'keyed', url: '/keyed' },
        keyed: { windowSeconds: MINUTE, resendsMax: 5 },
        answers: [{ status: 409, at: '/error', equals: 'key_in_progress', outcome: 'in_progress' }],
      },
      /** Keyed, and its target can be asked too. */
      traced: {
        ...{ description: 'Pays.', class: 'keyed', url: '/queryable' },
        keyed: { windowSeconds: DAY, resendsMax: 1 },
        query: { settlingSeconds: 30, equalAnswers: 2, intervalSeconds: 10, queriesMax: 10 },
        probe: {
          url: '/queryable/{$key}',
          answers: [
            { status: 200, outcome: 'found' },
            { status: 404, outcome: 'absent' },
          ],
        },
      },
      /** Nobody listens on port 1. */
      down: { description: 'Pays.', class: 'opaque', url: 'http://127.0.0.1:1/', allow: ['127.0.0.1:1'] },
    },
    script: script(
      ...['pay', 'book', 'mail', 'look', 'brief', 'traced', 'down'].map((tool) =>
        when(tool, reply(tool), DONE),
      ),
      when('pair', reply('mail', 'pay'), DONE),
      when('ever', ...Array.from({ length: 20 }, () => reply('look'))),
      when('busy', { error: { reason: 'overloaded', retryAfter: 10 * MINUTE } }),
      when('crowd', reply(...Array.from({ length: 5 }, () => call('look'))), DONE),
    ),
  });
  world = skipping.world;
});

// The tools have one key space: what asked a run of one test to come later would ask those of the next.
beforeEach(async () => {
  await world.rows(
    `update holdfast.cooldowns set ended_at = since, ended_by = 'success' where ended_at is null`,
  );
});

interface RetryRow {
  readonly action: string;
  readonly reason: string;
  readonly attempt: number;
  readonly attempts_max: number;
  /** From the row to the next attempt. */
  readonly wait: number | null;
  readonly retry_after: number | null;
}

async function retries(runId: string): Promise<RetryRow[]> {
  return await world.rows<RetryRow>(
    `select action, reason, attempt, attempts_max, retry_after_seconds::int as retry_after,
            extract(epoch from eligible_at - created_at)::float as wait
       from holdfast.retries where run_id = $1 order by trail_seq`,
    runId,
  );
}

/** A run of one call, whose target meets it with this fault. @returns its id, once the run has started */
async function runInto(
  tool: string,
  fault: Omit<Dial, 'key'>,
  contract: Readonly<Record<string, unknown>> = {},
): Promise<string> {
  const runId = await world.admit({ input: tool, contract });
  world.target.dial({ ...fault, key: keyOf(runId) });
  await world.starter.round();
  return runId;
}

describe('a target that asks to come later', () => {
  test('is asked again after 2, 5, 10 and 15 minutes, and then the model is told', async () => {
    const runId = await runInto('pay', { mode: 'throttle_429' });
    await skipping.skipToEnd(runId);
    const rows = await retries(runId);
    expect(
      rows.map(({ action, reason, attempt, attempts_max }) => [action, reason, attempt, attempts_max]),
    ).toEqual([1, 2, 3, 4, 5].map((attempt) => [attempt < 5 ? 'retry' : 'give_up', 'throttled', attempt, 5]));
    for (const [index, minutes] of [2, 5, 10, 15].entries()) {
      expect(rows[index]?.wait).toBeGreaterThanOrEqual(minutes * MINUTE);
      expect(rows[index]?.wait).toBeLessThan(minutes * MINUTE * 1.1 + 1);
    }
    expect(rows[4]?.wait).toBeNull();
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 5 });
    expect(applied(world, runId)).toEqual({});
    expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
    expect(await world.effects(runId)).toMatchObject([{ state: 'withdrawn', attempts: 5 }]);
    expect(lastResult(runId)).toMatchObject({ isError: true, text: expect.stringContaining('Not done') });
    await checkRun(world, runId);
  });

  test('fails the run where the contract says so', async () => {
    const retry = { attempts_max: 2, on_exhausted: 'fail' };
    const runId = await runInto('pay', { mode: 'throttle_429' }, { retry });
    await skipping.skipToEnd(runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'failed', reason: 'retries_exhausted' });
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 2 });
    expect(modelRequests(world, runId)).toHaveLength(1);
    await checkRun(world, runId);
  });

  test('is not asked again when its time comes after the deadline of the series', async () => {
    const runId = await runInto(
      'pay',
      { mode: 'throttle_429' },
      { retry: { series_seconds_max: 10 * MINUTE } },
    );
    await skipping.skipToEnd(runId);
    // 2 and 5 minutes are in; 10 more would be past it.
    expect((await retries(runId)).map(({ action }) => action)).toEqual(['retry', 'retry', 'give_up']);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 3 });
    await checkRun(world, runId);
  });

  test('is not waited for longer than the contract allows, and its word stays visible (A19)', async () => {
    const retryAfter = String(2 * DAY);
    const runId = await runInto('pay', { mode: 'throttle_429', retryAfter });
    await world.waitFor(runId, 'completed');
    expect(await retries(runId)).toMatchObject([{ action: 'give_up', retry_after: 2 * DAY, wait: null }]);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('is not waited for past the end of the run itself', async () => {
    const limits = { wall_clock_seconds: 5 * MINUTE };
    const runId = await world.run({ input: 'busy', contract: { limits } });
    expect(await world.waitFor(runId, 'ended')).toMatchObject({
      state: 'failed',
      reason: 'retries_exhausted',
    });
    expect(await retries(runId)).toMatchObject([{ action: 'give_up', retry_after: 10 * MINUTE }]);
    const tool = await runInto('pay', { mode: 'throttle_429', retryAfter: '600' }, { limits });
    await world.waitFor(tool, 'completed');
    expect(await retries(tool)).toMatchObject([{ action: 'give_up', retry_after: 10 * MINUTE }]);
    for (const each of [runId, tool]) await checkRun(world, each);
  });
});

describe('a target that asked one run to come later', () => {
  test('is asked by none of thirty until then; then each goes in its turn, with one attempt', async () => {
    const first = await runInto('pay', { mode: 'throttle_429', retryAfter: '300', times: 1 });
    await world.waitFor(first, 'retry_wait');
    const others = await Promise.all(Array.from({ length: 30 }, () => world.admit({ input: 'pay' })));
    await world.starter.round();
    for (const runId of others) await world.waitFor(runId, 'retry_wait');
    await skipping.skip(290);
    expect(world.targetLog().filter(({ key }) => others.some((id) => key.startsWith(id)))).toEqual([]);
    const turns = await world.rows<{ at: number }>(
      `select extract(epoch from cooldown_slot_at)::float as at from holdfast.runs
        where cooldown_slot_at is not null and run_id = any ($1) order by 1`,
      others,
    );
    expect(turns).toHaveLength(30);
    for (const [index, { at }] of turns.entries()) {
      if (index > 0) expect(at - turns[index - 1]!.at).toBeGreaterThanOrEqual(0.249);
    }
    for (const runId of [first, ...others]) await skipping.skipToEnd(runId);
    for (const runId of others) {
      expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
      expect(await world.effects(runId)).toMatchObject([{ state: 'succeeded', attempts: 1 }]);
      expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    }
    expect((await retries(others[1]!))[0]).toMatchObject({
      action: 'retry',
      reason: 'cooling_down',
      attempt: 0,
    });
    for (const runId of others.slice(0, 3)) await checkRun(world, runId);
  });

  test('is not waited for past the end of a run, which is told that nothing was sent', async () => {
    const first = await runInto('pay', { mode: 'throttle_429', retryAfter: '300', times: 1 });
    await world.waitFor(first, 'retry_wait');
    const runId = await world.run({ input: 'pay', contract: { limits: { wall_clock_seconds: 2 * MINUTE } } });
    await world.waitFor(runId, 'completed');
    expect(await retries(runId)).toMatchObject([{ action: 'give_up', attempt: 0 }]);
    expect(await world.effects(runId)).toMatchObject([{ state: 'withdrawn', attempts: 0 }]);
    expect(arrived(world, runId)).toEqual({});
    expect(lastResult(runId)).toMatchObject({ isError: true, text: expect.stringContaining('Not done') });
    await checkRun(world, runId);
  });
});

test('a target that cannot be reached is tried again soon, whatever the class, and nothing was ever sent', async () => {
  const runId = await world.run({ input: 'down', contract: { retry: { attempts_max: 4 } } });
  await skipping.skipToEnd(runId);
  const rows = await retries(runId);
  expect(rows.map(({ reason, action }) => `${reason} ${action}`)).toEqual([
    ...Array.from({ length: 3 }, () => 'not_sent retry'),
    'not_sent give_up',
  ]);
  for (const [index, most] of [0.5, 1, 2].entries()) {
    expect(rows[index]?.wait).toBeGreaterThanOrEqual(most / 2 - 0.05);
    expect(rows[index]?.wait).toBeLessThan(most + 0.1);
  }
  expect(await world.effects(runId)).toMatchObject([{ state: 'withdrawn', attempts: 4 }]);
  await checkRun(world, runId);
});

describe('a target that works on the key already', () => {
  test('is asked again under the same key until it has an answer (A18)', async () => {
    const runId = await runInto('pay', { mode: 'in_progress_409', retryAfter: '30', times: 3 });
    await world.waitFor(runId, 'retry_wait');
    await skipping.skip(29);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await skipping.skipToEnd(runId);
    expect((await retries(runId)).map(({ action, reason }) => `${action} ${reason}`)).toEqual(
      Array.from({ length: 3 }, () => 'ask_again in_progress'),
    );
    expect(await world.path(runId)).not.toContain('needs_reconciliation');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 4 });
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('goes to a person once the key has lived out its window', async () => {
    const runId = await runInto('brief', { mode: 'in_progress_409', retryAfter: '120' });
    await world.waitFor(runId, 'retry_wait');
    await skipping.skip(121);
    await world.waitFor(runId, 'needs_reconciliation');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });
});

describe('an unclear outcome of a keyed call', () => {
  test('is sent again as often as the tool allows, then waits for a person and asks nobody', async () => {
    const runId = await runInto('pay', { mode: 'drop_before' }, { retry: { attempts_max: 9 } });
    await skipping.skip(10 * MINUTE);
    await world.waitFor(runId, 'needs_reconciliation');
    await skipping.skip(DAY);
    expect(await world.runRow(runId)).toMatchObject({ state: 'needs_reconciliation' });
    expect(await world.effects(runId)).toMatchObject([
      { state: 'unknown', resends: 3, reconciliation_owner: 'owner' },
    ]);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 4 });
    await checkRun(world, runId);
  });

  test('is sent no oftener than the contract allows', async () => {
    const runId = await runInto('pay', { mode: 'drop_before' }, { retry: { attempts_max: 2 } });
    await skipping.skip(DAY);
    await world.waitFor(runId, 'needs_reconciliation');
    expect((await world.path(runId)).filter((state) => state === 'needs_reconciliation')).toHaveLength(1);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 2 });
    await checkRun(world, runId);
  });

  test.each([
    ['was done', 'drop_after', 'committed', 0],
    ['was never done', 'drop_before', 'not_committed', 1],
  ] as const)(
    'past its resends is settled by a query where one is possible: it %s',
    async (_, mode, state, redos) => {
      const runId = await runInto('traced', { mode });
      await skipping.skipToEnd(runId);
      const effects = await world.effects(runId);
      expect(effects[0]).toMatchObject({ state, attempts: 2, resends: 1 });
      expect(effects).toHaveLength(1 + redos);
      expect(Object.values(applied(world, runId))).toEqual(mode === 'drop_after' ? [2] : [1]);
      expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
      await checkRun(world, runId);
    },
  );
});

test('a read that never comes back is given up, told to the model, and needs nobody', async () => {
  const runId = await runInto('look', { mode: 'drop_before' }, { retry: { attempts_max: 3 } });
  await skipping.skipToEnd(runId);
  expect(await world.path(runId)).not.toContain('needs_reconciliation');
  expect(await world.effects(runId)).toMatchObject([{ state: 'not_committed', attempts: 3 }]);
  expect(lastResult(runId)).toMatchObject({ isError: true, text: expect.stringContaining('No answer') });
  expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
  await checkRun(world, runId);
});

describe('an approval that nobody gives', () => {
  const effects = { mail: { approval: 'required' } };

  test('expires after months into a denial, and is never carried out', async () => {
    const runId = await world.run({
      input: 'mail',
      contract: { effects, timeouts: { approval_seconds: 89 * DAY } },
    });
    await world.waitFor(runId, 'awaiting_approval');
    await skipping.skip(88 * DAY);
    expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval' });
    await skipping.skipToEnd(runId);
    expect(await world.path(runId)).toEqual([
      'admitted',
      'running',
      'awaiting_approval',
      'running',
      'completed',
    ]);
    expect(await world.effects(runId)).toMatchObject([{ state: 'denied', attempts: 0 }]);
    expect(arrived(world, runId)).toEqual({});
    expect(lastResult(runId)).toMatchObject({ isError: true, text: expect.stringContaining('approval') });
    await checkRun(world, runId);
  });

  test('expires with the run when that ends first', async () => {
    const limits = { wall_clock_seconds: DAY };
    const timeouts = { approval_seconds: 30 * DAY };
    const runId = await world.run({ input: 'mail', contract: { effects, limits, timeouts } });
    await world.waitFor(runId, 'awaiting_approval');
    // Expiry is the ledger's to judge, and its clock follows the first skip: the second wakes the run once more.
    await skipping.skip(DAY + 1);
    await skipping.skip(DAY + 1);
    expect(await world.waitFor(runId, 'ended')).toMatchObject({
      state: 'failed',
      reason: 'limit_wall_clock',
    });
    expect(await world.effects(runId)).toMatchObject([{ state: 'denied', attempts: 0 }]);
    await checkRun(world, runId);
  });
});

describe('the limits of a run', () => {
  test('a model that never ends is stopped at the last step, which is still told its result', async () => {
    const runId = await world.run({ input: 'ever', contract: { limits: { steps_max: 3 } } });
    expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'failed', reason: 'limit_steps' });
    expect(modelRequests(world, runId)).toHaveLength(3);
    expect(Object.values(arrived(world, runId))).toEqual([1, 1, 1]);
    await checkRun(world, runId);
  });

  test('calls over the limit of tool calls are refused one by one, and the model hears of each', async () => {
    const runId = await world.run({ input: 'crowd', contract: { limits: { tool_calls_max: 2 } } });
    expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'completed', tool_calls: 2 });
    expect(Object.keys(arrived(world, runId))).toHaveLength(2);
    const results = modelRequests(world, runId)[1]?.messages.at(-1);
    expect(results?.role === 'tool' ? results.results.map(({ isError }) => isError) : []).toEqual([
      false,
      false,
      true,
      true,
      true,
    ]);
    await checkRun(world, runId);
  });

  test('past its wall clock a run dispatches nothing more and fails', async () => {
    const contract = { limits: { wall_clock_seconds: DAY }, effects: { mail: { approval: 'required' } } };
    const runId = await world.run({ input: 'pair', contract });
    await world.waitFor(runId, 'awaiting_approval');
    await skipping.skipToEnd(runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'failed', reason: 'limit_wall_clock' });
    expect(await world.effects(runId)).toMatchObject([
      { tool: 'mail', state: 'denied' },
      { tool: 'pay', state: 'withdrawn', attempts: 0 },
    ]);
    expect(arrived(world, runId)).toEqual({});
    expect(modelRequests(world, runId)).toHaveLength(1);
    await checkRun(world, runId);
  });
});

/** The newest tool result that the model was told. */
function lastResult(runId: string): unknown {
  const message = modelRequests(world, runId).at(-1)?.messages.at(-1);
  return message?.role === 'tool' ? message.results.at(-1) : undefined;
}
