import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { z } from 'zod';
import { ProblemView } from '../api/views/common.js';
import { Readiness } from '../api/readiness.js';
import { RunListView, RunView } from '../api/views/run-views.js';
import {
  AgentListView,
  EffectListView,
  RunEventListView,
  TranscriptView,
  TransitionListView,
} from '../api/views/trail-views.js';
import { commitTrail } from '../shared/ledger/trail.js';
import { createTestDatabase } from './support/servers.js';
import { openWay, registerTestAgent, startBody, startTestApi, until } from './support/test-api.js';
import type { TestApi } from './support/test-api.js';

let api: TestApi;
let databaseUrl: string;
/** Connects as the schema's owner, who may write rows that no workflow wrote. */
let owner: pg.Pool;
beforeAll(async () => {
  databaseUrl = (await createTestDatabase()).url;
  owner = new pg.Pool({ connectionString: databaseUrl, max: 2 });
  owner.on('error', () => undefined);
  api = await startTestApi({ databaseUrl });
  await registerTestAgent(api.pool);
});
afterAll(() => owner.end());

let keys = 0;
async function newRun(tenant = 'default', changes: Record<string, unknown> = {}): Promise<string> {
  const body = JSON.stringify(startBody(changes));
  const response = await api.start({ key: `read-${(keys += 1)}`, tenant, body });
  return RunView.parse(await response.json()).run_id;
}

/** Reads a 200 and checks its body against the schema that the OpenAPI document shows. */
async function read<Schema extends z.ZodType>(
  schema: Schema,
  path: string,
  tenant = 'default',
): Promise<z.output<Schema>> {
  const response = await api.request(path, { tenant });
  if (response.status !== 200) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return schema.parse(await response.json());
}

async function problemAt(path: string, init: Parameters<TestApi['request']>[1] = {}) {
  const response = await api.request(path, init);
  const problem = ProblemView.parse(await response.json());
  expect(problem.status).toBe(response.status);
  return { response, problem };
}

/** Every page of a list, one row a page. */
async function walk<Row>(
  path: string,
  page: (path: string) => Promise<{ rows: readonly Row[]; next: string | null }>,
): Promise<Row[]> {
  const all: Row[] = [];
  let cursor = '';
  for (let count = 0; count < 50; count += 1) {
    const { rows, next } = await page(`${path}${path.includes('?') ? '&' : '?'}limit=1${cursor}`);
    all.push(...rows);
    if (next === null) return all;
    cursor = `&cursor=${encodeURIComponent(next)}`;
  }
  throw new Error(`${path} has no end`);
}

async function addEffect(
  runId: string,
  slot: number,
  state: 'unknown' | 'succeeded',
  body = Buffer.from('{"ok":true}'),
): Promise<string> {
  const id = `eff_${(keys += 1).toString(16).padStart(32, '0')}`;
  const attempt = id.replace('eff', 'att');
  const unknown = state === 'unknown';
  await owner.query(
    `insert into holdfast.effects (effect_id, state, tenant_id, run_id, turn, step, slot, call_id, tool, tool_version,
       effect_class, namespace, idempotency_key, arguments, arguments_sha256, policy, requested_by, attempts,
       fencing_token, attempts_max, series_deadline_at, first_dispatched_at, last_dispatched_at, settled_at,
       unknown_at, reconciliation_owner, reconciliation_deadline_at)
     values ($1, $2, 'default', $3, 1, 1, $4, 'call-1', 'send_mail', repeat('a', 64), 'opaque', 'mail',
       'key-of-' || $3::text || $4::int, '{"to":"a@example.com"}', repeat('b', 64), '{}', 'tester', 1, 1, 5, now() + interval '1 hour',
       now(), now(), $5, $6, $7, $8)`,
    [
      ...[id, state, runId, slot, unknown ? null : new Date(), unknown ? new Date() : null],
      ...[unknown ? 'desk' : null, unknown ? new Date(Date.now() + 1000) : null],
    ],
  );
  await owner.query(
    `insert into holdfast.attempts (attempt_id, effect_id, attempt, fencing_token, tenant_id, run_id, epoch, execution,
       worker, lease_until, ended_at, outcome, reason)
     values ($1, $2, 1, 1, 'default', $3, 1, 'exec', 'worker-1', now(), now(), $4, $5)`,
    [attempt, id, runId, unknown ? 'unknown' : 'succeeded', unknown ? 'timed_out' : null],
  );
  if (unknown) return id;
  await owner.query(
    `insert into holdfast.receipts (effect_id, attempt_id, tenant_id, run_id, epoch, status, source, reference,
       target_status, body, body_sha256, content_type, truncated)
     values ($1, $2, 'default', $3, 1, 'succeeded', 'response', 'mail-7', '200', $4, repeat('c', 64), 'text/plain', false)`,
    [id, attempt, runId, body],
  );
  return id;
}

