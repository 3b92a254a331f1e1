import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import { MemoryListView, SleepTriggerList } from '../api/views/memory-views.js';
import { RunView } from '../api/views/run-views.js';
import { beginSleepRuns } from '../shared/ledger/sleep.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { exchange, idle, remember, setTrigger, sleepers } from './support/memory.js';
import { newThread } from './support/threads.js';
import { startBody, startTestApi, type TestApi } from './support/test-api.js';

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

const contract = startBody()['contract'] as object;
async function put(changes: object, { key = randomUUID() as string, roles = 'operator' } = {}) {
  const sleeper = { agent: LEDGER_AGENT.name, idle_seconds: 60, contract };
  return await api.request('/v1/sleep-triggers', {
    method: 'PUT',
    headers: {
      ...{ 'content-type': 'application/json', 'idempotency-key': key },
      ...{ 'x-roles': roles, 'x-actor': 'user:olga' },
    },
    body: JSON.stringify({ agent: LEDGER_AGENT.name, sleeper, ...changes }),
  });
}
const codeOf = async (response: Response) => ProblemView.parse(await response.json()).code;
const triggers = async (tenant = 'default') =>
  SleepTriggerList.parse(await (await api.request('/v1/sleep-triggers', { tenant })).json()).items;

test('a trigger is set by an operator, once a key, changed and lifted; what cannot be is refused and changes nothing', async () => {
  const key = randomUUID();
  const set = await put({}, { key });
  expect(SleepTriggerList.parse(await set.json()).items).toMatchObject([
    {
      ...{ agent: LEDGER_AGENT.name, version: 1, changed_by: 'user:olga' },
      sleeper: { agent: LEDGER_AGENT.name, idle_seconds: 60, contract: { owner: 'desk', priority: 5 } },
    },
  ]);
  const before = await triggers();
  expect((await put({}, { key })).headers.get('idempotent-replayed')).toBe('true');
  const sleeper = { agent: LEDGER_AGENT.name, contract };
  const refused: [Response, string][] = [
    [await put({}, { roles: 'requester,approver,admin' }), 'role_required'],
    [await put({ sleeper: null }, { key }), 'idempotency_key_reused'],
    [await put({ agent: 'nobody' }), 'agent_not_found'],
    [await put({ sleeper: { ...sleeper, agent: 'nobody' } }), 'agent_not_found'],
    [await put({ sleeper: { ...sleeper, idle_seconds: 0 } }), 'invalid_request'],
    // Its priority is the lowest, and nobody's to set.
    [await put({ sleeper: { ...sleeper, contract: { ...contract, priority: 1 } } }), 'contract_invalid'],
    [
      await put({
        sleeper: { ...sleeper, contract: { ...contract, budget: { effects: [{ tool: 'x', count: 1 }] } } },
      }),
      'contract_invalid',
    ],
  ];
  for (const [response, code] of refused) expect(await codeOf(response)).toBe(code);
  expect(await triggers()).toStrictEqual(before);
  expect(await triggers('other')).toStrictEqual([]);
  await put({ sleeper: { ...sleeper, idle_seconds: 90 } });
  expect(await triggers()).toMatchObject([{ version: 2, sleeper: { idle_seconds: 90 } }]);
  await put({ sleeper: null });
  expect(await triggers()).toStrictEqual([]);
});

test('the memory of a thread is read newest first, page by page, by its tenant alone, and its runs say which they read', async () => {
  await setTrigger(ledger);
  const thread = await newThread(ledger);
  await exchange(ledger, thread, 'one');
  await idle(ledger, thread);
  const [sleeper] = await sleepers(ledger, thread);
  for (const generation of [0, 1, 2]) await remember(sleeper!, generation, `Generation ${generation + 1}.`);
  const path = `/v1/threads/${thread.threadId}/memory`;
  const seen: string[] = [];
  for (let cursor: string | null = ''; cursor !== null;) {
    const page = await api.request(`${path}?limit=2${cursor === '' ? '' : `&cursor=${cursor}`}`);
    const { generations, next_cursor: next } = MemoryListView.parse(await page.json());
    seen.push(...generations.map(({ text }) => text));
    cursor = next;
  }
  expect(seen).toStrictEqual(['Generation 3.', 'Generation 2.', 'Generation 1.']);
  expect(await codeOf(await api.request(`${path}?cursor=x`))).toBe('cursor_invalid');
  expect(await codeOf(await api.request(path, { tenant: 'other' }))).toBe('thread_not_found');
  const run = await exchange(ledger, thread, 'two');
  const shown = async (id: string) => RunView.parse(await (await api.request(`/v1/runs/${id}`)).json());
  expect((await shown(run.runId)).memory).toStrictEqual({
    ...{ thread_id: thread.threadId, generation: 3, keeps: false },
  });
  expect(await shown(sleeper!.runId)).toMatchObject({
    ...{ thread: null, memory: { thread_id: thread.threadId, generation: null, keeps: true } },
  });
});

test('a trigger whose contract cannot be met any more comes to a refusal that is kept, not to a run', async () => {
  await setTrigger(ledger);
  // As if another version of the agent had been registered since.
  await ledger.tamper(async (change) => {
    await change(
      `update holdfast.sleep_triggers set contract = contract || '{"budget": {"effects": [{"tool": "x", "count": 1}]}}'`,
    );
  });
  const thread = await newThread(ledger);
  await exchange(ledger, thread, 'one');
  await idle(ledger, thread);
  const begun = await beginSleepRuns(ledger.db, 100);
  expect(begun.filter(({ threadId }) => threadId === thread.threadId)).toMatchObject([
    { kind: 'budget_unmet' },
  ]);
  expect(await beginSleepRuns(ledger.db, 100)).toStrictEqual([]);
  expect(
    await ledger.rows(
      'select run_id, refused from holdfast.sleep_runs where thread_id = $1',
      thread.threadId,
    ),
  ).toStrictEqual([{ run_id: null, refused: 'budget_unmet' }]);
});
