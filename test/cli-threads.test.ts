import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CONTRACT, holdfast } from './support/cli.js';
import { addCooldowns } from './support/cooldowns.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { exchange, idle, remember, setTrigger, sleepers } from './support/memory.js';
import { TestThread, threadContract } from './support/threads.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: conversations, schedules, checkpoints, retries, cool-downs and limits are steered from the command line, which sends
// what was asked for, once for its key, and shows what the API answers.

let ledger: LedgerWorld;
let api: TestApi;
let folder: string;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  folder = await mkdtemp(join(tmpdir(), 'holdfast-cli-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const run = (...args: string[]) => holdfast(api.url, args);
const one = async (...args: string[]) => {
  const ended = await run(...args);
  expect([args, ended.code, ended.code === 0 ? '' : ended.err]).toEqual([args, 0, '']);
  return ended.rows()[0] ?? {};
};
const written = async (name: string, value: unknown): Promise<string> => {
  await writeFile(join(folder, name), JSON.stringify(value));
  return `@${join(folder, name)}`;
};

test('a thread is created, spoken to once for a key, read, remembered, archived and taken back', async () => {
  const contract = await written('contract.json', threadContract());
  const { thread_id: id } = await one('threads', 'create', '-a', LEDGER_AGENT.name, '--contract', contract);
  const threadId = String(id);
  const say = () => one('threads', 'post', threadId, '-t', 'Hello?', '--policy', 'enqueue', '--key', 'k1');
  expect((await say())['message_id']).toBe((await say())['message_id']);
  expect((await run('threads', 'messages', threadId)).rows()).toMatchObject([{ seq: 1, text: 'Hello?' }]);
  expect((await run('threads', 'list', '-a', LEDGER_AGENT.name)).rows()).toMatchObject([
    { thread_id: threadId },
  ]);
  expect(await one('threads', 'archive', threadId)).toMatchObject({ archived: { by: 'cleo' } });
  expect((await run('threads', 'post', threadId, '-t', 'Still there?')).code).not.toBe(0);
  expect(await one('threads', 'unarchive', threadId)).toMatchObject({ archived: null });
  expect(await one('threads', 'show', threadId)).toMatchObject({ messages: { total: 1 } });

  const other = await one('threads', 'create', '-a', LEDGER_AGENT.name, '--contract', contract);
  const thread = new TestThread(ledger, String(other['thread_id']), LEDGER_AGENT.name, threadContract());
  await setTrigger(ledger);
  await exchange(ledger, thread, 'one');
  await idle(ledger, thread);
  const [sleeper] = await sleepers(ledger, thread);
  await remember(sleeper!, 0, 'They said one.');
  expect(await one('threads', 'memory', thread.threadId)).toMatchObject({
    generation: 1,
    text: 'They said one.',
  });
});

test('a schedule is made from a file, run, paused, resumed, backfilled and ended', async () => {
  const definition = await written('nightly.json', {
    ...{ name: 'nightly', agent: LEDGER_AGENT.name, input: 'Look.', contract: threadContract() },
    timing: { cron: ['0 3 * * *'], time_zone: 'Europe/Berlin' },
  });
  const id = String((await one('schedules', 'create', '-d', definition))['schedule_id']);
  expect((await run('schedules', 'list')).rows()).toMatchObject([{ schedule_id: id, name: 'nightly' }]);
  expect(await one('schedules', 'run-now', id)).toMatchObject({ state: 'started', asked_by: 'cleo' });
  expect((await run('schedules', 'occurrences', id)).rows()).toMatchObject([{ source: 'run_now' }]);
  expect((await one('schedules', 'pause', id))['paused_at']).not.toBeNull();
  expect((await one('schedules', 'resume', id))['paused_at']).toBeNull();
  const stretch = ['--from', '2026-01-01T00:00:00Z', '--to', '2026-01-02T00:00:00Z'];
  // Nobody can be asked in a pipe.
  expect((await run('schedules', 'backfill', id, ...stretch)).code).not.toBe(0);
  expect(await ledger.rows('select from holdfast.schedule_backfills')).toHaveLength(0);
  await one('schedules', 'backfill', id, ...stretch, '--yes');
  expect(await ledger.rows('select from holdfast.schedule_backfills')).toHaveLength(1);
  expect((await one('schedules', 'delete', id, '--yes'))['deleted_at']).not.toBeNull();
  expect((await run('schedules', 'run-now', id)).code).not.toBe(0);
});

test('a run is forked from one of its checkpoints, limits are set and lifted, and what stops is listed', async () => {
  const started = await one('runs', 'start', '-a', LEDGER_AGENT.name, '-i', 'Look at ORD-1', ...CONTRACT);
  const runId = String(started['run_id']);
  const checkpoint = await one('checkpoints', 'list', runId);
  const id = String(checkpoint['checkpoint_id']);
  expect(await one('checkpoints', 'show', id)).toMatchObject({ run_id: runId, boundary: 'run_created' });
  const fork = await one(
    'runs',
    'fork',
    runId,
    '-c',
    id,
    '-m',
    'simulate',
    '--edits',
    '{"add_message":"Again."}',
  );
  expect(fork['run_id']).not.toBe(runId);
  expect((await run('runs', 'fork', runId, '-c', id, '-m', 'dream')).code).toBe(2);

  expect(await one('limits', 'set', '-a', LEDGER_AGENT.name, '--max', '3')).toMatchObject({ active_max: 3 });
  expect((await run('limits', 'list')).rows()).toMatchObject([{ agent: LEDGER_AGENT.name, active_max: 3 }]);
  expect((await run('limits', 'set')).code).toBe(2);
  expect((await run('limits', 'set', '-a', LEDGER_AGENT.name, '--lift')).rows()).toEqual([]);
  expect((await run('retries', 'list', '--run', runId)).rows()).toEqual([]);
  await addCooldowns(ledger);
  const cooldowns = (await run('cooldowns', 'list')).rows();
  const inForce = cooldowns.find(({ state }) => state === 'in_force');
  expect(await one('cooldowns', 'clear', String(inForce!['cooldown_id']), '--yes')).toMatchObject({
    cleared: { actor_id: 'cleo' },
  });
});
