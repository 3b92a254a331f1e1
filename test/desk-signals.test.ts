import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { NUDGE_SIGNAL } from '../shared/domain/protocol.js';
import { decideApproval } from '../shared/ledger/approvals.js';
import { submitCommand } from '../shared/ledger/commands.js';
import { brokenControl, command, decide, fates, tell, untilGated } from './support/desk-world.js';
import { judge } from './support/judge.js';
import { applied, checkRun } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: messages to a workflow carry nothing, so a flood of them, one that is lost and one that comes twice change
// nothing; what was decided is in the ledger (FAULTS D08, D10–D12, D14). Method: hundreds of nudges at every place where
// Temporal is known to lose or refuse messages, with decisions among them.

let world: World;
beforeAll(async () => {
  world = await startWorld({
    historyEventsMax: 60,
    approvals: ['mail'],
    script: script(
      when('mail', reply('mail'), DONE),
      when('looks', ...Array.from({ length: 25 }, () => reply('look')), reply('mail'), DONE),
    ),
  });
});

async function flood(runId: string, nudges: number): Promise<void> {
  const handle = world.client.workflow.getHandle(runId);
  for (let sent = 0; sent < nudges; sent += 50) {
    await Promise.all(Array.from({ length: Math.min(50, nudges - sent) }, () => handle.signal(NUDGE_SIGNAL)));
  }
}

test('a flood of messages while a run continues as new again and again loses no decision (D10)', async () => {
  const runId = await world.run({ input: `looks ${randomUUID()}` });
  await world.waitFor(runId, ({ epoch }) => epoch >= 2);
  await flood(runId, 300);
  const [wait] = await untilGated(world, runId);
  await Promise.all([flood(runId, 100), decide(world, wait)]);
  await world.waitFor(runId, 'completed');
  expect((await world.runRow(runId)).epoch).toBeGreaterThan(3);
  expect(applied(world, runId)).toEqual({ [keyOf(runId, { step: 26 })]: 1 });
  await checkRun(world, runId);
});

test('more messages than a workflow task buffers are all taken, and a cancel among them acts (D08, D14)', async () => {
  const own = await startWorld({
    workers: 0,
    approvals: ['mail'],
    script: script(when('mail', reply('mail'), DONE)),
  });
  const first = await own.startWorker();
  const runId = await own.run({ input: 'mail' });
  await untilGated(own, runId);
  await first.stop();
  const handle = own.client.workflow.getHandle(runId);
  await Promise.all(Array.from({ length: 150 }, () => handle.signal(NUDGE_SIGNAL)));
  expect(await command(own, runId, 'cancel')).toBe('accepted');
  await Promise.all(Array.from({ length: 150 }, () => handle.signal(NUDGE_SIGNAL)));
  await own.startWorker();
  await own.waitFor(runId, 'cancelled');
  expect(await fates(own, runId)).toEqual(['cancel applied']);
  expect(own.targetLog(runId)).toEqual([]);
  await checkRun(own, runId);
  await own.close();
});

test('a decision whose every message was lost is taken up by the sweeper’s next telling (D11)', async () => {
  const runId = await world.run({ input: `mail ${randomUUID()}` });
  const [wait] = await untilGated(world, runId);
  // The message is not sent; the decision stands since a while.
  await decideUntold(wait?.interrupt_id ?? '');
  expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval' });
  await world.rows(
    `update holdfast.interrupts set decided_at = decided_at - interval '1 minute' where run_id = $1`,
    runId,
  );
  await world.sweeper.nudgeUndecided();
  await world.waitFor(runId, 'completed');
  expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
});

test('one command key is one command, before and after a continue-as-new (D12)', async () => {
  const runId = await world.run({ input: `looks ${randomUUID()}` });
  const idempotencyKey = randomUUID();
  const pause = async () =>
    await submitCommand(world.db, {
      ...{ tenantId: 'default', runId, kind: 'pause' as const, payload: {} },
      ...{ actorId: 'user:olga', authority: 'operator', expectedStateVersion: null },
      ...{ endpoint: `POST /v1/runs/${runId}/commands`, idempotencyKey },
    });
  expect(await pause()).toMatchObject({ kind: 'stored' });
  await tell(world, runId);
  await world.waitFor(runId, ({ control }) => control === 'paused');
  const { epoch } = await world.runRow(runId);
  expect(await command(world, runId, 'resume')).toBe('accepted');
  await world.waitFor(runId, (run) => run.epoch > epoch + 1);
  expect(await pause()).toMatchObject({ kind: 'replayed' });
  await tell(world, runId);
  const [wait] = await untilGated(world, runId);
  await decide(world, wait);
  await world.waitFor(runId, 'completed');
  expect(await fates(world, runId)).toEqual(['pause applied', 'resume applied']);
});

test('when all is said, ledger and target agree', async () => {
  await until(
    'nothing is open',
    async () => (await world.rows('select 1 from holdfast.runs where ended_at is null')).length === 0,
  );
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});

/** An approval of which no workflow is told. */
async function decideUntold(interruptId: string): Promise<void> {
  const [row] = await world.rows<{ scope_sha256: string }>(
    'select scope_sha256 from holdfast.interrupts where interrupt_id = $1',
    interruptId,
  );
  const decided = await decideApproval(world.db, {
    ...{ tenantId: 'default', interruptId, actorId: 'user:ben', authority: 'approver', decision: 'approve' },
    ...{ scopeSha256: row?.scope_sha256 ?? '', note: '', endpoint: 'test', idempotencyKey: randomUUID() },
  });
  expect(decided.kind).toBe('decided');
}
