import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import type { RunState } from '../shared/domain/run-machine.js';
import type { Dial } from './support/http-target.js';
import { asks, inputs } from './support/input-world.js';
import { untilGated, waits } from './support/desk-world.js';
import { judge } from './support/judge.js';
import {
  type OwnApi,
  type OwnPostgres,
  type OwnTemporal,
  startOwnApi,
  startOwnPostgres,
  startOwnTemporal,
} from './support/own-stack.js';
import type { TestProcess } from './support/processes.js';
import { arrived, checkRun } from './support/run-checks.js';
import { call, DONE, reply, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';
import { usualScript } from './support/world-project.js';

// Goal: Temporal killed with -9 loses no run and repeats no effect; while it is away the API admits and reads; nor does the end of everything at once. Method: a
// dev server of our own over a file, a worker and an API as production runs them, runs parked in every state that this
// build can reach, one kill, one restart.

/** How a run is brought where Temporal's end finds it, and what becomes of it. */
interface Parked {
  readonly tool: 'pay' | 'book' | 'mail' | 'look' | 'ask';
  readonly dial?: Omit<Dial, 'key' | 'times'>;
  readonly contract?: Readonly<Record<string, unknown>>;
  readonly state: RunState;
  readonly ends: RunState;
  readonly arrivals: number;
}

// prettier-ignore
const PARKED: Readonly<Record<string, Parked>> = {
  'done':                      { tool: 'pay', state: 'completed', ends: 'completed', arrivals: 1 },
  'keyed, at its target':      { tool: 'pay', dial: { mode: 'hold_after' }, state: 'running', ends: 'completed', arrivals: 1 },
  'queryable, at its target':  { tool: 'book', dial: { mode: 'hold_after' }, state: 'running', ends: 'completed', arrivals: 1 },
  'opaque, at its target':     { tool: 'mail', dial: { mode: 'hold_after' }, state: 'running', ends: 'completed', arrivals: 1 },
  'read, at its target':       { tool: 'look', dial: { mode: 'hold_after' }, state: 'running', ends: 'completed', arrivals: 1 },
  'waiting to ask again':      { tool: 'pay', dial: { mode: 'in_progress_409', retryAfter: '4' }, state: 'retry_wait', ends: 'completed', arrivals: 2 },
  'waiting for an approval':   { tool: 'pay', contract: { effects: { pay: { approval: 'required' } }, timeouts: { approval_seconds: 8 } },
                                 state: 'awaiting_approval', ends: 'completed', arrivals: 0 },
  'waiting for input':         { tool: 'ask', state: 'waiting_for_input', ends: 'completed', arrivals: 0 },
  'asking what became of it':  { tool: 'book', dial: { mode: 'drop_after' }, state: 'reconciling', ends: 'completed', arrivals: 1 },
  'unclear, for a person':     { tool: 'mail', dial: { mode: 'drop_after' }, state: 'needs_reconciliation', ends: 'needs_reconciliation', arrivals: 1 },
};
const TIMES = 2;

let postgres: OwnPostgres;
let temporal: OwnTemporal;
let world: World;
let api: OwnApi;
let worker: TestProcess;
const runs: { readonly runId: string; readonly parked: Parked }[] = [];

beforeAll(async () => {
  [postgres, temporal] = await Promise.all([startOwnPostgres(), startOwnTemporal()]);
  world = await startWorld({
    workers: 0,
    databaseUrl: postgres.url,
    temporal: temporal.way,
    questions: { ask_desk: asks() },
    script: {
      scenarios: [
        when('ask', reply(call('ask_desk', { text: 'Which order?' })), DONE),
        ...(usualScript()['scenarios'] as object[]),
      ],
    },
    // In reconciliation for a while: the target shows what it did only in its second answer.
    httpTools: {
      book: { query: { settlingSeconds: 6, equalAnswers: 2, intervalSeconds: 2, queriesMax: 20 } },
    },
  });
  worker = world.startWorkerProcess();
  api = await startOwnApi(world, temporal.address);
  await worker.ready;
}, 90_000);

test('Temporal killed with -9 among runs in every state: all go on, and no effect is repeated (D01)', async () => {
  await park();
  await temporal.kill();

  // Known to the ledger while Temporal is away: what the targets answered, and what is admitted.
  expect(world.target.release()).toBe(4 * TIMES);
  for (const { runId, parked } of runs.filter(({ parked: { dial } }) => dial?.mode === 'hold_after')) {
    await until(`the receipt of ${parked.tool}`, async () => (await world.receipts(runId)).length === 1);
  }
  const late = [await api.admit(`pay ${randomUUID()}`), await api.admit(`look ${randomUUID()}`)];
  for (const runId of late) {
    const read = await fetch(`${api.url}/v1/runs/${runId}`);
    expect([read.status, await read.json()]).toMatchObject([200, { execution: { state: 'admitted' } }]);
  }
  expect((await fetch(`${api.url}/readyz`)).status).toBe(200);
  // What is answered meanwhile counts at once, and is taken up by itself (case 21).
  for (const { runId } of runs.filter(({ parked: { tool } }) => tool === 'ask')) {
    const [wait] = await inputs(world, runId);
    const said = await fetch(`${api.url}/v1/interrupts/${wait?.interrupt_id}/resolve`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': runId },
      body: JSON.stringify({ decision: 'answer', answer: { order: 'ORD-7' } }),
    });
    expect([said.status, await said.json()]).toMatchObject([200, { state: 'answered' }]);
  }

  await temporal.start();
  for (const { runId, parked } of runs) {
    await world.waitFor(runId, parked.ends, 60_000);
    expect(arrived(world, runId)).toEqual(parked.arrivals === 0 ? {} : { [keyOf(runId)]: parked.arrivals });
    await checkRun(world, runId);
  }
  for (const runId of late) {
    await world.waitFor(runId, 'completed');
    expect(await world.client.workflow.count(`WorkflowId = "${runId}"`)).toMatchObject({ count: 1 });
  }
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await Promise.race([worker.ended, Promise.resolve('works on')])).toBe('works on');
}, 120_000);

