import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../../api/views/common.js';
import { DOUBLE_TEXTING } from '../../shared/domain/thread-table.js';
import { bringRunTo } from '../support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from '../support/ledger-world.js';
import { startTestApi, type TestApi } from '../support/test-api.js';
import { newestRun, newThread, type TestThread, threadContract } from '../support/threads.js';

// Cases from the field of kind CONC (and 104) that the ledger and the API decide alone. Those that need workflows are in
// conc-runs.test.ts.

let ledger: LedgerWorld;
let apis: readonly [TestApi, TestApi];
beforeAll(async () => {
  ledger = await openLedger();
  apis = [await startTestApi({ databaseUrl: ledger.url }), await startTestApi({ databaseUrl: ledger.url })];
});

const ROUTES = ['messages', 'runs'] as const;
type RouteName = (typeof ROUTES)[number];

/** Sends input to a thread by the route that is asked for. */
async function send(
  thread: TestThread,
  route: RouteName,
  text: string,
  options: { readonly policy?: string; readonly key?: string; readonly api?: TestApi } = {},
): Promise<Response> {
  const { policy, key = randomUUID(), api = apis[0] } = options;
  const own = policy === undefined ? {} : { policy };
  const body =
    route === 'messages'
      ? { text, ...own }
      : {
          agent: LEDGER_AGENT.name,
          input: text,
          contract: threadContract(),
          thread: thread.threadId,
          ...own,
        };
  return await api.request(route === 'runs' ? '/v1/runs' : `/v1/threads/${thread.threadId}/messages`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key, 'x-actor': 'user:ada' },
    body: JSON.stringify(body),
  });
}

describe('case 58: a second input', () => {
  test.each(DOUBLE_TEXTING)('under %s comes to the same by every route', async (policy) => {
    const outcomes = [];
    for (const route of ROUTES) {
      const thread = await newThread(ledger);
      expect((await send(thread, route, 'first')).status).toBe(201);
      const run = await newestRun(ledger, thread);
      await run.start();
      const second = await send(thread, route, 'second', { policy });
      const { control } = await ledger.runRow(run.runId);
      const rows = (await thread.messages()).map(({ text, verdict, state }) => [text, verdict, state]);
      outcomes.push({ status: second.status, control, rows });
    }
    expect(outcomes[1]).toStrictEqual(outcomes[0]);
    expect(outcomes[0]?.status).toBe(policy === 'reject' ? 409 : 202);
  });
});

describe('case 60: twenty starts at once on one thread', () => {
  test.each(['enqueue', 'reject', 'rollback'] as const)(
    'through two API processes are one run at a time, under %s',
    async (policy) => {
      const thread = await newThread(ledger, policy);
      const answers = await Promise.all(
        Array.from({ length: 20 }, (_, n) =>
          send(thread, n % 3 === 0 ? 'runs' : 'messages', `start ${n}`, { api: apis[n % 2 === 0 ? 0 : 1] }),
        ),
      );
      const statuses = answers.map(({ status }) => status);
      const messages = await thread.messages();
      const accepted = statuses.filter((status) => status < 300).length;
      expect(messages.map(({ seq }) => seq)).toStrictEqual(messages.map((_, index) => index + 1));
      expect(messages).toHaveLength(accepted);
      expect(accepted).toBe(policy === 'reject' ? 1 : 20);
      expect(new Set(statuses.filter((status) => status >= 300))).toEqual(
        new Set(policy === 'reject' ? [409] : []),
      );
      // Whatever is left is worked off one by one.
      for (let n = 0; n < 20; n += 1) {
        const open = await ledger.rows<{ run_id: string }>(
          'select run_id from holdfast.runs where thread_id = $1 and ended_at is null',
          thread.threadId,
        );
        expect(open.length).toBeLessThanOrEqual(1);
        if (open.length === 0) break;
        await bringRunTo(await newestRun(ledger, thread), 'completed');
      }
      const given = (await thread.messages()).filter(({ run_id }) => run_id !== null);
      expect(given.map(({ run_id }) => run_id).toSorted()).toStrictEqual((await thread.runIds()).toSorted());
      expect((await thread.messages()).filter(({ state }) => state === 'queued')).toStrictEqual([]);
    },
  );
});

describe('case 64: one delivery key', () => {
  test.each(ROUTES)(
    'is one message and one run, at once, after the end and a day later, by %s',
    async (route) => {
      const thread = await newThread(ledger);
      const key = randomUUID();
      const first = await Promise.all([1, 2, 3].map(() => send(thread, route, 'refund', { key })));
      expect(first.map(({ status }) => status).toSorted()).toStrictEqual([200, 200, 201]);
      await bringRunTo(await newestRun(ledger, thread), 'completed');
      expect((await send(thread, route, 'refund', { key })).status).toBe(200);
      await ledger.tamper(async (change) => {
        for (const table of ['api_requests', 'thread_messages', 'runs']) {
          const column = table === 'runs' ? 'admitted_at' : 'created_at';
          await change(`update holdfast.${table} set ${column} = ${column} - interval '25 hours'`);
        }
      });
      const late = await send(thread, route, 'refund', { key });
      expect([late.status, late.headers.get('idempotent-replayed')]).toStrictEqual([200, 'true']);
      expect(await thread.standing()).toStrictEqual(['refund delivered']);
      expect(await thread.runIds()).toHaveLength(1);
    },
  );
});

describe('case 104: a key', () => {
  test('is of its route, its path and its tenant, and means one body', async () => {
    const threads = [await newThread(ledger), await newThread(ledger)] as const;
    const key = randomUUID();
    for (const thread of threads) expect((await send(thread, 'messages', 'same', { key })).status).toBe(201);
    for (const thread of threads) expect(await thread.standing()).toStrictEqual(['same delivered']);
    const other = await send(threads[0], 'messages', 'other', { key });
    expect([other.status, ProblemView.parse(await other.json()).code]).toStrictEqual([
      ...[422, 'idempotency_key_reused'],
    ]);
    expect((await send(threads[0], 'messages', 'same', { key, policy: 'steer' })).status).toBe(422);
    expect(await threads[0].messages()).toHaveLength(1);
    // The route of runs has one space of keys, with a thread and without.
    expect((await send(threads[0], 'runs', 'run', { key })).status).toBe(202);
    expect((await send(threads[1], 'runs', 'run', { key })).status).toBe(422);
    const alone = await apis[1].start({
      ...{ key, headers: { 'x-actor': 'user:ada' } },
      body: JSON.stringify({ agent: LEDGER_AGENT.name, input: 'run', contract: threadContract() }),
    });
    expect(alone.status).toBe(422);
    const replay = await send(threads[0], 'runs', 'run', { key });
    expect([replay.status, replay.headers.get('idempotent-replayed')]).toStrictEqual([202, 'true']);
    expect(await threads[0].standing()).toStrictEqual(['same delivered', 'run queued']);
  });
});
