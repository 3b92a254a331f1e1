import { randomUUID } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { beforeAll, expect, test } from 'vitest';
import { RunContract } from '../shared/domain/contract.js';
import { listMemories } from '../shared/ledger/reads/read-memory.js';
import { readRun } from '../shared/ledger/reads/read-run.js';
import { beginSleepRuns, setSleepTrigger } from '../shared/ledger/sleep.js';
import { createThread } from '../shared/ledger/threads.js';
import { TestThread, threadContract, untilQuiet } from './support/threads.js';
import { startWorld, until, type World } from './support/world.js';

// Goal: the worked example consolidates a thread of the refund desk by itself, once, and the desk reads what was kept.
// Method: the example's own project, offline, on a real Temporal; its keeper's first write is cut off after it was done.

const DESK = fileURLToPath(new URL('../examples/refund-desk/holdfast.yaml', import.meta.url));

let world: World;
let thread: TestThread;
beforeAll(async () => {
  world = await startWorld({ projectPath: DESK });
  const contract = threadContract();
  const who = { tenantId: 'default', actorId: 'user:ada', idempotencyKey: randomUUID() };
  const created = await createThread(world.db, {
    ...{ ...who, endpoint: 'POST /v1/threads', agent: 'refund-desk', policy: 'enqueue', contract },
  });
  if (created.kind !== 'created') throw new Error(created.kind);
  thread = new TestThread(world, created.threadId, 'refund-desk', contract);
});

async function consolidated(): Promise<string> {
  let runId: string | undefined;
  await until('the idle thread is consolidated', async () => {
    runId = (await beginSleepRuns(world.db, 10))[0]?.runId;
    return runId !== undefined;
  });
  await world.starter.round();
  await world.waitFor(runId!, 'completed');
  return runId!;
}
const memories = () =>
  listMemories(world.db, { tenantId: 'default', threadId: thread.threadId }, { before: null, limit: 10 });

test('a thread that lies idle is consolidated once, though its write was cut off, and the next run reads what was kept', async () => {
  await setSleepTrigger(world.db, {
    ...{ tenantId: 'default', actorId: 'user:olga', authority: 'operator', agent: 'refund-desk' },
    ...{ endpoint: 'PUT /v1/sleep-triggers', idempotencyKey: randomUUID() },
    sleeper: {
      ...{ agent: 'refund-memory', idleSeconds: 1, taskQueue: world.taskQueue },
      contract: RunContract.parse({ ...threadContract(), limits: { steps_max: 4 } }),
    },
  });
  await thread.post('Refund order ORD-9999: arrived broken');
  await untilQuiet(world, thread);
  const [desk] = await thread.runIds();
  world.faults.add({ point: 'act.after_call', mode: 'throw' });
  const keeper = await consolidated();
  expect(world.faults.reached()).toMatchObject([{ point: 'act.after_call', runId: keeper }]);
  const effects = await world.rows<{ effect_id: string }>(
    `select effect_id, state, attempts, reference from holdfast.effects join holdfast.receipts using (effect_id)
      where effects.run_id = $1`,
    keeper,
  );
  // The cut write was sent again under its key, and the ledger knew it.
  expect(effects).toMatchObject([{ state: 'succeeded', attempts: 2, reference: `${thread.threadId}/1` }]);
  expect(await memories()).toMatchObject([
    {
      ...{ generation: 1, run_id: keeper, effect_id: effects[0]!.effect_id, through_place: 1 },
      text: 'Order spoken of: ORD-9999.\nThe customer wrote: Refund order ORD-9999: arrived broken\n',
    },
  ]);
  expect(await readRun(world.db, { tenantId: 'default', runId: keeper })).toMatchObject({
    ...{ thread: null, memory: { thread_id: thread.threadId, generation: null, keeps: true } },
    contract: { priority: 5, limits: { steps_max: 4 } },
  });

  await thread.post('Refund order ORD-9998: never came');
  await untilQuiet(world, thread);
  const next = (await thread.runIds())[1]!;
  expect(await readRun(world.db, { tenantId: 'default', runId: next })).toMatchObject({
    memory: { thread_id: thread.threadId, generation: 1, keeps: false },
  });
  const calls = await world.rows<{ run_id: string; memory_generation: number | null }>(
    'select distinct run_id, memory_generation from holdfast.model_calls where run_id = any ($1)',
    [desk, next],
  );
  expect(new Map(calls.map((call) => [call.run_id, call.memory_generation]))).toEqual(
    new Map([
      [desk, null],
      [next, 1],
    ]),
  );
  await consolidated();
  expect((await memories()).map(({ generation, through_place }) => [generation, through_place])).toEqual([
    [2, 2],
    [1, 1],
  ]);
});
