import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client, Connection, WorkflowNotFoundError } from '@temporalio/client';
import { NativeConnection } from '@temporalio/worker';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readConfig } from '../shared/process/config.js';
import { findTemporalProgram } from '../workers/stack/temporal-binaries.js';
import { startTemporalServer, type TemporalServer } from '../workers/stack/temporal-server.js';
import { arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: whatever becomes of a workflow in Temporal, its run is shown truthfully, and nothing that may have happened
// outside is forgotten (SPEC 3.8). Method: workflows are ended behind the run's back, then the sweeper looks.

const SCRIPT = script(
  when('mail', reply('mail'), DONE),
  when('look', reply('look'), DONE),
  when('later', { error: { reason: 'rate_limited', retryAfter: 3_000 } }),
  when('ask', reply('mail'), DONE),
  when('long', ...Array.from({ length: 14 }, () => reply('look')), DONE),
);

let world: World;

beforeAll(async () => {
  world = await startWorld({ script: SCRIPT });
});

const EXECUTION_ENDS = [
  ['is terminated', 'workflow_terminated', (runId: string) => handleOf(runId).terminate()],
  ['is cancelled in Temporal', 'workflow_cancelled', (runId: string) => handleOf(runId).cancel()],
  ['is deleted', 'workflow_vanished', (runId: string) => deleteRunning(runId)],
] as const;

describe.each(EXECUTION_ENDS)('a run whose workflow %s', (_, reason, end) => {
  test('while nothing is open fails, and says why', async () => {
    const runId = await world.run({ input: 'later' });
    await world.waitFor(runId, 'retry_wait');
    await endAndSweep(runId, end);
    expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'failed', reason });
    await checkRun(world, runId);
  });

  test('while it waits for an approval fails, and what was asked for is withdrawn', async () => {
    const runId = await world.run({
      input: 'ask',
      contract: { effects: { mail: { approval: 'required' } } },
    });
    await world.waitFor(runId, 'awaiting_approval');
    await endAndSweep(runId, end);
    expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'failed', reason });
    expect(await world.effects(runId)).toMatchObject([{ state: 'withdrawn', attempts: 0 }]);
    expect(arrived(world, runId)).toEqual({});
    await checkRun(world, runId);
  });

  test('with a read in flight fails, since a read leaves nothing open', async () => {
    const runId = await heldCall('look');
    await endAndSweep(runId, end);
    expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'failed', reason });
    expect(await world.effects(runId)).toMatchObject([{ state: 'not_committed' }]);
    world.target.release();
    await checkRun(world, runId);
  });
});

// A cancel in Temporal waits for the attempt's own word, so there is no such run to sweep.
describe.each(EXECUTION_ENDS.filter(([, reason]) => reason !== 'workflow_cancelled'))(
  'a run whose workflow %s',
  (_, reason, end) => {
    test('with an opaque call in flight goes to a person, and an answer that comes late settles it', async () => {
      const runId = await world.admit({ input: 'mail' });
      world.faults.add({ point: 'act.after_call', mode: 'hang', runId });
      await world.starter.round();
      await until('the target has answered', () =>
        world.faults.reached().some((fault) => fault.runId === runId),
      );
      await endAndSweep(runId, end);
      expect(await world.waitFor(runId, 'needs_reconciliation')).toMatchObject({ reason });
      expect(await world.effects(runId)).toMatchObject([
        { state: 'unknown', reconciliation_owner: 'owner', reconciliation_deadline_at: expect.any(Date) },
      ]);
      // Until there is something new, looking again changes nothing.
      const before = await world.events(runId);
      await world.sweeper.round();
      expect(await world.events(runId)).toEqual(before);

      world.faults.release(runId);
      await until('the answer came late', async () => (await world.lateReceipts(runId)).length === 1);
      await world.sweeper.round();
      expect(await world.waitFor(runId, 'ended')).toMatchObject({ state: 'failed', reason: 'late_receipt' });
      expect(await world.effects(runId)).toMatchObject([{ state: 'committed', attempts: 1 }]);
      expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
      await checkRun(world, runId);
    });
  },
);

test('a workflow that Temporal cancels over an opaque call in flight waits for what became of the call', async () => {
  const runId = await heldCall('mail');
  await handleOf(runId).cancel();
  await until(
    'the aborted call has its outcome',
    async () => (await world.effects(runId))[0]?.state !== 'dispatching',
  );
  expect(await world.effects(runId)).toMatchObject([{ state: 'unknown', reconciliation_owner: 'owner' }]);
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  world.target.release();
});

test('a live run is left alone, however often it is looked at', async () => {
  const runId = await heldCall('mail');
  for (let round = 0; round < 3; round += 1) await world.sweeper.round();
  world.target.release();
  await world.waitFor(runId, 'completed');
  expect(await world.path(runId)).toEqual(['admitted', 'running', 'completed']);
  expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
  await checkRun(world, runId);
});

