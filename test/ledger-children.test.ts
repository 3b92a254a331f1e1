import { beforeAll, describe, expect, test } from 'vitest';
import { grantStart, registerAgent, unstartedRuns } from '../shared/ledger/admission.js';
import { runsToNudge } from '../shared/ledger/commands.js';
import { digestOf } from '../shared/ledger/digest.js';
import { newId } from '../shared/ledger/new-id.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import { verifyTransitions } from '../shared/ledger/verify-transitions.js';
import { delegating, newestChild, newFamily, resultOf, rowsOf, start } from './support/children.js';
import { control, drain, fates, settle, submit } from './support/desk.js';
import { bringRunTo, callOf, type LedgerRun } from './support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: the ledger admits a child once for its place, under its parent's lock, never looser and never with more than its
// parent has, and lets none outlive its parent's cancel (SPEC 4, 4.3). Method: the doors that a workflow uses, called
// again, late, at once and in the wrong order.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
  const gated = { approval: 'required', version: 'e'.repeat(64) };
  await registerAgent(ledger.db, {
    ...LEDGER_AGENT,
    name: 'careful',
    tools: [
      { ...gated, name: 'tool_opaque' },
      { ...gated, name: 'tool_read', approval: 'not_required' },
    ] as never,
  });
  await registerAgent(ledger.db, {
    ...LEDGER_AGENT,
    name: 'modest',
    limits: { stepsMax: 2, toolCallsMax: 3, wallClockSecondsMax: 60 },
  });
});

interface Row {
  readonly run_id: string;
  readonly actor_id: string;
  readonly job_id: string;
  readonly parent_run_id: string;
  readonly task_queue: string;
  readonly contract: Record<string, Record<string, unknown>>;
  readonly contract_sha256: string;
  readonly pins: Record<string, unknown>;
  readonly input: unknown;
  readonly deadline_at: Date;
  readonly admitted_at: Date;
}
const rowOf = async ({ runId }: LedgerRun): Promise<Row> =>
  (await ledger.rows<Row>('select * from holdfast.runs where run_id = $1', runId))[0]!;
const limitsOf = async (run: LedgerRun): Promise<Record<string, unknown>> =>
  (await rowOf(run)).contract['limits']!;

describe('a child run', () => {
  test('is admitted once for its place, however often it is asked for', async () => {
    const { parent, child } = await newFamily(ledger);
    expect(await start(parent)).toBe('open');
    const again = await parent.takenOver();
    expect(await start(again)).toBe('open');
    expect((await rowsOf(parent)).map(({ child_run_id }) => child_run_id)).toStrictEqual([child.runId]);
    expect((await ledger.runRow(parent.runId)).tool_calls).toBe(1);
  });

  test('is admitted once by any number of calls at once', async () => {
    const parent = await ledger.newStep([delegating()]);
    const kinds = await Promise.all(Array.from({ length: 8 }, () => start(parent)));
    expect(kinds).toStrictEqual(Array(8).fill('open'));
    expect(await rowsOf(parent)).toHaveLength(1);
  });

  test('is a run like any other: a first transition, an event, its task as input, and owed to the starter', async () => {
    const { parent, child } = await newFamily(ledger);
    const [above, below] = [await rowOf(parent), await rowOf(child)];
    expect(below).toMatchObject({
      ...{ actor_id: above.actor_id, job_id: above.job_id, task_queue: above.task_queue },
      ...{ parent_run_id: parent.runId, input: 'Do your part.' },
    });
    expect(below.pins).toMatchObject({ agent_version: digestOf(LEDGER_AGENT as never), workflow_version: 1 });
    expect(await ledger.path(child.runId)).toStrictEqual(['admitted']);
    expect((await ledger.events(child.runId))[0]).toMatchObject({
      type: 'run.admitted',
      data: { parent_run_id: parent.runId },
    });
    expect(await ledger.messages(child.runId)).toMatchObject([
      { role: 'user', content: { text: 'Do your part.' } },
    ]);
    expect((await unstartedRuns(ledger.db, 1_000)).map(({ run_id }) => run_id)).toContain(child.runId);
    expect(await grantStart(ledger.db, child.runId)).toBeDefined();
    expect(await verifyTransitions(ledger.db, { runId: child.runId })).toMatchObject({ broken: [] });
  });

  test('has a contract whose digest anybody can check', async () => {
    const { child } = await newFamily(
      ledger,
      {},
      { objective: 'Größe "x"\n\u0007 \\ €', effects: { b: { approval: 'required' }, B: {}, a_1: {} } },
    );
    const { contract, contract_sha256 } = await rowOf(child);
    expect(digestOf(contract as never)).toBe(contract_sha256);
  });

  test('is not started by whoever is not the owner, out of its state, or where none is planned', async () => {
    const parent = await ledger.newStep([delegating(), callOf('read')]);
    const next = await parent.takenOver();
    expect(await start(parent)).toBe('lost_ownership');
    expect(await start(next, 1)).toBe('effect_not_found');
    expect(await start(next, 7)).toBe('effect_not_found');
    await bringRunTo(next, 'retry_wait');
    expect(await start(next)).toBe('out_of_step');
    expect(await rowsOf(parent)).toStrictEqual([]);
  });

  test.each(['pause', 'cancel'] as const)('is not started while a %s is in force', async (kind) => {
    const parent = await ledger.newStep([delegating()]);
    await submit(parent, kind);
    expect(await start(parent)).toBe(`${kind}_requested`);
    expect(await rowsOf(parent)).toStrictEqual([]);
  });

  test('is not started past its parent’s deadline', async () => {
    const parent = await ledger.newStep([delegating()]);
    await ledger.rows(`update holdfast.runs set deadline_at = now() where run_id = $1`, parent.runId);
    expect(await start(parent)).toBe('limit_wall_clock');
  });

  test('of an agent that nobody has registered is refused, and the model is told', async () => {
    const parent = await ledger.newStep([delegating({ agent: 'nobody' })]);
    expect(await start(parent)).toBe('settled');
    expect(await start(parent)).toBe('settled');
    expect(JSON.parse((await resultOf(parent))!.text)).toMatchObject({
      ...{ error: 'child_not_started', reason: 'agent_unavailable' },
    });
  });
});