test('an approval outlives the kill of everything, and a yes without Temporal is taken up once it is back (E01, case 21)', async () => {
  const contract = { effects: { mail: { approval: 'required' } } };
  const runId = await world.admit({ input: `mail ${randomUUID()}`, contract });
  await world.starter.round();
  const [before] = await untilGated(world, runId);
  await api.process.signal('SIGKILL');
  await worker.signal('SIGKILL');
  await temporal.kill();
  await postgres.kill();
  await postgres.start();
  expect(await waits(world, runId)).toEqual([before]);

  api = await startOwnApi(world, temporal.address);
  for (let time = 0; time < 2; time += 1) {
    const said = await fetch(`${api.url}/v1/interrupts/${before?.interrupt_id}/resolve`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': runId, 'holdfast-actor': 'ben' },
      body: JSON.stringify({ decision: 'approve', scope_sha256: before?.scope_sha256 }),
    });
    expect([said.status, await said.json()]).toMatchObject([200, { state: 'approved', approvals: 1 }]);
  }
  expect(arrived(world, runId)).toEqual({});
  await temporal.start();
  worker = world.startWorkerProcess();
  await world.waitFor(runId, 'completed', 60_000);
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  const { scope_sha256, expires_at } = before!;
  expect(await waits(world, runId)).toMatchObject([{ scope_sha256, expires_at, state: 'consumed' }]);
  await checkRun(world, runId);
}, 120_000);

test('a worker that is asked to stop while Temporal is away ends by itself, with its starts untold', async () => {
  await temporal.kill();
  const runId = await api.admit(`pay ${randomUUID()}`);
  await worker.signal('SIGTERM');
  expect(await worker.ended).toEqual({ code: 0, signal: null });
  await temporal.start();
  expect((await world.runRow(runId)).state).toBe('admitted');
  // Whoever comes next starts it.
  await world.startWorker();
  await world.starter.round();
  await world.waitFor(runId, 'completed');
}, 120_000);

async function park(): Promise<void> {
  for (const parked of Object.values(PARKED)) {
    for (let n = 0; n < TIMES; n += 1) {
      const runId = await world.admit({
        input: `${parked.tool} ${randomUUID()}`,
        ...(parked.contract === undefined ? {} : { contract: parked.contract }),
      });
      if (parked.dial !== undefined) world.target.dial({ ...parked.dial, key: keyOf(runId), times: 1 });
      runs.push({ runId, parked });
    }
  }
  world.target.hideApplied(TIMES);
  await world.starter.round();
  for (const { runId, parked } of runs) await world.waitFor(runId, parked.state);
  await until('the targets hold theirs', () => world.target.held() === 4 * TIMES);
}
