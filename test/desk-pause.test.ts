import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { defineTool } from '../activities/tools/define-tool.js';
import { registerAgent } from '../shared/ledger/admission.js';
import { runsToNudge } from '../shared/ledger/commands.js';
import { readRun } from '../shared/ledger/reads/read-run.js';
import {
  brokenControl,
  command,
  decide,
  fates,
  heard,
  resetRun,
  settle,
  tell,
  untilGated,
  waits,
} from './support/desk-world.js';
import { judge } from './support/judge.js';
import { arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: a pause lets what is in flight settle and begins nothing new, in every state; a resume goes on from there under
// a new epoch (SPEC 4, case 39). Method: a pause meets a run in each place where it can stand; what the target and
// the model saw is counted before and after the resume.

let world: World;

/** A tool that needs a secret, and whether this process has it. */
let hasSecret = true;
const guarded = {
  ...defineTool({
    ...{ name: 'guarded', description: 'Needs a secret.', input: { type: 'object' as const } },
    ...{ effect: { class: 'read' as const }, timeoutSeconds: 5, run: () => null },
  }),
  missingSecrets: () => (hasSecret ? [] : ['VAULT_TOKEN_NAME']),
};

beforeAll(async () => {
  world = await startWorld({
    tools: [guarded],
    script: script(
      when('pay', reply('pay'), DONE),
      when('mail', reply('mail'), DONE),
      when('chain', reply('pay'), reply('mail'), DONE),
      when('slow', { delayMs: 700, text: 'Slowly.' }),
    ),
  });
});

const unique = (word: string): string => `${word} ${randomUUID()}`;

async function pause(runId: string): Promise<void> {
  expect(await command(world, runId, 'pause')).toBe('accepted');
  await world.waitFor(runId, ({ control }) => control === 'paused');
  expect(await fates(world, runId)).toEqual(['pause applied']);
}

/** Resumes a paused run. @returns once it has ended `completed` under the next epoch */
async function resumed(runId: string): Promise<void> {
  const { epoch } = await world.runRow(runId);
  expect(await command(world, runId, 'resume')).toBe('accepted');
  expect(await world.waitFor(runId, 'completed')).toMatchObject({ control: 'active', epoch: epoch + 1 });
  expect(await fates(world, runId)).toEqual(['pause applied', 'resume applied']);
  await checkRun(world, runId);
}

/** How far the run got: what the target and the model saw. */
function seen(runId: string): unknown {
  return [arrived(world, runId), modelRequests(world, runId).length];
}

describe('a resume looks again at what the run has pinned', () => {
  const blockOf = async (runId: string) =>
    (await readRun(world.db, { tenantId: 'default', runId }))?.control.resume_blocked ?? null;

  async function pausedAtFirst(request: { readonly agent?: string } = {}): Promise<string> {
    const runId = await world.admit({ input: unique('pay'), ...request });
    expect(await command(world, runId, 'pause')).toBe('accepted');
    await world.starter.round();
    await world.waitFor(runId, ({ control }) => control === 'paused');
    return runId;
  }

  test('a secret that is gone holds it where it is, names it nowhere in a history, and lets it go when it is back', async () => {
    const runId = await pausedAtFirst();
    hasSecret = false;
    expect(await command(world, runId, 'resume')).toBe('accepted');
    await until('it is blocked', async () => (await blockOf(runId)) !== null);
    expect(await blockOf(runId)).toMatchObject({
      faults: [{ code: 'secret_missing', name: 'VAULT_TOKEN_NAME' }],
    });
    expect(await world.runRow(runId)).toMatchObject({
      control: 'resume_requested',
      epoch: 1,
      state: 'running',
    });
    // Told again it looks again, and the feed does not fill with it. The sweeper tells it once a minute.
    expect(await runsToNudge(world.db, 100, 0)).not.toContain(runId);
    await world.rows(
      `update holdfast.resume_blocks set checked_at = checked_at - interval '1 hour' where run_id = $1`,
      runId,
    );
    expect(await runsToNudge(world.db, 100, 0)).toContain(runId);
    await tell(world, runId);
    await until('it has looked again', async () => !(await runsToNudge(world.db, 100, 0)).includes(runId));
    expect(
      await world.rows(
        `select seq from holdfast.run_events where run_id = $1 and type = 'run.resume_blocked'`,
        runId,
      ),
    ).toHaveLength(1);
    expect(seen(runId)).toEqual([{}, 0]);
    hasSecret = true;
    await tell(world, runId);
    await world.waitFor(runId, 'completed');
    expect(await world.runRow(runId)).toMatchObject({ epoch: 2 });
    expect(await blockOf(runId)).toBeNull();
    const { events } = await world.client.workflow.getHandle(runId).fetchHistory();
    expect(JSON.stringify(events)).not.toMatch(/VAULT_TOKEN_NAME|secret/);
    expect(await fates(world, runId)).toEqual(['pause applied', 'resume applied']);
    await checkRun(world, runId);
  });

  test('a tool that no worker carries in its version holds it too, and a cancel still ends it', async () => {
    const [agent] = world.project.agents;
    const gone = { ...agent!.tools[0]!, name: 'gone' };
    const changed = { ...agent!.tools[0]!, version: 'f'.repeat(64) };
    const tools = [changed, gone, ...agent!.tools.slice(1)];
    await registerAgent(world.db, { ...agent!, name: 'elsewhere', tools });
    const runId = await pausedAtFirst({ agent: 'elsewhere' });
    expect(await command(world, runId, 'resume')).toBe('accepted');
    await until('it is blocked', async () => (await blockOf(runId)) !== null);
    expect((await blockOf(runId))?.faults).toEqual([
      { code: 'tool_changed', name: changed.name },
      { code: 'tool_missing', name: 'gone' },
    ]);
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    await world.waitFor(runId, 'cancelled');
    expect(seen(runId)).toEqual([{}, 0]);
    expect(await blockOf(runId)).toBeNull();
    await checkRun(world, runId);
  });
});

describe('a pause', () => {
  test('while a call is in flight lets it settle, then nothing new begins until the resume', async () => {
    const runId = await world.admit({ input: unique('chain') });
    world.target.dial({ mode: 'hold_after', key: keyOf(runId), times: 1 });
    await world.starter.round();
    await until('the target has the call', () => keyOf(runId) in arrived(world, runId));
    expect(await command(world, runId, 'pause')).toBe('accepted');
    expect(await command(world, runId, 'resume')).toBe('rejected pause_in_progress');
    expect(await world.runRow(runId)).toMatchObject({ control: 'pause_requested' });
    world.target.release();
    await world.waitFor(runId, ({ control }) => control === 'paused');
    expect(await world.effects(runId)).toMatchObject([{ state: 'succeeded', attempts: 1 }]);
    expect(seen(runId)).toEqual([{ [keyOf(runId)]: 1 }, 1]);
    expect(await command(world, runId, 'pause')).toBe('applied');
    await heard(world, runId);
    expect(seen(runId)).toEqual([{ [keyOf(runId)]: 1 }, 1]);
    expect(await command(world, runId, 'resume')).toBe('accepted');
    expect(await world.waitFor(runId, 'completed')).toMatchObject({ epoch: 2 });
    expect(seen(runId)).toEqual([{ [keyOf(runId)]: 1, [keyOf(runId, { step: 2 })]: 1 }, 3]);
    expect(
      (await world.transitions(runId)).flatMap((t) => (t.region === 'control' ? [t.to_state] : [])),
    ).toEqual([...['pause_requested', 'pausing', 'paused', 'resume_requested', 'claiming', 'active']]);
    await checkRun(world, runId);
  });

  test('while the model answers keeps the answer, and does not end the run with it', async () => {
    const runId = await world.run({ input: unique('slow') });
    await until('the model is asked', () => modelRequests(world, runId).length === 1);
    await pause(runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'running' });
    await resumed(runId);
    expect(modelRequests(world, runId)).toHaveLength(1);
  });

  test('before a worker has taken the run up holds it at its first step', async () => {
    const own = await startWorld({ workers: 0, script: script(when('mail', reply('mail'), DONE)) });
    const runId = await own.admit({ input: 'mail' });
    expect(await command(own, runId, 'pause')).toBe('accepted');
    await own.starter.round();
    await own.startWorker();
    await own.waitFor(runId, ({ control }) => control === 'paused');
    expect(modelRequests(own, runId)).toEqual([]);
    await command(own, runId, 'resume');
    await own.waitFor(runId, 'completed');
    await checkRun(own, runId);
    await own.close();
  });

  test('holds a retry that comes due meanwhile, across a restart (case 39)', async () => {
    const own = await startWorld({ workers: 0, script: script(when('pay', reply('pay'), DONE)) });
    const first = await own.startWorker();
    const runId = await own.admit({ input: 'pay' });
    own.target.dial({ mode: 'in_progress_409', retryAfter: '1', times: 1 });
    await own.starter.round();
    await own.waitFor(runId, 'retry_wait');
    await command(own, runId, 'pause');
    await own.waitFor(runId, ({ control }) => control === 'paused');
    await first.stop();
    await until('the retry is due', async () => {
      const due = 'select 1 from holdfast.retries where run_id = $1 and eligible_at < clock_timestamp()';
      return (await own.rows(due, runId)).length === 1;
    });
    await own.startWorker();
    await command(own, runId, 'pause');
    await heard(own, runId);
    expect(await own.runRow(runId)).toMatchObject({ state: 'retry_wait', control: 'paused' });
    expect(arrived(own, runId)).toEqual({ [keyOf(runId)]: 1 });
    await command(own, runId, 'resume');
    await own.waitFor(runId, 'completed');
    expect(arrived(own, runId)).toEqual({ [keyOf(runId)]: 2 });
    await checkRun(own, runId);
    expect(await judge(own, own.targetLog())).toEqual([]);
    expect(await brokenControl(own)).toEqual([]);
    await own.close();
  });

  test('of a run that waits for an approval: the yes is taken, and used after the resume', async () => {
    const contract = { effects: { mail: { approval: 'required' } } };
    const runId = await world.run({ input: unique('mail'), contract });
    const [wait] = await untilGated(world, runId);
    await pause(runId);
    expect(await decide(world, wait)).toBe('decided');
    await heard(world, runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval', control: 'paused' });
    expect(arrived(world, runId)).toEqual({});
    await resumed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await waits(world, runId)).toMatchObject([{ state: 'consumed' }]);
  });

  test('of a run that waits for a settlement: it is settled, and goes on after the resume', async () => {
    const runId = await world.admit({ input: unique('mail') });
    world.target.dial({ mode: 'drop_after', key: keyOf(runId) });
    await world.starter.round();
    await world.waitFor(runId, 'needs_reconciliation');
    await pause(runId);
    expect(await settle(world, runId)).toBe('settled');
    await heard(world, runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'needs_reconciliation', control: 'paused' });
    await resumed(runId);
  });

  test('is kept by an execution that takes over', async () => {
    const contract = { effects: { mail: { approval: 'required' } } };
    const runId = await world.run({ input: unique('mail'), contract });
    const [wait] = await untilGated(world, runId);
    await pause(runId);
    await resetRun(world, runId);
    await world.waitFor(runId, ({ epoch }) => epoch === 2);
    await decide(world, wait);
    await heard(world, runId);
    expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval', control: 'paused' });
    expect(arrived(world, runId)).toEqual({});
    await resumed(runId);
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  });
});

