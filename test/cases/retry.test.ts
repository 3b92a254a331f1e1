import { beforeAll, describe, expect, test } from 'vitest';
import { defineTool } from '../../activities/tools/define-tool.js';
import type { Tool } from '../../activities/tools/tool.js';
import { WORKFLOW_TYPE } from '../../shared/domain/protocol.js';
import { applied, arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { type SkippingWorld, startSkippingWorld } from '../support/skipping-world.js';
import { keyOf, until, type World } from '../support/world.js';

// Cases from the field of kind RETRY, and what a model can get wrong (FAULTS F10). Time is skipped wherever one waits.

const MINUTE = 60;
const DAY = 86_400;

const AMOUNT = {
  type: 'object',
  additionalProperties: false,
  required: ['amount'],
  properties: { amount: { type: 'integer', minimum: 1 } },
};
const pay = (argumentsText: string) => reply({ name: 'spend', argumentsText });
const good = pay('{"amount":10}');

/** Calls of the hanging tools, by tool. */
const hung: Record<string, number> = {};

/** A tool that keeps neither its own time-out nor looks at its signal. */
function hang(name: string, effect: { readonly class: 'opaque' | 'read' }): Tool {
  const input = { type: 'object' as const };
  const declared = defineTool({
    name,
    description: 'Hangs.',
    input,
    effect,
    timeoutSeconds: 1,
    run: () => null,
  });
  return {
    ...declared,
    call: () => {
      hung[name] = (hung[name] ?? 0) + 1;
      return new Promise(() => undefined);
    },
  };
}

let skipping: SkippingWorld;
let world: World;

beforeAll(async () => {
  skipping = await startSkippingWorld({
    tools: [hang('hang_opaque', { class: 'opaque' }), hang('hang_read', { class: 'read' })],
    httpTools: {
      spend: {
        ...{ description: 'Pays.', class: 'keyed', url: '/keyed', input: AMOUNT },
        keyed: { windowSeconds: DAY, resendsMax: 3 },
      },
    },
    script: script(
      when('three', reply('pay'), { error: { reason: 'bad_request', httpStatus: 400 } }),
      when('soon', { attempts: [{ error: { reason: 'rate_limited', retryAfter: 2 * MINUTE } }, DONE] }),
      when('much-later', { error: { reason: 'rate_limited', retryAfter: 2 * DAY } }),
      when('always', { error: { reason: 'rate_limited' } }),
      when('ten', pay('{"amount":"ten"}'), good, DONE),
      when(
        'broken',
        ...[pay('{"amount":'), pay('null'), reply({ name: 'pya', argumentsText: '{"amount":10}' })],
        ...[good, DONE],
      ),
      when('half', { text: 'I will pay.', ...pay('{"amount":1'), stopReason: 'length' }),
      when('fenced', pay('```json\n{"amount":10}\n```'), good, DONE),
      when('empty', pay(''), pay('   '), good, DONE),
      when('others', pay('{"amount":10,"extra":1}'), pay('[10]'), pay('{"amount":0}'), good, DONE),
      when('unstorable', pay('{"amount":10,"__proto__":{}}'), pay('{"amount":1e400}'), good, DONE),
      when('never-right', ...Array.from({ length: 9 }, () => pay('no JSON at all'))),
      when('cut-short', { text: 'The answer is', stopReason: 'length' }),
      when('filtered', { text: '', stopReason: 'content_filter' }),
      when('calls-nothing', { text: 'Let me see.', stopReason: 'tool_calls' }),
      when('stumbles', { attempts: [{ error: { reason: 'malformed_response' } }, DONE] }),
      ...['hang_opaque', 'hang_read', 'pay'].map((tool) => when(tool, reply(call(tool, {})), DONE)),
      when('plain', reply('pay'), DONE),
    ),
  });
  world = skipping.world;
});

test('case 3: a refusal by the model ends the run once, and the work before it is not done again', async () => {
  const runId = await world.run({ input: 'three' });
  await world.waitFor(runId, 'failed');
  await skipping.skip(DAY);
  await world.starter.round();
  await world.sweeper.round();
  expect(await world.runRow(runId)).toMatchObject({ state: 'failed', reason: 'model_failed', epoch: 1 });
  expect(await world.path(runId)).toEqual(['admitted', 'running', 'failed']);
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(modelRequests(world, runId)).toHaveLength(2);
  await checkRun(world, runId);
});

describe('case 87: a model that is asked too often', () => {
  test('and says when to come again is asked then, and not a second before', async () => {
    const runId = await world.run({ input: 'soon' });
    await world.waitFor(runId, 'retry_wait');
    await skipping.skip(2 * MINUTE - 2);
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(await world.runRow(runId)).toMatchObject({ state: 'retry_wait' });
    await skipping.skipToEnd(runId);
    expect(modelRequests(world, runId)).toHaveLength(2);
    expect(await world.runRow(runId)).toMatchObject({ state: 'completed', model_attempts: 2 });
    await checkRun(world, runId);
  });

  test('and wants two days ends the run at once, with the wait to be seen', async () => {
    const runId = await world.run({ input: 'much-later' });
    await world.waitFor(runId, 'failed');
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(
      await world.rows(
        'select action, reason, retry_after_seconds::int from holdfast.retries where run_id = $1',
        runId,
      ),
    ).toEqual([{ action: 'give_up', reason: 'rate_limited', retry_after_seconds: 2 * DAY }]);
    await checkRun(world, runId);
  });

  test('and never says when is asked as often as the contract says, and no oftener', async () => {
    const runId = await world.run({ input: 'always', contract: { retry: { attempts_max: 4 } } });
    await skipping.skipToEnd(runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'failed', reason: 'retries_exhausted' });
    expect(modelRequests(world, runId)).toHaveLength(4);
    expect(new Set(modelRequests(world, runId).map(({ attempt }) => attempt)).size).toBe(4);
    await checkRun(world, runId);
  });
});

