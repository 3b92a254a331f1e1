import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { NUDGE_SIGNAL } from '../shared/domain/protocol.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { commitTrail } from '../shared/ledger/trail.js';
import { applied, arrived, checkRun, modelRequests } from './support/run-checks.js';
import { DONE, reply, script, when } from './support/scripts.js';
import { keyOf, startWorld, until, type World } from './support/world.js';

// Goal: what an operator does to a workflow in Temporal's own tools repeats nothing and hides nothing. Method: a run is
// brought to a place, its execution is reset, and target, model and ledger are looked at.

let world: World;

beforeAll(async () => {
  world = await startWorld({
    httpTools: {
      book: {
        parallel: true,
        query: { settlingSeconds: 2, equalAnswers: 2, intervalSeconds: 0.3, queriesMax: 100 },
      },
    },
    script: script(
      when('chain', reply('book'), reply('mail'), reply('pay'), DONE),
      when('given-up', reply('look', 'pay'), DONE),
      when('mail', reply('mail'), DONE),
      when('pair', reply('book', 'look'), DONE),
      when('later', { attempts: [{ error: { reason: 'rate_limited', retryAfter: 3_000 } }, DONE] }),
      when('ask', reply('mail'), DONE),
    ),
  });
});

/** Admits a run whose target meets the call at `step` with a fault. @returns its id, once it has started */
async function runInto(
  input: string,
  at: { readonly step?: number; readonly slot?: number },
  mode: 'hold_before' | 'drop_after' | 'drop_before',
  contract: Readonly<Record<string, unknown>> = {},
): Promise<string> {
  const runId = await world.admit({ input, contract });
  world.target.dial({ mode, key: keyOf(runId, at), ...(mode === 'hold_before' ? { times: 1 } : {}) });
  await world.starter.round();
  return runId;
}

/** Resets the run's open execution to its first workflow task. @returns the old execution and the new one */
async function resetToStart(runId: string): Promise<{ readonly before: string; readonly after: string }> {
  const handle = world.client.workflow.getHandle(runId);
  const before = (await handle.describe()).runId;
  const { events } = await handle.fetchHistory();
  const task = events?.find(({ workflowTaskCompletedEventAttributes: done }) => done != null);
  const { runId: after } = await world.client.workflowService.resetWorkflowExecution({
    namespace: world.namespace,
    workflowExecution: { workflowId: runId, runId: before },
    reason: 'a test',
    requestId: randomUUID(),
    ...(task?.eventId == null ? {} : { workflowTaskFinishEventId: task.eventId }),
  });
  return { before, after };
}

function callsAsked(runId: string): string[] {
  return modelRequests(world, runId).map(({ callKey }) => callKey.slice(runId.length + 1));
}

const hasArrived = (runId: string, step: number) => () => keyOf(runId, { step }) in arrived(world, runId);

