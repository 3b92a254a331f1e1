import { randomUUID } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { test } from 'vitest';
import { untilDelegated } from '../support/child-world.js';
import { command, decide, settle, tell, untilGated } from '../support/desk-world.js';
import { answer, asks, untilAsked } from '../support/input-world.js';
import { call, DONE, reply, script, when } from '../support/scripts.js';
import { UNDO_TOOLS, undoKeyOf } from '../support/undo.js';
import { keyOf, startWorld, type World, type WorldOptions } from '../support/world.js';

/** One way through the workflow's code. `play` ends when the run rests where the scenario wants it. */
interface Scenario {
  readonly name: string;
  readonly options?: WorldOptions;
  readonly play: (world: World) => Promise<string>;
}

const looks = (count: number) => Array.from({ length: count }, () => reply('look'));

/** Admits a run, sets the fault of its first call, starts it and waits for its end. */
async function playFault(
  world: World,
  input: string,
  mode: 'drop_before' | 'drop_after' | 'hold_after',
  times?: number,
  contract: Readonly<Record<string, unknown>> = {},
): Promise<string> {
  const runId = await world.admit({ input, contract });
  world.target.dial({ mode, key: keyOf(runId), ...(times === undefined ? {} : { times }) });
  await world.starter.round();
  return runId;
}

/** The effect of the run that waits for a person to undo it. */
async function waitingUndo(world: World, runId: string): Promise<string | undefined> {
  const [undo] = await world.rows<{ effect_id: string }>(
    `select effect_id from holdfast.undos where run_id = $1 and state = 'waiting'`,
    runId,
  );
  return undo?.effect_id;
}

async function ended(world: World, runId: string): Promise<string> {
  await world.waitFor(runId, 'ended');
  await world.client.workflow.getHandle(runId).result();
  return runId;
}

/** An agent that starts another. */
const CHILD: WorldOptions = {
  delegates: { help: { agent: 'helper', description: 'Does one thing.' } },
  helpers: { helper: [] },
  script: script(
    when('parent', reply(call('help', { task: 'nothing' })), DONE),
    when('slow', reply(call('help', { task: 'later' })), DONE),
    when('later', { delayMs: 600_000, text: 'Late.' }),
    when('nothing', DONE),
  ),
};

