import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { RunListView, RunView } from '../api/views/run-views.js';
import { StoryView } from '../api/views/story-views.js';
import {
  ThreadListView,
  ThreadMessageListView,
  ThreadMessageView,
  ThreadView,
} from '../api/views/thread-views.js';
import { bringRunTo, LedgerRun } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { startBody, startTestApi, type TestApi } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

interface Asked {
  readonly key?: string;
  readonly actor?: string;
  readonly roles?: string;
  readonly tenant?: string;
}

async function send(path: string, body: unknown, asked: Asked = {}): Promise<Response> {
  const { key = randomUUID(), actor = 'user:ada', roles, tenant = 'default' } = asked;
  return await api.request(path, {
    method: 'POST',
    tenant,
    headers: {
      'content-type': 'application/json',
      'idempotency-key': key,
      'x-actor': actor,
      ...(roles === undefined ? {} : { 'x-roles': roles }),
    },
    body: JSON.stringify(body),
  });
}
const { contract } = startBody();
const create = (changes: object = {}, asked?: Asked) =>
  send('/v1/threads', { agent: LEDGER_AGENT.name, contract, ...changes }, asked);
const newThread = async (changes: object = {}) =>
  ThreadView.parse(await (await create(changes)).json()).thread_id;
const post = (threadId: string, body: object, asked?: Asked) =>
  send(`/v1/threads/${threadId}/messages`, body, asked);
const read = async (path: string): Promise<unknown> => (await api.request(path)).json();
const readThread = async (threadId: string) => ThreadView.parse(await read(`/v1/threads/${threadId}`));
const messageOf = async (response: Response) => ThreadMessageView.parse(await response.json());
const problemOf = async (response: Response) => ProblemView.parse(await response.json());
const runOf = (runId: string) => new LedgerRun(ledger, runId, `exec-${randomUUID()}`);

