import { createHash, randomUUID } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { NativeConnection } from '@temporalio/worker';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { defineTool } from '../activities/tools/define-tool.js';
import { RESULT_BYTES_MAX } from '../activities/tools/tool.js';
import { RESULT_TEXT_MAX } from '../activities/result-text.js';
import { judge } from './support/judge.js';
import { Playing, summaryOf } from './support/seam-table.js';
import { temporalAddress } from './support/servers.js';
import { startTcpProxy, type TcpProxy } from './support/tcp-proxy.js';
import { startWorld, until, type World } from './support/world.js';
import { TOOL_OF_CLASS } from './support/world-project.js';

// Goal: whatever a target sends, or does not, the receipt is written or the outcome is unknown, once. Nothing that a
// target sends can make "done outside" and "no receipt" (FAULTS A14, A15), nor grow into Temporal.

/** Answers that a store, a parser or Temporal would choke on. All say that it was done. */
const BODIES: Readonly<Record<string, Buffer>> = {
  '3 MB': jsonOf({ id: 'a', filler: 'x'.repeat(3_000_000) }),
  '5 MB': jsonOf({ id: 'a', filler: 'x'.repeat(5_000_000) }),
  '10 MB': jsonOf({ id: 'a', filler: 'ä'.repeat(5_000_000) }),
  'NUL, escaped': Buffer.from('{"id":"a\\u0000b","note":"\\u0000"}'),
  'a lone surrogate, escaped': Buffer.from('{"id":"a\\ud800","note":"\\udfff"}'),
  'numbers that no double holds': Buffer.from('{"id":"a","n":[9007199254740993,1e999,-0.0,1e-999]}'),
  '5,000 arrays deep': Buffer.from('['.repeat(5_000) + ']'.repeat(5_000)),
  'members of one name, and __proto__': Buffer.from('{"id":"a","id":"b","__proto__":{"id":"c"}}'),
  'a name of 300 characters': jsonOf({ id: 'i'.repeat(300) }),
};

/** Answers of a tool that reads the status alone. */
const BYTES: Readonly<Record<string, Buffer>> = {
  'raw NUL and bytes that are no UTF-8': Buffer.from([0x61, 0x00, 0xff, 0xfe, 0xed, 0xa0, 0x80, 0x62]),
  'ten million NULs': Buffer.alloc(10_000_000),
  'nothing at all': Buffer.alloc(0),
};

// Takes its time, and nobody's attention: it plays while the others do.
let cutOffWorker: Promise<void>;

beforeAll(() => {
  cutOffWorker = playCutOffWorker();
  cutOffWorker.catch(() => undefined);
});

