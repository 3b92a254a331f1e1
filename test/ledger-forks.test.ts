import { beforeAll, describe, expect, test } from 'vitest';
import { FORK_MODES } from '../shared/domain/checkpoints.js';
import { listEffects } from '../shared/ledger/reads/read-effects.js';
import { readRun } from '../shared/ledger/reads/read-run.js';
import { newStepOf, refund, refunds, registerBudgetAgent } from './support/budget.js';
import { delegating, resultOf, start } from './support/children.js';
import {
  acceptJob,
  decide,
  interruptOf,
  newGate,
  newUndo,
  openGate,
  settle,
  submit,
} from './support/desk.js';
import { askFork, checkpointAt, checkpointsOf, newFork, rowsOf } from './support/forks.js';
import { intended, next, UNDO, UNDOABLE } from './support/ledger-undo.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { until } from './support/until.js';

// Goal: a fork is a run of its own that knows what happened before it, changes nothing of its source, and does nothing
// again that it was not asked to do (SPEC 4.2). Method: the ledger's functions alone, every mode from every checkpoint.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
  await registerBudgetAgent(ledger);
});

const pay = (amount: number, effectClass: 'opaque' | 'read' = 'opaque') => ({
  ...callOf(effectClass),
  arguments: `{"amount":${amount}}`,
});
/** A run that paid 1, then 7 twice at once, and said its last word. */
async function paid(): Promise<LedgerRun> {
  const run = await ledger.newStep([pay(1)]);
  await run.call(0).attempt('succeeded', { resultText: 'paid 1' });
  await run.plan([pay(7), pay(7)]);
  await run.call(0).attempt('succeeded', { resultText: 'paid 7, first' });
  await run.call(1).attempt('rejected', { resultText: 'refused 7, second' });
  await run.plan([]);
  await run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
  return run;
}
/** The checkpoint after which a fork begins with the step after `step`. */
async function after(run: LedgerRun, step: number) {
  const found = (await checkpointsOf(run)).find((checkpoint) => checkpoint.resumes_after_step === step);
  if (found === undefined) throw new Error(`no checkpoint after step ${step}`);
  return found;
}
async function told(run: LedgerRun, slot: number): Promise<string | undefined> {
  return (await resultOf(run, slot))?.text;
}
const attemptsOf = async (run: LedgerRun): Promise<number> => (await ledger.attempts(run.runId)).length;

