import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { COMMAND_KINDS, type CommandKind, judgeCommand } from '../shared/domain/control-table.js';
import { claimResume, lookAtRun, runsToNudge } from '../shared/ledger/commands.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { commandsOf, control, drain, fates, submit } from './support/desk.js';
import type { LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: a command is stored, judged and in force in one transaction, once a key, and its fate follows the run.
// Method: ask from states that lead everywhere, at once and again, and read what the ledger holds.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

async function running(): Promise<LedgerRun> {
  const run = await ledger.newRun();
  await run.start();
  return run;
}

async function paused(): Promise<LedgerRun> {
  const run = await running();
  await submit(run, 'pause');
  await drain(run);
  return run;
}

const resume = (run: LedgerRun): Promise<void> => claimResume(ledger.db, run, run.trail());
const eventsOf = async (run: LedgerRun, type: string) =>
  (await ledger.events(run.runId)).filter((event) => event.type === type);

describe('a command', () => {
  test('is in force as soon as it is stored, with its actor in the trail', async () => {
    const run = await running();
    expect(await submit(run, 'pause')).toMatchObject({ kind: 'stored' });
    expect((await ledger.runRow(run.runId)).control).toBe('pause_requested');
    expect(await commandsOf(run)).toMatchObject([
      { fate: 'accepted', code: null, state: 'running', control: 'active', decided_at: null },
    ]);
    expect(await eventsOf(run, 'command.accepted')).toMatchObject([
      { data: { kind: 'pause', actor_id: 'user:olga', authority: 'operator' } },
    ]);
    const [, , last] = await ledger.rows<{ actor_id: string; reason: string }>(
      'select actor_id, reason from holdfast.transitions where run_id = $1 order by seq',
      run.runId,
    );
    expect(last).toStrictEqual({ actor_id: 'user:olga', reason: 'pause_requested' });
  });

  test.each(['pause', 'cancel'] as const)(
    'to %s stops the next claim before any message came',
    async (kind) => {
      const call = await ledger.newCall('opaque');
      await submit(call.run, kind);
      expect(await call.claim()).toStrictEqual({ kind: 'control', control: `${kind}_requested` });
      expect(await call.run.claimThink()).toMatchObject({ kind: 'control' });
      expect(await ledger.attempts(call.run.runId)).toStrictEqual([]);
    },
  );

  test('of another tenant, or for no run, is stored nowhere', async () => {
    const run = await running();
    expect(await submit(run, 'cancel', { tenantId: 'other' })).toStrictEqual({ kind: 'run_not_found' });
    expect(await submit(run, 'cancel', { runId: `run_${'0'.repeat(32)}` })).toMatchObject({
      kind: 'run_not_found',
    });
    expect(await commandsOf(run)).toStrictEqual([]);
  });

  test('that is refused is kept with its code and changes nothing else', async () => {
    const run = await running();
    const before = await ledger.runRow(run.runId);
    await submit(run, 'resume');
    expect(await fates(run)).toStrictEqual(['resume rejected not_paused']);
    expect(await ledger.runRow(run.runId)).toStrictEqual(before);
    expect(await eventsOf(run, 'command.rejected')).toMatchObject([{ data: { code: 'not_paused' } }]);
  });

  test('to a run that has ended is kept, and the feed stays ended', async () => {
    const run = await running();
    await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
    const before = await ledger.events(run.runId);
    for (const kind of COMMAND_KINDS) await submit(run, kind);
    expect(await fates(run)).toStrictEqual(COMMAND_KINDS.map((kind) => `${kind} rejected run_ended`));
    expect(await ledger.events(run.runId)).toStrictEqual(before);
  });

  test('cannot be deleted by anybody, nor written by the application', async () => {
    const run = await running();
    await submit(run, 'pause');
    await expect(ledger.rows('delete from holdfast.commands')).rejects.toThrow(/append_only/);
    await expect(ledger.db.query(`update holdfast.commands set fate = 'applied'`)).rejects.toThrow(
      /permission denied/,
    );
  });
});

describe('the same key', () => {
  test('twenty times at once is one command', async () => {
    const run = await running();
    const idempotencyKey = randomUUID();
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => submit(run, 'pause', { idempotencyKey })),
    );
    expect(answers.filter(({ kind }) => kind === 'stored')).toHaveLength(1);
    expect(answers.filter(({ kind }) => kind === 'replayed')).toHaveLength(19);
    expect(new Set(answers.map((answer) => 'commandId' in answer && answer.commandId)).size).toBe(1);
    expect(await fates(run)).toStrictEqual(['pause accepted']);
    expect(await eventsOf(run, 'command.accepted')).toHaveLength(1);
  });

  test('with another kind, reason or version is another request', async () => {
    const run = await running();
    const idempotencyKey = randomUUID();
    await submit(run, 'pause', { idempotencyKey });
    const before = await ledger.runRow(run.runId);
    for (const changes of [{ payload: { reason: 'lunch' } }, { expectedStateVersion: 2 }]) {
      expect(await submit(run, 'pause', { idempotencyKey, ...changes })).toMatchObject({ kind: 'reused' });
    }
    expect(await submit(run, 'cancel', { idempotencyKey })).toMatchObject({ kind: 'reused' });
    expect(await ledger.runRow(run.runId)).toStrictEqual(before);
  });

  test('answers with the same command for ever, even a refused one', async () => {
    const run = await running();
    const idempotencyKey = randomUUID();
    await submit(run, 'resume', { idempotencyKey });
    await submit(run, 'pause');
    await drain(run);
    expect(await submit(run, 'resume', { idempotencyKey })).toMatchObject({ kind: 'replayed' });
    expect((await ledger.runRow(run.runId)).control).toBe('paused');
  });
});

