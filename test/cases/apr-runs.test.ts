import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { InterruptListView, InterruptView } from '../../api/views/desk-views.js';
import { untilDelegated } from '../support/child-world.js';
import { brokenControl, heard, tell, toldResults, untilGated, waits } from '../support/desk-world.js';
import { judge } from '../support/judge.js';
import { arrived, checkRun, modelRequests } from '../support/run-checks.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { startTestApi, type TestApi } from '../support/test-api.js';
import { keyOf, startWorld, until, type World, type WorldWorker } from '../support/world.js';

// Cases from the field of kinds APR and HIST whose approvals go through the API to runs at work, and meet restarts.

const GATED = { effects: { mail: { approval: 'required' } } };
const file = (name: string) => call('mail', { note: `edit ${name} of {{input}}` });

let world: World;
let api: TestApi;
let worker: WorldWorker;
beforeAll(async () => {
  world = await startWorld({
    workers: 0,
    approvals: ['mail'],
    delegates: { help: { agent: 'helper', description: 'Does one thing.' } },
    helpers: { helper: [{ name: 'book', approval: 'required' }] },
    script: script(
      when('two', reply(file('a')), reply(file('b')), DONE),
      when('one', reply(file('a')), DONE),
      when('asks', reply(call('help', { task: 'book {{input}}' })), DONE),
      when('book', reply('book'), { text: 'Booked.' }),
    ),
  });
  worker = await world.startWorker();
  api = await startTestApi({ databaseUrl: world.databaseUrl });
});

async function restart(): Promise<void> {
  await worker.stop();
  worker = await world.startWorker();
}

interface Known {
  readonly interrupt_id: string;
  readonly scope_sha256: string;
  readonly run_id: string;
}

async function approve({ interrupt_id, scope_sha256, run_id }: Known): Promise<Response> {
  const response = await api.request(`/v1/interrupts/${interrupt_id}/resolve`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-actor': 'user:ben', 'idempotency-key': randomUUID() },
    body: JSON.stringify({ decision: 'approve', scope_sha256 }),
  });
  await tell(world, run_id);
  return response;
}

const shown = async (id: string | undefined) =>
  InterruptView.parse(await (await api.request(`/v1/interrupts/${id}`)).json());

/** The run's one wait, whatever has become of it by now. */
async function asked(runId: string): Promise<Known> {
  const [wait] = await until('somebody is asked', async () => {
    const rows = await waits(world, runId);
    return rows.length === 1 && rows;
  });
  return wait!;
}

async function listed(query: string) {
  const response = await api.request(`/v1/interrupts?${query}`);
  return InterruptListView.parse(await response.json()).interrupts;
}

test('case 16: a yes to one file is no yes to another, across a restart', async () => {
  const runId = await world.run({ input: `two ${randomUUID()}`, contract: GATED });
  const [first] = await untilGated(world, runId);
  expect((await approve(first!)).status).toBe(200);
  await world.waitFor(runId, async () => (await waits(world, runId)).length === 2);
  const [second] = await untilGated(world, runId);
  await restart();
  expect(second?.scope_sha256).not.toBe(first?.scope_sha256);
  // Neither the first yes again nor its digest under the second wait lets the second call go.
  expect((await approve(first!)).status).toBe(409);
  expect((await approve({ ...second!, scope_sha256: first!.scope_sha256 })).status).toBe(409);
  await heard(world, runId);
  expect(await world.runRow(runId)).toMatchObject({ state: 'awaiting_approval' });
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  expect(await waits(world, runId)).toMatchObject([{ state: 'consumed' }, { state: 'open' }]);
  expect((await approve(second!)).status).toBe(200);
  await world.waitFor(runId, 'completed');
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1, [keyOf(runId, { step: 2 })]: 1 });
  await checkRun(world, runId);
});