describe('whatever is forked', () => {
  test('from every checkpoint in every mode, the source keeps every row as it was', async () => {
    const run = await ledger.newStep([pay(1), pay(2)]);
    await run.call(0).attempt('succeeded');
    await run.call(1).attempt('unknown');
    await run
      .call(1)
      .attempt('succeeded')
      .catch(() => undefined);
    const open = await newGate(ledger);
    for (const source of [run, open.run, await paid()]) {
      const before = await rowsOf(ledger, source.runId);
      for (const { checkpoint_id: id } of await checkpointsOf(source)) {
        for (const mode of FORK_MODES) await askFork(source, id, { mode, edits: { add_message: 'Again.' } });
      }
      const [count] = await ledger.rows<{ n: number }>(
        'select count(*)::int as n from holdfast.forks where source_run_id = $1',
        source.runId,
      );
      expect(count!.n).toBeGreaterThan(5);
      expect(await rowsOf(ledger, source.runId)).toStrictEqual(before);
    }
  });

  test('begins with what the source’s prompt held after its last whole step, at its own first step', async () => {
    const source = await paid();
    const fork = await newFork(source, await after(source, 1), { edits: { add_message: 'Now 7.' } });
    const claim = await fork.claimThink();
    if (claim.kind !== 'claimed') throw new Error(claim.kind);
    expect(claim.messages.map(({ step, position, role }) => [step, position, role])).toStrictEqual([
      [-1, 0, 'user'],
      [-1, 1, 'assistant'],
      [-1, 2, 'tool'],
      [1, 0, 'user'],
    ]);
    expect(claim.messages.at(-1)?.content).toStrictEqual({ text: 'Now 7.' });
    const { epoch, model_calls, tool_calls } = await ledger.runRow(fork.runId);
    expect([epoch, model_calls, tool_calls]).toStrictEqual([1, 1, 0]);
    // Who knows the first step of the fork knows what it inherited.
    const again = await fork.claimThink({ step: 1, knownStep: 1 });
    expect(again).toMatchObject({ kind: 'claimed', messages: [] });
  });

  test('inherits the effects before the cut by name, and neither counts, undoes nor claims them', async () => {
    const source = await paid();
    const fork = await newFork(source, await after(source, 2), { mode: 'live' });
    const key = { tenantId: 'default', runId: fork.runId };
    const listed = await listEffects(ledger.db, key, { after: [-1, 0, 0, 0], limit: 100 });
    expect(
      listed.map(({ inherited, run_id, turn, step, slot, state }) => [
        inherited,
        run_id,
        turn,
        step,
        slot,
        state,
      ]),
    ).toStrictEqual([
      [true, source.runId, 0, -2, 0, 'succeeded'],
      [true, source.runId, 0, -1, 0, 'succeeded'],
      [true, source.runId, 0, -1, 1, 'rejected'],
    ]);
    expect(await readRun(ledger.db, key)).toMatchObject({
      effects: { total: 0, tool_calls: 0 },
      forks: { forked_from: { run_id: source.runId, mode: 'live', after_step: 2 }, inherited_effects: 3 },
    });
    expect(await next(fork, UNDO)).toStrictEqual({ kind: 'done', left: 0 });
    await fork.commit({ kind: 'move', to: 'compensated', reason: 'compensation_done' });
    // What the source's model said last, the fork's has not.
    expect((await readRun(ledger.db, key))?.terminal).toMatchObject({ last_message: null });
  });

  test('can be forked again: the prompt and the inherited effects of every run before it', async () => {
    const source = await paid();
    const fork = await newFork(source, await after(source, 1), { mode: 'live' });
    await fork.plan([pay(9)]);
    await fork.call(0).attempt('succeeded');
    const grandchild = await newFork(fork, await after(fork, 1), { edits: { add_message: 'And now?' } });
    expect(
      (await ledger.messages(grandchild.runId)).map(({ turn, step, position }) => [turn, step, position]),
    ).toStrictEqual([
      ...[
        [0, -3, 0],
        [0, -3, 1],
        [0, -3, 2],
        [0, -1, 1],
        [0, -1, 2],
      ],
      [1, 1, 0],
    ]);
    const rows = await ledger.rows<{ step: number; run_id: string }>(
      'select i.step, e.run_id from holdfast.inherited_effects i join holdfast.effects e using (effect_id) where i.run_id = $1 order by 1',
      grandchild.runId,
    );
    expect(rows).toStrictEqual([
      { step: -3, run_id: source.runId },
      { step: -1, run_id: fork.runId },
    ]);
  });

  test('is one run for one key, whatever became of it, and another body under the key is refused', async () => {
    const source = await paid();
    const { checkpoint_id: id } = await after(source, 1);
    const idempotencyKey = 'one-key';
    const [first, second] = await Promise.all([
      askFork(source, id, { idempotencyKey }),
      askFork(source, id, { idempotencyKey }),
    ]);
    expect([first?.kind, second?.kind].toSorted()).toStrictEqual(['forked', 'replayed']);
    const runId = (first as { runId: string }).runId;
    expect((second as { runId: string }).runId).toBe(runId);
    expect(await askFork(source, id, { idempotencyKey, mode: 'live' })).toStrictEqual({
      kind: 'reused',
      runId,
    });
  });

  test('is not made twice where another request took its key in the meantime', async () => {
    const source = await paid();
    const { checkpoint_id: id } = await after(source, 1);
    const first = (await askFork(source, id)) as { runId: string };
    const client = await ledger.owner.connect();
    await client.query('begin');
    await client.query(
      `insert into holdfast.api_requests select tenant_id, endpoint, 'taken', repeat('a', 64), run_id
         from holdfast.api_requests where run_id = $1`,
      [first.runId],
    );
    const second = askFork(source, id, { idempotencyKey: 'taken' });
    await until('the fork waits for the key', async () => {
      const waiting = await ledger.rows(
        `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      return waiting.length > 0;
    });
    await client.query('commit');
    client.release();
    expect(await second).toStrictEqual({ kind: 'reused', runId: first.runId });
    const forks = await ledger.rows('select 1 from holdfast.forks where source_run_id = $1', source.runId);
    expect(forks).toHaveLength(1);
  });
});

describe('a checkpoint inside a step', () => {
  test('is refused while nobody knows what became of a call, except to a simulation', async () => {
    const run = await ledger.newStep([pay(1)]);
    const claim = await run.call(0).claimed();
    const { effect_id } = await run.call(0).effect();
    const { checkpoint_id: id } = await checkpointAt(run, 'pre_effect_intent_committed');
    const refused = { kind: 'not_forkable', reasons: ['effects_unresolved'], in_doubt: [effect_id] };
    expect(await askFork(run, id, { mode: 'live' })).toStrictEqual(refused);
    await run.call(0).settle(claim, 'unknown');
    expect(await askFork(run, id, { mode: 'reuse_if_identical' })).toStrictEqual(refused);
    expect(await askFork(run, id, { mode: 'simulate' })).toMatchObject({ kind: 'forked' });
  });

  test('whose calls have happened is refused to a live fork alone: it would do them again', async () => {
    const run = await ledger.newStep([pay(1), pay(2)]);
    await run.call(0).attempt('succeeded');
    const { checkpoint_id: id } = await checkpointAt(run, 'effect_settled');
    const { effect_id } = await run.call(0).effect();
    expect(await askFork(run, id, { mode: 'live' })).toStrictEqual({
      ...{ kind: 'not_forkable', reasons: ['step_half_done'], in_doubt: [effect_id] },
    });
    const fork = await newFork(run, { checkpoint_id: id }, { mode: 'reuse_if_identical' });
    await fork.plan([pay(1), pay(2)]);
    expect([await fork.call(0).ask(), await fork.call(1).ask()]).toStrictEqual(['withdrawn', 'claimed']);
  });

  test('that has started another run is refused to a fork that could start it again', async () => {
    const run = await ledger.newStep([delegating()]);
    await start(run);
    await run.commit({ kind: 'warning', code: 'x' });
    await submit(run, 'change_deadline');
    const { checkpoint_id: id } = await checkpointAt(run, 'control_applied');
    expect(await askFork(run, id, { mode: 'reuse_if_identical' })).toMatchObject({
      reasons: ['step_half_done'],
    });
    const fork = await newFork(run, { checkpoint_id: id });
    await fork.plan([delegating()]);
    expect(await start(fork)).toBe('settled');
    expect(await told(fork, 0)).toContain('simulated_refused');
  });

  test('that waits for an approval goes on before its call, which asks for an approval of its own', async () => {
    const gate = await newGate(ledger);
    const fork = await newFork(gate.run, await checkpointAt(gate.run, 'interrupt_opened'), { mode: 'live' });
    expect((await ledger.messages(fork.runId)).map(({ role }) => role)).toStrictEqual(['user']);
    await fork.plan([callOf('opaque', { approval: 'required' })]);
    expect(await fork.call(0).ask()).toBe('approval_required');
  });
});

describe('a simulation', () => {
  test('answers each call from the receipt of the same call, in order, refuses every other, and sends nothing', async () => {
    const source = await paid();
    const fork = await newFork(source, await after(source, 1));
    await fork.plan([pay(7), pay(8), pay(7), pay(7), pay(1)]);
    // Asked in any order: what answers a call is its place among those that are the same.
    for (const slot of [2, 0, 4, 3, 1, 0, 2]) await fork.call(slot).ask();
    expect(await Promise.all([0, 1, 2, 3, 4].map((slot) => fork.call(slot).state()))).toStrictEqual([
      ...['withdrawn', 'denied', 'withdrawn', 'denied', 'denied'],
    ]);
    expect([await told(fork, 0), await told(fork, 2)]).toStrictEqual(['paid 7, first', 'refused 7, second']);
    for (const slot of [1, 3, 4]) {
      expect(JSON.parse((await told(fork, slot)) ?? '')).toMatchObject({
        error: 'simulated_refused',
        tool: 'tool_opaque',
      });
    }
    const [reused] = await ledger.effects(fork.runId);
    expect(reused).toMatchObject({
      reuses: (await ledger.effects(source.runId))[1]!.effect_id,
      simulated: true,
    });
    expect(await attemptsOf(fork)).toBe(0);
  });

  test('can never be claimed: not with a claim, not for a redo, and not by writing an attempt onto it', async () => {
    const source = await paid();
    const fork = await newFork(source, await after(source, 0));
    await fork.plan([pay(1), pay(5), callOf('read'), callOf('keyed', { approval: 'required' })]);
    for (const slot of [0, 1, 2, 3]) {
      for (const redo of [0, 1])
        expect(['withdrawn', 'denied']).toContain(await fork.call(slot).ask({ redo }));
    }
    expect(await attemptsOf(fork)).toBe(0);
    await fork.plan([pay(6)]);
    await ledger.tamper(async (change) => {
      await change(
        `insert into holdfast.effects select (jsonb_populate_record(null::holdfast.effects, to_jsonb(e)
           || '{"step": 2, "slot": 0, "effect_id": "eff_00000000000000000000000000000001", "state": "intended",
                "settled_at": null, "reuses": null, "idempotency_key": "made-up-by-somebody"}')).* from holdfast.effects e
          where run_id = $1 and slot = 0 and step = 1`,
        fork.runId,
      );
    });
    await expect(
      ledger.rows(
        `update holdfast.effects set state = 'dispatching', attempts = 1, first_dispatched_at = now()
          where run_id = $1 and step = 2`,
        fork.runId,
      ),
    ).rejects.toThrow('simulated_is_never_sent');
  });
});

describe('a fork that reuses', () => {
  test('takes the receipt of the same call and names it; a different call, or one more, goes live', async () => {
    const source = await paid();
    const fork = await newFork(source, await after(source, 1), { mode: 'reuse_if_identical' });
    await fork.plan([pay(7), pay(8), pay(7), pay(7)]);
    expect([await fork.call(0).ask(), await fork.call(2).ask()]).toStrictEqual(['withdrawn', 'withdrawn']);
    for (const slot of [1, 3]) await fork.call(slot).attempt('succeeded');
    const closed = (await ledger.events(fork.runId)).find(({ type }) => type === 'effect.closed');
    const [, first] = await ledger.effects(source.runId);
    expect(closed?.data).toMatchObject({
      ...{ state: 'withdrawn', reason: 'reused', reuses: first!.effect_id },
      ...{ receipt_run_id: source.runId, receipt_status: 'succeeded' },
    });
    // What it did itself it undoes, and nothing of what it reused.
    await next(fork, UNDO);
    const undoing = await readRun(ledger.db, { tenantId: 'default', runId: fork.runId });
    expect(undoing?.compensation?.open).toMatchObject({ count: 2 });
  });

  test('asks nobody any more about a call that its source has done meanwhile', async () => {
    const gated = callOf('opaque', { approval: 'required' });
    const source = await newGate(ledger);
    const fork = await newFork(source.run, await checkpointAt(source.run, 'interrupt_opened'), {
      mode: 'reuse_if_identical',
    });
    await fork.plan([gated]);
    const gate = await openGate(fork.call(0));
    await decide(gate);
    await decide(source);
    await source.call.attempt('succeeded');
    expect(await fork.call(0).ask()).toBe('withdrawn');
    expect((await interruptOf(fork.call(0))).state).toBe('withdrawn');
    await fork.commit({ kind: 'move', to: 'completed', reason: 'answer_final' });
    expect((await ledger.runRow(fork.runId)).state).toBe('completed');
  });

  test('undoes what it did itself, also where its source has called the undoing tool in the same words', async () => {
    const undo = { toolName: 'tool_undo', namespace: 'tool_undo', arguments: '{"undo":true}' };
    const source = await ledger.newStep([pay(1)]);
    await source.call(0).attempt('succeeded');
    await source.plan([{ ...callOf('queryable'), ...undo }]);
    await source.call(0).attempt('succeeded');
    const fork = await newFork(source, await after(source, 1), { mode: 'reuse_if_identical' });
    await fork.plan([callOf('opaque', UNDOABLE)]);
    expect(await (await intended(fork.call(0))).ask()).toBe('claimed');
  });

  test('does not do again what nobody knows of, and goes live where it never happened', async () => {
    const source = await ledger.newStep([pay(1)]);
    await source.call(0).attempt('succeeded');
    await source.plan([pay(2), pay(3)]);
    const fork = await newFork(source, await after(source, 1), { mode: 'reuse_if_identical' });
    await source.call(0).attempt('unknown');
    await source.call(1).attempt('not_sent');
    await fork.plan([pay(2), pay(3)]);
    expect([await fork.call(0).ask(), await fork.call(1).ask()]).toStrictEqual(['denied', 'claimed']);
    expect(await told(fork, 0)).toContain('source_unresolved');
  });
});

describe('what has been taken back', () => {
  test('is told to the fork, and is no receipt to reuse', async () => {
    const call = await newUndo(ledger);
    await settle(call, { decided: 'compensated' });
    const cut = await checkpointAt(call.run, 'effect_settled');
    const fork = await newFork(call.run, cut, { mode: 'live' });
    const result = (await ledger.messages(fork.runId)).find(({ role }) => role === 'tool');
    expect(result?.content['text']).toMatch(/^Undone since: .*\n\nthe target said succeeded$/s);
    const again = await newFork(fork, await checkpointAt(fork, 'run_created'));
    expect((await ledger.messages(again.runId)).map(({ content }) => content)).toStrictEqual(
      (await ledger.messages(fork.runId)).map(({ content }) => content),
    );
    const reusing = await newFork(call.run, await checkpointAt(call.run, 'run_created'), {
      mode: 'reuse_if_identical',
    });
    await reusing.plan([callOf('opaque')]);
    expect(await reusing.call(0).ask()).toBe('claimed');
  });
});

describe('a live fork', () => {
  test('has a budget and a deadline of its own, begun anew', async () => {
    const source = await newStepOf(ledger, [refund(3), refund(1)], refunds(1, 5));
    await source.call(0).attempt('succeeded');
    expect(await source.call(1).ask()).toBe('limit_effects');
    await source.plan([]).catch(() => undefined);
    const fork = await newFork(source, await after(source, 0), {
      mode: 'live',
      limits: { wall_clock_seconds: 60 },
    });
    await fork.plan([refund(3)]);
    expect(await fork.call(0).ask()).toBe('claimed');
    const { budget, control } = (await readRun(ledger.db, { tenantId: 'default', runId: fork.runId }))!;
    expect(JSON.stringify(budget)).not.toContain(source.runId);
    const [row] = await ledger.rows<{ seconds: number }>(
      'select extract(epoch from deadline_at - admitted_at)::int as seconds from holdfast.runs where run_id = $1',
      fork.runId,
    );
    expect([row!.seconds, Date.parse(control.deadline_at) > 0]).toStrictEqual([60, true]);
  });

  test('shares the job of its source where that is asked for and nobody has judged it', async () => {
    const source = await paid();
    const { checkpoint_id: id } = await after(source, 1);
    const jobOf = async (runId: string) =>
      (await ledger.rows<{ job_id: string }>('select job_id from holdfast.runs where run_id = $1', runId))[0]!
        .job_id;
    const own = await newFork(source, { checkpoint_id: id });
    expect(await jobOf(own.runId)).not.toBe(await jobOf(source.runId));
    await acceptJob(ledger, source);
    expect(await askFork(source, id, { job: 'same' })).toMatchObject({ kind: 'job_decided' });
    const other = await paid();
    const same = await newFork(other, await after(other, 1), { job: 'same' });
    expect(await jobOf(same.runId)).toBe(await jobOf(other.runId));
  });
});

describe('edits', () => {
  test('change the words of a message and one result, and leave the calls and everything else', async () => {
    const source = await paid();
    const fork = await newFork(source, await after(source, 1), {
      edits: {
        messages: [
          { step: 1, position: 0, text: 'Pay 2 instead.' },
          { step: 1, position: 1, text: 'I paid.' },
        ],
        tool_result: { step: 1, slot: 0, text: 'no money', is_error: true },
      },
    });
    expect((await ledger.messages(fork.runId)).map(({ content }) => content)).toStrictEqual([
      { text: 'Pay 2 instead.' },
      { parts: [{ type: 'text', text: 'I paid.' }] },
      { callId: 'call_0', toolName: 'tool_opaque', text: 'no money', isError: true },
    ]);
    const [{ edits }] = (await ledger.rows<{ edits: unknown }>(
      'select edits from holdfast.forks where run_id = $1',
      fork.runId,
    )) as [{ edits: unknown }];
    expect(edits).toMatchObject({ tool_result: { text: 'no money' } });
  });

  test.each([
    [
      'of a message that is not there',
      'body/messages/1',
      1,
      {
        messages: [
          { step: 1, position: 0, text: 'x' },
          { step: 9, position: 0, text: 'x' },
        ],
      },
    ],
    ['of a message after the cut', 'body/messages/0', 1, { messages: [{ step: 2, position: 1, text: 'x' }] }],
    ['of a result as a message', 'body/messages/0', 1, { messages: [{ step: 1, position: 2, text: 'x' }] }],
    [
      'of a result that is not there',
      'body/tool_result',
      1,
      { tool_result: { step: 1, slot: 1, text: 'x', is_error: false } },
    ],
    ['that leave the model with its own last word', 'body/add_message', 3, {}],
  ] as const)('%s are refused, and nothing is forked', async (_, at, step, edits) => {
    const source = await paid();
    const { checkpoint_id: id } = await after(source, step);
    expect(await askFork(source, id, { edits })).toMatchObject({ kind: 'edit_invalid', fault: { at } });
    expect(
      await ledger.rows('select 1 from holdfast.forks where source_run_id = $1', source.runId),
    ).toStrictEqual([]);
  });
});
