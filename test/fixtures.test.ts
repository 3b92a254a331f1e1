import { randomUUID } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RunFixtureView } from '../api/views/export-views.js';
import type { AgentManifest } from '../shared/domain/agents.js';
import type { FixtureDocument, RunFixture } from '../shared/domain/fixture.js';
import { fixtureText, readFixture, sealFixture } from '../shared/ledger/fixtures/seal.js';
import { type Bench, copyOf } from '../workers/fixture/bench.js';
import { replayFixture } from '../workers/fixture/replay.js';
import { testFixtures } from '../workers/fixture/vitest.js';
import { holdfast } from './support/cli.js';
import { command, decide, settle, tell, type Wait, waits } from './support/desk-world.js';
import { timeSkippingServerPath } from './support/servers.js';
import { type SkippingWorld, startSkippingWorld } from './support/skipping-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { until } from './support/until.js';
import { BUNDLES_DIR, sharedBundle } from './support/world-temporal.js';

// Goal: a run, failed or not, becomes a file that replays offline to the same path, and fails where something differs
// (SPEC 4.2). Method: runs on the skipping world with kills and people, taken over the API and replayed on servers of
// their own.

/** Replays on the servers that all test files share. */
async function sharedBench(): Promise<Bench> {
  return {
    testServerPath: await timeSkippingServerPath(),
    workflowBundle: await sharedBundle(),
    newDatabase: () => copyOf(inject('databaseServerUrl'), inject('templateDatabase')),
    close: () => Promise.resolve(),
  };
}

