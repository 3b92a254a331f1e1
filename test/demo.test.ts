// Goal: the demo's last line can be believed. Method: the comparison over every kind of disagreement, each
// with the verdict a person would give; then the refund desk's own files against each other.
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { createModelClient } from '../activities/models/create-model-client.js';
import { loadProject, type Project } from '../activities/project/load-project.js';
import { resultTextOf } from '../activities/result-text.js';
import type { Tool, ToolCall } from '../activities/tools/tool.js';
import { openJournal } from '../examples/refund-desk/provider/journal.js';
import { type RunningProvider, startProvider } from '../examples/refund-desk/provider/start-provider.js';
import { checkRefundPolicy, readOrder } from '../examples/refund-desk/tools/orders.js';
import type { JsonObject } from '../shared/domain/json.js';
import type { ModelMessage } from '../shared/domain/models.js';
import { compare, type LedgerEffect, type ProviderDeed, type Verdict } from '../workers/demo/compare.js';
import { readOptions } from '../workers/demo/options.js';
import { deedsOf, readProviderLog } from '../workers/demo/provider-log.js';
import { allDemoRuns, type DemoRun } from '../workers/demo/runs.js';
import { promiseHeld, remarksOf, summaryOf, tableOf } from '../workers/demo/story.js';

const DESK = fileURLToPath(new URL('../examples/refund-desk', import.meta.url));
const QUIET: DemoRun = {
  orderId: 'ORD-1001',
  paymentId: 'pay_1',
  email: 'customer@mail.example',
  input: 'Refund order ORD-1001: arrived broken',
  trouble: '',
  dial: null,
  person: null,
  killsWorker: false,
};

const PERSON = { owner: 'operator', deadline_at: '2026-12-01T00:00:00Z' };

function effect(state: string, changes: Partial<LedgerEffect> = {}): LedgerEffect {
  return {
    run_id: 'run_1',
    effect_id: 'eff_1',
    tool: 'refund_payment',
    state,
    idempotency_key: 'key-1',
    reference: null,
    reconciliation: null,
    ...changes,
  };
}

function deed(key: string | null = 'key-1', reference = 'rfd_1'): ProviderDeed {
  return { kind: 'applied', key, reference };
}

// prettier-ignore
test.each<[string, LedgerEffect, number, Verdict]>([
  // what                                 the ledger's effect                       done  verdict
  ['succeeded, done once',                effect('succeeded'),                          1, 'agrees'],
  ['succeeded by the same name',          effect('succeeded', { reference: 'rfd_1' }),  1, 'agrees'],
  ['committed by a person, done once',    effect('committed'),                          1, 'agrees'],
  ['succeeded, never done',               effect('succeeded'),                          0, 'lost'],
  ['committed, never done',               effect('committed'),                          0, 'lost'],
  ['succeeded, done twice',               effect('succeeded'),                          2, 'duplicate'],
  ['unknown with a person, done twice',   effect('unknown', { reconciliation: PERSON }), 2, 'duplicate'],
  ['succeeded by another name',           effect('succeeded', { reference: 'rfd_2' }),  1, 'unexplained'],
  ['rejected, not done',                  effect('rejected'),                           0, 'not_done'],
  ['denied, not done',                    effect('denied'),                             0, 'not_done'],
  ['not_committed, not done',             effect('not_committed'),                      0, 'not_done'],
  ['rejected, done all the same',         effect('rejected'),                           1, 'unexplained'],
  ['not_committed, done all the same',    effect('not_committed'),                      1, 'unexplained'],
  ['withdrawn, done all the same',        effect('withdrawn'),                          1, 'unexplained'],
  ['unknown with a person, done',         effect('unknown', { reconciliation: PERSON }), 1, 'open'],
  ['unknown with a person, not done',     effect('unknown', { reconciliation: PERSON }), 0, 'open'],
  ['unknown and nobody owns it',          effect('unknown'),                            1, 'unexplained'],
  ['left dispatching',                    effect('dispatching'),                        0, 'unexplained'],
  ['left intended',                       effect('intended'),                           0, 'unexplained'],
])('an effect %s', (_what, given, timesDone, verdict) => {
  const result = compare([given], Array.from({ length: timesDone }, () => deed()));
  expect(result.rows.map((row) => row.verdict)).toEqual([verdict]);
  expect(result).toMatchObject({
    effects: given.state === 'succeeded' || given.state === 'committed' ? 1 : 0,
    applied: timesDone,
    open: verdict === 'open' ? 1 : 0,
    duplicates: verdict === 'duplicate' ? 1 : 0,
    lost: verdict === 'lost' ? 1 : 0,
    unexplained: verdict === 'unexplained' ? 1 : 0,
  });
});