describe('a reset to the beginning', () => {
  test('of a working run repeats no effect and asks the model nothing twice', async () => {
    const runId = await runInto('chain', { step: 3 }, 'hold_before');
    await until('the third call arrived', hasArrived(runId, 3));
    const { before, after } = await resetToStart(runId);
    const run = await world.waitFor(runId, 'completed');
    expect(run).toMatchObject({ epoch: 2, owner_execution: after });
    // The call in flight was keyed: it went out once more under its own key, and was done once.
    expect(applied(world, runId)).toEqual({
      [keyOf(runId, { step: 1 })]: 1,
      [keyOf(runId, { step: 2 })]: 1,
      [keyOf(runId, { step: 3 })]: 1,
    });
    expect(arrived(world, runId)).toMatchObject({
      [keyOf(runId, { step: 1 })]: 1,
      [keyOf(runId, { step: 2 })]: 1,
    });
    expect(callsAsked(runId)).toEqual(['t1:s1', 't1:s2', 't1:s3', 't1:s4']);
    const refused: unknown = await commitTrail(
      world.db,
      { runId, execution: before },
      { from: 1, entries: [] },
    ).catch((error: unknown) => error);
    expect(refusalOf(refused)).toBe('lost_ownership');
    world.target.release();
    await checkRun(world, runId);
  });

  test('with an opaque call in flight sends the run to a person, and never the call again', async () => {
    const runId = await runInto('mail', {}, 'hold_before');
    await until('the call arrived', hasArrived(runId, 1));
    await resetToStart(runId);
    await world.waitFor(runId, 'needs_reconciliation');
    world.target.release();
    await resetToStart(runId);
    await world.waitFor(runId, ({ epoch, state }) => epoch === 3 && state === 'needs_reconciliation');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(await world.effects(runId)).toMatchObject([
      { state: 'unknown', attempts: 1, reconciliation_owner: 'owner' },
    ]);
    expect(callsAsked(runId)).toEqual(['t1:s1']);
    await checkRun(world, runId);
  });

  test('of a run that waits for a person leaves it waiting under the next epoch', async () => {
    const runId = await runInto('mail', {}, 'drop_after');
    await world.waitFor(runId, 'needs_reconciliation');
    const { after } = await resetToStart(runId);
    await world.waitFor(runId, ({ owner_execution }) => owner_execution === after);
    // It hears what it is told, and still asks nobody and sends nothing.
    await world.client.workflow.getHandle(runId).signal(NUDGE_SIGNAL);
    await world.waitFor(
      runId,
      async () => (await world.path(runId)).filter((s) => s === 'reconciling').length > 0,
    );
    await world.waitFor(runId, 'needs_reconciliation');
    expect(arrived(world, runId)).toEqual({ [keyOf(runId)]: 1 });
    expect(callsAsked(runId)).toEqual(['t1:s1']);
    await checkRun(world, runId);
  });

  test('of a run that was asked to come later does not make it come earlier', async () => {
    const runId = await world.run({ input: 'later' });
    await world.waitFor(runId, 'retry_wait');
    const { after } = await resetToStart(runId);
    await world.waitFor(runId, ({ owner_execution }) => owner_execution === after);
    await timerOf(runId, after);
    expect(await world.runRow(runId)).toMatchObject({ state: 'retry_wait', epoch: 2 });
    expect(callsAsked(runId)).toEqual(['t1:s1']);
    await checkRun(world, runId);
  });

  test('of a run that waits for an approval asks for it again and carries nothing out', async () => {
    const runId = await world.run({
      input: 'ask',
      contract: { effects: { mail: { approval: 'required' } } },
    });
    await world.waitFor(runId, 'awaiting_approval');
    const { after } = await resetToStart(runId);
    // It was waiting when it was taken over, too: the second wait counts.
    await world.waitFor(runId, async ({ owner_execution }) => {
      const waits = (await world.path(runId)).filter((state) => state === 'awaiting_approval');
      return owner_execution === after && waits.length === 2;
    });
    expect(await world.effects(runId)).toMatchObject([{ state: 'intended', attempts: 0 }]);
    expect(arrived(world, runId)).toEqual({});
    await checkRun(world, runId);
  });

  test('does not make a read that was given up be read again', async () => {
    const runId = await world.admit({ input: 'given-up', contract: { retry: { attempts_max: 1 } } });
    world.target.dial({ mode: 'drop_before', key: keyOf(runId, { slot: 0 }) });
    world.target.dial({ mode: 'hold_before', key: keyOf(runId, { slot: 1 }), times: 1 });
    await world.starter.round();
    await until('the second call arrived', () => keyOf(runId, { slot: 1 }) in arrived(world, runId));
    await resetToStart(runId);
    await world.waitFor(runId, 'completed');
    world.target.release();
    expect(await world.effects(runId)).toMatchObject([
      { tool: 'look', state: 'not_committed', redo: 0 },
      { tool: 'pay', state: 'succeeded' },
    ]);
    expect(arrived(world, runId)).toMatchObject({ [keyOf(runId)]: 1 });
    await checkRun(world, runId);
  });

  test('while a settlement is under way settles it, and then gives up the read beside it that is over time', async () => {
    const runId = await world.admit({ input: 'pair', contract: { retry: { series_seconds_max: 1 } } });
    world.target.dial({ mode: 'drop_after', key: keyOf(runId, { slot: 0 }) });
    world.target.dial({ mode: 'drop_before', key: keyOf(runId, { slot: 1 }) });
    world.target.hideApplied(2);
    await world.starter.round();
    await world.waitFor(runId, 'reconciling');
    await until('the time of the read is over', async () => {
      const rows = await world.rows(
        'select 1 from holdfast.effects where run_id = $1 and slot = 1 and series_deadline_at < clock_timestamp()',
        runId,
      );
      return rows.length === 1;
    });
    await resetToStart(runId);
    await world.waitFor(runId, 'completed');
    expect(await world.effects(runId)).toMatchObject([
      { tool: 'book', state: 'committed', attempts: 1 },
      { tool: 'look', state: 'not_committed' },
    ]);
    expect((await world.path(runId)).filter((state) => state === 'reconciling').length).toBeLessThan(4);
    await checkRun(world, runId);
  });

  test('of a completed run changes nothing', async () => {
    const runId = await world.run({ input: 'chain' });
    await world.waitFor(runId, 'completed');
    await world.client.workflow.getHandle(runId).result();
    const before = await everything(runId);
    const { after } = await resetToStart(runId);
    const result: unknown = await world.client.workflow.getHandle(runId, after).result();
    expect(result).toEqual({ state: 'completed' });
    expect(await everything(runId)).toEqual(before);
    await checkRun(world, runId);
  });
});

/** Waits until this execution waits by a timer. */
async function timerOf(runId: string, execution: string): Promise<void> {
  await until('a timer is set', async () => {
    const { events } = await world.client.workflow.getHandle(runId, execution).fetchHistory();
    const seen = (events ?? []).slice(
      (events ?? []).findLastIndex((e) => e.workflowTaskFailedEventAttributes != null),
    );
    return seen.some(({ timerStartedEventAttributes: timer }) => timer != null);
  });
}

async function everything(runId: string): Promise<unknown> {
  return [
    await world.runRow(runId),
    await world.transitions(runId),
    await world.events(runId),
    await world.effects(runId),
    await world.attempts(runId),
    await world.receipts(runId),
    await world.messages(runId),
    world.targetLog(runId),
    callsAsked(runId),
  ];
}
