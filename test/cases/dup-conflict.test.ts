import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { McpConnection } from '../../activities/tools/mcp-connection.js';
import { mcpServerSchema, mcpToolSchema } from '../../activities/tools/mcp-format.js';
import { createMcpTool } from '../../activities/tools/mcp-tools.js';
import type { Tool } from '../../activities/tools/tool.js';
import { applied, arrived, checkRun } from '../support/run-checks.js';
import { DONE, reply, script, when } from '../support/scripts.js';
import { keyOf, startWorld, type World } from '../support/world.js';

// Cases 11 and 13: what a target says of a key that it knows already, and a call that goes on longer than anybody waits.

describe('case 11: an unclear payment whose retry meets its own key', () => {
  let world: World;
  beforeAll(async () => {
    world = await startWorld({ script: script(when('pay', reply('pay'), DONE)) });
  });

  /** The first attempt is lost after it arrived; the second one gets this answer. */
  async function retryMeets(body: string): Promise<string> {
    const runId = await world.admit({ input: 'pay' });
    const key = keyOf(runId);
    if (body === 'key_in_progress') world.target.dial({ mode: 'in_progress_409', key, times: 2 });
    else await spoil(key);
    world.target.dial({ mode: 'drop_before', key, times: 1 });
    await world.starter.round();
    return runId;
  }

  /** Somebody else has used the key for something else. */
  async function spoil(key: string): Promise<void> {
    const headers = { 'idempotency-key': key, 'content-type': 'application/json' };
    await fetch(`${world.target.url}/keyed`, { method: 'POST', headers, body: '{"note":"another"}' });
  }

  test('used with other parameters: not tried again, no fresh key made, and a person is asked', async () => {
    const runId = await retryMeets('key_conflict');
    await world.waitFor(runId, 'needs_reconciliation');
    expect(await world.effects(runId)).toMatchObject([{ state: 'unknown', attempts: 2, redo: 0 }]);
    // The one that spoiled the key, the lost one, and the one that met it.
    expect(arrivedAt(world, runId)).toBe(3);
    expect(Object.keys(arrived(world, runId))).toEqual([keyOf(runId)]);
  });

  test('still in progress: waited for under the same key, and done once', async () => {
    const runId = await retryMeets('key_in_progress');
    await world.waitFor(runId, 'completed');
    expect(await world.path(runId)).toContain('retry_wait');
    expect(await world.path(runId)).not.toContain('needs_reconciliation');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 4 });
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });
});

function arrivedAt(world: World, runId: string): number {
  return arrived(world, runId)[keyOf(runId)] ?? 0;
}

describe('case 13: a tool server that works longer than the limit and says so all the while', () => {
  let folder: string;
  let world: World;
  const connections: McpConnection[] = [];

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'holdfast-slow-'));
    await writeFile(join(folder, 'slow.mjs'), SLOW_SERVER);
    const tools = [
      await slowTool('impatient', { timeoutSeconds: 1 }),
      await slowTool('patient', { timeoutSeconds: 1, progressExtends: true, totalTimeoutSeconds: 20 }),
    ];
    const names = tools.map(({ name }) => name);
    world = await startWorld({
      tools,
      script: script(...names.map((name) => when(name, reply(name), DONE))),
    });
  });
  afterAll(async () => {
    await world.close();
    await Promise.all(connections.map((connection) => connection.close()));
    await rm(folder, { recursive: true });
  });

  async function slowTool(as: string, settings: Record<string, unknown>): Promise<Tool> {
    const server = mcpServerSchema.parse({
      ...{ transport: 'stdio', command: process.execPath, tools: {} },
      args: [join(folder, 'slow.mjs'), join(folder, as)],
    });
    const connection = new McpConnection({ name: as, server, secrets: () => undefined, dir: folder });
    connections.push(connection);
    const pin = (await (await connection.session()).offered()).get('pay');
    if (pin === undefined) throw new Error('the server offers no pay');
    const declared = mcpToolSchema.parse({ class: 'opaque', as, ...settings });
    return createMcpTool({ server: as, remoteName: 'pay', declared, pin, connection });
  }

  /** What the server was told, in order. */
  async function told(as: string): Promise<string[]> {
    return (await readFile(join(folder, as), 'utf8'))
      .split('\n')
      .filter((line) => line.startsWith('tools/call') || line.includes('cancelled'));
  }

  test('the server is told to stop, nothing is sent again, and a person is asked', async () => {
    const runId = await world.run({ input: 'impatient' });
    await world.waitFor(runId, 'needs_reconciliation');
    expect(await world.attempts(runId)).toMatchObject([{ outcome: 'unknown', reason: 'timed_out' }]);
    await expect.poll(() => told('impatient')).toEqual(['tools/call', 'notifications/cancelled']);
    await checkRun(world, runId);
  });

  test('where progress extends the limit it is one call that ends well', async () => {
    const runId = await world.run({ input: 'patient' });
    await world.waitFor(runId, 'completed');
    expect(await told('patient')).toEqual(['tools/call']);
    await checkRun(world, runId);
  });
});

/** Pays for three seconds, with a word of progress every quarter; writes what it is asked into a file. */
const SLOW_SERVER = `
import { appendFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
const log = process.argv[2];
const send = (message) => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', ...message }) + '\\n');
createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  appendFileSync(log, method + '\\n');
  if (method === 'initialize') {
    send({ id, result: { protocolVersion: params.protocolVersion, capabilities: { tools: {} },
                         serverInfo: { name: 'slow', version: '1' } } });
  } else if (method === 'tools/list') {
    const inputSchema = { type: 'object', properties: { note: { type: 'string' } } };
    send({ id, result: { tools: [{ name: 'pay', description: 'Pays, slowly.', inputSchema }] } });
  } else if (method === 'tools/call') {
    const progressToken = params._meta?.progressToken;
    let progress = 0;
    const timer = setInterval(() => {
      progress += 1;
      if (progressToken !== undefined) send({ method: 'notifications/progress', params: { progressToken, progress } });
      if (progress < 12) return;
      clearInterval(timer);
      send({ id, result: { content: [{ type: 'text', text: 'paid' }] } });
    }, 250);
  } else if (id !== undefined) send({ id, result: {} });
});
`;