test('a deed under a key that no effect has, or under none, is unexplained', () => {
  const result = compare([effect('succeeded')], [deed(), deed('key-2', 'rfd_2'), deed(null, 'msg_1')]);
  expect(result).toMatchObject({ effects: 1, applied: 3, duplicates: 0, lost: 0, unexplained: 2 });
  expect(result.rows.at(1)).toMatchObject({ verdict: 'unexplained', effect: null });
});

test('each deed beyond the first under one key counts as a duplicate', () => {
  expect(compare([effect('succeeded')], [deed(), deed(), deed()]).duplicates).toBe(2);
});

test('a deed twice under a key that no effect has is counted, twice', () => {
  expect(compare([], [deed(), deed()])).toMatchObject({ unexplained: 2, applied: 2, effects: 0 });
});

test('two effects with their own keys are two, and one cannot account for the other', () => {
  const two = [effect('succeeded'), effect('succeeded', { effect_id: 'eff_2', idempotency_key: 'key-2' })];
  expect(compare(two, [deed(), deed('key-2', 'rfd_2')])).toMatchObject({ effects: 2, applied: 2, lost: 0 });
  expect(compare(two, [deed(), deed()])).toMatchObject({ duplicates: 1, lost: 1 });
});

test('the row of an open effect names who settles it and by when', () => {
  const [row] = compare([effect('unknown', { reconciliation: PERSON })], []).rows;
  expect(row?.why).toContain('operator');
  expect(row?.why).toContain('2026-12-01T00:00:00Z');
});

test('the summary has ten numbers in their order, and three of them break the promise', () => {
  const run = { ...QUIET, runId: 'run_1', state: 'completed' };
  const waiting = { ...run, runId: 'run_2', state: 'needs_reconciliation' };
  const summary = summaryOf([run, waiting], compare([effect('succeeded')], [deed()]), {
    ...{ approved: 1, cancelled: 0, settled: 0 },
  });
  expect(JSON.stringify(summary)).toBe(
    '{"runs":2,"completed":1,"effects":1,"applied":1,"duplicates":0,"lost":0,"unexplained":0,' +
      '"approved":1,"cancelled":0,"settled":0}',
  );
  expect(promiseHeld(summary)).toBe(true);
  for (const number of ['duplicates', 'lost', 'unexplained']) {
    expect(promiseHeld({ ...summary, [number]: 1 })).toBe(false);
  }
});

test('the table shows every effect of every run, a run without any, and deeds that nobody explains', () => {
  const runs = [
    { ...QUIET, runId: 'run_1', state: 'completed', trouble: 'worker killed' },
    { ...QUIET, orderId: 'ORD-1002', runId: 'run_2', state: 'failed' },
  ];
  const shown = { ...effect('succeeded'), effect_class: 'keyed', attempts: 3 };
  const comparison = compare([shown], [deed(), deed('key-9', 'rfd_9')]);
  const words = tableOf(runs, [shown], comparison).map((line) => line.split(/ {2,}/));
  expect(words[1]).toEqual([
    ...['ORD-1001', 'worker killed', 'completed', 'refund_payment', 'succeeded', '3', '1x', 'agrees'],
  ]);
  expect(words[2]?.slice(0, 2)).toEqual(['ORD-1002', 'failed']);
  expect(words[3]?.at(-1)).toBe('unexplained');
  expect(remarksOf(runs, comparison)).toHaveLength(1);
});

