import { randomUUID } from 'node:crypto';
import { Client, Connection, WorkflowNotFoundError } from '@temporalio/client';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { DEFAULT_LIMITS } from '../api/deps.js';
import { RunView } from '../api/views/run-views.js';
import { WORKFLOW_TYPE } from '../shared/domain/protocol.js';
import { createStarter } from '../workers/starter.js';
import { createSweeper } from '../workers/sweeper.js';
import { judge } from './support/judge.js';
import { type OwnTemporal, startOwnTemporal } from './support/own-stack.js';
import { temporalAddress } from './support/servers.js';
import { startTcpProxy, type TcpProxy } from './support/tcp-proxy.js';
import { arrived, checkRun } from './support/run-checks.js';
import { startBody, startTestApi } from './support/test-api.js';
import { keyOf, startWorld, until, type World } from './support/world.js';
import { AGENT } from './support/world-project.js';

// Goal: an admitted run gets one workflow, once, whatever is lost between the ledger and Temporal; and the sweep leaves
// what lives alone. Method: cut, hold and repeat what the starter says, over one ledger and the shared dev server.

const SETTINGS = { heartbeatSeconds: 2, historyEventsMax: 2_000, apiUrl: '' };

let world: World;
/** A Temporal that knows nothing of any run: one whose retention is over, or that lost its data. */
let forgetful: OwnTemporal;
beforeAll(async () => {
  // Heartbeats far apart: that its workflow was terminated reaches no activity while a test looks.
  [world, forgetful] = await Promise.all([startWorld({ heartbeatSeconds: 120 }), startOwnTemporal()]);
});

describe('a start', () => {
  test('whose notification nobody heard is made by a worker within seconds, once (D03)', async () => {
    const own = await startWorld({ workers: 0 });
    const before = await own.admit();
    const worker = own.startWorkerProcess();
    await worker.ready;
    // Its LISTEN is lost at the very moment: whoever admitted is gone, and nobody was told.
    await own.rows(`select pg_terminate_backend(pid) from pg_stat_activity
                     where datname = current_database() and query like 'listen %'`);
    const after = await own.admit();
    for (const runId of [before, after]) {
      await own.waitFor(runId, 'completed');
      expect(await executionsOf(runId)).toBe(1);
    }
    await worker.signal('SIGTERM');
  });

  test('whose reply was lost is a start: one workflow, confirmed (D04)', async () => {
    const { starter, proxy } = await starterByProxy();
    const runId = await world.admit();
    proxy.cutReplyAfter(runId);
    await starter.round();
    expect(proxy.cuts).toBe(1);
    await world.waitFor(runId, 'completed');
    expect(await isConfirmed(runId)).toBe(true);
    expect(await executionsOf(runId)).toBe(1);
    await checkRun(world, runId);
  });

  test('that was made and never confirmed is found made by the next round', async () => {
    const runId = await world.admit();
    await world.starter.startNotified(await messageOf(runId));
    // Whoever started it is gone: nobody confirmed. Another worker's round finds the run where it stood.
    await world.rows('update holdfast.runs set start_confirmed_at = null where run_id = $1', runId);
    await Promise.all([world.starter.round(), world.starter.round()]);
    await world.waitFor(runId, 'completed');
    expect(await executionsOf(runId)).toBe(1);
  });

  test('that Temporal refuses holds up no other run, and comes again', async () => {
    const own = await startWorld();
    const refused = await own.admit();
    // Longer than Temporal takes.
    await own.rows('update holdfast.runs set task_queue = $2 where run_id = $1', refused, 'q'.repeat(1_001));
    const next = await own.admit();
    await own.starter.round();
    await own.waitFor(next, 'completed');
    expect((await own.runRow(refused)).state).toBe('admitted');
    expect(own.logged()).toContain(refused);
    await own.rows('update holdfast.runs set task_queue = $2 where run_id = $1', refused, own.taskQueue);
    await own.starter.round();
    await own.waitFor(refused, 'completed');
  });

  test('of a run that has ended is refused by the ledger, also when Temporal has forgotten the run (D05)', async () => {
    const runId = await world.run();
    await world.waitFor(runId, 'completed');
    const before = await everythingOf(runId);
    const { starter } = await starterByProxy(forgetful.address);
    for (const each of [world.starter, starter]) {
      await each.startNotified(await messageOf(runId));
      await each.round();
    }
    expect(await executionsOf(runId)).toBe(1);
    expect(await isKnown(forgetful.way.client, runId)).toBe(false);
    expect(await everythingOf(runId)).toEqual(before);
  });

  test('that was listed before the run began and ended elsewhere starts nothing', async () => {
    const { starter, proxy } = await starterByProxy(forgetful.address);
    const [first, second] = [await world.admit(), await world.admit()];
    proxy.blackhole('both');
    // It may give up meanwhile: Temporal is silent for as long as the runs take.
    const round = Promise.allSettled([starter.round()]);
    await world.starter.round();
    for (const runId of [first, second]) await world.waitFor(runId, 'completed');
    await proxy.pass();
    await round;
    expect(await isKnown(forgetful.way.client, second)).toBe(false);
  });

  test('that reaches a Temporal which has forgotten the run all the same does nothing, and ends', async () => {
    const own = await startWorld();
    const runId = await own.run();
    await own.waitFor(runId, 'completed');
    const before = await everythingOf(runId, own);
    const other = await startWorld({ temporal: forgetful.way, databaseUrl: own.databaseUrl });
    const handle = await other.client.workflow.start(WORKFLOW_TYPE, {
      workflowId: runId,
      taskQueue: other.taskQueue,
      args: [{ version: 1, runId, continued: 0, modelIsShort: false, settings: SETTINGS }],
    });
    expect(await handle.result()).toEqual({ state: 'completed' });
    expect(await everythingOf(runId, own)).toEqual(before);
  });
});