describe('the limits of a child', () => {
  const LIMITS = { limits: { steps_max: 20, tool_calls_max: 10, wall_clock_seconds: 1_000 } };

  test('are the declared share of its parent’s', async () => {
    const { child } = await newFamily(
      ledger,
      { share: { steps: 0.25, toolCalls: 0.3, wallClock: 0.5 } },
      LIMITS,
    );
    expect(await limitsOf(child)).toStrictEqual({ steps_max: 5, tool_calls_max: 3, wall_clock_seconds: 500 });
  });

  test('are never more than the parent has left, with one step kept to hear the result', async () => {
    const { parent, child } = await newFamily(
      ledger,
      { share: { steps: 1, toolCalls: 1, wallClock: 1 } },
      LIMITS,
    );
    const { steps_max, tool_calls_max, wall_clock_seconds } = await limitsOf(child);
    expect([steps_max, tool_calls_max]).toStrictEqual([18, 9]);
    expect(wall_clock_seconds).toBeLessThanOrEqual(1_000);
    expect((await rowOf(child)).deadline_at.getTime()).toBeLessThanOrEqual(
      (await rowOf(parent)).deadline_at.getTime(),
    );
  });

  test('are never more than its own agent’s', async () => {
    const { child } = await newFamily(ledger, { agent: 'modest' }, LIMITS);
    expect(await limitsOf(child)).toStrictEqual({ steps_max: 2, tool_calls_max: 3, wall_clock_seconds: 60 });
  });

  test('are held while it works and counted as used when it ended: a tree stays within its root’s limits', async () => {
    const parent = await ledger.newStep(
      Array.from({ length: 3 }, () => delegating({ share: { steps: 0.5, toolCalls: 0.5, wallClock: 1 } })),
      LIMITS,
    );
    expect([await start(parent, 0), await start(parent, 1), await start(parent, 2)]).toStrictEqual([
      ...['open', 'open', 'settled'],
    ]);
    // 20 steps: one is taken, one is kept; the second child gets what is left, and the third nothing.
    expect((await rowsOf(parent)).map(({ steps_granted }) => steps_granted)).toStrictEqual([10, 8]);
    expect((await rowsOf(parent)).map(({ tool_calls_granted }) => tool_calls_granted)).toStrictEqual([5, 3]);
    expect(JSON.parse((await resultOf(parent, 2))!.text)).toMatchObject({ reason: 'limit_steps' });
    const first = await newestOf(parent, 0);
    await first.start();
    await first.plan([callOf('read')]);
    await first.call(0).attempt('succeeded');
    await first.commit({ kind: 'move', to: 'failed', reason: 'internal_error' });
    // What it did not use is the parent's again: 20 - 1 - 8 held - 1 used, and of the calls 10 - 3 - 3 held - 1 used.
    const claim = await parent.claimThink({ step: 11 });
    expect(claim).toMatchObject({ kind: 'claimed', toolCallsLeft: 3 });
    expect(await parent.claimThink({ step: 12 })).toMatchObject({ kind: 'limit', limit: 'limit_steps' });
  });

  async function newestOf(parent: LedgerRun, slot: number): Promise<LedgerRun> {
    const child = await newestChild(parent);
    const row = (await rowsOf(parent)).find((each) => each.slot === slot);
    return Object.assign(child, { runId: row!.child_run_id });
  }

  test('end at five runs below the root', async () => {
    let run = await ledger.newStep([delegating()], { limits: { steps_max: 5_000 } });
    const root = run.runId;
    for (let depth = 1; depth <= 5; depth += 1) {
      expect(await start(run)).toBe('open');
      expect(await rowsOf(run)).toMatchObject([{ depth, root_run_id: root }]);
      run = await newestChild(run);
      await run.start();
      await run.plan([delegating({ share: { steps: 1, toolCalls: 1, wallClock: 1 } })]);
    }
    expect(await start(run)).toBe('settled');
    expect(JSON.parse((await resultOf(run))!.text)).toMatchObject({ reason: 'limit_depth' });
  });
});