// prettier-ignore
test.each([
  [[],                        { runs: 11, json: false, keep: false, help: false }],
  [['--json', '--runs', '3'], { runs: 3, json: true,  keep: false, help: false }],
])('arguments %j are understood', (args, expected) => {
  expect(readOptions(args, 100)).toEqual(expected);
});

test.each(['0', '101', '2.5', 'many', ''])('--runs %j is refused with the range', (runs) => {
  expect(() => readOptions(['--runs', runs], 100)).toThrow('from 1 to 100');
});

test('a misspelt argument is refused by name', () => {
  expect(() => readOptions(['--run', '3'], 100)).toThrow('--run');
});

describe('the journal of the provider', () => {
  let folder: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'holdfast-demo-test-'));
  });
  afterEach(() => rmSync(folder, { recursive: true }));

  test('is read without the line that is still being written', async () => {
    const path = join(folder, 'provider.log');
    const journal = openJournal(path);
    journal.append({ kind: 'arrived', key: null, endpoint: 'mail', subject: 'a@mail.example' });
    const mail = { key: null, message_id: 'msg_1', to: 'a@mail.example', subject: 'Hello' };
    journal.append({ kind: 'mail_sent', ...mail });
    journal.close();
    appendFileSync(path, '{"kind":"appl');
    const lines = await readProviderLog(path);
    expect(lines.map((line) => line.kind)).toEqual(['arrived', 'mail_sent']);
    expect(deedsOf(lines)).toEqual([{ kind: 'mail_sent', key: null, reference: 'msg_1' }]);
  });

  test('is refused with the line that is none of its own', async () => {
    const path = join(folder, 'provider.log');
    appendFileSync(path, '{"kind":"replayed","key":"key-1"}\n{"kind":"guessed"}\n');
    await expect(readProviderLog(path)).rejects.toThrow('provider.log:2');
    expect(() => openJournal(path)).toThrow('provider.log:1');
  });
});

test('the demo can start its troubles first and every refundable order once', async () => {
  const runs = await allDemoRuns(join(DESK, 'orders.json'));
  expect(runs.slice(0, 5).every((run) => run.dial !== null)).toBe(true);
  expect(runs.filter((run) => run.killsWorker)).toHaveLength(1);
  expect(new Set(runs.map((run) => run.orderId)).size).toBe(runs.length);
  expect(runs.length).toBeGreaterThan(100);
});

test('the books of the shop and of the provider tell the same', () => {
  const orders = readJson('orders.json') as Record<string, unknown>[];
  const payments = readJson('provider/payments.json') as Record<string, unknown>[];
  expect(payments).toEqual(
    orders.map((order) => ({
      payment_id: order['payment_id'],
      amount_cents: order['total_cents'],
      currency: order['currency'],
      refunded_cents: order['refund'] === null ? 0 : order['total_cents'],
    })),
  );
});

// prettier-ignore
test.each([
  ['ORD-1003', 'within_policy',    17_450],
  ['ORD-1006', 'over_limit',       0],
  ['ORD-1007', 'already_refunded', 0],
])('the policy for %s is %s', async (order_id, code, refund_cents) => {
  expect(await callTool(checkRefundPolicy, { order_id })).toMatchObject({ code, refund_cents });
});

test('an order that is not there is refused for good', async () => {
  const answer = await readOrder.call(toolCall({ order_id: 'ORD-9999' }));
  expect(answer).toMatchObject({ kind: 'rejected', status: 'order_not_found' });
});

