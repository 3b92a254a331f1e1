import { beforeAll, describe, expect, test } from 'vitest';
import { writeMemory } from '../shared/ledger/memory.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import { beginSleepRuns } from '../shared/ledger/sleep.js';
import { archiveThread } from '../shared/ledger/threads.js';
import { ROLES } from '../shared/domain/roles.js';
import { bringRunTo, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { exchange, idle, memoryCall, remember, setTrigger, sleepers } from './support/memory.js';
import { newestRun, newThread, type TestThread } from './support/threads.js';

// Goal: an idle thread with something new is consolidated once, by a run that holds up nobody; a generation is made only of
// the newest, by an effect that writes once; and every model call says which generation it was shown. Method: the ledger's
// own functions, with the moves that a workflow would make; idle time is written, not waited for.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
  await setTrigger(ledger);
});

async function idleThread(...texts: readonly string[]): Promise<TestThread> {
  const thread = await newThread(ledger);
  for (const text of texts) await exchange(ledger, thread, text);
  await idle(ledger, thread);
  return thread;
}
const memoryOf = (thread: TestThread) =>
  ledger.rows<{ generation: number; text: string; through_place: number }>(
    'select generation, text, through_place from holdfast.thread_memories where thread_id = $1 order by generation',
    thread.threadId,
  );
async function inputOf(run: LedgerRun) {
  const [row] = await ledger.rows<{
    input: { from_generation: number; conversation: { said: Record<string, unknown>[] }[] };
    priority: number;
    actor_id: string;
    steps_max: number;
    thread_id: string | null;
  }>('select * from holdfast.runs where run_id = $1', run.runId);
  return row!;
}

describe('an idle thread with something new', () => {
  test('gets one run of its own, of the lowest priority and its own contract, however many look at once', async () => {
    const thread = await idleThread('one', 'two');
    const looks = await Promise.all(Array.from({ length: 6 }, () => beginSleepRuns(ledger.db, 100)));
    const begun = looks.flat().filter(({ threadId }) => threadId === thread.threadId);
    expect(begun.map(({ kind }) => kind)).toStrictEqual(['begun']);
    const [row] = await ledger.rows('select * from holdfast.runs where run_id = $1', begun[0]!.runId);
    expect(row).toMatchObject({
      ...{ priority: 5, steps_max: 7, actor_id: 'user:olga', thread_id: null, memory_generation: null },
      memory_thread_id: thread.threadId,
      input: {
        thread_id: thread.threadId,
        from_generation: 0,
        conversation: [
          {
            said: [
              { by: 'user', text: 'one' },
              { by: 'agent', text: 'Done.' },
            ],
          },
          {
            said: [
              { by: 'user', text: 'two' },
              { by: 'agent', text: 'Done.' },
            ],
          },
        ],
      },
    });
  });

  test('is left alone until it is idle, while a run works on it, when archived, and without a trigger', async () => {
    const fresh = await newThread(ledger);
    await exchange(ledger, fresh, 'one');
    const busy = await idleThread('one');
    await busy.post('two');
    await idle(ledger, busy);
    const archived = await idleThread('one');
    const archive = { tenantId: 'default', threadId: archived.threadId, actorId: 'user:ada', roles: ROLES };
    await archiveThread(ledger.db, { ...archive, archived: true });
    await idle(ledger, archived);
    const untold = await idleThread('one');
    await setTrigger(ledger, null);
    expect(await sleepers(ledger, untold)).toHaveLength(0);
    await setTrigger(ledger);
    const begun = (await beginSleepRuns(ledger.db, 100)).map(({ threadId }) => threadId);
    const four = [fresh, busy, archived, untold].map(({ threadId }) => begun.includes(threadId));
    expect(four).toStrictEqual([false, false, false, true]);
  });

  test('is not seen to again before something is new, whether its run made a memory or failed', async () => {
    const thread = await idleThread('one');
    const [first] = await sleepers(ledger, thread);
    await bringRunTo(first!, 'failed');
    await idle(ledger, thread);
    expect(await sleepers(ledger, thread)).toHaveLength(0);
    await exchange(ledger, thread, 'two');
    await idle(ledger, thread);
    const [second] = await sleepers(ledger, thread);
    // What the failed one had is in it too.
    const { input } = await inputOf(second!);
    expect(input.conversation.map(({ said }) => said[0])).toStrictEqual([
      { by: 'user', text: 'one' },
      { by: 'user', text: 'two' },
    ]);
    expect(await remember(second!, 0, 'Both.')).toMatchObject({ kind: 'written', generation: 1 });
    await bringRunTo(second!, 'completed');
    await idle(ledger, thread);
    expect(await sleepers(ledger, thread)).toHaveLength(0);
    await exchange(ledger, thread, 'three');
    await idle(ledger, thread);
    const third = await inputOf((await sleepers(ledger, thread))[0]!);
    expect(third.input).toMatchObject({
      from_generation: 1,
      conversation: [{ said: [{ text: 'three' }, { text: 'Done.' }] }],
    });
  });

  test('takes a message at once while its sleep-time run works, which does not see it', async () => {
    const thread = await idleThread('one');
    const [sleeper] = await sleepers(ledger, thread);
    await exchange(ledger, thread, 'two');
    expect(await thread.standing()).toStrictEqual(['one delivered', 'two delivered']);
    await idle(ledger, thread);
    // One at a time: the next comes when that has ended.
    expect(await sleepers(ledger, thread)).toHaveLength(0);
    expect(await remember(sleeper!, 0, 'One.')).toMatchObject({ kind: 'written' });
    await bringRunTo(sleeper!, 'completed');
    const [next] = await sleepers(ledger, thread);
    expect((await inputOf(next!)).input).toMatchObject({ conversation: [{ said: [{ text: 'two' }, {}] }] });
  });

  test('with more to say than fits into one consolidation is consolidated in several, and nothing is lost', async () => {
    const thread = await newThread(ledger);
    for (const text of ['a', 'b', 'c']) await exchange(ledger, thread, text.repeat(4_000));
    // As if each run had said a great deal.
    await ledger.tamper(async (change) => {
      await change(
        `insert into holdfast.messages (run_id, turn, step, position, tenant_id, role, as_of, content)
           select run_id, 1, 2, n, 'default', 'user', 1, jsonb_build_object('text', repeat('x', 4000))
             from holdfast.runs, generate_series(10, 39) n where thread_id = $1`,
        thread.threadId,
      );
    });
    await idle(ledger, thread);
    const seen: string[] = [];
    for (let generation = 0; generation < 3; generation += 1) {
      const [run] = await sleepers(ledger, thread);
      if (run === undefined) break;
      const { input } = await inputOf(run);
      seen.push(...input.conversation.map(({ said }) => String(said[0]!['text']).slice(0, 1)));
      await remember(run, generation, 'More.');
      await bringRunTo(run, 'completed');
    }
    expect(seen).toStrictEqual(['a', 'b', 'c']);
    expect((await memoryOf(thread)).length).toBeGreaterThan(1);
    expect((await memoryOf(thread)).at(-1)).toMatchObject({ through_place: 3 });
    expect(await sleepers(ledger, thread)).toHaveLength(0);
  });
});