describe('GET /v1/runs', () => {
  test('lists the runs of the tenant alone, newest first, page by page, each once', async () => {
    const ids: string[] = [];
    for (let count = 0; count < 5; count += 1) ids.push(await newRun('lister'));
    await newRun('stranger');
    const rows = await walk('/v1/runs', async (path) => {
      const { runs, next_cursor: next } = await read(RunListView, path, 'lister');
      return { rows: runs, next };
    });
    expect(rows.map((run) => run.run_id)).toStrictEqual(ids.reverse());
  });

  test('filters by state, agent, job and time of admission', async () => {
    const runId = await newRun('filterer');
    const other = await newRun('filterer');
    await commitTrail(
      api.pool,
      { runId: other, execution: 'exec' },
      { from: 1, entries: [{ kind: 'move', to: 'running', reason: 'run_started' }] },
    );
    const run = await read(RunView, `/v1/runs/${runId}`, 'filterer');
    const listed = async (query: string): Promise<string[]> =>
      (await read(RunListView, `/v1/runs?${query}`, 'filterer')).runs.map((row) => row.run_id);
    const at = encodeURIComponent(run.execution.admitted_at);
    expect(await listed('state=running')).toStrictEqual([other]);
    expect(await listed('state=failed')).toStrictEqual([]);
    expect(await listed('agent=test-agent')).toStrictEqual([other, runId]);
    expect(await listed('agent=another')).toStrictEqual([]);
    expect(await listed(`job_id=${run.identity.job_id}`)).toStrictEqual([runId]);
    expect(
      await listed('created_after=2020-01-01T00:00:00Z&created_before=2021-01-01T00:00:00%2B02:00'),
    ).toEqual([]);
    expect(await listed(`created_after=${at}`)).toContain(other);
  });

  test('refuses a cursor of other filters, of another tenant, of another list, and of nobody', async () => {
    for (let count = 0; count < 2; count += 1) await newRun('pager');
    const { next_cursor: cursor } = await read(RunListView, '/v1/runs?limit=1', 'pager');
    const given = encodeURIComponent(cursor ?? '');
    const forged = Buffer.from('["0000000000000000","x"]').toString('base64url');
    for (const [path, tenant] of [
      [`/v1/runs?limit=1&state=running&cursor=${given}`, 'pager'],
      [`/v1/runs?limit=1&cursor=${given}`, 'default'],
      [`/v1/agents?cursor=${given}`, 'pager'],
      ['/v1/runs?cursor=garbage', 'pager'],
      ['/v1/runs?cursor=', 'pager'],
      [`/v1/runs?cursor=${forged}`, 'pager'],
    ] as const) {
      const { problem } = await problemAt(path, { tenant });
      expect([path, problem.code]).toStrictEqual([path, 'cursor_invalid']);
    }
    expect((await read(RunListView, `/v1/runs?limit=1&cursor=${given}`, 'pager')).runs).toHaveLength(1);
  });

  // prettier-ignore
  test.each([
    ['limit=0'], ['limit=101'], ['limit=-1'], ['limit=1e2'], ['limit=5&limit=6'], ['limit='], ['state=odd'],
    ['job_id=job_x'], ['job_id=a%00b'], ['agent=a%00b'], ['agent='], ['created_after=yesterday'],
    ['created_after=0000-01-01T00:00:00Z'], ['created_before=2025-01-01'], ['stat=running'], ['__proto__=1'],
  ])('refuses ?%s', async (query) => {
    const { problem } = await problemAt(`/v1/runs?${query}`);
    expect(problem.code).toBe('invalid_request');
    expect(problem.errors).toHaveLength(1);
  });

  test('takes any offset that an instant can have', async () => {
    expect(
      (await read(RunListView, '/v1/runs?created_after=9999-01-01T00:00:00%2B23:59')).runs,
    ).toStrictEqual([]);
  });
});