let source: SkippingWorld;
let api: TestApi;
let bench: Bench;
let folder: string;
let handled: RunFixture;
let byCommand: ReturnType<typeof keepAndReplayByCommand>;
beforeAll(async () => {
  source = await startSkippingWorld({ approvals: ['mail'], limits: { stepsMax: 2 } });
  api = await startTestApi({ databaseUrl: source.world.databaseUrl });
  bench = await sharedBench();
  folder = await mkdtemp(join(tmpdir(), 'holdfast-fixtures-'));
  handled = await runWithAKillAnApprovalAndAReconciliation();
  byCommand = keepAndReplayByCommand();
  // Seen by the test that waits for it.
  byCommand.catch(() => undefined);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Exports the run with the command line and replays what came, and a copy that was changed. It takes servers of its own. */
async function keepAndReplayByCommand() {
  const file = join(folder, `${handled.sha256}.json`);
  const tampered = join(folder, 'tampered.json');
  const kept = await holdfast(api.url, [
    ...['fixture', 'export', handled.document.run.run_id, '--dir', folder],
  ]);
  await writeFile(tampered, (await readFile(file, 'utf8')).replace('"completed"', '"failed"'));
  const replayed = await holdfast(api.url, ['fixture', 'run', file, tampered], {
    env: { HOLDFAST_DATA_DIR: BUNDLES_DIR },
  });
  return { file, tampered, kept, replayed };
}

async function runWithAKillAnApprovalAndAReconciliation(): Promise<RunFixture> {
  const { world } = source;
  const runId = await world.admit({ input: 'mail once' });
  world.faults.add({ point: 'think.after_answer', mode: 'throw', runId });
  world.faults.add({ point: 'act.after_call', mode: 'throw', runId });
  await world.starter.round();
  await untilState(runId, 'awaiting_approval');
  expect(await decide(world, (await waits(world, runId))[0])).toBe('decided');
  await untilState(runId, 'needs_reconciliation');
  expect(await settle(world, runId)).toBe('settled');
  await source.skipToEnd(runId);
  return await exported(runId);
}

async function exported(runId: string): Promise<RunFixture> {
  const response = await api.request(`/v1/runs/${runId}/fixture`);
  expect(response.status).toBe(200);
  const text = await response.text();
  const fixture = readFixture(text, runId);
  // What was written is the very form that is digested.
  expect(text).toBe(fixtureText(fixture));
  expect(response.headers.get('content-disposition')).toContain(fixture.sha256);
  return fixture;
}

async function redacted(runId: string, rules: object): Promise<{ status: number; body: unknown }> {
  const response = await api.request(`/v1/runs/${runId}/fixture`, {
    ...{ method: 'POST', body: JSON.stringify(rules), headers: { 'content-type': 'application/json' } },
  });
  return { status: response.status, body: await response.json() };
}

async function untilState(runId: string, state: string): Promise<void> {
  await until(`${runId} is ${state}`, async () => {
    if ((await source.world.runRow(runId)).state === state) return true;
    await source.skip(2);
    return false;
  });
}

async function edit(wait: Wait | undefined, note: string): Promise<number> {
  const response = await api.request(`/v1/interrupts/${wait?.interrupt_id ?? ''}/resolve`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-actor': 'ben', 'idempotency-key': randomUUID() },
    body: JSON.stringify({ decision: 'approve', scope_sha256: wait?.scope_sha256, arguments: { note } }),
  });
  await tell(source.world, wait?.run_id ?? '');
  return response.status;
}

/** The document with changes, sealed: a fixture that somebody edited on purpose. */
function edited({ document }: RunFixture, change: (copy: FixtureDocument) => void): RunFixture {
  const copy = structuredClone(document);
  change(copy);
  return sealFixture(copy);
}

async function problemsOf(fixture: RunFixture, options: Parameters<typeof replayFixture>[2] = {}) {
  return (await replayFixture(bench, fixture, options)).problems;
}

describe('a fixture', () => {
  test('of a run with a kill, an approval and a reconciliation replays with the same path', async () => {
    const { document } = handled;
    expect(document.model[0]?.attempts.map(({ outcome }) => outcome)).toEqual(['lost', 'answered']);
    expect(document.effects[0]).toMatchObject({ state: 'committed', attempts: [{ outcome: 'lost' }] });
    expect(document.words.map(({ kind }) => kind)).toEqual(['decision', 'settlement']);
    expect(await problemsOf(handled)).toEqual([]);
  });

  test('comes to the same end and the same effects with a fault wherever a call can be cut off', async () => {
    const runId = await source.world.run({ input: 'pay once' });
    await source.skipToEnd(runId);
    const fixture = await exported(runId);
    const other = edited(fixture, ({ effects }) => (effects[0]!.state = 'rejected'));
    const [report, otherwise] = await Promise.all([
      replayFixture(bench, fixture, { fault: 'think.after_commit' }),
      problemsOf(other, { fault: 'act.after_call' }),
    ]);
    expect(report).toMatchObject({ problems: [], faultReached: true });
    expect(otherwise).toEqual(['effect t1 s1 c0 pay: expected rejected, was succeeded']);
  });

  test('of a failed run fails before a mend and passes after it', async () => {
    const runId = await source.world.run({ input: 'each of them' });
    await source.skipToEnd(runId);
    const failed = await exported(runId);
    expect(failed.document.expect.end).toMatchObject({ state: 'failed' });
    // What should have been: the third step is the last.
    const should = edited(failed, (copy) => {
      copy.expect = { end: { state: 'completed', reason: 'answer_final' } };
      const answered = copy.model[0]!;
      const parts = [{ type: 'text', text: 'Done.' }];
      copy.model.push({
        ...answered,
        step: 3,
        response: { ...answered.response, parts, stopReason: 'stop' },
      });
    });
    const pinned = failed.document.agent as unknown as AgentManifest;
    const mended = { agent: { ...pinned, limits: { ...pinned.limits, stepsMax: 10 } } };
    const [asItWas, before, after, unrecorded] = await Promise.all([
      problemsOf(failed),
      problemsOf(should),
      problemsOf(should, mended),
      problemsOf(failed, mended),
    ]);
    expect(asItWas).toEqual([]);
    expect(before).toEqual([
      expect.stringMatching(/^end: expected completed answer_final, was failed /),
      'not called: model t1 s3 #1',
    ]);
    expect(after).toEqual([]);
    // Where the record has no answer for what the mended agent does next, it says so and calls nobody.
    expect(unrecorded[0]).toBe('something new was called: model t1 s3: the record holds no answer');
  });

  test('in which a call has other arguments than the record names the call, and makes none', async () => {
    const other = edited(handled, ({ effects }) => (effects[0]!.arguments = { note: 'mail twice' }));
    expect((await problemsOf(other))[0]).toBe(
      'something new was called: mail t1 s1 c0: the record holds other arguments: {"note":"mail twice"}, not {"note":"mail once"}',
    );
  });

  test('replays words that came during a call and changed arguments, with what is private replaced', async () => {
    const { world } = source;
    const runId = await world.admit({ input: 'mail Margaret "Peg" Hill' });
    world.faults.add({ point: 'act.after_claim', mode: 'hang', runId });
    await world.starter.round();
    await untilState(runId, 'awaiting_approval');
    expect(await edit((await waits(world, runId))[0], 'later, Margaret "Peg" Hill')).toBe(200);
    await until('the call is under way', () => world.faults.reached().some((fault) => fault.runId === runId));
    expect(await command(world, runId, 'pause')).toBe('accepted');
    world.faults.release(runId);
    await until('it is paused', async () => (await world.runRow(runId)).control === 'paused');
    await command(world, runId, 'resume');
    await source.skipToEnd(runId);

    expect((await exported(runId)).document.words.map(({ at }) => at.during !== null)).toEqual([
      ...[false, true, false],
    ]);
    const { body } = await redacted(runId, { words: ['Margaret "Peg" Hill'], pointers: ['/words/*/actor'] });
    const safe = RunFixtureView.parse(body);
    expect(JSON.stringify(safe)).not.toMatch(/Margaret|Peg|user:/);
    expect(safe.document.effects.map((effect) => effect.arguments)).toEqual([
      { note: 'mail redacted-1' },
      { note: 'later, redacted-1' },
    ]);
    expect(safe.document.expect.control).toHaveLength(6);
    expect(await problemsOf(safe)).toEqual([]);
  });

  test('is not made where a rule cannot be followed, or a replay could not repeat the run', async () => {
    const id = handled.document.run.run_id;
    for (const [rules, at] of [
      [{ pointers: ['/run/nowhere'] }, 'body/pointers/0'],
      [{ pointers: ['/run/took_ms'] }, 'body/pointers/0'],
      [{ words: ['needs_reconciliation'] }, 'body/expect/path/4'],
      [{ words: ['no'] }, 'body/words/0'],
    ] as const) {
      const { status, body } = await redacted(id, rules);
      expect([status, ProblemView.parse(body).errors?.[0]?.at]).toEqual([400, at]);
    }
    const waiting = await source.world.admit({ input: 'pay later' });
    const response = await api.request(`/v1/runs/${waiting}/fixture`);
    expect(ProblemView.parse(await response.json())).toMatchObject({
      ...{ status: 409, code: 'fixture_impossible', detail: expect.stringContaining('it has not ended') },
    });
    expect((await api.request(`/v1/runs/${id}/fixture`, { tenant: 'other' })).status).toBe(404);
  });

  test('is exported, refused when changed, sealed and replayed from the command line', async () => {
    const { file, tampered, kept, replayed } = await byCommand;
    expect(kept.rows()).toEqual([{ file, sha256: handled.sha256, redacted: 0 }]);
    expect(replayed.rows()).toMatchObject([
      { file, problems: [] },
      { file: tampered, problems: [expect.stringContaining('was changed: its digest says')] },
    ]);
    expect(replayed.code).toBe(1);

    const sealed = (await holdfast(api.url, ['fixture', 'seal', tampered])).out.trim();
    const fixture = readFixture(await readFile(sealed, 'utf8'), sealed);
    expect([basename(sealed), fixture.document.expect.end.state]).toEqual([
      `${fixture.sha256}.json`,
      'failed',
    ]);
  });
});

// As a user's own project keeps them.
testFixtures(new URL('./fixtures/', import.meta.url), { bench: sharedBench });