describe('a sweep', () => {
  test('10: leaves every live run alone, however quiet, and brings only the dead one to rest', async () => {
    const live = {
      // A slow pay, held by its target.
      running: await world.admit({ input: `pay ${randomUUID()}` }),
      awaiting_approval: await world.admit({
        contract: { effects: { pay: { approval: 'required' } } },
      }),
      needs_reconciliation: await world.admit({ input: `mail ${randomUUID()}` }),
    };
    const dead = await world.admit({ input: `mail ${randomUUID()}` });
    for (const runId of [live.running, dead]) {
      world.target.dial({ mode: 'hold_after', key: keyOf(runId), times: 1 });
    }
    world.target.dial({ mode: 'drop_after', key: keyOf(live.needs_reconciliation), times: 1 });
    await world.starter.round();
    for (const [state, runId] of Object.entries(live)) {
      await world.waitFor(runId, state as keyof typeof live);
    }
    await until('two are held', () => world.target.held() === 2);
    const before = await Promise.all(Object.values(live).map((runId) => everythingOf(runId)));
    await world.client.workflow.getHandle(dead).terminate();

    const other = createSweeper({
      db: world.db,
      client: world.client,
      quietSeconds: 0,
      keepEventsSeconds: null,
      log: world.log,
    });
    await Promise.all([world.sweeper.round(), other.round(), world.sweeper.round()]);
    expect(await Promise.all(Object.values(live).map((runId) => everythingOf(runId)))).toEqual(before);
    expect(await world.runRow(dead)).toMatchObject({
      state: 'needs_reconciliation',
      reason: 'workflow_terminated',
    });

    world.target.release();
    await world.waitFor(live.running, 'completed');
    expect(arrived(world, live.running)).toEqual({ [keyOf(live.running)]: 1 });
    expect(await world.path(live.running)).toEqual(['admitted', 'running', 'completed']);
    // What the dead one had sent answers now: late evidence, which the sweep settles it by.
    await until('the late receipt', async () => (await world.lateReceipts(dead)).length === 1);
    await world.sweeper.round();
    expect((await world.runRow(dead)).state).toBe('failed');
    expect((await world.effects(dead)).map(({ state }) => state)).toEqual(['committed']);
    expect(await judge(world, world.targetLog())).toEqual([]);
  });

  test('does not take a run that was started and never picked up for dead, nor stop at one it cannot close', async () => {
    const idle = await startWorld({ workers: 0 });
    const [broken, dead, waiting] = [await idle.run(), await idle.run(), await idle.run()];
    // The first that is looked at.
    await idle.rows(`
      create function refuse() returns trigger language plpgsql as $$ begin raise exception 'broken'; end $$;
      create trigger refuse before update on holdfast.runs for each row
        when (old.run_id = '${broken}' and new.swept_at = old.swept_at) execute function refuse()`);
    for (const runId of [broken, dead]) await idle.client.workflow.getHandle(runId).terminate();
    await idle.sweeper.round();
    const states = await Promise.all(
      [broken, dead, waiting].map(async (id) => (await idle.runRow(id)).state),
    );
    expect(states).toEqual(['admitted', 'failed', 'admitted']);
    await idle.startWorker();
    await idle.waitFor(waiting, 'completed');
  });
});

