import { beforeAll, describe, expect, test } from 'vitest';
import type { RunFixture } from '../shared/domain/fixture.js';
import { RunFixtureView } from '../api/views/export-views.js';
import type { Bench } from '../workers/fixture/bench.js';
import { replayFixture } from '../workers/fixture/replay.js';
import { command, decide, settle, waits } from './support/desk-world.js';
import { createTestDatabase, timeSkippingServerPath } from './support/servers.js';
import { type SkippingWorld, startSkippingWorld } from './support/skipping-world.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { sharedBundle } from './support/world-temporal.js';

let source: SkippingWorld;
let api: TestApi;
let bench: Bench;
beforeAll(async () => {
  source = await startSkippingWorld({ approvals: ['mail'], limits: { stepsMax: 4 } });
  api = await startTestApi({ databaseUrl: source.world.databaseUrl });
  bench = {
    testServerPath: await timeSkippingServerPath(),
    workflowBundle: await sharedBundle(),
    newDatabase: () => createTestDatabase(),
    close: () => Promise.resolve(),
  };
});

async function exported(runId: string, rules?: object): Promise<RunFixture> {
  const response = await api.request(`/v1/runs/${runId}/fixture`, {
    ...(rules === undefined
      ? {}
      : {
          method: 'POST',
          body: JSON.stringify(rules),
          headers: { 'content-type': 'application/json' },
        }),
  });
  const body: unknown = await response.json();
  expect([response.status, body]).toMatchObject([200, {}]);
  return RunFixtureView.parse(body);
}

async function untilState(runId: string, state: string): Promise<void> {
  for (let n = 0; n < 60; n += 1) {
    if ((await source.world.runRow(runId)).state === state) return;
    await source.skip(2);
  }
  throw new Error(await source.world.describe(runId));
}

describe('a fixture', () => {
  test('of a run with a kill, an approval and a reconciliation replays with the same path', async () => {
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
    const fixture = await exported(runId);
    console.log(JSON.stringify(fixture.document, null, 1));
    const t = performance.now();
    console.log(await replayFixture(bench, fixture), performance.now() - t);
    void command;
  }, 60000);
});
