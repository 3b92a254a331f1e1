import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { budgetLines } from '../shared/domain/budgets.js';
import type { JsonValue } from '../shared/domain/json.js';
import { submitCommand } from '../shared/ledger/commands.js';
import { answerInput } from '../shared/ledger/questions.js';
import { brokenControl, command, heard, tell, toldResults } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { arrived, checkRun, modelRequests } from './support/run-checks.js';
import { call, DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, type World } from './support/world.js';
import { LANES } from './support/world-project.js';

// Goal: a run that reaches a limit does what its contract says, in either lane and across restarts, and what is spent is
// never forgotten (SPEC 4.3, case 90). Method: scripted calls meet small budgets; people answer and change limits by the
// ledger's own functions; what the target and the model saw is counted.

const twice = [
  reply(call('mail', { note: '1 {{input}}' })),
  reply(call('mail', { note: '2 {{input}}' })),
  DONE,
];
const SCENARIOS = script(
  when('mail', ...twice),
  when('both', reply(call('mail', { note: '1 {{input}}' }), call('mail', { note: '2 {{input}}' })), DONE),
  when('greedy', reply('mail'), reply('mail'), reply('mail'), reply('mail')),
);
const mails = (count: number) => ({ effects: [{ tool: 'mail', count }] });

interface BudgetWait {
  readonly interrupt_id: string;
  readonly state: string;
}
async function waitsOf(world: World, runId: string): Promise<BudgetWait[]> {
  return await world.rows<BudgetWait>(
    `select * from holdfast.interrupts where run_id = $1 and kind = 'budget' order by created_at`,
    runId,
  );
}

async function untilAsked(world: World, runId: string): Promise<BudgetWait> {
  await world.waitFor(runId, 'waiting_for_input');
  const wait = (await waitsOf(world, runId)).at(-1);
  expect(wait?.state).toBe('open');
  return wait!;
}

async function answer(world: World, runId: string, value: JsonValue): Promise<string> {
  const { interrupt_id: interruptId } = (await waitsOf(world, runId)).at(-1)!;
  const said = await answerInput(world.db, {
    ...{
      tenantId: 'default',
      interruptId,
      actorId: 'user:olga',
      authority: 'operator',
      answer: value,
      fits: true,
    },
    ...{ note: '', endpoint: `POST /v1/interrupts/${interruptId}/resolve`, idempotencyKey: randomUUID() },
  });
  await tell(world, runId);
  return said.kind === 'refused' ? said.code : said.kind;
}

async function raise(world: World, runId: string, count: number): Promise<void> {
  await submitCommand(world.db, {
    ...{ tenantId: 'default', runId, kind: 'change_budget', actorId: 'user:olga', authority: 'operator' },
    ...{
      payload: { lines: budgetLines(mails(count)).map((line) => ({ ...line })) },
      expectedStateVersion: null,
    },
    ...{ endpoint: `POST /v1/runs/${runId}/commands`, idempotencyKey: randomUUID() },
  });
  await tell(world, runId);
}

const begin = async (
  world: World,
  word: string,
  budget: Readonly<Record<string, unknown>>,
  contract: Readonly<Record<string, unknown>> = {},
): Promise<string> =>
  await world.run({ input: `${word} ${randomUUID()}`, contract: { budget, ...contract } });