describe('the whole desk, over its real tools, without the runtime', () => {
  let folder: string;
  let provider: RunningProvider;
  let project: Project;
  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'holdfast-desk-'));
    provider = await startProvider({
      port: 0,
      journalPath: join(folder, 'provider.log'),
      paymentsPath: join(DESK, 'provider/payments.json'),
    });
    project = await loadProject(join(DESK, 'holdfast.yaml'), {
      PATH: process.env['PATH'],
      REFUND_DESK_PROVIDER: new URL(provider.url).host,
      REFUND_DESK_REPORTS: folder,
    });
  });
  afterEach(async () => {
    await project.close();
    await provider.stop();
    rmSync(folder, { recursive: true });
  });

  // prettier-ignore
  test.each<[string, string, string[], string, string]>([
    ['within the policy is paid', 'Refund order ORD-1003: arrived broken',
      ['read_order', 'check_refund_policy', 'refund_payment', 'send_mail', 'write_report'],
      'ORD-1003.md', 'was refunded: 174.50 EUR'],
    ['over the limit is refused politely', 'Refund order ORD-1006: too big',
      ['read_order', 'check_refund_policy', 'send_mail', 'write_report'],
      'ORD-1006.md', 'was not refunded: it is over 250.00 EUR'],
    ['made before is not made again', 'Refund order ORD-1007: arrived broken',
      ['read_order', 'check_refund_policy', 'send_mail', 'write_report'],
      'ORD-1007.md', 'was not refunded: it was refunded on'],
  ])('a refund %s', async (_what, input, tools, report, ending) => {
    const { called, text } = await work(project, input);
    expect(called).toEqual(tools);
    expect(text).toContain(ending);
    const deeds = deedsOf(await readProviderLog(join(folder, 'provider.log')));
    expect(deeds.map((one) => one.kind)).toEqual(
      tools.includes('refund_payment') ? ['applied', 'mail_sent'] : ['mail_sent'],
    );
    expect(readFileSync(join(folder, report), 'utf8')).toContain(input);
  });

  test('a refund that the provider refuses is reported, and no other way is tried', async () => {
    await work(project, 'Refund order ORD-1003: arrived broken');
    const { called, text } = await work(project, 'Refund order ORD-1003: once more');
    expect(called.slice(2)).toEqual(['refund_payment', 'write_report']);
    expect(text).toContain('not settled');
    expect(readFileSync(join(folder, 'ORD-1003.failed.md'), 'utf8')).toContain('already_refunded');
  });

  // prettier-ignore
  test.each([
    ['refund_payment', 'ORD-1003.by-hand.md', 'was settled by hand'],
    ['send_mail',      'ORD-1003.md',         'was refunded: 174.50 EUR'],
  ])('a %s that a person settled is reported in the words of the person', async (tool, report, ending) => {
    const words = { [tool]: 'Settled by a person: done, see ticket 7.' };
    const { text } = await work(project, 'Refund order ORD-1003: arrived broken', words);
    expect(text).toContain(ending);
    expect(readFileSync(join(folder, report), 'utf8')).toContain('ticket 7');
  });

  test('the provider can be asked what became of a refund', async () => {
    const tool = project.catalogue.get('refund_payment');
    if (tool?.probe === undefined) throw new Error('refund_payment has no probe.');
    const refund = { payment_id: 'pay_42c1812fc47bb5', amount_cents: 100, currency: 'EUR', reason: 'test' };
    expect(await tool.probe(toolCall(refund))).toMatchObject({ kind: 'absent' });
    const done = await tool.call(toolCall(refund));
    if (done.kind !== 'succeeded') throw new Error(`The refund answered ${done.kind}.`);
    expect(done.reference).toMatch(/^rfd_/);
    expect(await tool.probe(toolCall(refund))).toMatchObject({ kind: 'found', reference: done.reference });
  });

  test('an order that is not there, and a message without one, end in words alone', async () => {
    expect(await work(project, 'Refund order ORD-9999: lost')).toMatchObject({ called: ['read_order'] });
    expect(await work(project, 'Give me my money back')).toMatchObject({ called: [] });
  });
});

test('the demo itself: a kill, spoiled payments, a lost mail, people at work, and every effect accounted for', async () => {
  const { stdout, story, code } = await runDemo(['--runs', '7', '--json']);
  expect(code, story).toBe(0);
  expect(stdout.trimEnd().split('\n').at(-1)).toBe(
    '{"runs":7,"completed":6,"effects":12,"applied":12,"duplicates":0,"lost":0,"unexplained":0,' +
      '"approved":1,"cancelled":1,"settled":1}',
  );
}, 180_000);