test('a run that was never started is not taken for lost', async () => {
  const runId = await world.admit({ input: 'look' });
  await world.sweeper.round();
  expect(await world.runRow(runId)).toMatchObject({ state: 'admitted' });
  await world.starter.round();
  await world.waitFor(runId, 'completed');
  await checkRun(world, runId);
});

test('a run that has ended is never changed, whatever becomes of its workflow', async () => {
  const runId = await world.run({ input: 'look' });
  await world.waitFor(runId, 'completed');
  await handleOf(runId).result();
  await deleteWorkflow(runId);
  const before = await world.events(runId);
  await world.sweeper.round();
  await world.starter.round();
  expect(await world.events(runId)).toEqual(before);
  expect(await world.runRow(runId)).toMatchObject({ state: 'completed' });
});

describe('the limit of events that a history may have', () => {
  let server: TemporalServer;
  let folder: string;
  let small: { client: Client; connection: NativeConnection; address: string; namespace: string };

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'holdfast-limits-'));
    const { binaries } = readConfig({ ...process.env, DATABASE_URL: '', TEMPORAL_ADDRESS: '' });
    const { path } = await findTemporalProgram('cli', binaries);
    server = await startTemporalServer({
      ...{ program: path, folder, storage: 'memory', port: 0, uiPort: null, namespace: 'default' },
      dynamicConfig: { 'limit.historyCount.error': '120', 'limit.historyCount.warn': '100' },
    });
    const { address } = server;
    const connection = await NativeConnection.connect({ address });
    const client = new Client({ connection: await Connection.connect({ address }), namespace: 'default' });
    small = { address, connection, client, namespace: 'default' };
  });
  afterAll(async () => {
    for (const each of worlds) await each.close();
    await small.client.connection.close();
    await small.connection.close();
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });
  const worlds: World[] = [];
  const open = async (historyEventsMax: number): Promise<World> => {
    const opened = await startWorld({ script: SCRIPT, temporal: small, historyEventsMax });
    worlds.push(opened);
    return opened;
  };

  test('is not met by a run that continues as new before it', async () => {
    const careful = await open(60);
    const runId = await careful.run({ input: 'long' });
    await careful.waitFor(runId, 'completed');
    expect((await careful.runRow(runId)).epoch).toBeGreaterThan(2);
    expect(modelRequests(careful, runId)).toHaveLength(15);
    await checkRun(careful, runId);
  });

  test('ends the workflow without a word, and the sweeper says so', async () => {
    const careless = await open(20_000);
    const runId = await careless.run({ input: 'long' });
    await until('Temporal has ended the workflow', async () => {
      const { status } = await careless.client.workflow.getHandle(runId).describe();
      return status.name !== 'RUNNING';
    });
    await until('the sweeper has seen it', async () => {
      await careless.sweeper.round();
      return (await careless.runRow(runId)).ended_at !== null;
    });
    expect(await careless.runRow(runId)).toMatchObject({ state: 'failed', reason: 'workflow_terminated' });
    await checkRun(careless, runId);
  });
});

function handleOf(runId: string) {
  return world.client.workflow.getHandle(runId);
}

async function deleteWorkflow(runId: string): Promise<void> {
  await world.client.workflowService.deleteWorkflowExecution({
    namespace: world.namespace,
    workflowExecution: { workflowId: runId },
  });
}

/** Temporal terminates what runs when it is deleted, and forgets it a moment later. */
async function deleteRunning(runId: string): Promise<void> {
  await deleteWorkflow(runId);
  await until('Temporal has forgotten the workflow', () =>
    handleOf(runId)
      .describe()
      .then(
        () => false,
        (error: unknown) => {
          if (error instanceof WorkflowNotFoundError) return true;
          throw error;
        },
      ),
  );
}

/** A run whose only call has reached the target, which holds its answer back. */
async function heldCall(input: string): Promise<string> {
  const runId = await world.admit({ input });
  world.target.dial({ mode: 'hold_before', key: keyOf(runId), times: 1 });
  await world.starter.round();
  await until('the call arrived', () => keyOf(runId) in arrived(world, runId));
  return runId;
}

/** Ends the workflow, waits until Temporal says so, and has the sweeper look until it has found the run. */
async function endAndSweep(runId: string, end: (runId: string) => Promise<unknown>): Promise<void> {
  await end(runId);
  await until('the workflow is over', async () => {
    try {
      return (await handleOf(runId).describe()).status.name !== 'RUNNING';
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return true;
      throw error;
    }
  });
  await until('the sweeper has found the run', async () => {
    await world.sweeper.round();
    return (await world.runRow(runId)).owner_execution === 'sweeper';
  });
}