describe('the rules of a child', () => {
  test('are its parent’s contract and what its parent’s own agent must have approved', async () => {
    const parent = await ledger.newRun(
      { effects: { wire: { approval: 'required' }, tool_opaque: {} } },
      { agent: 'careful' },
    );
    await parent.start();
    await parent.plan([delegating()]);
    await start(parent);
    const child = await newestChild(parent);
    expect((await rowOf(child)).contract['effects']).toStrictEqual({
      wire: { approval: 'required' },
      tool_opaque: { approval: 'required' },
    });
    await child.start();
    await child.plan([delegating()]);
    await start(child);
    // A grandchild has them too, though its parent's agent asks for nothing.
    expect((await rowOf(await newestChild(child))).contract['effects']).toStrictEqual(
      (await rowOf(child)).contract['effects'],
    );
  });

  test('are its parent’s owner, acceptance, reconciliation, retries and time-outs', async () => {
    const contract = {
      reconciliation: { owner: 'night-desk', deadline_seconds: 77 },
      timeouts: { approval_seconds: 99 },
      retry: { attempts_max: 2 },
    };
    const { parent, child } = await newFamily(ledger, {}, contract);
    const [above, below] = [(await rowOf(parent)).contract, (await rowOf(child)).contract];
    const { limits: _above, effects: _effects, ...rest } = above;
    expect(below).toMatchObject(rest);
  });

  test('name the one who asked for the parent as requester of what it does', async () => {
    const { child } = await newFamily(ledger);
    await child.start();
    await child.plan([callOf('opaque', { approval: 'required' })]);
    await child.call(0).ask();
    expect(await child.call(0).effect()).toMatchObject({ requested_by: 'user:ada' });
  });
});

