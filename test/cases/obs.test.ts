import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { RunView } from '../../api/views/run-views.js';
import { NUDGE_SIGNAL } from '../../shared/domain/protocol.js';
import { readStory } from '../../shared/ledger/reads/read-story.js';
import { command, decide, tell, untilGated, waits } from '../support/desk-world.js';
import { applied, arrived, checkRun } from '../support/run-checks.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { startTestApi } from '../support/test-api.js';
import { deliveriesOf, type Endpoint, newEndpoint } from '../support/webhook-world.js';
import { keyOf, startWorld, until, type World } from '../support/world.js';

const MANY = Array.from({ length: 20 }, (_, n) => reply(call('pay', { note: `{{input}} ${n}` })));
const GATED = { effects: { mail: { approval: 'required' } } };

let world: World;
let endpoint: Endpoint;
beforeAll(async () => {
  world = await startWorld({
    script: script(
      when('many', ...MANY, DONE),
      when('mail', reply(call('mail', { note: 'a small one' })), DONE),
    ),
  });
  endpoint = await newEndpoint(world.db, 'https://example.com/hook');
});

/** What a run's receivers are told, in order. */
const toldOf = async (runId: string): Promise<string[]> => {
  const rows = await deliveriesOf(world, endpoint);
  return rows.filter(({ payload }) => payload.data['run_id'] === runId).map(({ kind }) => kind);
};
const endOf = async (runId: string) =>
  (await readStory(world.db, { tenantId: 'default', runId }, { after: null, limit: 1 }))?.story.end;

describe('case 106: replays of a workflow', () => {
  test('write no event, count nothing and tell nobody a second time (B12)', async () => {
    const undisturbed = await world.run({ input: `many ${randomUUID()}` });
    await world.waitFor(undisturbed, 'completed', 60_000);
    const own = await startWorld({ workers: 0, script: script(when('many', ...MANY, DONE)) });
    const told = await newEndpoint(own.db, 'https://example.com/hook');
    // Without a cache each task replays the history from its start.
    const options = { options: { maxCachedWorkflows: 0 } };
    let worker = await own.startWorker(options);
    const replayed = await own.run({ input: `many ${randomUUID()}` });
    for (let restart = 1; restart <= 5; restart += 1) {
      await own.waitFor(replayed, ({ step }) => step >= restart * 3, 60_000);
      await worker.stop();
      worker = await own.startWorker(options);
    }
    await own.waitFor(replayed, 'completed', 60_000);
    const eventsOf = async (of: World, runId: string) =>
      (await of.events(runId)).filter(({ type }) => type !== 'model.chunk').map(({ type }) => type);
    expect(await eventsOf(own, replayed)).toStrictEqual(await eventsOf(world, undisturbed));
    const countersOf = ({
      model_calls,
      model_attempts,
      tool_calls,
      input_tokens,
    }: Awaited<ReturnType<World['runRow']>>) => [...[model_calls, model_attempts, tool_calls, input_tokens]];
    const [a, b] = [await world.runRow(undisturbed), await own.runRow(replayed)];
    expect(countersOf(b).slice(0, 3)).toStrictEqual(countersOf(a).slice(0, 3));
    expect((await deliveriesOf(own, told)).map(({ kind }) => kind)).toStrictEqual(['run.completed']);
    expect(await toldOf(undisturbed)).toStrictEqual(['run.completed']);
    await own.close();
  }, 120_000);
});

describe('case 107: a run whose workflow somebody ended in Temporal', () => {
  test('is told once as what the ledger says, and its true end stays', async () => {
    const runId = await world.run({ input: `mail ${randomUUID()}`, contract: GATED });
    await untilGated(world, runId);
    await world.client.workflow.getHandle(runId).terminate();
    await world.sweeper.round();
    await world.sweeper.round();
    expect(await world.waitFor(runId, 'failed')).toMatchObject({ reason: 'workflow_terminated' });
    expect(await toldOf(runId)).toStrictEqual(['interrupt.opened', 'interrupt.withdrawn', 'run.failed']);
    expect(await endOf(runId)).toMatchObject({
      outcome: 'failed',
      actor_id: 'holdfast:sweeper',
      asked_by: null,
    });
    await checkRun(world, runId);
  });
});

