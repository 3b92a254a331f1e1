import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { brokenControl, command, heard, resetRun, tell } from './support/desk-world.js';
import type { InputRow } from './support/input.js';
import { answer, inputs, untilAsked } from './support/input-world.js';
import { judge } from './support/judge.js';
import { arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: billing, credit and login failures of a model provider are not retried and fail nothing at once: a person is
// asked, and the call is made again only on their word (SPEC 3.5). Method: scripted failures; answers, silence, crashes
// and commands meet the wait; the requests that the model got are counted.

const EMPTY = { error: { reason: 'billing', detail: 'The account is empty.', requestId: 'req_9' } };
const NO_KEY = { error: { reason: 'authentication', detail: 'The key is not known.' } };
const SCRIPT = script(
  when('bill', { attempts: [EMPTY, DONE] }),
  when('login', { attempts: [NO_KEY, DONE] }),
  when('twice', { attempts: [EMPTY, EMPTY, DONE] }),
  when('never', { attempts: [EMPTY] }),
  when('later', reply('pay'), { attempts: [EMPTY, { error: { reason: 'server_error' } }, DONE] }),
);
const TRY_AGAIN = { action: 'try_again' };
const GIVE_UP = { action: 'give_up' };

let world: World;
beforeAll(async () => {
  world = await startWorld({ script: SCRIPT });
});

async function stopped(
  word: string,
  contract: Readonly<Record<string, unknown>> = {},
): Promise<{ readonly runId: string; readonly wait: InputRow | undefined }> {
  const runId = await world.run({ input: `${word} ${randomUUID()}`, contract });
  const [wait] = await untilAsked(world, runId);
  return { runId, wait };
}

async function completed(runId: string, attempts: number): Promise<void> {
  expect(await world.waitFor(runId, 'completed')).toMatchObject({ model_attempts: attempts });
  await checkRun(world, runId);
}

async function failed(runId: string, attempts: number): Promise<void> {
  expect(await world.waitFor(runId, 'ended')).toMatchObject({
    ...{ state: 'failed', reason: 'provider_needs_person', model_attempts: attempts },
  });
  await checkRun(world, runId);
}

describe('a model call that only a person can mend', () => {
  test.each([
    ['bill', 'billing', 'The account is empty.'],
    ['login', 'authentication', 'The key is not known.'],
  ])('(%s) asks an operator, says why, and is made again on their word', async (word, reason, detail) => {
    const { runId, wait } = await stopped(word);
    expect(wait).toMatchObject({
      ...{ slot: null, effect_id: null, required_role: 'operator', on_expiry: 'fail' },
      scope: { asks: 'model_call', tool: 'model/script', arguments: { reason }, detail },
    });
    const stops =
      'select reason, action, attempt, owner, eligible_at from holdfast.retries where run_id = $1';
    expect(await world.rows(stops, runId)).toEqual([
      { reason, action: 'ask_person', attempt: 1, owner: 'owner', eligible_at: null },
    ]);
    await tell(world, runId);
    await heard(world, runId);
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(await answer(world, wait, TRY_AGAIN)).toBe('decided');
    await completed(runId, 2);
    expect(await world.path(runId)).toEqual([
      ...['admitted', 'running', 'waiting_for_input', 'running', 'completed'],
    ]);
  });

  test('fails the run when they give it up', async () => {
    const { runId, wait } = await stopped('never');
    await answer(world, wait, GIVE_UP);
    await failed(runId, 1);
  });

  test('fails the run when nobody answers in time', async () => {
    const runId = await world.run({ input: 'never', contract: { timeouts: { input_seconds: 1 } } });
    await failed(runId, 1);
    expect(await inputs(world, runId)).toMatchObject([{ state: 'expired' }]);
    expect((await world.transitions(runId)).map(({ reason }) => reason)).toContain('input_expired');
  });

  test('says why it failed also where the run’s own time ends with the wait', async () => {
    const contract = { limits: { wall_clock_seconds: 2 }, timeouts: { input_seconds: 3_600 } };
    const runId = await world.run({ input: 'never', contract });
    await failed(runId, 1);
  });

  test('that fails so again asks again', async () => {
    const { runId, wait } = await stopped('twice', { retry: { attempts_max: 1 } });
    await answer(world, wait, TRY_AGAIN);
    await world.waitFor(runId, async () => (await inputs(world, runId)).length === 2);
    const [second] = await untilAsked(world, runId);
    expect(second?.interrupt_id).not.toBe(wait?.interrupt_id);
    expect(await answer(world, wait, TRY_AGAIN)).toBe('interrupt_decided');
    await answer(world, second, TRY_AGAIN);
    await completed(runId, 3);
  });

  test('late in a run repeats nothing before it, and other faults after it are retried as ever', async () => {
    const { runId, wait } = await stopped('later', { retry: { attempts_max: 2 } });
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await answer(world, wait, TRY_AGAIN);
    await completed(runId, 4);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  });

  test('is not made again by a reset, a takeover or a nudge', async () => {
    const { runId, wait } = await stopped('bill');
    await resetRun(world, runId);
    await world.waitFor(runId, ({ epoch, state }) => epoch === 2 && state === 'waiting_for_input');
    await tell(world, runId);
    await heard(world, runId);
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(await inputs(world, runId)).toHaveLength(1);
    await answer(world, wait, TRY_AGAIN);
    await completed(runId, 2);
  });

  test('is left unmade by a cancel, and by an answer while the run is paused', async () => {
    const cancelled = await stopped('bill');
    await command(world, cancelled.runId, 'cancel');
    await world.waitFor(cancelled.runId, 'cancelled');
    expect(await inputs(world, cancelled.runId)).toMatchObject([{ state: 'withdrawn' }]);
    const paused = await stopped('bill');
    await command(world, paused.runId, 'pause');
    await world.waitFor(paused.runId, ({ control }) => control === 'paused');
    expect(await answer(world, paused.wait, TRY_AGAIN)).toBe('decided');
    await heard(world, paused.runId);
    expect(modelRequests(world, paused.runId)).toHaveLength(1);
    await command(world, paused.runId, 'resume');
    await completed(paused.runId, 2);
  });
});

test('a worker that dies after the failure is committed leaves the wait, and no second request', async () => {
  const own = await startWorld({ workers: 0, script: SCRIPT });
  const runId = await own.admit({ input: 'bill' });
  const worker = own.startWorkerProcess({ faults: [{ point: 'think.after_commit', mode: 'hang', runId }] });
  await until('the failure is committed', async () => (await inputs(own, runId)).length === 1);
  await worker.signal('SIGKILL');
  await own.startWorker();
  const [wait] = await untilAsked(own, runId);
  expect(modelRequests(own, runId)).toHaveLength(1);
  await answer(own, wait, TRY_AGAIN);
  await own.waitFor(runId, 'completed');
  expect(modelRequests(own, runId)).toHaveLength(2);
  await checkRun(own, runId);
  await own.close();
}, 60_000);

test('when all is said, ledger and target agree', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});
