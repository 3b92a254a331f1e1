import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { lookAtRun, runsToNudge } from '../shared/ledger/commands.js';
import { claimEffect } from '../shared/ledger/effects.js';
import { newId } from '../shared/ledger/new-id.js';
import {
  answerBudget,
  budgetWaits,
  change,
  linesOf,
  newSpender,
  newStepOf,
  refund,
  refunds,
  registerBudgetAgent,
  setTenant,
} from './support/budget.js';
import { fates, openGate, submit } from './support/desk.js';
import { ask, asking, runOut } from './support/input.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { until } from './support/until.js';

// Goal: reaching a limit is a decision that the contract made: fail, finish with a last answer, or ask a person; and
// limits are changed by commands alone (SPEC 4.3, 4). Method: runs are brought to each of their limits under each way;
// people answer and commands come at every moment, and the next claim says what holds.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
  await registerBudgetAgent(ledger);
});

const ASK = { on_reached: 'pause_and_ask' } as const;
const FINISH = { on_reached: 'finish' } as const;
const limits = (of: Readonly<Record<string, number>>) => ({ contract: { limits: of } });

/** Lets the run's time be over. */
async function outOfTime(run: LedgerRun): Promise<void> {
  await ledger.rows(
    `update holdfast.runs set deadline_at = clock_timestamp() - interval '1 second' where run_id = $1`,
    run.runId,
  );
}

/** A model call of the next step: its claim's answer, in a few words. */
async function think(run: LedgerRun): Promise<string> {
  const claim = await run.claimThink();
  return claim.kind === 'limit'
    ? `${claim.limit} ${claim.way}`
    : claim.kind === 'claimed'
      ? `claimed ${claim.finishing ?? ''}`.trim()
      : claim.kind;
}

async function act(run: LedgerRun, slot: number): Promise<string> {
  const claim = await run.call(slot).claim();
  return claim.kind === 'limit'
    ? `${claim.limit} ${claim.way}`
    : claim.kind === 'effect'
      ? claim.state
      : claim.kind;
}

const results = async (run: LedgerRun): Promise<string[]> =>
  (
    await ledger.rows<{ text: string }>(
      `select content ->> 'text' as text from holdfast.messages where run_id = $1 and role = 'tool'
        order by step, position`,
      run.runId,
    )
  ).map(({ text }) => text);

describe('a limit that ends the run', () => {
  test.each(['limit_steps', 'limit_wall_clock'] as const)('%s is met by the model call', async (limit) => {
    const run = await newStepOf(ledger, [], {}, limits({ steps_max: 1 }));
    if (limit === 'limit_wall_clock') await outOfTime(run);
    expect(await think(run)).toBe(`${limit} fail`);
  });

  test('is told as an event with its numbers', async () => {
    const run = await newStepOf(ledger, [refund(11)], refunds(5, 10));
    expect(await act(run, 0)).toBe('limit_effects fail');
    const [event] = await ledger.rows<{ data: unknown }>(
      `select data from holdfast.run_events where run_id = $1 and type = 'budget.reached'`,
      run.runId,
    );
    expect(event?.data).toEqual({
      ...{
        limit: 'limit_effects',
        scope: 'run',
        budget: 'effect_sum',
        subject: 'tool_opaque',
        pointer: '/amount',
      },
      ...{ limit_value: 10, used: 0, reserved: 0, needed: 11, way: 'fail', turn: 1, step: 1 },
    });
  });
});