describe('a run', () => {
  test('tells its open effects with who must settle them, and its counts', async () => {
    const runId = await newRun();
    const lost = await addEffect(runId, 1, 'unknown');
    await addEffect(runId, 0, 'succeeded');
    const run = await read(RunView, `/v1/runs/${runId}`);
    expect(run.effects).toMatchObject({ total: 2, by_state: { unknown: 1, succeeded: 1 } });
    expect(run.effects.open).toMatchObject([
      { effect_id: lost, state: 'unknown', reconciliation: { owner: 'desk' }, lease_until: null },
    ]);
    expect(run.freshness.event_seq).toBe(run.recovery.event_seq);
    expect(run.input).toStrictEqual({ text: 'Refund order ORD-1' });
  });

  test('that has ended tells how, why, by whom and what was said last', async () => {
    const runId = await newRun();
    await owner.query(
      `insert into holdfast.messages (run_id, turn, step, position, tenant_id, role, content, as_of)
       values ($1, 1, 2, 0, 'default', 'assistant', '{"parts":[{"type":"text","text":"Done."}]}', 1)`,
      [runId],
    );
    await commitTrail(
      api.pool,
      { runId, execution: 'exec' },
      {
        from: 1,
        entries: [
          { kind: 'move', to: 'running', reason: 'run_started' },
          { kind: 'move', to: 'completed', reason: 'answer_final' },
        ],
      },
    );
    const run = await read(RunView, `/v1/runs/${runId}`);
    expect(run.terminal).toMatchObject({
      outcome: 'completed',
      reason: 'answer_final',
      actor_id: 'holdfast:workflow',
      last_message: { parts: [{ text: 'Done.' }] },
    });
    expect(run.concurrency).toMatchObject({ state_version: 3, epoch: 1, owner_execution: 'exec' });
    const transitions = await walk(`/v1/runs/${runId}/transitions`, async (path) => {
      const { transitions: rows, next_cursor: next } = await read(TransitionListView, path);
      return { rows, next };
    });
    expect(transitions.map(({ to_state }) => to_state)).toStrictEqual(['admitted', 'running', 'completed']);
    expect(transitions[1]?.prev_digest).toBe(transitions[0]?.digest);
    const events = await walk(`/v1/runs/${runId}/events`, async (path) => {
      const { events: rows, next_cursor: next } = await read(RunEventListView, path);
      return { rows, next };
    });
    expect(events.map(({ seq }) => seq)).toStrictEqual([1, 2, 3]);
    const messages = await walk(`/v1/runs/${runId}/transcript`, async (path) => {
      const { messages: rows, next_cursor: next } = await read(TranscriptView, path);
      return { rows, next };
    });
    expect(messages.map(({ role }) => role)).toStrictEqual(['user', 'assistant']);
  });

  test('lists its effects in order with attempts and receipts, whatever bytes the target sent', async () => {
    const runId = await newRun();
    await addEffect(runId, 2, 'succeeded', Buffer.from([0, 1, 2]));
    await addEffect(runId, 0, 'succeeded', Buffer.concat([Buffer.alloc(4095, 0x61), Buffer.from('\u20ac')]));
    await addEffect(runId, 1, 'unknown');
    const effects = await walk(`/v1/runs/${runId}/effects`, async (path) => {
      const { effects: rows, next_cursor: next } = await read(EffectListView, path);
      return { rows, next };
    });
    expect(effects.map(({ slot }) => slot)).toStrictEqual([0, 1, 2]);
    expect(effects[0]).toMatchObject({
      reference: 'mail-7',
      arguments: { to: 'a@example.com' },
      attempts: 1,
    });
    expect(effects[0]?.receipt).toMatchObject({ body_bytes: 4098, body_start: 'a'.repeat(4095) });
    expect(effects[1]).toMatchObject({ receipt: null, reference: null, reconciliation: { owner: 'desk' } });
    expect(effects[1]?.attempt_list).toMatchObject([{ outcome: 'unknown', reason: 'timed_out' }]);
    expect(effects[2]?.receipt).toMatchObject({ body_bytes: 3, body_start: null });
  });

  test('has pages that refuse a cursor past its end or of another run', async () => {
    const [runId, other] = [await newRun(), await newRun()];
    for (const slot of [0, 1]) await addEffect(other, slot, 'succeeded');
    const { next_cursor: foreign } = await read(EffectListView, `/v1/runs/${other}/effects?limit=1`);
    for (const path of [
      'events?cursor=2',
      'events?cursor=-1',
      'events?cursor=1e99',
      'transitions?cursor=7',
      'transcript?cursor=1',
      `effects?cursor=${foreign ?? ''}`,
    ]) {
      const { problem } = await problemAt(`/v1/runs/${runId}/${path}`);
      expect([path, problem.code]).toStrictEqual([path, 'cursor_invalid']);
    }
    expect(await read(RunEventListView, `/v1/runs/${runId}/events?cursor=1`)).toStrictEqual({
      events: [],
      next_cursor: null,
    });
  });

  test('of another tenant, an unknown one and nonsense are one answer on every path', async () => {
    const runId = await newRun('owner');
    for (const path of ['', '/transitions', '/effects', '/events', '/transcript', '/stream']) {
      const answers: unknown[] = [];
      for (const id of [
        runId,
        `run_${'f'.repeat(32)}`,
        'run_1',
        '%00',
        '..%2f..',
        encodeURIComponent('\u00e9'.repeat(90)),
      ]) {
        const { response, problem } = await problemAt(`/v1/runs/${id}${path}`);
        expect(response.status).toBe(404);
        const { instance, detail, ...same } = problem;
        expect(instance + detail).not.toContain('owner');
        answers.push(same);
      }
      for (const answer of answers) expect(answer).toStrictEqual(answers[0]);
    }
    expect((await api.request(`/v1/runs/${runId}`, { tenant: 'owner' })).status).toBe(200);
  });
});