describe('the end of a child', () => {
  test('completed: its last words are the one result of the call, written once', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await finish(child, 'All done.');
    expect(await start(parent)).toBe('settled');
    expect(await start(parent)).toBe('settled');
    expect(await resultOf(parent)).toMatchObject({ text: 'All done.', isError: false });
    expect(await ledger.events(parent.runId)).toContainEqual(
      expect.objectContaining({
        type: 'child.settled',
        data: expect.objectContaining({ state: 'completed' }) as unknown,
      }),
    );
  });

  test('without a word: the model is told that it said nothing', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await finish(child, '');
    await start(parent);
    expect(await resultOf(parent)).toMatchObject({ isError: false });
    expect((await resultOf(parent))?.text).toMatch(/said nothing/);
  });

  test.each([
    ['failed', 'internal_error'],
    ['cancelled', 'internal_error'],
    ['compensated', 'internal_error'],
  ] as const)('%s: the model is told state, reason and what was done', async (state, reason) => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await child.plan([callOf('opaque')]);
    await child.call(0).attempt('succeeded');
    await bringRunTo(child, state);
    expect(await start(parent)).toBe('settled');
    const told = await resultOf(parent);
    expect(told?.isError).toBe(true);
    expect(JSON.parse(told!.text)).toMatchObject({
      ...{
        error: 'child_not_completed',
        run_id: child.runId,
        state,
        reason,
        effects_done: 1,
        said_last: 'Done.',
      },
    });
  });

  test('orphaned: what the sweeper ends is told as failed; what is unclear keeps the parent waiting', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await child.plan([callOf('opaque')]);
    await child.call(0).claim();
    const { epoch } = await ledger.runRow(child.runId);
    expect(await closeOrphan(ledger.db, child.runId, epoch, 'workflow_vanished')).toBe(
      'needs_reconciliation',
    );
    expect(await start(parent)).toBe('open');
    await settle(child.call(0));
    const again = await ledger.runRow(child.runId);
    await closeOrphan(ledger.db, child.runId, again.epoch, 'person_settled');
    expect(await start(parent)).toBe('settled');
    expect(JSON.parse((await resultOf(parent))!.text)).toMatchObject({
      state: 'failed',
      reason: 'person_settled',
    });
  });

  test('is told to the parent in its own transaction, and again while it is not taken up', async () => {
    const { parent, child } = await newFamily(ledger);
    const heard: string[] = [];
    const listener = await ledger.owner.connect();
    listener.on('notification', ({ payload }) => heard.push(payload ?? ''));
    await listener.query('listen holdfast_nudge');
    await child.start();
    expect(await runsToNudge(ledger.db, 1_000, 0)).not.toContain(parent.runId);
    await finish(child, 'All done.');
    await listener.query('select 1');
    expect(heard).toStrictEqual([parent.runId]);
    listener.release(true);
    expect(await runsToNudge(ledger.db, 1_000, 0)).toContain(parent.runId);
    await start(parent);
    expect(await runsToNudge(ledger.db, 1_000, 0)).not.toContain(parent.runId);
  });
});

