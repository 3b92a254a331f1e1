import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import pg from 'pg';
import { beforeAll, expect, test } from 'vitest';
import { RunListView, RunView } from '../api/views/run-views.js';
import { startTestProcess } from './support/processes.js';
import type { TestProcess } from './support/processes.js';
import { createTestDatabase } from './support/servers.js';
import { registerTestAgent, startBody, startTestApi, until } from './support/test-api.js';
import type { TestApi } from './support/test-api.js';

let databaseUrl: string;
let api: TestApi;
beforeAll(async () => {
  databaseUrl = (await createTestDatabase()).url;
  api = await startTestApi({ databaseUrl });
  await registerTestAgent(api.pool);
});

/** The API as its own process. Temporal's address names nobody: nothing that the API does may need it. */
function startApiProcess(env: Record<string, string> = {}): TestProcess {
  return startTestProcess({
    entry: 'api/server.ts',
    env: { DATABASE_URL: databaseUrl, TEMPORAL_ADDRESS: '127.0.0.1:1', HOLDFAST_API_PORT: '0', ...env },
  });
}

const urlOf = async (child: TestProcess): Promise<string> => String((await child.ready).detail['url']);

const startAt = (url: string, key: string): Promise<Response> =>
  fetch(`${url}/v1/runs`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': key },
    body: JSON.stringify(startBody()),
  });

test('the process serves with Temporal down, and ends in order when it is asked to', async () => {
  const child = startApiProcess();
  const url = await urlOf(child);
  expect((await startAt(url, 'process-1')).status).toBe(201);
  const ready = await fetch(`${url}/readyz`);
  expect([ready.status, await ready.text()]).toStrictEqual([200, expect.stringContaining('applied, newest')]);
  const { run_id } = RunView.parse(await (await startAt(url, 'process-1')).json());
  const stream = (await fetch(`${url}/v1/runs/${run_id}/stream`)).body?.pipeThrough(new TextDecoderStream());
  if (stream === undefined) throw new Error('the stream has no body');
  const reader = stream.getReader();
  let text = '';
  while (!text.includes('"type":"run.admitted"')) text += (await reader.read()).value ?? '';
  const asked = Date.now();
  const stopped = child.signal('SIGTERM');
  // An open stream is ended by the stop, not left to its reader.
  while (!(await reader.read()).done) continue;
  await stopped;
  expect(Date.now() - asked).toBeLessThan(3_000);
  expect(await child.ended).toStrictEqual({ code: 0, signal: null });
});

test('G11: asked to stop, it ends its streams and answers the request that is in flight, then exits', async () => {
  const child = startApiProcess();
  const url = await urlOf(child);
  const { run_id } = RunView.parse(await (await startAt(url, 'in-flight')).json());
  const stream = await fetch(`${url}/v1/runs/${run_id}/stream`);
  const holder = new pg.Client(databaseUrl);
  await holder.connect();
  await holder.query('begin');
  await holder.query('select from holdfast.runs where run_id = $1 for update', [run_id]);
  const cancelling = fetch(`${url}/v1/runs/${run_id}/commands`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': 'in-flight' },
    body: '{"kind":"cancel"}',
  });
  await until('the cancel waits', async () => {
    const { rows } = await holder.query<{ n: number }>(
      `select count(*)::int as n from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
    );
    return rows[0]?.n === 1;
  });
  const stopped = child.signal('SIGTERM');
  // The stream ends with the wish to come back, while the request is still at work.
  expect(await stream.text()).toMatch(/^retry: \d+\n/);
  await holder.query('commit');
  await holder.end();
  expect((await cancelling).status).toBe(200);
  await stopped;
  expect(await child.ended).toStrictEqual({ code: 0, signal: null });
});

test('killed with -9 among starts it leaves each key with no run or one, and a retry makes it exactly one (G04)', async () => {
  const keys = Array.from({ length: 40 }, (_, index) => `killed-${index}`);
  const child = startApiProcess();
  const url = await urlOf(child);
  let answered = 0;
  const starts = keys.map(async (key) => {
    const response = await startAt(url, key);
    answered += 1;
    if (answered === 10) await child.signal('SIGKILL');
    return RunView.parse(await response.json()).run_id;
  });
  const first = await Promise.allSettled(starts);
  expect(first.some(({ status }) => status === 'rejected')).toBe(true);
  const acknowledged = first.flatMap((start) => (start.status === 'fulfilled' ? [start.value] : []));

  const again = startApiProcess();
  const secondUrl = await urlOf(again);
  const retried = await Promise.all(
    keys.map(async (key) => RunView.parse(await (await startAt(secondUrl, key)).json()).run_id),
  );
  expect(new Set(retried).size).toBe(keys.length);
  expect(retried).toEqual(expect.arrayContaining(acknowledged));
  const { rows } = await api.pool.query<{ n: number }>(
    `select count(*)::int as n from holdfast.api_requests where idempotency_key like 'killed-%'`,
  );
  expect(rows[0]?.n).toBe(keys.length);
  const listed = RunListView.parse(await (await fetch(`${secondUrl}/v1/runs?limit=100`)).json()).runs;
  expect(listed.map((run) => run.run_id)).toEqual(expect.arrayContaining(retried));
  await again.signal('SIGTERM');
});

test('a port in use is one line that says what to set, and exit code 1', async () => {
  const blocker = createServer();
  await new Promise<void>((resolve) => void blocker.listen(0, '127.0.0.1', resolve));
  const { port } = blocker.address() as AddressInfo;
  const child = startApiProcess({ HOLDFAST_API_PORT: String(port) });
  await expect(child.ready).rejects.toThrow();
  expect((await child.ended).code).toBe(1);
  expect(child.output()).toMatch(new RegExp(`^api: Port ${port} .* HOLDFAST_API_PORT`, 'm'));
  expect(child.output()).not.toContain('    at ');
  blocker.close();
});
