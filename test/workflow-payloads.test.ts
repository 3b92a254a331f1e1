import { beforeAll, describe, expect, test } from 'vitest';
import { defineTool } from '../activities/tools/define-tool.js';
import { checkRun } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: Temporal carries control and not one word of content, whatever goes wrong (SPEC intro). Method: every kind of
// content of a run holds a word that is nowhere else; then all that Temporal keeps of the run is searched for them.

const PAYLOAD_BYTES_MAX = 1_024;

/** By where the word stands. */
const CANARIES = {
  input: 'canary-input-3f7a',
  arguments: 'canary-arguments-b21c',
  result: 'canary-result-90de',
  toolError: 'canary-tool-error-44aa',
  modelText: 'canary-model-text-7e01',
  modelFault: 'canary-model-fault-c5d9',
  activityFault: 'canary-activity-fault-18fb',
  objective: 'canary-objective-6a6e',
  acceptance: 'canary-acceptance-d7b3',
} as const;

const answering = defineTool({
  name: 'answering',
  description: 'Answers.',
  input: { type: 'object', properties: { note: { type: 'string' } } },
  effect: { class: 'read' },
  run: ({ note }) => ({ note, text: CANARIES.result }),
});
const throwing = defineTool({
  name: 'throwing',
  description: 'Throws.',
  input: { type: 'object', properties: { note: { type: 'string' } } },
  effect: { class: 'read' },
  run: () => {
    throw new Error(CANARIES.toolError);
  },
});

const args = { note: `{{input}} ${CANARIES.arguments}` };
const failing = { error: { reason: 'server_error', detail: CANARIES.modelFault } };

let world: World;

beforeAll(async () => {
  world = await startWorld({
    workers: 0,
    tools: [answering, throwing],
    historyEventsMax: 60,
    script: script(
      when(
        'all',
        reply(...Array.from({ length: 16 }, () => call('answering', args))),
        { attempts: [failing, { text: CANARIES.modelText, ...reply(call('throwing', args)) }] },
        reply(call('pay', args), {
          name: CANARIES.modelText,
          argumentsText: `{"broken ${CANARIES.arguments}`,
        }),
        reply(call('book', args)),
        { text: CANARIES.modelText },
      ),
      when('refuse', { error: { reason: 'bad_request', detail: CANARIES.modelFault } }),
      when('mail', reply(call('mail', args)), DONE),
    ),
  });
  const failed = new Set<string>();
  await world.startWorker({
    // Each of these activities fails once, in the middle of its work, with an error that holds content.
    reach: (point) => {
      const isDue =
        ['act.after_claim', 'think.after_claim', 'query.after_begin'].includes(point) && !failed.has(point);
      failed.add(point);
      return isDue ? Promise.reject(new Error(CANARIES.activityFault)) : Promise.resolve();
    },
  });
});

const contract = {
  objective: CANARIES.objective,
  acceptance: { rule: CANARIES.acceptance, accepted_by: 'tester' },
  retry: { attempts_max: 2 },
};

/** Everything that Temporal keeps of a run: the histories of all its executions and what it shows operators. */
async function keptByTemporal(runId: string): Promise<readonly unknown[]> {
  const owners = await world.rows<{ execution: string }>(
    'select execution from holdfast.run_executions where run_id = $1 order by epoch',
    runId,
  );
  const kept: unknown[] = [];
  for (const { execution } of owners) {
    const handle = world.client.workflow.getHandle(runId, execution);
    kept.push(await handle.fetchHistory(), (await handle.describe()).raw);
  }
  return kept;
}

/** Every text and every run of bytes in a message of Temporal's, and the payloads among them. */
function search(value: unknown, texts: string[], payloads: Uint8Array[]): void {
  if (typeof value === 'string') texts.push(value);
  else if (value instanceof Uint8Array) {
    texts.push(Buffer.from(value).toString('utf8'));
    payloads.push(value);
  } else if (Array.isArray(value)) value.forEach((each) => search(each, texts, payloads));
  else if (typeof value === 'object' && value !== null) {
    for (const [key, member] of Object.entries(value)) {
      texts.push(key);
      search(member, texts, payloads);
    }
  }
}

async function checkTemporal(runId: string): Promise<void> {
  const texts: string[] = [];
  const payloads: Uint8Array[] = [];
  search(await keptByTemporal(runId), texts, payloads);
  expect(texts.length).toBeGreaterThan(100);
  const words = [...Object.values(CANARIES), 'Do what the input says', 'Answers.'];
  expect(texts.filter((text) => words.some((word) => text.includes(word)))).toEqual([]);
  expect(Math.max(...payloads.map(({ byteLength }) => byteLength))).toBeLessThanOrEqual(PAYLOAD_BYTES_MAX);
  // Where a failure happened in our code is nobody's business either.
  expect(texts.filter((text) => /\n\s+at .*\.ts/.test(text))).toEqual([]);
}

describe('what Temporal keeps of a run is ids, counters and enums', () => {
  test('when everything goes right and wrong that can', async () => {
    const runId = await world.admit({ input: `all ${CANARIES.input}`, contract });
    world.target.dial({ mode: 'refuse_422', key: keyOf(runId, { step: 3 }) });
    world.target.dial({ mode: 'drop_after', key: keyOf(runId, { step: 4 }) });
    await world.starter.round();
    await world.waitFor(runId, 'completed', 20_000);
    await world.client.workflow.getHandle(runId).result();
    const ledger = JSON.stringify([await world.messages(runId), await world.attempts(runId)]);
    for (const word of [CANARIES.input, CANARIES.arguments, CANARIES.result]) expect(ledger).toContain(word);
    expect((await world.runRow(runId)).epoch).toBeGreaterThan(1);
    await checkTemporal(runId);
    await checkRun(world, runId);
  });

  test('when the model refuses', async () => {
    const runId = await world.run({ input: `refuse ${CANARIES.input}`, contract });
    await world.waitFor(runId, 'failed');
    await world.client.workflow.getHandle(runId).result();
    await checkTemporal(runId);
  });

  test('when a person must settle', async () => {
    const runId = await world.admit({ input: `mail ${CANARIES.input}`, contract });
    world.target.dial({ mode: 'drop_after', key: keyOf(runId) });
    await world.starter.round();
    await world.waitFor(runId, 'needs_reconciliation');
    await checkTemporal(runId);
  });

  test('when the search itself is tried: a word put there is found', async () => {
    const runId = await world.run({ input: `refuse ${CANARIES.input}`, contract });
    await world.waitFor(runId, 'failed');
    const handle = world.client.workflow.getHandle(runId);
    await handle.result();
    const texts: string[] = [];
    search([{ payload: { data: Buffer.from(`"${CANARIES.input}"`) } }], texts, []);
    expect(texts.some((text) => text.includes(CANARIES.input))).toBe(true);
    const kept: string[] = [];
    search(await keptByTemporal(runId), kept, []);
    await until('the run is named in its own history', () => kept.some((text) => text.includes(runId)));
  });
});