describe('case 108: a run that is read right after an approval', () => {
  test('never shows the decided approval as waited for, through any API process, and its version never goes back', async () => {
    const apis = [
      await startTestApi({ databaseUrl: world.databaseUrl }),
      await startTestApi({ databaseUrl: world.databaseUrl }),
    ];
    const runId = await world.run({ input: `mail ${randomUUID()}`, contract: GATED });
    const [wait] = await untilGated(world, runId);
    const id = wait?.interrupt_id ?? '';
    const approved = await apis[0]!.request(`/v1/interrupts/${id}/resolve`, {
      method: 'POST',
      headers: {
        ...{ 'content-type': 'application/json', 'x-actor': 'user:ben', 'idempotency-key': randomUUID() },
      },
      body: JSON.stringify({ decision: 'approve', scope_sha256: wait?.scope_sha256 }),
    });
    expect(approved.status).toBe(200);
    const versions: number[] = [];
    const states = new Set<string>();
    const look = async (n: number): Promise<void> => {
      const path = `/v1/runs/${runId}`;
      const run = RunView.parse(await (await apis[n % 2]!.request(path)).json());
      const { interrupts, taking_up: takingUp } = run.control;
      expect(interrupts).toStrictEqual([]);
      // Nobody is waited for over it: it is decided and being taken up, or used.
      const standing = takingUp.map(({ interrupt_id, state }) => [interrupt_id, state]);
      expect(standing).toStrictEqual(run.effects.by_state['intended'] === 1 ? [[id, 'approved']] : []);
      if (run.execution.state === 'awaiting_approval') expect(standing).toHaveLength(1);
      versions.push(run.concurrency.state_version);
      states.add(run.execution.state);
    };
    for (let n = 0; n < 50; n += 1) await look(n);
    await tell(world, runId);
    for (let n = 0; n < 50 || !states.has('completed'); n += 1) await look(n);
    expect(states).toContain('awaiting_approval');
    expect(versions).toStrictEqual(versions.toSorted((a, b) => a - b));
    await checkRun(world, runId);
  });
});

describe('case 110: the end of a run', () => {
  test('by somebody’s cancel says who asked for it', async () => {
    const runId = await world.run({ input: `mail ${randomUUID()}`, contract: GATED });
    await untilGated(world, runId);
    expect(await command(world, runId, 'cancel')).toBe('accepted');
    await world.waitFor(runId, 'cancelled');
    expect(await endOf(runId)).toMatchObject({
      ...{ outcome: 'cancelled', reason: 'cancel_requested', asked_by: 'user:olga' },
    });
    expect(await toldOf(runId)).toStrictEqual(['interrupt.opened', 'interrupt.withdrawn', 'run.cancelled']);
  });

  test('by its deadline says so', async () => {
    const contract = { ...GATED, limits: { wall_clock_seconds: 2 } };
    const runId = await world.run({ input: `mail ${randomUUID()}`, contract });
    const { state, reason } = await world.waitFor(runId, 'ended');
    expect([state, reason]).toStrictEqual(['failed', 'limit_wall_clock']);
    expect(await endOf(runId)).toMatchObject({ reason: 'limit_wall_clock', asked_by: null });
    expect(await toldOf(runId)).toStrictEqual(['interrupt.opened', 'interrupt.expired', 'run.failed']);
  });
});

describe('a message that reaches the workflow past the ledger', () => {
  test('case 67, S10: wakes nothing up and approves nothing: without its row there is no approval', async () => {
    const runId = await world.run({ input: `mail ${randomUUID()}`, contract: GATED });
    const [wait] = await untilGated(world, runId);
    const before = await world.transitions(runId);
    const handle = world.client.workflow.getHandle(runId);
    for (let n = 0; n < 3; n += 1) await handle.signal(NUDGE_SIGNAL);
    await handle.signal('approve', { interrupt_id: wait?.interrupt_id, decision: 'approve' });
    const forged = handle.executeUpdate('resolve', { args: [{ decision: 'approve' }] });
    await expect(forged).rejects.toThrow();
    await tell(world, runId);
    expect(await world.transitions(runId)).toStrictEqual(before);
    expect(await waits(world, runId)).toMatchObject([{ state: 'open' }]);
    expect(arrived(world, runId)).toEqual({});
    await decide(world, wait);
    await world.waitFor(runId, 'completed');
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });
});

describe('case 72: an approval at the very event that asks for it', () => {
  test('is taken, however large the transcript is, and the call is made once', async () => {
    const api = await startTestApi({ databaseUrl: world.databaseUrl });
    const runId = await world.run({ input: `mail ${'x'.repeat(4_000_000)}`, contract: GATED });
    const opened = await until('somebody is asked', async () =>
      (await world.events(runId)).find(({ type }) => type === 'interrupt.opened'),
    );
    const id = String(opened.data['interrupt_id']);
    const response = await api.request(`/v1/interrupts/${id}/resolve`, {
      method: 'POST',
      headers: {
        ...{ 'content-type': 'application/json', 'x-actor': 'user:ben', 'idempotency-key': randomUUID() },
      },
      body: JSON.stringify({ decision: 'approve', scope_sha256: opened.data['scope_sha256'] }),
    });
    expect(response.status).toBe(200);
    await world.waitFor(runId, async ({ state }) => {
      if (state === 'awaiting_approval') await tell(world, runId);
      return state === 'completed';
    });
    expect(applied(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
    await api.close();
  });
});