/** The demo as a process, thinking with its script whatever keys the environment holds. */
function runDemo(args: string[]): Promise<{ stdout: string; story: string; code: number | null }> {
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/_API_KEY$|^HOLDFAST_MODEL/.test(name)),
  );
  const command = ['--import', 'tsx', 'workers/demo/main.ts', ...args];
  const cwd = fileURLToPath(new URL('..', import.meta.url));
  const child = spawn(process.execPath, command, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] });
  let stdout = '';
  let story = '';
  child.stderr.on('data', (chunk: Buffer) => (story += chunk.toString()));
  child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()));
  return new Promise((resolve) => child.once('close', (code) => resolve({ stdout, story, code })));
}

/**
 * Thinks and acts as a run does, but remembers nothing and survives nothing. The tools named in
 * `settledByHand` are not called: the model is told that text, as after a person settled an unknown outcome.
 */
async function work(
  project: Project,
  input: string,
  settledByHand: Readonly<Record<string, string>> = {},
): Promise<{ called: string[]; text: string }> {
  const agent = project.agents[0];
  if (agent === undefined) throw new Error('The project has no agent.');
  const client = createModelClient(agent.model, { secrets: () => undefined, projectDir: project.dir });
  const messages: ModelMessage[] = [{ role: 'user', text: input }];
  const called: string[] = [];
  for (let step = 1; step < 20; step += 1) {
    const outcome = await client.call(
      {
        system: agent.instructions,
        messages,
        tools: agent.tools,
        maxOutputTokens: agent.model.maxOutputTokens,
        callKey: `test-${step}`,
        attempt: 1,
      },
      { signal: AbortSignal.timeout(10_000), onChunk: () => undefined },
    );
    if (outcome.kind === 'failed') throw new Error(`The script failed: ${outcome.detail}`);
    const calls = outcome.response.parts.filter((part) => part.type === 'raw_tool_call');
    const text = outcome.response.parts.find((part) => part.type === 'text')?.text ?? '';
    const [call] = calls;
    if (call === undefined) return { called, text };
    const args = JSON.parse(call.argumentsText) as JsonObject;
    const callId = `call-${step}`;
    const { toolName } = call;
    messages.push({ role: 'assistant', parts: [{ type: 'tool_call', callId, toolName, arguments: args }] });
    const tool = project.catalogue.get(toolName);
    if (tool === undefined) throw new Error(`There is no tool ${toolName}.`);
    called.push(toolName);
    const byHand = settledByHand[toolName];
    if (byHand !== undefined) {
      messages.push({ role: 'tool', results: [{ callId, toolName, text: byHand, isError: false }] });
      continue;
    }
    const answer = await tool.call({ ...toolCall(args), idempotencyKey: randomUUID() });
    if (answer.kind !== 'succeeded' && answer.kind !== 'rejected') {
      throw new Error(`${toolName} answered ${answer.kind}: ${JSON.stringify(answer)}`);
    }
    const result = { callId, toolName, text: resultTextOf(answer), isError: answer.kind === 'rejected' };
    messages.push({ role: 'tool', results: [result] });
  }
  throw new Error('The desk did not come to an end.');
}

async function callTool(tool: Tool, args: JsonObject): Promise<unknown> {
  const answer = await tool.call(toolCall(args));
  if (answer.kind !== 'succeeded') throw new Error(`${tool.name} answered ${answer.kind}`);
  return JSON.parse(Buffer.from(answer.body.bytes).toString('utf8'));
}

function toolCall(args: JsonObject): ToolCall {
  return {
    arguments: args,
    idempotencyKey: 'holdfast-demo-test-key',
    effectId: 'eff_1',
    runId: 'run_1',
    tenantId: 'default',
    attempt: 1,
    signal: AbortSignal.timeout(10_000),
    timeoutMs: 5_000,
    progress: () => undefined,
  };
}

function readJson(file: string): unknown {
  return JSON.parse(readFileSync(join(DESK, file), 'utf8'));
}
