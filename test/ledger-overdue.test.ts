import { beforeAll, describe, expect, test } from 'vitest';
import { escalateOverdue } from '../shared/ledger/sweep.js';
import { makeOverdue, newUndo, newUnknown, settle } from './support/desk.js';
import type { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: an item that nobody saw to in time is told about, once for each deadline, and settled by nobody (SPEC 3.6).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

describe('an overdue item', () => {
  const told = async (call: { run: LedgerRun }) =>
    (await ledger.events(call.run.runId)).filter(({ type }) => type === 'reconciliation.overdue');
  const tellAll = async (): Promise<void> => {
    while ((await escalateOverdue(ledger.db)) !== undefined);
  };

  test.each([
    ['outcome', () => newUnknown(ledger)],
    ['undo', () => newUndo(ledger)],
  ] as const)('is told of once for each deadline, and settled by nobody (%s)', async (about, item) => {
    const call = await item();
    await tellAll();
    expect(await told(call)).toStrictEqual([]);
    await makeOverdue(call);
    await Promise.all([tellAll(), tellAll(), tellAll()]);
    expect(await told(call)).toMatchObject([{ data: { about, owner: 'desk' } }]);
    const state = await call.state();
    await makeOverdue(call, 500);
    await tellAll();
    expect(await told(call)).toHaveLength(2);
    expect(await call.state()).toBe(state);
  });

  test('that somebody settled is told of no more', async () => {
    const call = await newUnknown(ledger);
    await makeOverdue(call);
    await settle(call);
    await tellAll();
    expect(await told(call)).toStrictEqual([]);
  });

  test('that a run still finds out by itself is none', async () => {
    const call = await ledger.newCall('opaque');
    await call.attempt('unknown');
    await makeOverdue(call);
    await tellAll();
    expect(await told(call)).toStrictEqual([]);
  });
});
