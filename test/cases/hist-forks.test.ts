import { beforeAll, describe, expect, test } from 'vitest';
import type { NewFork } from '../../shared/ledger/forks.js';
import type { CheckpointRecord } from '../../shared/ledger/reads/read-checkpoints.js';
import { decide, untilGated } from '../support/desk-world.js';
import { askFork, checkpointAt, rowsOf } from '../support/forks.js';
import { checkRun, modelRequests } from '../support/run-checks.js';
import { DONE, reply, script, when } from '../support/scripts.js';
import { startWorld, until, type World } from '../support/world.js';

// Cases from the field of forks: a fork is whole whatever its source was doing, and nobody but the fork does its task.
// `checkRun` looks at every request that the model got.

let world: World;
beforeAll(async () => {
  world = await startWorld({
    approvals: ['mail'],
    script: {
      ...script(
        when('pay', reply('look'), reply('pay'), DONE),
        when('mail', reply('look'), reply('mail'), DONE),
        when('again', DONE),
      ),
      // A new message of the user begins anew.
      counts: 'turn',
    },
  });
});

async function fork(
  runId: string,
  boundary: CheckpointRecord['boundary'],
  changes: Partial<NewFork> = {},
): Promise<Awaited<ReturnType<typeof askFork>>> {
  const source = { world, runId };
  const { checkpoint_id: id } = await checkpointAt(source, boundary);
  return await askFork(source, id, { mode: 'live', taskQueue: world.taskQueue, ...changes });
}
/** The fork that is made, run to its end. */
async function forked(...asked: Parameters<typeof fork>): Promise<string> {
  const answer = await fork(...asked);
  if (answer?.kind !== 'forked') throw new Error(`not forked: ${JSON.stringify(answer)}`);
  await world.starter.round();
  await world.waitFor(answer.runId, 'completed');
  await checkRun(world, answer.runId);
  return answer.runId;
}

describe('case 47: a fork of a run that is at work', () => {
  test('on a call in flight is refused where it could do that call again, and a simulation of it is whole', async () => {
    const runId = await world.admit({ input: 'pay 1' });
    world.faults.add({ runId, point: 'act.after_claim', mode: 'hang', hit: 2 });
    await world.starter.round();
    await until('the payment is in flight', () => world.faults.reached().length > 0);
    const before = await rowsOf(world, runId);
    const edits = { add_message: 'again' };
    const [effectId] = (await world.effects(runId)).flatMap(({ tool, effect_id }) =>
      tool === 'pay' ? [effect_id] : [],
    );
    expect(await fork(runId, 'pre_effect_intent_committed', { edits })).toStrictEqual({
      ...{ kind: 'not_forkable', reasons: ['effects_unresolved'], in_doubt: [effectId] },
    });
    const simulated = await forked(runId, 'pre_effect_intent_committed', { edits, mode: 'simulate' });
    const [request] = modelRequests(world, simulated);
    expect(request?.messages.map(({ role }) => role)).toStrictEqual(['user', 'assistant', 'tool', 'user']);
    expect(await rowsOf(world, runId)).toStrictEqual(before);
    world.faults.release(runId);
    await world.waitFor(runId, 'completed');
    await checkRun(world, runId);
  });

  test('on an open gate goes on from its last whole step, and the gate still waits for its own run', async () => {
    const runId = await world.run({ input: 'mail 1' });
    const [gate] = await untilGated(world, runId);
    const before = await rowsOf(world, runId);
    const forkId = await forked(runId, 'interrupt_opened', { edits: { add_message: 'again' } });
    const [request] = modelRequests(world, forkId);
    expect(request?.messages.map(({ role }) => role)).toStrictEqual(['user', 'assistant', 'tool', 'user']);
    expect(await rowsOf(world, runId)).toStrictEqual(before);
    await decide(world, gate);
    await world.waitFor(runId, 'completed');
    await checkRun(world, runId);
    expect(world.targetLog(forkId)).toStrictEqual([]);
  });
});

describe('case 65: the task of a fork', () => {
  test('reaches the fork alone: one effect under its own run, and the parent as it was', async () => {
    const runId = await world.run({ input: 'pay 2' });
    await world.waitFor(runId, 'completed');
    const before = await rowsOf(world, runId);
    const forkId = await forked(runId, 'run_terminal', { edits: { add_message: 'pay 7' } });
    expect(await rowsOf(world, runId)).toStrictEqual(before);
    const paid = (await world.effects(forkId)).filter(({ tool }) => tool === 'pay');
    expect(paid).toMatchObject([{ state: 'succeeded', idempotency_key: `${forkId}:t1:s2:c0` }]);
    const keys = world.target.log().filter(({ kind, key }) => kind === 'arrived' && /:s2:/.test(key));
    expect(keys.filter(({ key }) => key.startsWith(forkId))).toHaveLength(1);
    expect(keys.filter(({ key }) => key.startsWith(runId))).toHaveLength(1);
  });

  test('in a simulation reaches no target: what the parent did answers it, and what is new is refused', async () => {
    const runId = await world.run({ input: 'pay 3' });
    await world.waitFor(runId, 'completed');
    const same = await forked(runId, 'run_created', { mode: 'simulate' });
    const other = await forked(runId, 'run_created', {
      mode: 'simulate',
      edits: { messages: [{ step: 1, position: 0, text: 'pay 4' }] },
    });
    const told = (id: string) =>
      modelRequests(world, id)
        .at(-1)!
        .messages.flatMap((message) => (message.role === 'tool' ? message.results : []))
        .map(({ text, isError }) => [isError, text.includes('simulated_refused')]);
    expect(told(same)).toStrictEqual([
      [false, false],
      [false, false],
    ]);
    expect(told(other)).toStrictEqual([
      [true, true],
      [true, true],
    ]);
    for (const id of [same, other]) {
      expect(world.targetLog(id)).toStrictEqual([]);
      expect(await world.attempts(id)).toStrictEqual([]);
    }
  });
});