const SCENARIOS: readonly Scenario[] = [
  { name: 'plain', play: async (world) => await ended(world, await world.run({ input: 'pay' })) },
  {
    name: 'short',
    options: { lane: 'fast' },
    play: async (world) => await ended(world, await world.run({ input: 'each' })),
  },
  {
    name: 'model-retries',
    options: {
      script: script(
        when('stumble', { attempts: [{ error: { reason: 'server_error' } }, { disconnectAfterChunks: 0 }, DONE] }),
      ),
    },
    play: async (world) => await ended(world, await world.run({ input: 'stumble' })),
  },
  {
    name: 'model-refuses',
    options: { script: script(when('refuse', { error: { reason: 'bad_request' } })) },
    play: async (world) => await ended(world, await world.run({ input: 'refuse' })),
  },
  {
    name: 'continued',
    options: { historyEventsMax: 50, script: script(when('looks', ...looks(8), DONE)) },
    play: async (world) => await ended(world, await world.run({ input: 'looks' })),
  },
  {
    name: 'query-finds',
    play: async (world) => await ended(world, await playFault(world, 'book', 'drop_after')),
  },
  {
    name: 'query-finds-nothing-and-redo',
    play: async (world) => await ended(world, await playFault(world, 'book', 'drop_before')),
  },
  {
    name: 'keyed-sent-again',
    play: async (world) => await ended(world, await playFault(world, 'pay', 'drop_after', 1)),
  },
  {
    name: 'read-given-up',
    play: async (world) =>
      await ended(world, await playFault(world, 'look', 'drop_before', 9, { retry: { attempts_max: 2 } })),
  },
  {
    name: 'parallel',
    options: { script: script(when('three', reply('look', 'look', 'look'), DONE)) },
    play: async (world) => await ended(world, await world.run({ input: 'three' })),
  },
  {
    name: 'approval-expires',
    play: async (world) => {
      const contract = { effects: { mail: { approval: 'required' } }, timeouts: { approval_seconds: 1 } };
      return await ended(world, await world.run({ input: 'mail', contract }));
    },
  },
  {
    name: 'approved',
    play: async (world) => {
      const runId = await world.run({ input: 'mail', contract: { effects: { mail: { approval: 'required' } } } });
      const [wait] = await untilGated(world, runId);
      await decide(world, wait);
      return await ended(world, runId);
    },
  },
  {
    name: 'paused-and-resumed',
    play: async (world) => {
      const runId = await world.run({ input: 'mail', contract: { effects: { mail: { approval: 'required' } } } });
      const [wait] = await untilGated(world, runId);
      await command(world, runId, 'pause');
      await world.waitFor(runId, ({ control }) => control === 'paused');
      await decide(world, wait);
      await command(world, runId, 'resume');
      return await ended(world, runId);
    },
  },
  {
    name: 'cancelled-in-flight',
    play: async (world) => {
      const runId = await playFault(world, 'book', 'hold_after');
      await world.waitFor(runId, () => world.target.held() === 1);
      await command(world, runId, 'cancel');
      return await ended(world, runId);
    },
  },
  {
    name: 'settled-by-a-person',
    play: async (world) => {
      const runId = await playFault(world, 'mail', 'drop_after');
      await world.waitFor(runId, 'needs_reconciliation');
      await settle(world, runId);
      return await ended(world, runId);
    },
  },
  {
    name: 'activity-lost',
    play: async (world) => {
      world.faults.add({ point: 'act.after_claim', mode: 'throw' });
      return await ended(world, await world.run({ input: 'pay' }));
    },
  },
  {
    name: 'reset',
    play: async (world) => {
      const runId = await playFault(world, 'mail', 'drop_after');
      await world.waitFor(runId, 'needs_reconciliation');
      const handle = world.client.workflow.getHandle(runId);
      const { events } = await handle.fetchHistory();
      const task = events?.find((event) => event.workflowTaskCompletedEventAttributes != null);
      await world.client.workflowService.resetWorkflowExecution({
        namespace: world.namespace,
        workflowExecution: { workflowId: runId },
        reason: 'recorded',
        requestId: randomUUID(),
        ...(task?.eventId == null ? {} : { workflowTaskFinishEventId: task.eventId }),
      });
      await world.waitFor(runId, ({ epoch }) => epoch === 2);
      return runId;
    },
  },
  {
    name: 'asks-and-is-approved',
    options: {
      questions: { ask_desk: asks() },
      script: script(when('mixed', reply(call('ask_desk', { text: 'Which?' }), call('mail')), DONE)),
    },
    play: async (world) => {
      const runId = await world.run({ input: 'mixed', contract: { effects: { mail: { approval: 'required' } } } });
      const [asked] = await untilAsked(world, runId);
      await answer(world, asked, { order: 'ORD-7' });
      const [wait] = await untilGated(world, runId);
      await decide(world, wait);
      return await ended(world, runId);
    },
  },
  {
    name: 'cancelled-and-compensated',
    options: {
      httpTools: UNDO_TOOLS,
      script: script(when('does', reply('pay'), reply('mail'), reply('book'), { delayMs: 600_000, text: 'Late.' })),
    },
    play: async (world) => {
      const runId = await playFault(world, 'does', 'drop_after', 1);
      world.target.dial({ mode: 'drop_after', key: undoKeyOf(runId, { step: 3 }), times: 1 });
      world.target.dial({ mode: 'throttle_429', key: undoKeyOf(runId), times: 1, retryAfter: '1' });
      await world.waitFor(runId, ({ model_calls, step }) => model_calls === 3 && step === 3);
      await command(world, runId, 'cancel', { compensate: true });
      await world.waitFor(runId, async () => (await waitingUndo(world, runId)) !== undefined);
      const effectId = await waitingUndo(world, runId);
      await settle(world, runId, { effectId: effectId ?? '', decided: 'left', reference: null });
      return await ended(world, runId);
    },
  },
  {
    name: 'child',
    options: CHILD,
    play: async (world) => {
      const runId = await world.run({ input: 'parent' });
      const [child] = await untilDelegated(world, runId);
      await world.waitFor(child ?? '', 'completed');
      await tell(world, runId);
      return await ended(world, runId);
    },
  },
  {
    name: 'child-cancelled',
    options: CHILD,
    play: async (world) => {
      const runId = await world.run({ input: 'slow' });
      const [child] = await untilDelegated(world, runId);
      await world.waitFor(child ?? '', ({ model_calls }) => model_calls === 1);
      await command(world, runId, 'cancel');
      await world.waitFor(runId, 'cancelling');
      await tell(world, child ?? '');
      await world.waitFor(child ?? '', 'cancelled');
      await tell(world, runId);
      return await ended(world, runId);
    },
  },
  {
    name: 'question-expires',
    options: {
      questions: { ask_soon: asks({ expiresSeconds: 1 }) },
      script: script(when('soon', reply(call('ask_soon', { text: 'Quick?' })), DONE)),
    },
    play: async (world) => await ended(world, await world.run({ input: 'soon' })),
  },
  {
    name: 'model-needs-a-person',
    options: { script: script(when('bill', { attempts: [{ error: { reason: 'billing' } }, DONE] })) },
    play: async (world) => {
      const runId = await world.run({ input: 'bill' });
      const [asked] = await untilAsked(world, runId);
      await answer(world, asked, { action: 'try_again' });
      return await ended(world, runId);
    },
  },
  {
    name: 'fails-and-compensates',
    options: {
      httpTools: UNDO_TOOLS,
      script: script(when('fails', reply('pay'), { error: { reason: 'bad_request' } })),
    },
    play: async (world) =>
      await ended(world, await world.run({ input: 'fails', contract: { on_failure: 'compensate' } })),
  },
  {
    name: 'waits-for-a-person',
    play: async (world) => {
      const runId = await playFault(world, 'mail', 'drop_after');
      await world.waitFor(runId, 'needs_reconciliation');
      return runId;
    },
  },
];

test.each(SCENARIOS)('$name is recorded', async ({ name, options, play }) => {
  const world = await startWorld(options);
  const runId = await play(world);
  const owners = await world.rows<{ execution: string }>(
    'select execution from holdfast.run_executions where run_id = $1 order by epoch',
    runId,
  );
  const executions: unknown[] = [];
  for (const { execution } of owners) {
    const history = await world.client.workflow.getHandle(runId, execution).fetchHistory();
    executions.push(JSON.parse(withoutMachine(JSON.stringify(history))));
  }
  const path = new URL(`1-${name}.json`, import.meta.url);
  // One line an event: a change shows as the lines that changed.
  const lines = executions.map((each) => {
    const { events } = each as { events: readonly unknown[] };
    return `{"events":[\n${events.map((event) => JSON.stringify(event)).join(',\n')}\n]}`;
  });
  await writeFile(path, `{"workflowId":"${runId}","executions":[\n${lines.join(',\n')}\n]}\n`);
});

/** Which machine and process did it is nobody's business. */
function withoutMachine(json: string): string {
  return json
    .replaceAll(`${process.pid}@${hostname()}`, 'worker')
    .replaceAll(hostname(), 'host')
    .replace(/"identity":"[^"]*"/g, '"identity":"worker"');
}