describe('a target that answers', () => {
  let world: World;
  let server: Server;
  const arrived: string[] = [];
  const runs = new Map<string, string>();

  beforeAll(async () => {
    server = createServer((request, response) => {
      arrived.push(String(request.headers['idempotency-key']));
      const name = decodeURIComponent(request.url?.slice(1) ?? '');
      const type = name in BODIES ? 'application/json' : 'application/octet-stream';
      response.writeHead(200, { 'content-type': type }).end(BODIES[name] ?? BYTES[name]);
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    const raw = {
      ...{ description: 'Does something.', class: 'opaque' },
      ...{ url: `http://127.0.0.1:${port}/{note}`, allow: [`127.0.0.1:${port}`], timeoutSeconds: 20 },
    };
    world = await startWorld({
      httpTools: { raw, bytes: { ...raw, expects: 'any' } },
      tools: [bulk],
      script: scriptOf(['raw', 'bytes', 'bulk']),
      heartbeatSeconds: 30,
    });
    for (const name of Object.keys(BODIES)) runs.set(name, await world.admit({ input: `raw ${name}` }));
    for (const name of Object.keys(BYTES)) runs.set(name, await world.admit({ input: `bytes ${name}` }));
    runs.set('bulk', await world.admit({ input: 'bulk' }));
    await world.starter.round();
  });

  afterAll(() => {
    server.close();
  });

  test.each(Object.entries({ ...BODIES, ...BYTES }))(
    '%s is done once, and kept byte for byte up to the cap (A14, A15)',
    async (name, sent) => {
      const runId = runs.get(name)!;
      await world.waitFor(runId, 'completed');
      expect(arrived.filter((key) => key.startsWith(runId))).toHaveLength(1);
      const [receipt] = await world.receipts(runId);
      const kept = sent.subarray(0, RESULT_BYTES_MAX);
      expect(receipt).toMatchObject({ status: 'succeeded', truncated: sent.length > RESULT_BYTES_MAX });
      expect(receipt?.body.equals(kept)).toBe(true);
      expect(receipt?.body_sha256).toBe(createHash('sha256').update(kept).digest('hex'));
    },
  );

  test('no answer reaches Temporal, and the model hears at most its share of one', async () => {
    for (const runId of runs.values()) {
      await world.waitFor(runId, 'completed');
      expect(await largestPayload(world, runId)).toBeLessThanOrEqual(1_024);
      const texts = (await world.messages(runId)).map(({ content }) => String(content['text'] ?? ''));
      for (const text of texts) expect(text.length).toBeLessThan(RESULT_TEXT_MAX + 100);
    }
  });

  test('a function tool that returns 3 MB is done once, and marked as cut (A14)', async () => {
    const runId = runs.get('bulk')!;
    await world.waitFor(runId, 'completed');
    expect(await world.receipts(runId)).toMatchObject([{ status: 'succeeded', truncated: true }]);
    expect(await world.attempts(runId)).toHaveLength(1);
  });
});

describe('a way to the target', () => {
  let proxy: TcpProxy;
  let world: World;

  beforeAll(async () => {
    world = await startWorld({
      heartbeatSeconds: 30,
      targetUrlOf: async (url) => {
        proxy = await startTcpProxy(url);
        return proxy.via(url).replace(/\/$/, '');
      },
      httpTools: {
        nowhere: { description: 'Asks nobody.', class: 'opaque', url: 'http://nowhere.invalid/' },
      },
      script: scriptOf([...Object.values(TOOL_OF_CLASS), 'nowhere']),
    });
  });

  // FAULTS A17.
  test('that refuses connections proves that nothing left: every class waits, and goes on when it can (A17)', async () => {
    await proxy.refuse();
    const runIds = await runOfEachClass();
    for (const runId of runIds) {
      await world.waitFor(runId, 'retry_wait');
      const [effect] = await world.effects(runId);
      expect(effect).toMatchObject({ state: 'intended', reconciliation_owner: null });
      expect(await world.attempts(runId)).toContainEqual(
        expect.objectContaining({ outcome: 'not_sent', reason: 'connection_refused' }),
      );
    }
    await proxy.pass();
    const done = ['1/1', '1/1', '1/1', '1/0'].map((count) => `${count} succeeded by response, completed`);
    expect(await Promise.all(runIds.map((runId) => summaryOf(world, runId)))).toEqual(done);
    for (const runId of runIds) expect(await world.path(runId)).not.toContain('needs_reconciliation');
  });

  // FAULTS A08: the answer never comes, and comes when nobody listens any more.
  test('that swallows answers ends the call by its own time-out, and a late answer is heard by nobody (A08)', async () => {
    proxy.blackhole('to_client');
    const runIds = await runOfEachClass({ timeouts: { tool_seconds: 1 } });
    for (const runId of runIds) {
      await until('the call timed out', async () => {
        const [first] = await world.attempts(runId);
        return first?.outcome === 'unknown' && first.reason === 'timed_out';
      });
    }
    await proxy.pass();
    const rests = await Promise.all(runIds.map((runId) => summaryOf(world, runId)));
    expect(rests.map((rest) => rest.replace(/^([2-9]|\d\d)\//, 'n/'))).toEqual([
      'n/1 succeeded by response, completed',
      '1/1 committed by probe, completed',
      '1/1 unknown, needs_reconciliation',
      'n/0 succeeded by response, completed',
    ]);
    await until('no connection is left', () => proxy.connections === 0);
    expect(await world.rows('select from holdfast.late_receipts')).toEqual([]);
  });

  test('whose name nobody knows proves that nothing left, and ends with the series', async () => {
    const runId = await world.run({ input: 'nowhere', contract: { retry: { attempts_max: 2 } } });
    expect(await summaryOf(world, runId)).toBe('0/0 withdrawn, completed');
    const attempts = await world.attempts(runId);
    expect(attempts.map(({ outcome, reason }) => `${outcome} ${reason}`)).toEqual(
      Array(2).fill('not_sent dns_failed'),
    );
  });

  test('leaves a ledger that says what the target saw', async () => {
    expect(await judge(world, world.targetLog())).toEqual([]);
  });

  async function runOfEachClass(contract: Record<string, unknown> = {}): Promise<string[]> {
    const inputs = Object.values(TOOL_OF_CLASS).map((tool) => `${tool} ${randomUUID()}`);
    const runIds = await Promise.all(inputs.map((input) => world.admit({ input, contract })));
    await world.starter.round();
    return runIds;
  }
});

// FAULTS A13: the worker has the receipt stored and cannot tell Temporal.
test('a worker whose reports to Temporal are lost is taken for lost, and its receipt is the answer (A13)', async () => {
  await cutOffWorker;
}, 90_000);

async function playCutOffWorker(): Promise<void> {
  const world = await startWorld({ workers: 0 });
  const proxy = await startTcpProxy(temporalAddress());
  const connection = await NativeConnection.connect({ address: proxy.address });
  const cutOff = await world.startWorker({ connection });
  const playing = new Playing();
  const runIds = [];
  for (const tool of Object.values(TOOL_OF_CLASS)) {
    const runId = await world.admit({ input: `${tool} ${randomUUID()}` });
    world.faults.add({ point: 'act.after_settle', runId, mode: 'hang' });
    runIds.push(runId);
  }
  await world.starter.round();
  await until('every receipt is stored', () => world.faults.reached().length === runIds.length);
  proxy.blackhole('both');
  world.faults.release();
  await world.startWorker();
  for (const runId of runIds) playing.add(runId, summaryOf(world, runId));
  const done = ['1/1', '1/1', '1/1', '1/0'].map((count) => `${count} succeeded by response, completed`);
  expect(await playing.all()).toEqual(done);

  await proxy.pass();
  await cutOff.stop();
  await connection.close();
  for (const runId of runIds) expect(await world.attempts(runId)).toHaveLength(1);
  expect(await world.rows('select from holdfast.late_receipts')).toEqual([]);
  expect(await judge(world, world.targetLog())).toEqual([]);
}

const bulk = defineTool({
  name: 'bulk',
  description: 'Returns much.',
  input: { type: 'object', properties: { note: { type: 'string' } } },
  effect: { class: 'opaque' },
  run: () => ({ filler: 'x'.repeat(3_000_000) }),
});

/** Calls the tool that the first word of the input names, with the rest of it. */
function scriptOf(tools: readonly string[]): Record<string, unknown> {
  return {
    scenarios: tools.map((name) => ({
      name,
      when: { inputMatches: `^${name}\\b *(?<rest>.*)$` },
      replies: [{ toolCalls: [{ name, arguments: { note: '{{input.rest}}' } }] }, { text: 'Done.' }],
    })),
  };
}

/** Bytes of the largest payload in the run's history. */
async function largestPayload(world: World, runId: string): Promise<number> {
  const history = await world.client.workflow.getHandle(runId).fetchHistory();
  const sizes = payloadsIn(history.events).map((payload) => payload.byteLength);
  expect(sizes.length).toBeGreaterThan(5);
  return Math.max(...sizes);
}

/** Every `data` of a payload, at any depth. */
function payloadsIn(value: unknown): Uint8Array[] {
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return [];
  return Object.entries(value).flatMap(([name, member]) =>
    name === 'data' && member instanceof Uint8Array ? [member] : payloadsIn(member),
  );
}

function jsonOf(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value));
}