test('GET /v1/agents shows what a run would pin, and nothing of instructions, addresses or secrets', async () => {
  const response = await api.request('/v1/agents');
  const text = await response.text();
  const { agents } = AgentListView.parse(JSON.parse(text));
  expect(agents).toMatchObject([
    { agent: 'test-agent', model: { provider: 'scripted' }, limits: { steps_max: 10 }, questions: [] },
  ]);
  expect(text).not.toMatch(/instructions|baseUrl|apiKey|Refund what/);
});

describe('paths and methods', () => {
  test('an unknown path is 404 and a known one with another method 405 with those it takes', async () => {
    expect((await problemAt('/v1/nothing')).problem.code).toBe('route_not_found');
    expect((await problemAt('/')).problem.code).toBe('route_not_found');
    expect((await problemAt('/v1/runs/%zz')).problem.code).toBe('invalid_request');
    // prettier-ignore
    for (const [method, path, allow] of [
      ['DELETE', '/v1/runs', 'POST, GET, HEAD'], ['POST', '/v1/runs/x', 'GET, HEAD'], ['PUT', '/healthz', 'GET, HEAD'],
      ['PATCH', '/v1/runs/x/stream', 'GET, HEAD'], ['POST', '/openapi.json', 'GET, HEAD'],
    ] as const) {
      const { response, problem } = await problemAt(path, { method });
      expect([problem.code, response.headers.get('allow')]).toStrictEqual(['method_not_allowed', allow]);
    }
  });

  test('the documents are there: OpenAPI, and a page that shows it', async () => {
    const document = (await (await api.request('/openapi.json')).json()) as { paths: object };
    expect(Object.keys(document.paths)).toContain('/v1/runs/{run_id}/stream');
    const page = await (await api.request('/docs')).text();
    for (const [, path = ''] of page.matchAll(/(?:src|href)="([^"]+)"/g)) {
      expect((await api.request(path)).status).toBe(200);
    }
  });
});

test('with Postgres away liveness holds, readiness says why not, reads are 503, and nothing leaks', async () => {
  const way = await openWay(databaseUrl);
  const cutOff = await startTestApi({ databaseUrl: way.url, pollMs: 50 });
  await until('it is ready', async () => (await cutOff.request('/readyz')).status === 200);
  await way.cut();
  expect((await cutOff.request('/healthz')).status).toBe(200);
  const unready = await cutOff.request('/readyz');
  expect(unready.status).toBe(503);
  const readiness = Readiness.parse(await unready.json());
  expect(readiness.checks.map(({ name, ok }) => [name, ok])).toContainEqual(['ledger', false]);
  for (const path of ['/v1/runs', `/v1/runs/run_${'0'.repeat(32)}`, '/v1/agents']) {
    const response = await cutOff.request(path);
    expect([response.status, response.headers.get('retry-after')]).toStrictEqual([503, '1']);
    const text = await response.text();
    expect(text).not.toMatch(/ECONN|5432|127\.0\.0\.1|select|holdfast\./);
  }
  await way.mend();
  await until('it is ready again', async () => (await cutOff.request('/readyz')).status === 200);
  await cutOff.close();
  await way.close();
});

test('a fault of ours is a fixed sentence, logged under the instance that the answer names', async () => {
  const database = await createTestDatabase({ migrated: false });
  const broken = await startTestApi({ databaseUrl: database.url });
  const response = await broken.request('/v1/runs');
  const problem = ProblemView.parse(await response.json());
  expect([response.status, problem.code, problem.retry]).toStrictEqual([500, 'internal', 'later']);
  expect(JSON.stringify(problem)).not.toMatch(/relation|schema|holdfast\./);
  expect(broken.logged()).toContain(problem.instance.replace('urn:holdfast:request:', ''));
  await broken.close();
});
