import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { absent, defineTool, rejected, succeeded } from '../../activities/tools/define-tool.js';
import type { EffectPolicy } from '../../activities/tools/tool.js';
import { brokenControl, command, fates, heard } from '../support/desk-world.js';
import { judge } from '../support/judge.js';
import { arrived, checkRun } from '../support/run-checks.js';
import { startTestApi } from '../support/test-api.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { keyOf, startWorld, until, type World } from '../support/world.js';

// Cases from the field of kind CAN: a stop is over when what was stopped has stopped, and says what it found.

/** A program that hears no request to stop; it ends when it is killed. */
const DEAF = `process.on('SIGTERM', () => process.stdout.write('asked ')); setInterval(() => {}, 1000); process.stdout.write('up ')`;
/** What the deaf programs wrote, and how to end them, by the run that started them. */
const programs = new Map<string, { readonly child: ChildProcess; said: string }>();

type Declared = Omit<EffectPolicy, 'namespace'>;
const QUERY = { settlingSeconds: 0, equalAnswers: 2, intervalSeconds: 0.05, queriesMax: 3 };

/** A tool that starts such a program, passes the stop on to it once, and ends with it. */
function deafTool(name: string, timeoutSeconds: number, effect: Declared) {
  return defineTool({
    ...{ name, timeoutSeconds, effect, description: 'Runs a program.', input: { type: 'object' } as const },
    run: async (_args, { runId, signal }) => {
      const child = spawn(process.execPath, ['-e', DEAF], { stdio: ['ignore', 'pipe', 'ignore'] });
      const program = { child, said: '' };
      programs.set(runId, program);
      child.stdout.on('data', (words: Buffer) => (program.said += words.toString()));
      signal.addEventListener('abort', () => child.kill('SIGTERM'), { once: true });
      await once(child, 'exit');
      return name === 'patient' ? rejected({ status: 'stopped' }) : succeeded({ reference: 'job_1' });
    },
    ...(effect.query === undefined ? {} : { probe: () => absent() }),
  });
}

let world: World;
beforeAll(async () => {
  world = await startWorld({
    heartbeatSeconds: 1,
    tools: [
      deafTool('patient', 60, { class: 'opaque' }),
      deafTool('opaque', 1, { class: 'opaque' }),
      deafTool('queryable', 1, { class: 'queryable', query: QUERY }),
    ],
    script: script(
      when('third', { text: 'Looking, paying.', ...reply('look', 'pay', 'look') }, DONE),
      ...['patient', 'opaque', 'queryable'].map((tool) => when(tool, reply(call(tool, {})), DONE)),
    ),
  });
});
afterAll(() => {
  for (const { child } of programs.values()) child.kill('SIGKILL');
});

/** A run whose program is up. */
async function working(word: string): Promise<{ readonly runId: string; readonly program: ChildProcess }> {
  const runId = await world.run({ input: `${word} ${randomUUID()}` });
  await until('the program is up', () => programs.get(runId)?.said.includes('up'));
  return { runId, program: programs.get(runId)!.child };
}
const wasAsked = (runId: string) =>
  until('the abort has reached the program', () => programs.get(runId)?.said.includes('asked'));

describe('case 32: a tool whose program ignores the stop', () => {
  test('is waited for: the cancel is in force, and not over before the program is', async () => {
    const { runId, program } = await working('patient');
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    await wasAsked(runId);
    await heard(world, runId);
    expect(await world.runRow(runId)).toMatchObject({ control: 'cancel_requested', ended_at: null });
    expect(await world.attempts(runId)).toMatchObject([{ outcome: null }]);
    expect(program.exitCode ?? program.signalCode).toBeNull();
    program.kill('SIGKILL');
    await world.waitFor(runId, 'cancelled');
    expect(await world.effects(runId)).toMatchObject([{ state: 'rejected', attempts: 1 }]);
    expect(await fates(world, runId)).toEqual(['cancel applied']);
    await checkRun(world, runId);
  });

  test.each(['opaque', 'queryable'])(
    'and does not end in its time (%s) leaves the outcome unknown, whatever a query does not find',
    async (word) => {
      const { runId, program } = await working(word);
      expect(await command(world, runId, 'cancel')).toBe('accepted');
      await world.waitFor(
        runId,
        async ({ state }) =>
          state === 'needs_reconciliation' && (await queries(runId)) === (word === 'queryable' ? 3 : 0),
      );
      await heard(world, runId);
      expect(await world.attempts(runId)).toMatchObject([{ outcome: 'unknown', reason: 'still_running' }]);
      expect(await world.effects(runId)).toMatchObject([{ state: 'unknown', attempts: 1 }]);
      expect(program.exitCode ?? program.signalCode).toBeNull();
      // It ends after all, and says what it did: that settles it.
      program.kill('SIGKILL');
      await until('its answer is kept', async () => (await world.lateReceipts(runId)).length === 1);
      await world.sweeper.nudgeLateEvidence();
      await world.waitFor(runId, 'cancelled');
      expect(await world.effects(runId)).toMatchObject([{ state: 'committed' }]);
      expect(await world.receipts(runId)).toMatchObject([{ source: 'late_receipt', reference: 'job_1' }]);
      await checkRun(world, runId);
    },
  );
});

test('case 34: a cancel of a third call keeps what the first two did and what the model said', async () => {
  const api = await startTestApi({ databaseUrl: world.databaseUrl });
  const runId = await world.admit({ input: `third ${randomUUID()}` });
  world.target.dial({ mode: 'hold_before', key: keyOf(runId, { slot: 2 }) });
  await world.starter.round();
  await until('the third is in flight', () => keyOf(runId, { slot: 2 }) in arrived(world, runId));
  expect(await command(world, runId, 'cancel', { reason: 'Enough.' })).toBe('accepted');
  await world.waitFor(runId, 'cancelled');
  const read = async (path: string): Promise<unknown> =>
    (await api.request(`/v1/runs/${runId}${path}`)).json();
  expect(await read('')).toMatchObject({
    terminal: {
      outcome: 'cancelled',
      cancel: { actor_id: 'user:olga', authority: 'operator', reason: 'Enough.' },
      last_message: {
        parts: expect.arrayContaining([{ type: 'text', text: 'Looking, paying.' }]) as unknown,
      },
    },
  });
  const { effects } = (await read('/effects')) as { effects: { state: string; receipt: unknown }[] };
  expect(effects).toMatchObject([
    { state: 'succeeded', receipt: { status: 'succeeded' } },
    { state: 'succeeded', receipt: { status: 'succeeded' } },
    { state: 'not_committed' },
  ]);
  expect(await world.path(runId)).toEqual(['admitted', 'running', 'cancelling', 'cancelled']);
  await checkRun(world, runId);
  await api.close();
});

test('when all is said, nothing left after a cancel', async () => {
  // Its effects are no HTTP target's, so what the target saw is not compared.
  const broken = await judge(world, []);
  expect(broken.filter((line) => !line.startsWith('I06'))).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});

async function queries(runId: string): Promise<number> {
  return (await world.rows('select 1 from holdfast.status_queries where run_id = $1', runId)).length;
}