describe('a run that is to finish', () => {
  test('over an effect has every further call refused with words, and one last answer without tools', async () => {
    const run = await newStepOf(ledger, [refund(10), refund(10), callOf('read')], {
      ...refunds(1, 100),
      ...FINISH,
    });
    await run.call(0).attempt('succeeded');
    expect(await act(run, 1)).toBe('denied');
    expect(await act(run, 2)).toBe('denied');
    expect((await results(run)).slice(1)).toEqual(Array(2).fill(expect.stringContaining('limit_effects')));
    const attemptId = newId('att');
    const claim = await run.claimThink({ attemptId });
    expect(claim).toMatchObject({ kind: 'claimed', finishing: 'limit_effects' });
    run.step += 1;
    if (claim.kind !== 'claimed') throw new Error(claim.kind);
    expect(await run.answerThink(claim, attemptId, { complete: true })).toMatchObject({ state: 'completed' });
    expect(await ledger.runRow(run.runId)).toMatchObject({ state: 'completed', reason: 'answer_at_limit' });
  });

  test('fails truthfully when that answer asks for more', async () => {
    const run = await newStepOf(ledger, [refund(10)], { ...refunds(0, 100), ...FINISH });
    expect(await act(run, 0)).toBe('denied');
    await run.plan([]);
    expect(await think(run)).toBe('limit_effects fail');
  });

  test('gets its last answer once more when the attempt was lost, across a takeover', async () => {
    const run = await newStepOf(ledger, [refund(10)], { ...refunds(0, 100), ...FINISH });
    expect(await act(run, 0)).toBe('denied');
    expect(await think(run)).toBe('claimed limit_effects');
    const next = await run.takenOver();
    expect(await think(next)).toBe('claimed limit_effects');
  });

  test('takes its last step for the answer, and its last tool call as the last', async () => {
    const run = await newStepOf(ledger, [], FINISH, limits({ steps_max: 2 }));
    expect(await think(run)).toBe('limit_steps finish');
    expect(await think(run)).toBe('claimed limit_steps');
    const calling = await newStepOf(
      ledger,
      [callOf('opaque'), callOf('opaque')],
      FINISH,
      limits({ tool_calls_max: 1 }),
    );
    await calling.call(0).attempt('succeeded');
    expect(await act(calling, 1)).toBe('denied');
    expect(await think(calling)).toBe('claimed limit_tool_calls');
    const exact = await newStepOf(ledger, [callOf('opaque')], FINISH, limits({ tool_calls_max: 1 }));
    await exact.call(0).attempt('succeeded');
    expect(await think(exact)).toBe('limit_tool_calls finish');
  });

  test('answers once past its deadline, and calls nothing there', async () => {
    const run = await newStepOf(ledger, [callOf('opaque')], FINISH);
    await outOfTime(run);
    expect(await act(run, 0)).toBe('denied');
    expect(await think(run)).toBe('claimed limit_wall_clock');
  });

  test('keeps as many tokens back as the last answer may take', async () => {
    const wide = await newSpender(ledger, { tokens: 90_000, ...FINISH });
    expect(await think(wide)).toBe('claimed');
    const worst = Number(/\+(\d+)\//.exec((await linesOf(ledger, wide))[0]!)?.[1]);
    const tight = await newSpender(ledger, { tokens: worst * 2 - 1, ...FINISH });
    // Two of the kind would not fit: this one is the last already.
    expect(await think(tight)).toBe('limit_tokens finish');
    expect(await think(tight)).toBe('claimed limit_tokens');
  });

  test('withdraws approvals that are open over what is not called any more', async () => {
    const gated = { ...callOf('opaque', { approval: 'required' }), arguments: '{"amount":1}' };
    const run = await newStepOf(ledger, [refund(10), gated], { ...refunds(0, 100), ...FINISH });
    await openGate(run.call(1));
    expect(await act(run, 0)).toBe('denied');
    expect(await act(run, 1)).toBe('denied');
    expect(await ledger.rows('select state from holdfast.interrupts where run_id = $1', run.runId)).toEqual([
      { state: 'withdrawn' },
    ]);
  });
});

describe('a run that asks', () => {
  /** A run that waits over its second refund. */
  const atLimit = async (contract: Readonly<Record<string, unknown>> = {}): Promise<LedgerRun> => {
    const run = await newStepOf(
      ledger,
      [refund(10), refund(10)],
      { ...refunds(1, 100), ...ASK },
      { contract },
    );
    await run.call(0).attempt('succeeded');
    expect(await act(run, 1)).toBe('limit_effects ask');
    return run;
  };

  test('opens one wait, however often the claim comes, and goes on when somebody raises the limit', async () => {
    const run = await atLimit();
    expect(await act(run, 1)).toBe('limit_effects ask');
    expect(await budgetWaits(run)).toMatchObject([
      { state: 'open', required_role: 'operator', effect_id: null },
    ]);
    expect(await lookAtRun(ledger.db, run)).toMatchObject({ openInputs: 1, inputExpired: false });
    expect(await answerBudget(run, { action: 'raise', limit: 2 })).toBe('decided');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 1+0/2', 'effect_sum: 10+0/100']);
    expect(await act(run, 1)).toBe('claimed');
  });

  test('fails when somebody refuses, and when nobody answers in time', async () => {
    const refused = await atLimit();
    expect(await answerBudget(refused, { action: 'refuse' })).toBe('decided');
    expect(await act(refused, 1)).toBe('limit_effects fail');
    const silent = await atLimit();
    const [wait] = await budgetWaits(silent);
    await runOut({ run: silent, interruptId: wait!.interrupt_id });
    expect(await answerBudget(silent, { action: 'raise', limit: 2 })).toBe('interrupt_expired');
    expect(await act(silent, 1)).toBe('limit_effects fail');
    expect(await budgetWaits(silent)).toMatchObject([{ state: 'expired' }]);
  });

  test('takes the answer of an operator alone, once, and nothing that does not fit', async () => {
    const run = await atLimit();
    expect(await answerBudget(run, { action: 'raise', limit: 2 }, { authority: 'requester' })).toBe(
      'role_required',
    );
    expect(await answerBudget(run, { action: 'raise', limit: 1 }, { fits: false })).toBe('answer_invalid');
    expect(await answerBudget(run, { action: 'raise', limit: 2 })).toBe('decided');
    expect(await answerBudget(run, { action: 'refuse' })).toBe('interrupt_decided');
    expect(await act(run, 1)).toBe('claimed');
  });

  test('asks again when the next limit is reached', async () => {
    const run = await newStepOf(ledger, [refund(10), refund(10)], { ...refunds(0, 5), ...ASK });
    expect(await act(run, 0)).toBe('limit_effects ask');
    await answerBudget(run, { action: 'raise', limit: 9 });
    expect(await act(run, 0)).toBe('limit_effects ask');
    expect((await budgetWaits(run)).map(({ scope }) => scope['tool'])).toEqual([
      'budget/effect_count',
      'budget/effect_sum',
    ]);
    await answerBudget(run, { action: 'raise', limit: 10 });
    expect(await act(run, 0)).toBe('claimed');
  });

  test.each([
    ['steps', { steps_max: 1 }, 'limit_steps'],
    ['wall clock', {}, 'limit_wall_clock'],
  ] as const)('does so over %s too', async (_, of, code) => {
    const run = await newStepOf(ledger, [], ASK, limits(of));
    if (code === 'limit_wall_clock') await outOfTime(run);
    expect(await think(run)).toBe(`${code} ask`);
    const limit = code === 'limit_steps' ? 2 : 7_200;
    expect(await answerBudget(run, { action: 'raise', limit })).toBe('decided');
    expect(await think(run)).toBe('claimed');
  });

  test('does so over tool calls too, before the intent is written', async () => {
    const run = await newStepOf(
      ledger,
      [callOf('opaque'), callOf('opaque')],
      ASK,
      limits({ tool_calls_max: 1 }),
    );
    await run.call(0).attempt('succeeded');
    expect(await act(run, 1)).toBe('limit_tool_calls ask');
    expect(await ledger.rows('select 1 from holdfast.effects where run_id = $1', run.runId)).toHaveLength(1);
    await answerBudget(run, { action: 'raise', limit: 2 });
    expect(await act(run, 1)).toBe('claimed');
  });

  test('over its tenant asks an admin, and goes on when the tenant’s limit is set higher', async () => {
    const tenantId = `t-${randomUUID()}`;
    await setTenant(ledger, tenantId, refunds(1, 1_000));
    const runs = await Promise.all([1, 2, 3].map(() => newStepOf(ledger, [refund(10)], ASK, { tenantId })));
    expect(await act(runs[0]!, 0)).toBe('claimed');
    for (const run of runs.slice(1)) expect(await act(run, 0)).toBe('limit_effects ask');
    const [, second, third] = runs as [LedgerRun, LedgerRun, LedgerRun];
    const raise = { action: 'raise', limit: 2 } as const;
    expect(await answerBudget(second, raise, { tenantId })).toBe('role_required');
    expect(await answerBudget(second, raise, { tenantId, authority: 'admin' })).toBe('decided');
    expect(await act(second, 0)).toBe('claimed');
    await third.commit({ kind: 'move', to: 'waiting_for_input', reason: 'budget_needed' });
    await setTenant(ledger, tenantId, refunds(3, 1_000));
    expect(await budgetWaits(third)).toMatchObject([{ state: 'superseded' }]);
    expect(await runsToNudge(ledger.db, 1_000, 0)).toContain(third.runId);
    await third.commit({ kind: 'move', to: 'running', reason: 'input_received' });
    expect(await act(third, 0)).toBe('claimed');
  });

  test('over its tenant while that is being raised is not left behind', async () => {
    const tenantId = `t-${randomUUID()}`;
    await setTenant(ledger, tenantId, refunds(0, 1_000));
    const run = await newStepOf(ledger, [refund(10)], ASK, { tenantId });
    const client = await ledger.owner.connect();
    await client.query('begin');
    const claim = await claimEffect(
      client,
      run,
      { turn: 1, step: 1, slot: 0 },
      {
        ...{ trail: run.trail(), redo: 0, attemptId: newId('att'), worker: 'test:1', leaseMarginMs: 1_000 },
      },
    );
    expect(claim).toMatchObject({ kind: 'limit', way: 'ask' });
    const raised = setTenant(ledger, tenantId, refunds(1, 1_000));
    await until('the change waits for the claim', async () => {
      const waiting = await ledger.rows(
        `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      return waiting.length > 0;
    });
    await client.query('commit');
    client.release();
    expect(await raised).toBe('set');
    expect(await budgetWaits(run)).toMatchObject([{ state: 'superseded' }]);
    expect(await act(run, 0)).toBe('claimed');
  });

  test('is cut short by the end of the run: the wait is withdrawn', async () => {
    const run = await atLimit();
    await run.commit({ kind: 'move', to: 'failed', reason: 'limit_effects' });
    expect(await budgetWaits(run)).toMatchObject([{ state: 'withdrawn' }]);
    expect(await answerBudget(run, { action: 'raise', limit: 2 })).toBe('run_ended');
  });

  describe('and is changed by command meanwhile', () => {
    test('goes on when the limit was raised', async () => {
      const run = await atLimit();
      expect(await change(run, refunds(5, 100))).toBe('applied');
      expect(await budgetWaits(run)).toMatchObject([{ state: 'superseded' }]);
      expect(await answerBudget(run, { action: 'refuse' })).toBe('interrupt_superseded');
      expect(await act(run, 1)).toBe('claimed');
    });

    test('asks anew with the new numbers when it was not raised enough', async () => {
      const run = await atLimit();
      expect(await change(run, refunds(1, 500))).toBe('applied');
      expect(await act(run, 1)).toBe('limit_effects ask');
      expect(await budgetWaits(run)).toMatchObject([{ state: 'superseded' }, { state: 'open' }]);
    });
  });
});

describe('a question to a person', () => {
  const question = asking('Which order?');

  test.each([
    ['tool calls', async () => undefined, 'limit_tool_calls', { action: 'raise', limit: 1 }],
    ['its time', outOfTime, 'limit_wall_clock', { action: 'raise', limit: 7_200 }],
  ] as const)('meets the limit of %s as any call does', async (_, bring, limit, raised) => {
    const of = limits(limit === 'limit_tool_calls' ? { tool_calls_max: 0 } : {});
    const failing = await newStepOf(ledger, [question], {}, of);
    await bring(failing);
    expect(await ask(failing)).toBe(limit);
    expect(await ledger.rows('select 1 from holdfast.interrupts where run_id = $1', failing.runId)).toEqual(
      [],
    );
    const finishing = await newStepOf(ledger, [question], FINISH, of);
    await bring(finishing);
    expect(await ask(finishing)).toBe('settled');
    expect(await ask(finishing)).toBe('settled');
    expect(await results(finishing)).toEqual([expect.stringContaining(limit)]);
    expect(await think(finishing)).toBe(`claimed ${limit}`);
    const waiting = await newStepOf(ledger, [question], ASK, of);
    await bring(waiting);
    expect(await ask(waiting)).toBe(limit);
    expect(await answerBudget(waiting, raised)).toBe('decided');
    expect(await ask(waiting)).toBe('open');
  });
});

describe('a change of the budget or the deadline', () => {
  test('is in force at once, raised or lowered, and is told with what it was before', async () => {
    const run = await newStepOf(ledger, [refund(60), refund(60)], refunds(2, 100));
    await run.call(0).attempt('succeeded');
    expect(await change(run, refunds(2, 120))).toBe('applied');
    await run.call(1).attempt('unknown');
    expect(await change(run, refunds(2, 50))).toBe('applied');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 1+1/2', 'effect_sum: 60+60/50']);
    const events = await ledger.rows<{ data: Record<string, unknown> }>(
      `select data from holdfast.run_events where run_id = $1 and type = 'budget.changed'
          and data ->> 'budget' = 'effect_sum' order by seq`,
      run.runId,
    );
    expect(events.map(({ data }) => [data['from'], data['limit_value']])).toEqual([
      [100, 120],
      [120, 50],
    ]);
    expect(await fates(run)).toEqual(['change_budget applied', 'change_budget applied']);
  });

  test('of steps, tool calls and time holds for the next claim', async () => {
    const run = await newStepOf(ledger, [callOf('opaque')], {}, limits({ steps_max: 1 }));
    expect(await change(run, { tool_calls: 0 })).toBe('applied');
    expect(await act(run, 0)).toBe('limit_tool_calls fail');
    expect(await change(run, { steps: 2, tool_calls: 1 })).toBe('applied');
    expect(await act(run, 0)).toBe('claimed');
    expect(await change(run, new Date(Date.now() - 1_000))).toBe('applied');
    expect(await think(run)).toBe('limit_wall_clock fail');
    expect(await change(run, new Date(Date.now() + 60_000))).toBe('applied');
    expect(await think(run)).toBe('claimed');
  });

  test('of a limit that was not there adds it: it counts from now on, and bites in the next claim', async () => {
    const run = await newStepOf(ledger, [refund(10), refund(10), refund(10)]);
    await run.call(0).attempt('succeeded');
    const under = await run.call(1).claimed();
    expect(await change(run, refunds(1, 15))).toBe('applied');
    await run.call(1).settle(under, 'succeeded');
    // Neither what was done before nor what was under way is counted.
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+0/1', 'effect_sum: 0+0/15']);
    expect(await act(run, 2)).toBe('claimed');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+1/1', 'effect_sum: 0+10/15']);
    expect(await change(run, { tokens: 1 })).toBe('applied');
    expect(await think(run)).toBe('limit_tokens fail');
  });

  test('of a limit that the run could not count is refused whole', async () => {
    const run = await newStepOf(ledger, [refund(10)], refunds(2, 100));
    for (const strange of [
      { effects: [{ tool: 'not_a_tool', count: 1 }] },
      { cost: { micro_units: 5, currency: 'EUR' } },
    ]) {
      const limits = { ...refunds(9, 100), ...strange };
      expect(await change(run, limits)).toBe('rejected budget_not_set');
    }
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+0/2', 'effect_sum: 0+0/100']);
  });

  test('is refused once the run is being cancelled or has ended, and for a version that is past', async () => {
    const run = await newStepOf(ledger, [], refunds(2, 100));
    await submit(run, 'change_budget', { payload: { lines: [] }, expectedStateVersion: 1 });
    expect((await fates(run)).at(-1)).toBe('change_budget rejected state_version_conflict');
    await submit(run, 'cancel');
    expect(await change(run, refunds(9, 100))).toBe('rejected cancel_in_force');
    const over = await newStepOf(ledger, [], refunds(2, 100));
    await over.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
    expect(await change(over, refunds(9, 100))).toBe('rejected run_ended');
    expect(await linesOf(ledger, over)).toEqual(['effect_count: 0+0/2', 'effect_sum: 0+0/100']);
  });
});
