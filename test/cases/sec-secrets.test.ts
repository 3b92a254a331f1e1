import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { reply, script, when, DONE } from '../support/scripts.js';
import { startTestApi } from '../support/test-api.js';
import { startWorld, type World } from '../support/world.js';

// Goal: a credential is where it is used and nowhere else, though the target sends it back (SPEC 11). Method: a target that
// puts what it was sent into its answers; then everything that keeps anything is searched.

const SECRETS = ['first-credential-4711', 'second-credential-0815'] as const;
const env: Record<string, string> = { DESK_TOKEN: SECRETS[0] };

let world: World;
let server: Server;
const asked: (string | undefined)[] = [];

beforeAll(async () => {
  server = createServer((request: IncomingMessage, response) => {
    const { authorization } = request.headers;
    asked.push(authorization);
    const token = authorization?.slice('Bearer '.length) ?? '';
    const said = {
      id: `ref ${token}`,
      error: `not good: ${authorization}`,
      basic: Buffer.from(token).toString('base64'),
    };
    response.writeHead(request.url === '/fails' ? 422 : 200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(said));
    request.resume();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const headers = { authorization: 'Bearer ${secret:DESK_TOKEN}' };
  world = await startWorld({
    env,
    httpTools: {
      pay: { url: `http://127.0.0.1:${port}/works`, headers, allow: [`127.0.0.1:${port}`] },
      mail: { url: `http://127.0.0.1:${port}/fails`, headers, allow: [`127.0.0.1:${port}`] },
    },
    script: script(when('both', reply('pay'), reply('mail'), DONE)),
  });
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

test('case 103: a credential that the target sends back is kept nowhere, and a new one is used from the next call on', async () => {
  const first = await world.run({ input: 'both' });
  await world.waitFor(first, 'completed');
  env['DESK_TOKEN'] = SECRETS[1];
  const second = await world.run({ input: 'both' });
  await world.waitFor(second, 'completed');
  expect(asked).toEqual([SECRETS[0], SECRETS[0], SECRETS[1], SECRETS[1]].map((token) => `Bearer ${token}`));

  const api = await startTestApi({ databaseUrl: world.databaseUrl });
  const kept: string[] = [world.logged()];
  for (const runId of [first, second]) {
    const { events } = await world.client.workflow.getHandle(runId).fetchHistory();
    kept.push(JSON.stringify(events));
    for (const part of ['', '/events', '/effects', '/transcript', '/story', '/export']) {
      kept.push(await (await api.request(`/v1/runs/${runId}${part}`)).text());
    }
  }
  const tables = await world.rows<{ name: string }>(
    `select relname as name from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'r'`,
  );
  for (const { name } of tables) {
    const rows = await world.rows<{ row: string }>(`select to_jsonb(t)::text as row from holdfast.${name} t`);
    kept.push(...rows.map(({ row }) => row));
  }
  const receipts = await Promise.all([first, second].map((runId) => world.receipts(runId)));
  kept.push(...receipts.flat().map(({ body }) => body.toString('latin1')));
  for (const secret of SECRETS) {
    for (const form of [
      secret,
      Buffer.from(secret).toString('base64'),
      Buffer.from(secret).toString('hex'),
    ]) {
      expect(kept.filter((text) => text.includes(form))).toEqual([]);
    }
  }
  // What it said besides is kept.
  expect(receipts.flat()[0]?.body.toString()).toContain('not good: Bearer [secret]');
});