describe('a memory', () => {
  test('is written once by its effect, whatever the process that wrote it hears, and by nobody who lost the claim', async () => {
    const thread = await idleThread('one');
    const [run] = await sleepers(ledger, thread);
    await run!.plan([memoryCall(0, 'Kept.'), memoryCall(1, 'Late.')]);
    const claim = await run!.call(0).claimed();
    // The process died after the write: the next one sends the same key again.
    await writeMemory(ledger.db, claim.effectId);
    await run!.call(0).examine();
    const again = await run!.call(0).claimed();
    expect(again.effectId).toBe(claim.effectId);
    expect(await writeMemory(ledger.db, again.effectId)).toStrictEqual({
      ...{ kind: 'written', threadId: thread.threadId, generation: 1 },
    });
    await run!.call(0).settle(again, 'succeeded');
    const lost = await run!.call(1).claimed();
    await run!.call(1).examine();
    expect(await writeMemory(ledger.db, lost.effectId)).toStrictEqual({ kind: 'not_claimed' });
    expect(await memoryOf(thread)).toStrictEqual([{ generation: 1, text: 'Kept.', through_place: 1 }]);
  });

  test('made of a generation that is not the newest is refused, and told what is', async () => {
    const thread = await idleThread('one');
    const [run] = await sleepers(ledger, thread);
    expect(await remember(run!, 1, 'From nowhere.')).toStrictEqual({
      kind: 'stale',
      generation: 0,
      text: null,
    });
    await remember(run!, 0, 'First.');
    expect(await remember(run!, 0, 'Stale.')).toStrictEqual({ kind: 'stale', generation: 1, text: 'First.' });
    expect(await remember(run!, 1, 'Second.')).toMatchObject({ kind: 'written', generation: 2 });
    expect((await memoryOf(thread)).map(({ text }) => text)).toStrictEqual(['First.', 'Second.']);
  });

  test('of two that write of one generation at once is one of them, and the other is refused', async () => {
    const thread = await idleThread('one');
    const [sleeper] = await sleepers(ledger, thread);
    await thread.post('two');
    const own = await newestRun(ledger, thread);
    await own.start();
    const written = await Promise.all([remember(sleeper!, 0, 'Asleep.'), remember(own, 0, 'Awake.')]);
    expect(written.map(({ kind }) => kind).toSorted()).toStrictEqual(['stale', 'written']);
    expect(await memoryOf(thread)).toHaveLength(1);
  });

  test('is of a thread: a run of none has nothing to write', async () => {
    const run = await ledger.newRun();
    await run.start();
    expect(await remember(run, 0, 'Nowhere.')).toStrictEqual({ kind: 'no_thread' });
  });

  test('stands in every prompt of the runs made after it, and none before, and each model call says which generation', async () => {
    const thread = await idleThread('one');
    const [sleeper] = await sleepers(ledger, thread);
    await thread.post('two');
    const before = await newestRun(ledger, thread);
    await before.start();
    await remember(sleeper!, 0, 'They said one.');
    expect(await before.claimThink()).toMatchObject({ kind: 'claimed', memory: null });
    await closeOrphan(ledger.db, before.runId, (await ledger.runRow(before.runId)).epoch, 'workflow_failed');
    await thread.post('three');
    const after = await newestRun(ledger, thread);
    await after.start();
    // A newer one changes nothing for a run that has begun: its prompts stay what they were.
    await remember(sleeper!, 1, 'They said one, and two.');
    expect(await after.claimThink()).toMatchObject({
      memory: { generation: 1, text: 'They said one.' },
    });
    const calls = (run: LedgerRun) =>
      ledger.rows('select memory_generation from holdfast.model_calls where run_id = $1', run.runId);
    expect(await calls(before)).toStrictEqual([{ memory_generation: null }]);
    expect(await calls(after)).toStrictEqual([{ memory_generation: 1 }]);
    const started = (await ledger.events(after.runId)).find(({ type }) => type === 'model.started');
    expect(started?.data).toMatchObject({ memory_generation: 1 });
  });
});
