import { randomUUID } from 'node:crypto';
import { LEDGER_AGENT, type LedgerWorld } from './ledger-world.js';
import { writeMemory, type MemoryWritten } from '../../shared/ledger/memory.js';
import {
  beginSleepRuns,
  setSleepTrigger,
  type Sleeper,
  type SleepTriggerSet,
} from '../../shared/ledger/sleep.js';
import type { PlannedCallRow } from '../../shared/ledger/model-calls.js';
import { bringRunTo, callOf, LedgerRun } from './ledger-run.js';
import { newestRun, newThread, type TestThread, threadContract } from './threads.js';

/** A planned call that writes a memory. */
export function memoryCall(fromGeneration: number, text: string): Partial<PlannedCallRow> {
  return {
    ...callOf('keyed'),
    toolName: 'keep_memory',
    namespace: 'holdfast:memory',
    arguments: JSON.stringify({ from_generation: fromGeneration, text }),
  };
}

/** Sets the trigger for the threads of the ledger's agent, which it consolidates itself. */
export async function setTrigger(
  { db }: Pick<LedgerWorld, 'db'>,
  changes: Partial<Sleeper> | null = {},
  tenantId = 'default',
): Promise<SleepTriggerSet> {
  const sleeper = {
    ...{ agent: LEDGER_AGENT.name, idleSeconds: 600, taskQueue: 'nobody-listens' },
    contract: threadContract({ limits: { steps_max: 7 } }),
  };
  return await setSleepTrigger(db, {
    ...{ tenantId, actorId: 'user:olga', authority: 'operator', agent: LEDGER_AGENT.name },
    ...{ endpoint: 'PUT /v1/sleep-triggers', idempotencyKey: randomUUID() },
    sleeper: changes === null ? null : { ...sleeper, ...changes },
  });
}

/** Nothing new for so long. */
export async function idle(ledger: LedgerWorld, thread: TestThread, seconds = 601): Promise<void> {
  await ledger.tamper((change) =>
    change(
      'update holdfast.threads set updated_at = updated_at - make_interval(secs => $2) where thread_id = $1',
      thread.threadId,
      seconds,
    ).then(() => undefined),
  );
}

/** A message, the run that it begins, and its end. */
export async function exchange(ledger: LedgerWorld, thread: TestThread, text: string): Promise<LedgerRun> {
  await thread.post(text);
  const run = await newestRun(ledger, thread);
  await run.start();
  await run.plan([]);
  await bringRunTo(run, 'completed');
  return run;
}

/** The sleep-time runs that a look of a worker begins for this thread, none or one, each at work. */
export async function sleepers(ledger: LedgerWorld, thread: TestThread): Promise<LedgerRun[]> {
  const begun = await beginSleepRuns(ledger.db, 100);
  const mine = begun.filter(({ threadId, kind }) => threadId === thread.threadId && kind === 'begun');
  const runs = mine.map(({ runId }) => new LedgerRun(ledger, runId, `exec-${randomUUID()}`));
  for (const run of runs) await run.start();
  return runs;
}

/** Plans, claims and does one memory's effect. */
export async function remember(run: LedgerRun, fromGeneration: number, text: string): Promise<MemoryWritten> {
  await run.plan([memoryCall(fromGeneration, text)]);
  const call = run.call(0);
  const claim = await call.claimed();
  const written = await writeMemory(run.world.db, claim.effectId);
  await call.settle(claim, written.kind === 'written' ? 'succeeded' : 'rejected');
  return written;
}

/** A thread with a memory, the trigger that made it, and a run that reads it. */
export async function addMemory(ledger: LedgerWorld): Promise<void> {
  await setTrigger(ledger);
  const thread = await newThread(ledger);
  await exchange(ledger, thread, 'one');
  await idle(ledger, thread);
  const [sleeper] = await sleepers(ledger, thread);
  if (sleeper === undefined) throw new Error('nobody sleeps');
  await remember(sleeper, 0, 'They said one.');
  await bringRunTo(sleeper, 'completed');
  await thread.post('two');
}