describe('the expected state version', () => {
  test('lets the command through when nothing has moved, and refuses it when something has', async () => {
    const run = await running();
    const { state_version: seen } = await ledger.runRow(run.runId);
    await submit(run, 'pause', { expectedStateVersion: seen - 1 });
    expect((await ledger.runRow(run.runId)).control).toBe('active');
    await submit(run, 'pause', { expectedStateVersion: seen });
    expect((await ledger.runRow(run.runId)).control).toBe('pause_requested');
    await submit(run, 'cancel', { expectedStateVersion: seen });
    expect(await fates(run)).toStrictEqual([
      'pause rejected state_version_conflict',
      'pause accepted',
      'cancel rejected state_version_conflict',
    ]);
  });
});

describe('of commands at once', () => {
  test('twenty resumes claim once, and nineteen are told so', async () => {
    const run = await paused();
    await Promise.all(Array.from({ length: 20 }, () => submit(run, 'resume')));
    expect((await fates(run)).toSorted()).toStrictEqual([
      'pause applied',
      'resume accepted',
      ...Array<string>(19).fill('resume rejected resume_in_progress'),
    ]);
    const { epoch } = await ledger.runRow(run.runId);
    await resume(run);
    await resume(run);
    expect(await ledger.runRow(run.runId)).toMatchObject({ control: 'active', epoch: epoch + 1 });
    expect(await eventsOf(run, 'run.resumed')).toHaveLength(1);
  });

  test('twenty cancels are one, and nineteen find it so', async () => {
    const run = await running();
    await Promise.all(Array.from({ length: 20 }, () => submit(run, 'cancel')));
    expect((await fates(run)).toSorted()).toStrictEqual([
      'cancel accepted',
      ...Array<string>(19).fill('cancel applied'),
    ]);
  });
});