// FAULTS D13: what Temporal would refuse for its size never gets that far.
test('content up to the largest body that the API takes reaches no payload of Temporal; one byte more writes nothing (case 71, D13)', async () => {
  const api = await startTestApi({ databaseUrl: world.databaseUrl });
  const bodyOf = (bytes: number): string => {
    const frame = JSON.stringify(startBody({ agent: AGENT, input: '' }));
    return frame.replace('"input":""', `"input":"${'x'.repeat(bytes - frame.length)}"`);
  };
  const key = randomUUID();
  const before = await world.rows('select run_id from holdfast.runs');
  for (const bytes of [2_100_000, DEFAULT_LIMITS.bodyBytesMax + 1]) {
    expect((await api.start({ key, body: bodyOf(bytes) })).status).toBe(413);
  }
  expect(await world.rows('select run_id from holdfast.runs')).toEqual(before);
  const admitted = await api.start({ key, body: bodyOf(DEFAULT_LIMITS.bodyBytesMax) });
  expect(admitted.status).toBe(201);
  const { run_id } = RunView.parse(await admitted.json());
  await world.rows('update holdfast.runs set task_queue = $2 where run_id = $1', run_id, world.taskQueue);
  await world.starter.round();
  await world.waitFor(run_id, 'completed');
  const { historySize } = await world.client.workflow.getHandle(run_id).describe();
  expect(historySize).toBeLessThan(20_000);
  await api.close();
});

async function starterByProxy(address = temporalAddress()): Promise<{
  readonly starter: ReturnType<typeof createStarter>;
  readonly proxy: TcpProxy;
}> {
  const proxy = await startTcpProxy(address);
  const connection = await Connection.connect({ address: proxy.address });
  onTestFinished(async () => {
    await connection.close();
    await proxy.close();
  });
  const client = new Client({ connection, namespace: world.namespace });
  return { starter: createStarter({ db: world.db, client, settings: SETTINGS, log: world.log }), proxy };
}

/** What the admission of the run told whoever listened. */
async function messageOf(runId: string): Promise<string> {
  const [run] = await world.rows(
    'select run_id, tenant_id, agent, job_id, task_queue from holdfast.runs where run_id = $1',
    runId,
  );
  return JSON.stringify(run);
}

async function isConfirmed(runId: string): Promise<boolean> {
  const rows = await world.rows(
    'select 1 from holdfast.runs where run_id = $1 and start_confirmed_at is not null',
    runId,
  );
  return rows.length === 1;
}

/** What the ledger holds of a run, as far as a second workflow could change it. */
async function everythingOf(runId: string, ledger: World = world): Promise<unknown> {
  const run = await ledger.runRow(runId);
  return { run, effects: await ledger.effects(runId), events: await ledger.events(runId) };
}

/** Executions that Temporal knows of this workflow id; its lists lag behind, so it is asked until it knows one. */
async function executionsOf(runId: string): Promise<number> {
  const query = `WorkflowId = "${runId}"`;
  return await until(`Temporal lists ${runId}`, async () => {
    const { count } = await world.client.workflow.count(query);
    return count > 0 && count;
  });
}

async function isKnown(client: Client, runId: string): Promise<boolean> {
  try {
    await client.workflow.getHandle(runId).describe();
    return true;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return false;
    throw error;
  }
}