describe('a command to a parent', () => {
  test('cancel: goes on to every child that is bound, and down the whole tree', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await child.plan([delegating()]);
    await start(child);
    const grandchild = await newestChild(child);
    await submit(parent, 'cancel', { payload: { reason: 'Enough.' } });
    expect(await fates(child)).toStrictEqual(['cancel accepted']);
    // Nobody has begun it, so it is over at once.
    expect(await fates(grandchild)).toStrictEqual(['cancel applied']);
    expect(await ledger.runRow(grandchild.runId)).toMatchObject({ state: 'cancelled' });
    expect(
      await ledger.rows('select actor_id, payload from holdfast.commands where run_id = $1', child.runId),
    ).toStrictEqual([{ actor_id: 'holdfast:parent', payload: { reason: 'Enough.' } }]);
    // A second cancel sends nothing more.
    await submit(parent, 'cancel');
    expect(await fates(child)).toHaveLength(1);
  });

  test('cancel: no run ends `cancelled` over a child that goes on', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await submit(parent, 'cancel');
    const end = () => parent.commit({ kind: 'move', to: 'cancelled', reason: 'wound_down' });
    await parent.commit(control('active', 'cancel_requested'), {
      ...{ kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    });
    await expect(end()).rejects.toThrow(/^open_children/);
    expect(await ledger.runRow(parent.runId)).toMatchObject({ state: 'cancelling' });
    await bringRunTo(child, 'cancelled');
    const { epoch } = await ledger.runRow(parent.runId);
    expect(await closeOrphan(ledger.db, parent.runId, epoch, 'workflow_vanished')).toBe('cancelled');
  });

  test('cancel: the sweeper leaves a parent alone whose child is not over, and ends it after', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await submit(parent, 'cancel');
    await parent.commit(control('active', 'cancel_requested'), {
      ...{ kind: 'move', to: 'cancelling', reason: 'cancel_requested' },
    });
    const sweep = async (reason: 'workflow_terminated' | 'person_settled') =>
      await closeOrphan(ledger.db, parent.runId, (await ledger.runRow(parent.runId)).epoch, reason);
    expect(await sweep('workflow_terminated')).toBeUndefined();
    await bringRunTo(child, 'cancelled');
    expect(await sweep('person_settled')).toBe('cancelled');
    expect(await ledger.runRow(parent.runId)).toMatchObject({ reason: 'wound_down' });
  });

  test('cancel: a child to be left goes on, and the parent’s feed says so once', async () => {
    const { parent, child } = await newFamily(ledger, { onCancel: 'leave' });
    await child.start();
    await submit(parent, 'cancel');
    await bringRunTo(parent, 'cancelled');
    expect(await fates(child)).toStrictEqual([]);
    expect(await ledger.runRow(child.runId)).toMatchObject({ state: 'running', control: 'active' });
    expect((await ledger.events(parent.runId)).filter(({ type }) => type === 'child.left')).toHaveLength(1);
  });

  test('failing, or being swept, cancels the children too: none is left under nobody', async () => {
    const failing = await newFamily(ledger);
    await failing.child.start();
    await failing.parent.commit({ kind: 'move', to: 'failed', reason: 'internal_error' });
    expect(await fates(failing.child)).toStrictEqual(['cancel accepted']);
    const swept = await newFamily(ledger);
    await swept.child.start();
    const { epoch } = await ledger.runRow(swept.parent.runId);
    await closeOrphan(ledger.db, swept.parent.runId, epoch, 'workflow_terminated');
    expect(await fates(swept.child)).toStrictEqual(['cancel accepted']);
  });

  test('swept into needs_reconciliation cancels the children at once, not when a person has settled it', async () => {
    const parent = await ledger.newStep([delegating({ parallel: true }), callOf('opaque')]);
    await start(parent);
    const child = await newestChild(parent);
    await child.start();
    await parent.call(1).claim();
    const { epoch } = await ledger.runRow(parent.runId);
    expect(await closeOrphan(ledger.db, parent.runId, epoch, 'workflow_terminated')).toBe(
      'needs_reconciliation',
    );
    expect(await fates(child)).toStrictEqual(['cancel accepted']);
  });

  test('pause and resume: a bound child follows, by commands of its own', async () => {
    const { parent, child } = await newFamily(ledger);
    await child.start();
    await submit(parent, 'pause');
    expect(await fates(child)).toStrictEqual(['pause accepted']);
    await drain(child);
    await drain(parent);
    await submit(parent, 'resume');
    expect(await fates(child)).toStrictEqual(['pause applied', 'resume accepted']);
  });

  test('pause: a child to be left is not paused, and one that a person paused too is not woken', async () => {
    const left = await newFamily(ledger, { onCancel: 'leave' });
    await left.child.start();
    await submit(left.parent, 'pause');
    expect(await fates(left.child)).toStrictEqual([]);
    const both = await newFamily(ledger);
    await both.child.start();
    await submit(both.parent, 'pause');
    await submit(both.child, 'pause');
    await drain(both.child);
    await drain(both.parent);
    await submit(both.parent, 'resume');
    expect(await fates(both.child)).toStrictEqual(['pause applied', 'pause applied']);
  });
});

test('parent and child that are commanded, ended and started at once never wait for each other in a circle', async () => {
  const families = await Promise.all(Array.from({ length: 12 }, () => newFamily(ledger)));
  await Promise.all(
    families.flatMap(({ parent, child }) => [
      child
        .start()
        .then(() => bringRunTo(child, 'failed'))
        .catch((error: unknown) => {
          // The cancel may have come first: an unstarted child is over then.
          expect(String(error)).toMatch(/run_ended/);
        }),
      submit(parent, 'cancel'),
      start(parent),
    ]),
  );
  for (const { child } of families) expect((await ledger.runRow(child.runId)).ended_at).not.toBeNull();
});

async function finish(child: LedgerRun, text: string): Promise<void> {
  const attemptId = newId('att');
  const claim = await child.claimThink({ attemptId });
  if (claim.kind !== 'claimed') throw new Error(`not claimed: ${claim.kind}`);
  child.step += 1;
  await child.answerThink(claim, attemptId, { text, complete: true });
}