test('of two resumes at once one claims, and the other is told so', async () => {
  const contract = { effects: { mail: { approval: 'required' } } };
  const runId = await world.run({ input: unique('mail'), contract });
  const [wait] = await untilGated(world, runId);
  await pause(runId);
  const both = await Promise.all([command(world, runId, 'resume'), command(world, runId, 'resume')]);
  expect(both.filter((fate) => fate === 'accepted')).toHaveLength(1);
  expect(both.filter((fate) => fate.startsWith('rejected'))).toHaveLength(1);
  expect(await world.waitFor(runId, ({ control }) => control === 'active')).toMatchObject({
    state: 'awaiting_approval',
    epoch: 2,
  });
  await decide(world, wait);
  await world.waitFor(runId, 'completed');
  await checkRun(world, runId);
});

test('a pause that races a result keeps the result, and lets nothing new out before the resume (E13)', async () => {
  const raced = await Promise.all(
    Array.from({ length: 12 }, async (_, index) => {
      const runId = await world.run({ input: unique('chain') });
      // At a different place between the claim of the first call and the claim of the second each time.
      await world.waitFor(runId, async ({ model_calls }) => {
        if (index % 4 === 0) return (await world.attempts(runId)).length >= 1;
        if (index % 4 === 1) return keyOf(runId) in arrived(world, runId);
        return index % 4 === 2 ? (await world.receipts(runId)).length >= 1 : model_calls >= 2;
      });
      const fate = await command(world, runId, 'pause');
      if (fate !== 'accepted') return { runId, fate };
      await world.waitFor(runId, ({ control, ended_at }) => control === 'paused' || ended_at !== null);
      return { runId, fate };
    }),
  );
  const paused: string[] = [];
  for (const { runId, fate } of raced) {
    const { control } = await world.runRow(runId);
    if (control !== 'paused') {
      // It was over first, and the pause was told so.
      expect([fate, (await fates(world, runId))[0]]).toContainEqual(expect.stringContaining('run_ended'));
      continue;
    }
    paused.push(runId);
    // Whatever had left is settled: nothing is lost, and nothing hangs in the air.
    const settled = (await world.effects(runId)).filter(({ attempts }) => attempts > 0);
    expect(settled.map(({ state }) => state)).toEqual(settled.map(() => 'succeeded'));
    expect(await world.receipts(runId)).toHaveLength(settled.length);
  }
  expect(paused.length).toBeGreaterThan(0);
  for (const runId of paused) await command(world, runId, 'resume');
  for (const { runId } of raced) {
    await world.waitFor(runId, 'completed');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1, [keyOf(runId, { step: 2 })]: 1 });
    await checkRun(world, runId);
  }
}, 60_000);

test('when all is said, ledger and target agree, and nothing began in a pause', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});
