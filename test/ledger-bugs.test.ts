import { beforeAll, expect, test } from 'vitest';
import { newId } from '../shared/ledger/new-id.js';
import { callOf, openLedger, type LedgerWorld } from './support/ledger-world.js';

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

test('B1 a resend that never left leaves the first attempt unknown', async () => {
  const call = await ledger.newCall('keyed');
  await call.attempt('unknown');
  await call.attempt('not_sent');
  expect(await call.state()).toBe('unknown');
});
test('B2 a late success outweighs a late refusal', async () => {
  const call = await ledger.newCall('keyed');
  const a = await call.lose();
  const b = await call.lose();
  await call.settle(b, 'rejected');
  await call.settle(a, 'succeeded');
  await call.beginQuery();
  expect(await call.state()).toBe('committed');
});
test('B2b a late refusal of one attempt says nothing of another', async () => {
  const call = await ledger.newCall('keyed');
  await call.lose();
  const b = await call.lose();
  await call.settle(b, 'rejected');
  await call.beginQuery();
  expect(await call.state()).toBe('unknown');
});
test('B3 a repeated record is one answer', async () => {
  const call = await ledger.newCall('queryable');
  await call.attempt('unknown');
  await call.age(61);
  const q = await call.beginQuery();
  if (q.kind !== 'query') throw new Error();
  await call.record(q, 'absent');
  await call.record(q, 'absent');
  expect(await call.state()).toBe('unknown');
});
test('B5 fractions of a second', async () => {
  const call = await ledger.newCall('queryable', {
    policy: { timeoutSeconds: 1.5, query: { settlingSeconds: 0.2, intervalSeconds: 0.05 } },
  });
  await call.attempt('unknown');
  await call.query('absent');
});
test('B7 closing one read leaves the others', async () => {
  const run = await ledger.newStep([callOf('read'), callOf('read')]);
  await run.call(0).attempt('unknown');
  await run.call(1).attempt('unknown');
  await run.call(0).close('withdrawn', 'lost_read');
  expect(await run.call(1).state()).toBe('unknown');
});
test('B8 a closed read is not redone', async () => {
  const call = await ledger.newCall('read');
  await call.attempt('unknown');
  await call.close('withdrawn', 'lost_read');
  const st = await call.claim();
  expect(st).toMatchObject({ next: 'tell_model' });
  const c = await call.claim({ redo: 1 });
  expect(c.kind).toBe('effect');
});
test('B8b settle of such redo', async () => {
  const call = await ledger.newCall('read');
  await call.attempt('unknown');
  await call.close('withdrawn', 'lost_read');
  const c = await call.claimed({ redo: 1 });
  await call.settle(c, 'succeeded');
});
test('B9 a model attempt that lost its call does not get the number of another', async () => {
  const run = await ledger.newRun();
  await run.start();
  const a = newId('att');
  const first = await run.claimThink({ attemptId: a });
  await run.claimThink();
  const again = await run.claimThink({ attemptId: a });
  expect([first.kind === 'claimed' && first.attempt, again.kind === 'claimed' && again.attempt]).toEqual([
    1,
    false,
  ]);
});
test('B10 a lost attempt that claims again', async () => {
  const call = await ledger.newCall('keyed');
  const c = await call.lose();
  expect(await call.claim({ attemptId: c.attemptId })).toMatchObject({ kind: 'effect' });
});
test('B11 a refusal of a resend does not outweigh a late success', async () => {
  const call = await ledger.newCall('keyed');
  const a = await call.lose();
  const b = await call.claimed();
  await call.settle(a, 'succeeded');
  await call.settle(b, 'rejected');
  expect(await call.state()).toBe('unknown');
});
test('B13 step never claimed', async () => {
  const run = await ledger.newRun();
  await run.start();
  await run.claimThink();
  expect(await run.answerThink({ attempt: 1 }, newId('att'), { step: 7 })).toEqual({ kind: 'late' });
});