describe.each(LANES)('in the %s lane a run over its budget', (lane) => {
  let world: World;
  beforeAll(async () => {
    world = await startWorld({ script: SCENARIOS, lane });
  });

  test('fails by default, with the limit as its reason, and the call that was too much never left', async () => {
    const runId = await begin(world, 'mail', mails(1));
    await world.waitFor(runId, 'failed');
    expect(await world.runRow(runId)).toMatchObject({ reason: 'limit_effects' });
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('finishes when it says so: told once, it answers without tools and completes over it', async () => {
    const runId = await begin(world, 'mail', { ...mails(1), on_reached: 'finish' });
    await world.waitFor(runId, 'completed');
    expect(await world.runRow(runId)).toMatchObject({ reason: 'answer_at_limit', step: 3 });
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(toldResults(world, runId)).toEqual([expect.stringContaining('limit_effects')]);
    const last = modelRequests(world, runId).at(-1)!;
    expect(last.tools).toEqual([]);
    expect(last.system).toContain('limit_effects');
    await checkRun(world, runId);
  });

  test('fails truthfully when its last answer still asks for a call', async () => {
    const runId = await begin(world, 'greedy', { ...mails(1), on_reached: 'finish' });
    await world.waitFor(runId, 'failed');
    expect(await world.runRow(runId)).toMatchObject({ reason: 'limit_effects' });
    expect(modelRequests(world, runId)).toHaveLength(3);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('asks when it says so, and goes on from there when somebody raises the limit', async () => {
    const runId = await begin(world, 'mail', { ...mails(1), on_reached: 'pause_and_ask' });
    await untilAsked(world, runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await answer(world, runId, { action: 'raise', limit: 2 })).toBe('decided');
    await world.waitFor(runId, 'completed');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1, [keyOf(runId, { step: 2 })]: 1 });
    expect(await world.path(runId)).toEqual([
      'admitted',
      'running',
      'waiting_for_input',
      'running',
      'completed',
    ]);
    await checkRun(world, runId);
  });

  test('asks, and fails when somebody refuses', async () => {
    const runId = await begin(world, 'both', { ...mails(1), on_reached: 'pause_and_ask' });
    await untilAsked(world, runId);
    await answer(world, runId, { action: 'refuse' });
    await world.waitFor(runId, 'failed');
    expect(await world.runRow(runId)).toMatchObject({ reason: 'limit_effects' });
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('when all is said, ledger and target agree', async () => {
    expect(await judge(world, world.targetLog())).toEqual([]);
    expect(await brokenControl(world)).toEqual([]);
  });
});

test('what is spent stays spent through continue-as-new, a pause and a resume (case 90)', async () => {
  const calls = Array.from({ length: 12 }, (_, n) => reply(call('mail', { note: `${n} {{input}}` })));
  const world = await startWorld({ script: script(when('many', ...calls, DONE)), historyEventsMax: 50 });
  const runId = await begin(world, 'many', { ...mails(8), on_reached: 'pause_and_ask' });
  await untilAsked(world, runId);
  const executions = await world.rows('select 1 from holdfast.run_executions where run_id = $1', runId);
  expect(executions.length).toBeGreaterThan(1);
  expect(Object.values(arrived(world, runId))).toEqual(Array(8).fill(1));
  expect(await command(world, runId, 'pause')).toBe('accepted');
  await world.waitFor(runId, ({ control }) => control === 'paused');
  // Raised while paused: taken up after the resume, and not before.
  await raise(world, runId, 9);
  expect(await command(world, runId, 'resume')).toBe('accepted');
  await world.waitFor(runId, async () => (await waitsOf(world, runId)).length === 2);
  await untilAsked(world, runId);
  expect(Object.values(arrived(world, runId))).toEqual(Array(9).fill(1));
  await answer(world, runId, { action: 'refuse' });
  await world.waitFor(runId, 'failed');
  await checkRun(world, runId);
  expect(await brokenControl(world)).toEqual([]);
  await world.close();
});

describe('a run that waits over its budget', () => {
  let world: World;
  beforeAll(async () => {
    world = await startWorld({ script: SCENARIOS, workers: 0 });
  });

  test('holds no worker: another one takes up the command that raises it (case 90)', async () => {
    const first = await world.startWorker();
    const runId = await begin(world, 'mail', { ...mails(1), on_reached: 'pause_and_ask' });
    await untilAsked(world, runId);
    await first.stop();
    await raise(world, runId, 2);
    expect(await world.runRow(runId)).toMatchObject({ state: 'waiting_for_input' });
    const second = await world.startWorker();
    await world.waitFor(runId, 'completed');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1, [keyOf(runId, { step: 2 })]: 1 });
    expect(await waitsOf(world, runId)).toMatchObject([{ state: 'superseded' }]);
    await checkRun(world, runId);
    await second.stop();
  });

  test('asks anew when it was raised too little, fails when its time runs out, and can be cancelled', async () => {
    const worker = await world.startWorker();
    const ask = { ...mails(0), on_reached: 'pause_and_ask' };
    const runId = await begin(world, 'mail', ask);
    const silent = await begin(world, 'mail', ask, { timeouts: { input_seconds: 1 } });
    await untilAsked(world, runId);
    await raise(world, runId, 0);
    await world.waitFor(runId, async () => (await waitsOf(world, runId)).length === 2);
    await untilAsked(world, runId);
    await heard(world, runId);
    await world.waitFor(silent, 'failed');
    expect(await waitsOf(world, silent)).toMatchObject([{ state: 'expired' }]);
    await command(world, runId, 'cancel');
    await world.waitFor(runId, 'cancelled');
    expect((await waitsOf(world, runId)).map(({ state }) => state)).toEqual(['superseded', 'withdrawn']);
    expect([arrived(world, runId), arrived(world, silent)]).toEqual([{}, {}]);
    await worker.stop();
  });
});