describe('the fate of a command', () => {
  test('pause and resume are applied when the run says so', async () => {
    const run = await running();
    await submit(run, 'pause');
    await run.commit(control('pausing', 'pause_requested'));
    expect(await fates(run)).toStrictEqual(['pause accepted']);
    await run.commit(control('paused', 'drained'));
    await submit(run, 'resume');
    expect(await fates(run)).toStrictEqual(['pause applied', 'resume accepted']);
    await resume(run);
    expect(await fates(run)).toStrictEqual(['pause applied', 'resume applied']);
    expect((await eventsOf(run, 'command.applied')).map(({ data }) => data['kind'])).toStrictEqual([
      'pause',
      'resume',
    ]);
  });

  test('what is dispatched after a resume stands under the epoch that it raised', async () => {
    const call = await ledger.newCall('opaque');
    const { run } = call;
    await submit(run, 'pause');
    await drain(run);
    await submit(run, 'resume');
    await resume(run);
    const attempt = await call.claimed();
    const [row] = await ledger.rows<{ epoch: number }>(
      'select epoch from holdfast.attempts where attempt_id = $1',
      attempt.attemptId,
    );
    expect(row?.epoch).toBe((await ledger.runRow(run.runId)).epoch);
  });

  test('a cancel is applied when the run enters cancelling', async () => {
    const run = await running();
    await submit(run, 'cancel');
    await run.commit(control('active', 'cancel_requested'), {
      ...{ kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    });
    expect(await fates(run)).toStrictEqual(['cancel applied']);
    await run.commit({ kind: 'move', to: 'cancelled', reason: 'wound_down' });
    expect(await fates(run)).toStrictEqual(['cancel applied']);
  });

  test('a cancel of what never began is applied on the spot, and no workflow is needed', async () => {
    const run = await ledger.newRun();
    await submit(run, 'pause');
    await submit(run, 'cancel');
    expect(await fates(run)).toStrictEqual(['pause expired run_ended', 'cancel applied']);
    expect(await ledger.runRow(run.runId)).toMatchObject({ state: 'cancelled', owner_execution: null });
    await expect(run.start()).rejects.toSatisfy((error) => refusalOf(error) === 'run_ended');
  });

  test('a pause or resume that a cancel overtakes expires', async () => {
    const pausing = await running();
    await submit(pausing, 'pause');
    await submit(pausing, 'cancel');
    expect(await fates(pausing)).toStrictEqual(['pause expired cancel_in_force', 'cancel accepted']);
    const resuming = await paused();
    await submit(resuming, 'resume');
    await submit(resuming, 'cancel');
    expect(await fates(resuming)).toStrictEqual([
      'pause applied',
      'resume expired cancel_in_force',
      'cancel accepted',
    ]);
    expect((await ledger.runRow(resuming.runId)).control).toBe('cancel_requested');
  });

  test('what a run has not carried out when it ends expires', async () => {
    const run = await running();
    await submit(run, 'pause');
    await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
    expect(await fates(run)).toStrictEqual(['pause expired run_ended']);
  });
});

test('in any order of commands and safe points the ledger judges by the table and never leaves it (E14)', async () => {
  type Act = CommandKind | 'safe_point' | 'end';
  const acts = fc.array(fc.constantFrom<Act>(...COMMAND_KINDS, 'safe_point', 'safe_point', 'end'), {
    minLength: 3,
    maxLength: 14,
  });
  await fc.assert(
    fc.asyncProperty(acts, async (order) => {
      const run = await running();
      for (const act of order) {
        const before = await ledger.runRow(run.runId);
        if (act === 'end' || act === 'safe_point') {
          await carryOut(run, before.control, before.state, act);
          continue;
        }
        await submit(run, act);
        const stored = (await commandsOf(run)).at(-1)!;
        const verdict = judgeCommand(act, before.state, before.control);
        const fate =
          { accepted: 'accepted', applied: 'applied', same: 'applied' }[verdict as string] ?? 'rejected';
        expect([stored.kind, stored.fate, stored.code ?? verdict]).toStrictEqual([act, fate, verdict]);
      }
      const { ended_at, control: last } = await ledger.runRow(run.runId);
      const open = (await commandsOf(run)).filter(({ fate }) => fate === 'accepted');
      expect(open.length).toBeLessThanOrEqual(1);
      if (ended_at !== null || last === 'active' || last === 'paused') expect(open).toStrictEqual([]);
    }),
    { numRuns: 40 },
  );
});

/** What the workflow does with what it finds. */
async function carryOut(
  run: LedgerRun,
  found: string,
  state: string,
  act: 'safe_point' | 'end',
): Promise<void> {
  if (state === 'cancelling') await run.commit({ kind: 'move', to: 'cancelled', reason: 'wound_down' });
  if (state !== 'running') return;
  if (found === 'cancel_requested') {
    await run.commit(control('active', 'cancel_requested'), {
      ...{ kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    });
  } else if (found === 'pause_requested') await drain(run);
  else if (found === 'resume_requested') await resume(run);
  else if (found === 'active' && act === 'end') {
    await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
  }
}

describe('a workflow that is told to look', () => {
  test('finds what is asked of it, and is refused when the run has another owner', async () => {
    const run = await running();
    await submit(run, 'pause');
    expect(await lookAtRun(ledger.db, run)).toMatchObject({
      ...{ state: 'running', control: 'pause_requested', openApprovals: 0, nextExpiryMs: null, unknown: [] },
    });
    await run.takenOver();
    await expect(lookAtRun(ledger.db, run)).rejects.toSatisfy(
      (error) => refusalOf(error) === 'unknown_execution' || refusalOf(error) === 'lost_ownership',
    );
  });

  test('is told again of what it has not taken up, until it has', async () => {
    const run = await running();
    await run.commit({ kind: 'move', to: 'awaiting_approval', reason: 'approval_needed' });
    await submit(run, 'pause');
    expect(await runsToNudge(ledger.db, 1_000, 0)).toContain(run.runId);
    expect(await runsToNudge(ledger.db, 1_000, 60)).not.toContain(run.runId);
    await drain(run);
    expect(await runsToNudge(ledger.db, 1_000, 0)).not.toContain(run.runId);
  });
});
