import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import type { ClaimedEffect } from '../shared/ledger/effects.js';
import { control, expire, interruptOf, openGate, said, submit } from './support/desk.js';
import { brokenControl, command, decide, fates, tell, waits } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { callOf } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { applied, checkRun } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: in whatever order a pause, a cancel, a yes, the end of its time and the result of a call in flight meet a run, each
// counts by what the ledger held when it came: nothing leaves after a cancel, in a pause, or without a yes in time, and
// every run ends (FAULTS E15). Method: every order against the ledger, some of them against runs at work.

const ACTS = ['pause', 'cancel', 'approve', 'expire', 'result'] as const;
type Act = (typeof ACTS)[number];

function ordersOf<T>(items: readonly T[]): T[][] {
  if (items.length === 0) return [[]];
  return items.flatMap((first, n) => ordersOf(items.toSpliced(n, 1)).map((rest) => [first, ...rest]));
}
const ORDERS = ordersOf(ACTS);

test('the ledger lets a gated call go only after a yes in time, before a cancel and outside a pause, in every order (E15)', async () => {
  const ledger = await openLedger();
  expect(ORDERS).toHaveLength(120);
  await Promise.all(ORDERS.map((order) => playInLedger(ledger, order)));
}, 60_000);

/** A run with one call in flight and one that waits for its yes; after each act the gated call asks to go. */
async function playInLedger(ledger: LedgerWorld, order: readonly Act[]): Promise<void> {
  const run = await ledger.newStep([callOf('opaque'), callOf('opaque', { approval: 'required' })]);
  const flying = run.call(0);
  const claim = await flying.claimed();
  const gate = await openGate(run.call(1));
  const before = (act: Act, other: Act) => order.indexOf(act) < order.indexOf(other);
  const isInTime = before('approve', 'cancel') && before('approve', 'expire');
  const mayGo = isInTime && before('approve', 'pause');
  let gone: ClaimedEffect | undefined;
  for (const act of order) {
    if (act === 'pause' || act === 'cancel') await submit(run, act);
    if (act === 'expire') await expire(gate);
    if (act === 'result') await flying.settle(claim, 'succeeded');
    if (act === 'approve') expect([order, (await said(gate)) === 'decided']).toEqual([order, isInTime]);
    const answer = await gate.call.claim();
    expect([order, act, answer.kind === 'claimed']).toEqual([order, act, act === 'approve' && mayGo]);
    if (answer.kind === 'claimed') gone = answer;
  }
  expect([order, (await ledger.attempts(run.runId)).length]).toEqual([order, mayGo ? 2 : 1]);
  if (gone !== undefined) await gate.call.settle(gone, 'succeeded');
  await run.commit(
    control('active', 'cancel_requested'),
    { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    { kind: 'move', to: 'cancelled', reason: 'wound_down' },
  );
  const { state } = await ledger.runRow(run.runId);
  expect([order, state]).toEqual([order, 'cancelled']);
  expect((await interruptOf(gate.call)).state).toMatch(mayGo ? /^consumed$/ : /^(withdrawn|expired)$/);
}

test('runs at work end lawfully in any order of them, and nothing is sent after a cancel (E15)', async () => {
  const world = await startWorld({
    approvals: ['order'],
    httpTools: {
      fly: { description: 'Pays.', class: 'opaque', url: '/opaque', parallel: true },
      order: { description: 'Orders.', class: 'opaque', url: '/opaque', parallel: true },
    },
    script: script(when('both', reply('fly', 'order'), DONE)),
  });
  // Spread over all of them, each act at each place.
  const some = ORDERS.filter((_, n) => n % 7 === 0);
  const runs = await Promise.all(
    some.map(async (order) => {
      const runId = await world.admit({ input: `both ${randomUUID()}` });
      world.faults.add({ point: 'act.after_call', mode: 'hang', runId });
      return { order, runId };
    }),
  );
  await world.starter.round();
  await Promise.all(runs.map(({ runId, order }, n) => playInWorld(world, runId, order, n % 2 === 0)));
  for (const { runId, order } of runs) {
    const { state } = await world.waitFor(runId, 'ended');
    const [cancel] = (await fates(world, runId)).filter((fate) => fate.startsWith('cancel'));
    expect([order, `${state}, ${cancel}`]).toEqual([
      order,
      expect.stringMatching(/^(cancelled, cancel applied|completed, cancel (rejected|expired) run_ended)$/),
    ]);
    const [wait] = await waits(world, runId);
    const gated = applied(world, runId)[keyOf(runId, { slot: 1 })] ?? 0;
    expect([order, wait?.state, gated]).toEqual([order, wait?.state, wait?.state === 'consumed' ? 1 : 0]);
    expect(applied(world, runId)[keyOf(runId)]).toBe(1);
    await checkRun(world, runId);
  }
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
}, 60_000);

async function playInWorld(
  world: World,
  runId: string,
  order: readonly Act[],
  isPatient: boolean,
): Promise<void> {
  const [wait] = await until('one is asked about, and one is in flight', async () => {
    const open = await waits(world, runId);
    return open.length === 1 && world.faults.reached().some((fault) => fault.runId === runId) && open;
  });
  for (const act of order) {
    if (act === 'pause' || act === 'cancel') await command(world, runId, act);
    if (act === 'approve') await decide(world, wait);
    if (act === 'result') world.faults.release(runId);
    if (act === 'expire') {
      await world.rows(
        `update holdfast.interrupts set expires_at = clock_timestamp() - interval '1 ms'
          where interrupt_id = $1 and state in ('open', 'approved')`,
        wait!.interrupt_id,
      );
      await tell(world, runId);
    }
    // Half of them give the run time to take each up before the next comes.
    if (isPatient) await untilTaken(world, runId);
  }
}

/** Until the ledger has not heard of the run for a moment. */
async function untilTaken(world: World, runId: string): Promise<void> {
  let last = -1;
  await until('the run rests', async () => {
    const { state_version } = await world.runRow(runId);
    const rests = state_version === last;
    last = state_version;
    return rests;
  });
}
