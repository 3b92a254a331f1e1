import { beforeAll, describe, expect, test } from 'vitest';
import { defineTool } from '../../activities/tools/define-tool.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { WORKFLOW_TYPE } from '../../shared/domain/protocol.js';
import { applied, arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { keyOf, startWorld, type World, type WorldWorker } from '../support/world.js';

// Cases from the field of kind SCHEMA: what is stored is what there was, or says that it is not.

const SPELLED = String.raw`a\u0000b`;

const cycle: Record<string, unknown> = { name: 'cycle' };
cycle['self'] = cycle;

/** By the name of the tool that returns it; where it cannot be stored, the place that the error names. */
const RETURNED: Readonly<Record<string, { readonly value: unknown; readonly at: string | null }>> = {
  nul: { value: { text: 'a\0b' }, at: '/text' },
  surrogate: { value: { text: 'a\ud800b' }, at: '/text' },
  spelled: { value: { text: SPELLED }, at: null },
  date: { value: { when: new Date(0) }, at: '/when' },
  bigint: { value: { sum: 12n }, at: '/sum' },
  missing: { value: { a: undefined, b: [1, undefined] }, at: '/a' },
  not_a_number: { value: { rate: NaN }, at: '/rate' },
  cycle: { value: cycle, at: '/self' },
  too_big: { value: { id: 2 ** 53 }, at: '/id' },
  instance: { value: { of: new Map([['a', 1]]) }, at: '/of' },
};

/** How often each tool ran. */
const ran: Record<string, number> = {};

function returning(name: string, value: unknown) {
  return defineTool({
    ...{
      name,
      description: 'Returns.',
      input: { type: 'object' as const },
      effect: { class: 'opaque' as const },
    },
    run: () => {
      ran[name] = (ran[name] ?? 0) + 1;
      return value;
    },
  });
}

let world: World;
let worker: WorldWorker;

beforeAll(async () => {
  const anything = { type: 'object' };
  world = await startWorld({
    workers: 0,
    tools: Object.entries(RETURNED).map(([name, { value }]) => returning(name, value)),
    httpTools: { pay: { input: anything }, mail: { input: anything } },
    script: script(
      ...Object.keys(RETURNED).map((name) => when(name, reply(call(name, {})), DONE)),
      when('bytes', reply(call('pay', {})), DONE),
      when('plain', reply(call('pay', {})), DONE),
      when('ask', reply({ name: 'mail', argumentsText: '{"b":[{"y":1,"x":"é"}],"a":1.0}' }), DONE),
      when(
        'forms',
        reply(
          ...[
            '{"a":1,"b":[[2,3],{"y":1,"x":2}]}',
            '{ "b" : [[2,3],{"x":2,"y":1}], "a" : 1.0 }',
            '{"a":1,"b":[[3,2],{"y":1,"x":2}]}',
          ].map((argumentsText) => ({ name: 'pay', argumentsText })),
          ...['{"name":"\u00e9"}', '{"name":"e\u0301"}'].map((argumentsText) => ({
            name: 'pay',
            argumentsText,
          })),
          { name: 'mail', argumentsText: '{"a":1,"b":[[2,3],{"y":1,"x":2}]}' },
        ),
        DONE,
      ),
    ),
  });
  worker = await world.startWorker();
});

/** What the model was told of the run's only call. */
function toldOf(runId: string): string {
  const message = modelRequests(world, runId).at(-1)?.messages.at(-1);
  return message?.role === 'tool' ? (message.results[0]?.text ?? '') : '';
}

describe('case 94, case 95: what a tool returns', () => {
  test.each(Object.entries(RETURNED))(
    '%s is stored as it is or named as what cannot be, and done once',
    async (name, { value, at }) => {
      const runId = await world.run({ input: name });
      await world.waitFor(runId, 'completed');
      expect(ran[name]).toBe(1);
      expect(await world.effects(runId)).toMatchObject([{ state: 'succeeded', attempts: 1 }]);
      const [receipt] = await world.receipts(runId);
      const body = JSON.parse(String(receipt?.body)) as JsonValue;
      expect(toldOf(runId)).toBe(String(receipt?.body));
      if (at === null) expect(body).toEqual(value);
      else expect(body).toMatchObject({ error: 'unstorable_result', at });
      await checkRun(world, runId);
    },
  );

  test.each(['nul', 'spelled', 'bigint'])(
    '%s is the same where the answer was lost on its way',
    async (name) => {
      const before = ran[name] ?? 0;
      const runId = await world.admit({ input: name });
      world.faults.add({ runId, point: 'act.after_settle', mode: 'throw' });
      await world.starter.round();
      await world.waitFor(runId, 'completed');
      expect((ran[name] ?? 0) - before).toBe(1);
      const [receipt] = await world.receipts(runId);
      const others = await world.rows<{ body: Buffer }>(
        `select r.body from holdfast.receipts r join holdfast.effects e using (effect_id)
        where e.tool = $1 and e.run_id <> $2`,
        name,
        runId,
      );
      expect(others.map(({ body }) => String(body))).toEqual(others.map(() => String(receipt?.body)));
      await checkRun(world, runId);
    },
  );

  test('and what a target sends is kept to the byte, an escape that is only spelled among it', async () => {
    const runId = await world.admit({ input: 'bytes' });
    world.target.dial({ mode: 'nul_body', key: keyOf(runId) });
    await world.starter.round();
    await world.waitFor(runId, 'completed');
    const [receipt] = await world.receipts(runId);
    expect(String(receipt?.body)).toContain(SPELLED);
    expect(toldOf(runId)).toContain(SPELLED);
    await checkRun(world, runId);
  });
});

describe('case 96: a start that other code has written', () => {
  const settings = { heartbeatSeconds: 2, historyEventsMax: 2_000, apiUrl: '' };
  test.each([
    ['of version 99', { version: 99, continued: 0, modelIsShort: false, settings }],
    ['without its settings', { version: 1, continued: 0, modelIsShort: false }],
    [
      'with a member that nobody knows',
      { version: 1, continued: 0, modelIsShort: false, settings, state: 'running' },
    ],
  ])('%s is refused before anything happens, is shown, and the run keeps what it had', async (_, input) => {
    const runId = await world.admit({ input: 'plain' });
    const messages = await world.messages(runId);
    await world.client.workflow.start(WORKFLOW_TYPE, {
      ...{ workflowId: runId, taskQueue: world.taskQueue, args: [{ runId, ...input }] },
    });
    await expect(world.client.workflow.getHandle(runId).result()).rejects.toMatchObject({
      cause: { type: 'snapshot_incompatible' },
    });
    await world.starter.round();
    await world.sweeper.round();
    expect(await world.runRow(runId)).toMatchObject({
      state: 'failed',
      reason: 'workflow_failed',
      model_calls: 0,
    });
    expect(await world.effects(runId)).toEqual([]);
    expect(arrived(world, runId)).toEqual({});
    expect(await world.messages(runId)).toEqual(messages);
    await checkRun(world, runId);
  });
});

test('case 97: what waits for an approval is the same before and after a restart', async () => {
  const contract = { effects: { mail: { approval: 'required' } } };
  const runId = await world.run({ input: 'ask', contract });
  await world.waitFor(runId, 'awaiting_approval');
  const asked = () =>
    world.rows(
      'select arguments, arguments_sha256, idempotency_key, call_id, policy from holdfast.effects where run_id = $1',
      runId,
    );
  const before = await asked();
  expect(before).toMatchObject([{ arguments: '{"a":1,"b":[{"x":"é","y":1}]}' }]);
  await worker.stop();
  worker = await world.startWorker();
  await world.client.workflow.getHandle(runId).signal('nudge');
  expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval' });
  expect(await asked()).toEqual(before);
  await checkRun(world, runId);
});

test('case 99: the digest of the arguments heeds what they say, and not how it is written', async () => {
  const runId = await world.run({ input: 'forms' });
  await world.waitFor(runId, 'completed');
  const effects = await world.rows<{ tool: string; arguments_sha256: string; idempotency_key: string }>(
    'select tool, arguments_sha256, idempotency_key from holdfast.effects where run_id = $1 order by slot',
    runId,
  );
  const [first, reordered, turned, composed, decomposed, otherTool] = effects.map(
    ({ arguments_sha256 }) => arguments_sha256,
  );
  expect(first).toMatch(/^[0-9a-f]{64}$/);
  // The order of members and the way to write a number do not matter; the order of a list does.
  expect(reordered).toBe(first);
  expect(turned).not.toBe(first);
  // Text is compared by its characters as they are: nothing is normalised.
  expect(decomposed).not.toBe(composed);
  expect(otherTool).toBe(first);
  // The same words in other calls are other effects all the same.
  expect(new Set(effects.map(({ idempotency_key }) => idempotency_key)).size).toBe(6);
  expect(Object.values(applied(world, runId))).toEqual([1, 1, 1, 1, 1, 1]);
  await checkRun(world, runId);
});
