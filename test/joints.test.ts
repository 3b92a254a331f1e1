import { ApplicationFailure } from '@temporalio/common';
import { beforeAll, describe, expect, test } from 'vitest';
import { createDecideOccurrence } from '../activities/decide-occurrence.js';
import { createLedgerPool } from '../shared/ledger/database.js';
import { newId } from '../shared/ledger/new-id.js';
import { createLogger } from '../shared/process/log.js';
import { linesOf, setTenant } from './support/budget.js';
import { newestChild, delegating, start as startChild } from './support/children.js';
import {
  ageCooldown,
  begun,
  cooldownOf,
  cooledRun,
  registerCooledAgents,
  stop,
} from './support/cooldowns.js';
import { bringRunTo, callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { intended, UNDOABLE } from './support/ledger-undo.js';
import { newestRun, newThread } from './support/threads.js';
import { until } from './support/until.js';

// Goal: features that were built apart hold where they meet. Method: two of them at once against the ledger, in the order
// that hurts.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

/** How many statements of this database wait for a lock. */
async function waiting(): Promise<number> {
  const rows = await ledger.rows(
    `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  );
  return rows.length;
}

/** Two calls that meet while the lines of the tenant's budget are held: the first waits before the second begins. */
async function whileHeld<A, B>(one: () => Promise<A>, other: () => Promise<B>): Promise<[A, B]> {
  const holder = await ledger.owner.connect();
  await holder.query('begin');
  await holder.query(`select from holdfast.budgets where owner = 'tenant:default' for update`);
  const first = one();
  await until('the one waits', async () => (await waiting()) === 1);
  const second = other();
  await until('the other waits', async () => (await waiting()) === 2);
  await holder.query('commit');
  holder.release();
  return await Promise.all([first, second]);
}

describe('a cool-down and the budget of a tenant', () => {
  test('are locked in one order, also by the claim that finds the attempt before it lost', async () => {
    await registerCooledAgents(ledger, 'locked');
    const [lost, other, stopped] = await Promise.all([1, 2, 3].map(() => cooledRun(ledger, 'locked')));
    await setTenant(ledger, 'default', { tokens: 1_000_000, effects: [] });
    // Its worker says nothing any more, so that the next claim counts what it may have taken.
    await begun(lost!);
    await stop(stopped!, await begun(stopped!), 60_000);
    await ageCooldown(ledger, (await cooldownOf(ledger, 'openai locked'))!.cooldown_id, 3_600);
    const [again] = await whileHeld(
      () => lost!.claimThink(),
      () => other!.claimThink(),
    );
    expect(again.kind).toBe('claimed');
  });
});

test('what undoes waits for its turn also when the time of its run is over', async () => {
  const busy = (await ledger.newStep([{ ...callOf('opaque'), namespace: 'tool_undo' }])).call(0);
  await busy.attempt('throttled', { retryAfterMs: 60_000 });
  const undo = await intended(await ledger.newCall('opaque', { policy: UNDOABLE }));
  await ledger.tamper(async (change) => {
    await change('update holdfast.runs set deadline_at = admitted_at where run_id = $1', undo.run.runId);
  });
  const answer = await undo.claim();
  if (answer.kind !== 'cooling') throw new Error(answer.kind);
  expect(answer.seriesMsLeft).toBeGreaterThan(answer.waitMs);
});

describe('a parent and its child', () => {
  test('under one budget are locked in one order, also where the end of the parent settles what it had reserved', async () => {
    await setTenant(ledger, 'default', { tokens: 1_000_000, effects: [{ tool: 'tool_read', count: 100 }] });
    const parent = await ledger.newStep([delegating(), callOf('read')]);
    await startChild(parent);
    const child = await newestChild(parent);
    await child.start();
    await parent.call(1).lose();
    await whileHeld(
      () => parent.commit({ kind: 'move', to: 'failed', reason: 'internal_error' }),
      () => child.claimThink(),
    );
    expect((await ledger.runRow(child.runId)).control).toBe('cancel_requested');
  });
});

describe('a thread and the budget of its run', () => {
  const reserved = async (run: LedgerRun): Promise<number> =>
    Number(/\+([0-9]+)\//.exec((await linesOf(ledger, run))[0]!)![1]);

  test('what the thread said before, and what joins the run, is reserved for the call that reads it', async () => {
    const thread = await newThread(ledger, 'enqueue', { budget: { tokens: 1_000_000 } });
    await thread.post('one '.repeat(5_000));
    const first = await newestRun(ledger, thread);
    await first.start();
    await first.plan([]);
    await bringRunTo(first, 'completed');
    await thread.post('two');
    const second = await newestRun(ledger, thread);
    await second.start();
    await second.claimThink();
    expect(await reserved(second)).toBeGreaterThan(20_000);
    await bringRunTo(second, 'failed');

    await thread.post('three');
    const third = await newestRun(ledger, thread);
    await third.start();
    await third.plan([callOf('read')]);
    await thread.post('four '.repeat(5_000), { policy: 'steer' });
    const before = await reserved(third);
    await third.claimThink();
    expect((await reserved(third)) - before).toBeGreaterThan(25_000);
  });
});

test('a tick that cannot reach the ledger tells Temporal a code, and nothing that a driver says', async () => {
  const lines: string[] = [];
  const log = createLogger({
    name: 'worker',
    level: 'error',
    destination: { write: (line) => lines.push(line) },
  });
  const db = createLedgerPool({
    ...{ databaseUrl: 'postgres://secret-user:secret@127.0.0.1:1/nowhere', max: 1, applicationName: 'test' },
    onIdleError: () => undefined,
  });
  const tick = createDecideOccurrence({ db, log });
  const failed = await tick({ scheduleId: newId('sch'), plannedAt: '2026-01-01T00:00:00.000Z' }).catch(
    (error: unknown) => error,
  );
  await db.end();
  expect(failed).toMatchObject({ message: 'ledger_unavailable', stack: '', nonRetryable: false });
  expect(failed).toBeInstanceOf(ApplicationFailure);
  expect(lines.join('')).toContain('ECONNREFUSED');
});