test('case 20: what a child asks stands in its parent’s list under the child’s name, and runs in the child', async () => {
  const runId = await world.run({ input: `asks ${randomUUID()}` });
  const [child = ''] = await untilDelegated(world, runId);
  await untilGated(world, child);
  await restart();
  const open = await listed(`root_run_id=${runId}`);
  expect(open).toMatchObject([{ run_id: child, agent: 'helper', root_run_id: runId }]);
  const [asked] = open;
  expect(await shown(asked?.interrupt_id)).toMatchObject({
    ...{ run_id: child, scope: { run_id: child, tool: 'book' } },
  });
  expect(await listed(`run_id=${runId}`)).toEqual([]);
  expect((await approve(asked!)).status).toBe(200);
  await world.waitFor(child, 'completed');
  await tell(world, runId);
  await world.waitFor(runId, 'completed');
  expect(arrived(world, child)).toEqual({ [keyOf(child)]: 1 });
  expect(arrived(world, runId)).toEqual({});
  expect(await world.effects(runId)).toEqual([]);
  expect(toldResults(world, runId)).toEqual(['Booked.']);
  for (const each of [runId, child]) await checkRun(world, each);
});

test('case 26: an approval that ran out is found as that, its run has gone on, and a late yes is told so', async () => {
  const runId = await world.run({
    input: `one ${randomUUID()}`,
    contract: { ...GATED, timeouts: { approval_seconds: 1 } },
  });
  const wait = await asked(runId);
  await world.waitFor(runId, 'completed');
  expect(await listed(`run_id=${runId}&state=expired`)).toMatchObject([
    { interrupt_id: wait.interrupt_id, state: 'expired' },
  ]);
  expect(await shown(wait.interrupt_id)).toMatchObject({ state: 'expired', decisions: [] });
  expect(await listed(`run_id=${runId}`)).toEqual([]);
  const late = await approve(wait);
  expect([late.status, await late.json()]).toMatchObject([410, { code: 'interrupt_expired' }]);
  expect(toldResults(world, runId)).toEqual([expect.stringMatching(/not given in time.*Nobody refused it/s)]);
  expect(arrived(world, runId)).toEqual({});
  await checkRun(world, runId);
});

test('case 45: a call that was approved across a restart stands in the transcript once, with one result', async () => {
  const runId = await world.run({ input: `one ${randomUUID()}`, contract: GATED });
  const [wait] = await untilGated(world, runId);
  await restart();
  expect((await approve(wait!)).status).toBe(200);
  await world.waitFor(runId, 'completed');
  const told = (await world.messages(runId)).map(({ role, position }) => `${position} ${role}`);
  expect(told).toEqual(['0 user', '1 assistant', '2 tool', '1 assistant']);
  const [, request] = modelRequests(world, runId);
  expect(request?.messages.map(({ role }) => role)).toEqual(['user', 'assistant', 'tool']);
  expect(request?.messages.at(-1)).toMatchObject({ results: [{ isError: false }] });
  await checkRun(world, runId);
});

test('case 30: done, failed, refused and not answered in time read as four different ends', async () => {
  const ends = await Promise.all(
    ['succeed', 'fail', 'deny', 'expire'].map(async (how) => {
      const timeouts = how === 'expire' ? { timeouts: { approval_seconds: 1 } } : {};
      const runId = await world.admit({ input: `one ${randomUUID()}`, contract: { ...GATED, ...timeouts } });
      if (how === 'fail') world.target.dial({ mode: 'refuse_422', key: keyOf(runId) });
      await world.starter.round();
      const wait = await asked(runId);
      if (how === 'deny') {
        await api.request(`/v1/interrupts/${wait.interrupt_id}/resolve`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', 'x-actor': 'ben', 'idempotency-key': randomUUID() },
          body: JSON.stringify({ decision: 'deny', scope_sha256: wait.scope_sha256 }),
        });
        await tell(world, runId);
      } else if (how !== 'expire') await approve(wait);
      await world.waitFor(runId, 'completed');
      await checkRun(world, runId);
      const { state } = await shown(wait.interrupt_id);
      const [effect] = await world.effects(runId);
      const seen = Object.values(arrived(world, runId)).length;
      return {
        end: `${state}: ${effect?.state}, ${effect?.attempts}/${seen}`,
        text: toldResults(world, runId)[0],
      };
    }),
  );
  expect(ends.map(({ end }) => end)).toEqual([
    'consumed: succeeded, 1/1',
    'consumed: rejected, 1/1',
    'denied: denied, 0/0',
    'expired: denied, 0/0',
  ]);
  expect(new Set(ends.map(({ text }) => text)).size).toBe(4);
});

test('when all is said, ledger and target agree, and nothing left without its yes', async () => {
  expect(await judge(world, world.targetLog())).toEqual([]);
  expect(await brokenControl(world)).toEqual([]);
});
