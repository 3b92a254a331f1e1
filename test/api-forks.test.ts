import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { CheckpointListView, CheckpointView } from '../api/views/checkpoint-views.js';
import { ProblemView } from '../api/views/common.js';
import { RunExportView } from '../api/views/export-views.js';
import { RunView } from '../api/views/run-views.js';
import { StoryView } from '../api/views/story-views.js';
import { EffectListView, TranscriptView } from '../api/views/trail-views.js';
import { registerAgent } from '../shared/ledger/admission.js';
import { type RunExport, verifyExport } from '../shared/ledger/verify-export.js';
import { submit } from './support/desk.js';
import { checkpointAt, checkpointsOf, rowsOf } from './support/forks.js';
import { callOf, LedgerRun } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';

// Goal: a fork is asked for, read and told over HTTP like any run, with its lineage both ways, and what is wrong about a
// request is said and changes nothing. Cases 91 and 100 on these routes are in test/cases/sec-forks.test.ts.

let ledger: LedgerWorld;
let api: TestApi;
let source: LedgerRun;
let checkpointId: string;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
  source = await ledger.newStep([callOf('opaque'), callOf('read')]);
  for (const slot of [0, 1]) await source.call(slot).attempt('succeeded');
  checkpointId = (await checkpointAt(source, 'effect_settled')).checkpoint_id;
  await source.plan([callOf('keyed')]);
  await source.call(0).attempt('succeeded');
});

const path = (runId = source.runId) => `/v1/runs/${runId}/forks`;
function post(body: unknown, { key = randomUUID() as string, to = path() } = {}): Promise<Response> {
  return api.request(to, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key, 'x-actor': 'user:olga' },
    body: JSON.stringify(body),
  });
}
const bodyOf = (changes: Record<string, unknown> = {}) => ({
  ...{ checkpoint_id: checkpointId, mode: 'simulate' },
  ...changes,
});
async function madeBy(changes: Record<string, unknown> = {}) {
  const response = await post(bodyOf(changes));
  if (response.status !== 201) throw new Error(await response.text());
  return RunView.parse(await response.json());
}
async function read<T>(view: { parse(value: unknown): T }, at: string): Promise<T> {
  const response = await api.request(at);
  if (response.status !== 200) throw new Error(await response.text());
  return view.parse(await response.json());
}
/** Every row of a list, one a page. */
async function walk<T>(
  at: string,
  page: (at: string) => Promise<{ rows: readonly T[]; next: string | null }>,
) {
  const all: T[] = [];
  for (let cursor: string | null = ''; cursor !== null;) {
    const { rows, next }: { rows: readonly T[]; next: string | null } = await page(
      `${at}?limit=1${cursor === '' ? '' : `&cursor=${cursor}`}`,
    );
    all.push(...rows);
    cursor = next;
  }
  return all;
}