describe('a thread', () => {
  test('is made once a key, starts nothing, and is read as four facts', async () => {
    const key = randomUUID();
    const first = await create({}, { key });
    const thread = ThreadView.parse(await first.json());
    expect([first.status, first.headers.get('location')]).toStrictEqual([
      201,
      `/v1/threads/${thread.thread_id}`,
    ]);
    expect(thread).toMatchObject({ runtime: 'none', turn: null, archived: null, policy: 'enqueue', runs: 0 });
    const again = await create({}, { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
    expect(ThreadView.parse(await again.json()).thread_id).toBe(thread.thread_id);
    expect(await problemOf(await create({ policy: 'reject' }, { key }))).toMatchObject({
      ...{ code: 'idempotency_key_reused', thread_id: thread.thread_id },
    });
    expect(await problemOf(await create({ agent: 'nobody' }))).toMatchObject({ code: 'agent_not_found' });

    const posted = await messageOf(await post(thread.thread_id, { text: 'one' }));
    const run = runOf(posted.run?.run_id ?? '');
    expect(await readThread(thread.thread_id)).toMatchObject({
      ...{ runtime: 'starting', turn: { run_id: run.runId, place: 1, state: 'admitted' } },
    });
    await run.start();
    const before = await ledger.footprint(run.runId);
    const archived = await api.request(`/v1/threads/${thread.thread_id}/archive`, { method: 'POST' });
    expect(ThreadView.parse(await archived.json())).toMatchObject({
      ...{ runtime: 'loaded', turn: { state: 'running' }, archived: { by: 'tester' } },
    });
    expect(await ledger.footprint(run.runId)).toStrictEqual(before);
    await bringRunTo(run, 'completed');
    const last = await readThread(thread.thread_id);
    expect(last).toMatchObject({
      runtime: 'none',
      turn: { state: 'completed' },
      messages: { total: 1, by_state: { delivered: 1 } },
      freshness: { message_seq: 1 },
    });
    expect(last.archived).not.toBeNull();
  });

  test('is archived and taken back by an operator or its creator; archived it accepts nothing', async () => {
    const id = await newThread();
    const act = (what: string, actor: string, roles: string, tenant = 'default') =>
      api.request(`/v1/threads/${id}/${what}`, {
        ...{ method: 'POST', tenant, headers: { 'x-actor': actor, 'x-roles': roles } },
      });
    expect((await act('archive', 'user:bob', 'requester')).status).toBe(403);
    expect((await act('archive', 'user:ada', 'requester', 'other')).status).toBe(404);
    expect((await act('archive', 'user:ada', 'requester')).status).toBe(200);
    const again = ThreadView.parse(await (await act('archive', 'user:olga', 'operator')).json());
    expect(again.archived?.by).toBe('user:ada');
    const key = randomUUID();
    expect(await problemOf(await post(id, { text: 'one' }, { key }))).toMatchObject({
      code: 'thread_archived',
    });
    expect((await act('unarchive', 'user:olga', 'operator')).status).toBe(200);
    expect((await post(id, { text: 'one' }, { key })).status).toBe(201);
  });

  test('is listed by agent and archive, newest first, page by page, for its tenant alone', async () => {
    const ids = [await newThread(), await newThread(), await newThread()].toReversed();
    await api.request(`/v1/threads/${ids[1]}/archive`, { method: 'POST' });
    const seen: string[] = [];
    let cursor = '';
    for (let page = 0; page < 2; page += 1) {
      const path = `/v1/threads?archived=false&agent=${LEDGER_AGENT.name}&limit=1${cursor}`;
      const list = ThreadListView.parse(await read(path));
      seen.push(...list.threads.map(({ thread_id }) => thread_id));
      cursor = `&cursor=${list.next_cursor}`;
    }
    expect(seen).toStrictEqual([ids[0], ids[2]]);
    const archived = ThreadListView.parse(await read('/v1/threads?archived=true&limit=1'));
    expect(archived.threads.map(({ thread_id }) => thread_id)).toStrictEqual([ids[1]]);
    const other = await api.request('/v1/threads', { tenant: 'other' });
    expect(await other.json()).toStrictEqual({ threads: [], next_cursor: null });
    expect((await api.request(`/v1/threads/${ids[0]}`, { tenant: 'other' })).status).toBe(404);
    expect((await api.request('/v1/threads?archived=maybe')).status).toBe(400);
  });
});

describe('a message', () => {
  test('is 201 with its run where it begins one, 202 where it waits, and told what became of it', async () => {
    const id = await newThread();
    const first = await post(id, { text: 'one' });
    const one = await messageOf(first);
    expect(first.status).toBe(201);
    expect(one).toMatchObject({ seq: 1, verdict: 'starts', state: 'delivered', run: { state: 'admitted' } });
    const second = await post(id, { text: 'two' });
    const two = await messageOf(second);
    expect([second.status, two.state, two.run, two.met_run_id]).toStrictEqual([
      ...[202, 'queued', null, one.run?.run_id],
    ]);
    const at = second.headers.get('location') ?? '';
    const run = runOf(one.run?.run_id ?? '');
    await run.start();
    await run.plan([]);
    await run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
    expect(await read(at)).toMatchObject({ state: 'delivered', run: { state: 'admitted' } });
    const page = ThreadMessageListView.parse(await read(`/v1/threads/${id}/messages?limit=1`));
    expect(page).toMatchObject({
      messages: [{ text: 'one', run: { state: 'completed', last_message: { parts: [{ text: 'Done.' }] } } }],
      next_cursor: '1',
    });
    expect(await read(`/v1/threads/${id}/messages?cursor=1`)).toMatchObject({
      messages: [{ text: 'two' }],
      next_cursor: null,
    });
    expect((await api.request(at, { tenant: 'other' })).status).toBe(404);
    expect((await api.request(at.replace(id, await newThread()))).status).toBe(404);
    const view = RunView.parse(await read(`/v1/runs/${run.runId}`));
    expect(view.identity.thread_id).toBe(id);
    const told = { thread_id: id, place: 1, rolled_back_by: null, message_ids: [one.message_id] };
    expect(view.thread).toStrictEqual(told);
    const listed = RunListView.parse(await read(`/v1/runs?thread=${id}`));
    expect(listed.runs.map(({ thread_id }) => thread_id)).toStrictEqual([id, id]);
    const { entries } = StoryView.parse(await read(`/v1/runs/${run.runId}/story`));
    expect(entries.filter(({ kind }) => kind === 'message_sent')).toMatchObject([
      { actor: 'user:ada', ids: { message_id: one.message_id, thread_id: id } },
    ]);
  });

  test('that nobody can take is refused and leaves nothing', async () => {
    const id = await newThread();
    for (const body of [
      {},
      { text: '' },
      { text: 7 },
      { text: 'x', policy: 'now' },
      { text: 'x', role: 'system' },
    ]) {
      expect((await post(id, body)).status).toBe(400);
    }
    const unmet = { ...(contract as object), budget: { effects: [{ tool: 'none', count_max: 1 }] } };
    expect((await post(id, { text: 'x', contract: unmet })).status).toBe(422);
    expect((await post(`thr_${'0'.repeat(32)}`, { text: 'x' })).status).toBe(404);
    expect((await post('nonsense', { text: 'x' })).status).toBe(404);
    expect((await post(id, { text: 'x' }, { tenant: 'other' })).status).toBe(404);
    const run = { agent: 'test-agent', input: 'x', contract, thread: id };
    expect(await problemOf(await send('/v1/runs', run))).toMatchObject({ code: 'thread_agent_mismatch' });
    const alone = { agent: LEDGER_AGENT.name, input: 'x', contract, policy: 'steer' };
    expect((await send('/v1/runs', alone)).status).toBe(400);
    expect((await readThread(id)).messages.total).toBe(0);
  });

  test('that rolls a run back leaves its effects in sight of whoever reads the thread', async () => {
    const id = await newThread();
    const one = await messageOf(await post(id, { text: 'one' }));
    const run = runOf(one.run?.run_id ?? '');
    await run.start();
    await run.plan([{}]);
    await run.call(0).attempt('succeeded');
    const two = await messageOf(await post(id, { text: 'two', policy: 'rollback' }));
    await run.commit(
      { kind: 'control', to: 'active', reason: 'cancel_requested' },
      { kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
      { kind: 'move', to: 'cancelled', reason: 'wound_down' },
    );
    expect((await readThread(id)).rolled_back).toMatchObject([
      {
        ...{ run_id: run.runId, message_id: two.message_id, state: 'cancelled' },
        effects: [{ tool: 'tool_opaque', state: 'succeeded' }],
      },
    ]);
  });
});