test('case 88: arguments that do not fit are answered at once, and nothing is tried or waited for', async () => {
  const runId = await world.run({ input: 'ten' });
  await world.waitFor(runId, 'completed');
  expect(await world.path(runId)).toEqual(['admitted', 'running', 'completed']);
  expect(await world.effects(runId)).toMatchObject([{ step: 2, state: 'succeeded', attempts: 1 }]);
  expect(applied(world, runId)).toEqual({ [keyOf(runId, { step: 2 })]: 1 });
  expect(resultsOf(runId)[0]).toMatchObject({ isError: true, text: expect.stringContaining('amount') });
  await checkRun(world, runId);
});

describe('case 89, F10: what a model writes that is no call', () => {
  test.each([
    ['broken', 3, 'broken JSON, null, and a tool that is not there'],
    ['fenced', 1, 'a call in a code fence'],
    ['empty', 2, 'no arguments at all'],
    ['others', 3, 'arguments that the schema refuses'],
    ['unstorable', 2, 'arguments that cannot be kept faithfully'],
  ])('%s: each of the %i is answered with an error and never run: %s', async (input, wrong) => {
    const runId = await world.run({ input });
    await world.waitFor(runId, 'completed');
    expect(resultsOf(runId).map(({ isError }) => isError)).toEqual([
      ...Array.from({ length: wrong }, () => true),
      false,
    ]);
    expect(await world.effects(runId)).toMatchObject([{ step: wrong + 1, state: 'succeeded' }]);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId, { step: wrong + 1 })]: 1 });
    expect(world.targetLog(runId)[0]?.body).toEqual({ amount: 10 });
    await checkRun(world, runId);
  });

  test('a model that never gets it right is stopped by the limit of steps', async () => {
    const runId = await world.run({ input: 'never-right', contract: { limits: { steps_max: 5 } } });
    await world.waitFor(runId, 'ended');
    expect(await world.runRow(runId)).toMatchObject({
      state: 'failed',
      reason: 'limit_steps',
      tool_calls: 0,
    });
    expect(modelRequests(world, runId)).toHaveLength(5);
    expect(await world.effects(runId)).toEqual([]);
    await checkRun(world, runId);
  });

  test.each([
    ['cut-short', 'model_output_truncated'],
    ['half', 'model_output_truncated'],
    ['filtered', 'model_content_refused'],
    ['calls-nothing', 'model_failed'],
  ])('an answer that is none (%s) is not taken for the end of the work: %s', async (input, reason) => {
    const runId = await world.run({ input });
    await world.waitFor(runId, 'ended');
    expect(await world.runRow(runId)).toMatchObject({ state: 'failed', reason });
    expect(modelRequests(world, runId)).toHaveLength(1);
    expect(await world.effects(runId)).toEqual([]);
    await checkRun(world, runId);
  });

  test('an answer that cannot be read is asked for again', async () => {
    const runId = await world.run({ input: 'stumbles' });
    await skipping.skipToEnd(runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'completed', model_attempts: 2 });
    await checkRun(world, runId);
  });
});

describe('case 92: a tool that hangs for good and hears nothing', () => {
  test('is left after its time, and a person is asked what it did', async () => {
    const runId = await world.run({ input: 'hang_opaque' });
    await world.waitFor(runId, 'needs_reconciliation');
    expect(await world.attempts(runId)).toMatchObject([{ outcome: 'unknown', reason: 'still_running' }]);
    await skipping.skip(DAY);
    expect(hung['hang_opaque']).toBe(1);
    await checkRun(world, runId);
  });

  test('is tried as often as the contract says where it changes nothing, and then given up', async () => {
    const runId = await world.run({ input: 'hang_read', contract: { retry: { attempts_max: 2 } } });
    await skipping.skipToEnd(runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
    expect(await world.effects(runId)).toMatchObject([{ state: 'not_committed', attempts: 2 }]);
    expect(hung['hang_read']).toBe(2);
    await checkRun(world, runId);
  });
});

describe('case 93: a start of which one half was lost', () => {
  test('admitted, and nobody there to start it: the next round does, and the key finds it', async () => {
    const request = { input: 'plain', idempotencyKey: 'a start that nobody saw through' };
    const runId = await world.admit(request);
    expect(await world.admit(request)).toBe(runId);
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    expect(await world.admit(request)).toBe(runId);
    await world.starter.round();
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('started, and the answer lost: the next round finds it started, and starts no other', async () => {
    const runId = await world.admit({ input: 'plain' });
    const [run] = await world.rows(
      'select run_id, tenant_id, agent, job_id, task_queue from holdfast.runs where run_id = $1',
      runId,
    );
    await world.starter.startNotified(JSON.stringify(run));
    await until('it has begun', async () => (await world.runRow(runId)).state !== 'admitted');
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    expect(await world.runRow(runId)).toMatchObject({ epoch: 1 });
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    const { type } = await world.client.workflow.getHandle(runId).describe();
    expect(type).toBe(WORKFLOW_TYPE);
    await checkRun(world, runId);
  });
});

/** The results of all calls, oldest first, as the last request held them. */
function resultsOf(runId: string) {
  const messages = modelRequests(world, runId).at(-1)?.messages ?? [];
  return messages.flatMap((message) => (message.role === 'tool' ? message.results : []));
}