describe('a fork', () => {
  test('is made once for its key, and shows in the reads of both runs', async () => {
    const key = randomUUID();
    const body = bodyOf({ mode: 'reuse_if_identical', add_message: 'Try it otherwise.' });
    const first = await post(body, { key });
    const fork = RunView.parse(await first.json());
    expect([first.status, first.headers.get('location')]).toStrictEqual([201, `/v1/runs/${fork.run_id}`]);
    expect(fork).toMatchObject({
      ...{ input: 'Try it otherwise.', execution: { state: 'admitted' }, concurrency: { epoch: 0 } },
      identity: { actor_id: 'user:olga', parent_run_id: null, root_run_id: fork.run_id },
      effects: { total: 0, tool_calls: 0 },
      forks: {
        forked_from: {
          ...{ run_id: source.runId, checkpoint_id: checkpointId, after_step: 1, mode: 'reuse_if_identical' },
          ...{ pins: 'keep', edits: { add_message: 'Try it otherwise.' }, authority: 'operator' },
        },
        ...{ inherited_effects: 2, total: 0, runs: [] },
      },
    });
    const again = await post(body, { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(RunView.parse(await again.json()).run_id).toBe(fork.run_id);
    const other = ProblemView.parse(await (await post({ ...body, mode: 'live' }, { key })).json());
    expect(other).toMatchObject({ code: 'idempotency_key_reused', run_id: fork.run_id });

    const parent = await read(RunView, `/v1/runs/${source.runId}`);
    expect(parent.forks.forked_from).toBeNull();
    expect(parent.forks.runs).toContainEqual(
      expect.objectContaining({ run_id: fork.run_id, checkpoint_id: checkpointId, state: 'admitted' }),
    );
    const [event] = await ledger.events(fork.run_id);
    expect(event?.data['forked_from']).toStrictEqual({
      ...{ run_id: source.runId, checkpoint_id: checkpointId, mode: 'reuse_if_identical' },
    });
  });

  test('pages through what it inherited and what is its own in one order, and inherited effects are marked', async () => {
    const { run_id: id } = await madeBy({ add_message: 'Go on.' });
    const fork = new LedgerRun(ledger, id, 'exec-pages');
    await fork.start();
    await fork.plan([callOf('keyed')]);
    await fork.call(0).ask();
    const messages = await walk(`/v1/runs/${id}/transcript`, async (at) => {
      const { messages: rows, next_cursor: next } = await read(TranscriptView, at);
      return { rows, next };
    });
    expect(messages.map(({ turn, step, position }) => [turn, step, position])).toStrictEqual([
      ...[
        [0, -1, 0],
        [0, -1, 1],
        [0, -1, 2],
        [0, -1, 3],
      ],
      ...[
        [1, 1, 0],
        [1, 1, 1],
        [1, 1, 2],
      ],
    ]);
    const effects = await walk(`/v1/runs/${id}/effects`, async (at) => {
      const { effects: rows, next_cursor: next } = await read(EffectListView, at);
      return { rows, next };
    });
    const [, , own] = await ledger.effects(source.runId);
    expect(
      effects.map(({ inherited, run_id, tool, state, reuses }) => [inherited, run_id, tool, state, reuses]),
    ).toStrictEqual([
      [true, source.runId, 'tool_opaque', 'succeeded', null],
      [true, source.runId, 'tool_read', 'succeeded', null],
      [false, id, 'tool_keyed', 'withdrawn', own!.effect_id],
    ]);
    expect(effects[0]?.receipt).toMatchObject({ status: 'succeeded' });
    const told = await read(StoryView, `/v1/runs/${id}/story`);
    expect(told.entries.map(({ what }) => what)).toEqual(
      expect.arrayContaining([
        'Forked the run from another after its step 1 (simulate, with changes), as operator.',
        'The call of tool_keyed was answered from the receipt of another run; nothing was sent.',
      ]),
    );
    expect([told.disagreements, told.effects.never_sent.count]).toStrictEqual([[], 1]);
    const parent = await read(StoryView, `/v1/runs/${source.runId}/story`);
    expect(parent.entries.filter(({ kind, ids }) => kind === 'forked' && ids['run_id'] === id)).toHaveLength(
      1,
    );
  });

  test('is exported with whence it comes, and the export of its source is as it was', async () => {
    const exportOf = async (id: string) => await (await api.request(`/v1/runs/${id}/export`)).text();
    const before = await exportOf(source.runId);
    const { run_id: id } = await madeBy();
    const exported = RunExportView.parse(JSON.parse(await exportOf(id))) as unknown as RunExport;
    expect(verifyExport(exported)).toStrictEqual([]);
    expect(exported.document.tables).toMatchObject({
      forks: [{ source_run_id: source.runId, cut_step: 1, mode: 'simulate' }],
      inherited_effects: [
        { step: -1, slot: 0 },
        { step: -1, slot: 1 },
      ],
    });
    expect(await exportOf(source.runId)).toBe(before);
  });

  test('keeps the version of its source’s agent, or takes the current one on purpose', async () => {
    const old = await read(RunView, `/v1/runs/${source.runId}`);
    const current = await registerAgent(ledger.db, { ...LEDGER_AGENT, instructions: 'Do it better.' });
    const kept = await madeBy();
    const changed = await madeBy({ pins: 'current', limits: { steps_max: 7 }, budget: { tokens: 500 } });
    expect([kept.identity.agent_version, changed.identity.agent_version]).toStrictEqual([
      ...[old.identity.agent_version, current],
    ]);
    expect(changed.contract).toMatchObject({ limits: { steps_max: 7 }, budget: { tokens: 500 } });
    expect(changed.budget.lines).toContainEqual(
      expect.objectContaining({ kind: 'tokens', limit: 500, used: 0 }),
    );
  });
});

describe('checkpoints', () => {
  test('are paged in order and read one by one', async () => {
    const listed = await walk(`/v1/runs/${source.runId}/checkpoints`, async (at) => {
      const { checkpoints: rows, next_cursor: next } = await read(CheckpointListView, at);
      return { rows, next };
    });
    expect(listed).toStrictEqual(await checkpointsOf(source));
    expect(await read(CheckpointView, `/v1/checkpoints/${checkpointId}`)).toMatchObject({
      ...{ run_id: source.runId, boundary: 'effect_settled', resumes_after_step: 1 },
      validation: { valid: true, faults: [] },
    });
    const { recovery } = await read(RunView, `/v1/runs/${source.runId}`);
    expect(recovery.checkpoint_id).toBe(listed.at(-1)?.checkpoint_id);
    const moved = await ledger.newRun();
    await submit(moved, 'change_deadline');
    const cursor = (await read(CheckpointListView, `/v1/runs/${moved.runId}/checkpoints?limit=1`))
      .next_cursor;
    const foreign = await api.request(`/v1/runs/${source.runId}/checkpoints?cursor=${cursor}`);
    expect(ProblemView.parse(await foreign.json()).code).toBe('cursor_invalid');
  });
});

describe('a request that is wrong', () => {
  // prettier-ignore
  test.each<readonly [what: string, changes: Record<string, unknown>, status: number, code: string, at: string | null]>([
    ['names no checkpoint',          { checkpoint_id: 'ckp_1' },                                    400, 'invalid_request',  'body/checkpoint_id'],
    ['names one that is not there',  { checkpoint_id: `ckp_${'0'.repeat(32)}` },                    404, 'checkpoint_not_found', null],
    ['has no mode',                  { mode: undefined },                                           400, 'invalid_request',  'body/mode'],
    ['has a mode that is none',      { mode: 'replay' },                                            400, 'invalid_request',  'body/mode'],
    ['has a member too many',        { epoch: 3 },                                                  400, 'invalid_request',  'body'],
    ['changes one message twice',    { messages: [{ step: 1, position: 0, text: 'a' }, { step: 1, position: 0, text: 'b' }] }, 400, 'invalid_request', 'body/messages'],
    ['changes a message after the cut', { messages: [{ step: 2, position: 1, text: 'a' }] },        422, 'fork_edit_invalid', 'body/messages/0'],
    ['changes no result',            { tool_result: { step: 1, slot: 5, text: 'a' } },              422, 'fork_edit_invalid', 'body/tool_result'],
    ['limits what is not there',     { budget: { effects: [{ tool: 'none', count: 1 }] } },         422, 'contract_invalid', 'body/budget/effects/0/tool'],
    ['limits less than nothing',     { limits: { steps_max: 0 } },                                  400, 'invalid_request',  'body/limits/steps_max'],
  ])('because it %s is told so, and nothing is forked', async (_, changes, status, code, at) => {
    const count = async () => (await ledger.rows('select 1 from holdfast.forks')).length;
    const [before, rows] = [await count(), await rowsOf(ledger, source.runId)];
    const problem = ProblemView.parse(await (await post(bodyOf(changes))).json());
    expect([problem.status, problem.code, problem.errors?.[0]?.at ?? null]).toStrictEqual([status, code, at]);
    expect([await count(), await rowsOf(ledger, source.runId)]).toStrictEqual([before, rows]);
  });

  test('because calls had left at its checkpoint names them and what to do', async () => {
    const run = await ledger.newCall('opaque');
    await run.claimed();
    const at = await checkpointAt(run.run, 'pre_effect_intent_committed');
    const response = await post(
      { checkpoint_id: at.checkpoint_id, mode: 'live' },
      { to: path(run.run.runId) },
    );
    const problem = ProblemView.parse(await response.json());
    expect(problem).toMatchObject({
      ...{ status: 409, code: 'checkpoint_not_forkable', reasons: ['effects_unresolved'] },
      in_doubt: [(await run.effect()).effect_id],
    });
    expect(problem.detail).toContain('mode simulate');
  });
});
