import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { canonicalJson } from '../shared/domain/strict-json.js';
import { sha256 } from '../shared/ledger/digest.js';
import { newId } from '../shared/ledger/new-id.js';
import { settleByPerson } from '../shared/ledger/settlement.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import {
  budgetWaits,
  linesOf,
  newSpender,
  newStepOf,
  refund,
  refunds,
  registerBudgetAgent,
  setTenant,
} from './support/budget.js';
import { failModel } from './support/input.js';
import { callOf, USAGE } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: what may be spent is reserved before a call and settled after it, so that no limit is overshot by any number of
// claims at once, and nothing is forgotten: neither what failed, nor what nobody knows (SPEC 4.3, case 90). Method: the
// ledger's own functions play calls to every end, and the lines are read after each.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
  await registerBudgetAgent(ledger);
});

const SPENT = USAGE.inputTokens + USAGE.outputTokens;

describe('an effect quantity', () => {
  test.each([
    ['succeeded', ['effect_count: 1+0/3', 'effect_sum: 300+0/1000']],
    ['rejected', ['effect_count: 0+0/3', 'effect_sum: 0+0/1000']],
    ['not_sent', ['effect_count: 0+0/3', 'effect_sum: 0+0/1000']],
    ['throttled', ['effect_count: 0+0/3', 'effect_sum: 0+0/1000']],
    ['unknown', ['effect_count: 0+1/3', 'effect_sum: 0+300/1000']],
  ] as const)('of a call that is %s is used, given back or kept', async (outcome, lines) => {
    const run = await newStepOf(ledger, [refund(300)], refunds(3, 1_000));
    await run.call(0).attempt(outcome);
    expect(await linesOf(ledger, run)).toEqual(lines);
  });

  test.each([
    ['committed', ['effect_count: 1+0/3', 'effect_sum: 300+0/1000']],
    ['not_committed', ['effect_count: 0+0/3', 'effect_sum: 0+0/1000']],
  ] as const)('of an unknown that is settled as %s follows it', async (state, lines) => {
    const run = await newStepOf(ledger, [refund(300)], refunds(3, 1_000));
    await run.call(0).bringTo(state);
    expect(await linesOf(ledger, run)).toEqual(lines);
  });

  test('stops the call that would go past its count or its sum, and nothing of it is written down as sent', async () => {
    const run = await newStepOf(ledger, [refund(400), refund(400), refund(300)], refunds(9, 1_000));
    await run.call(0).attempt('succeeded');
    await run.call(1).claimed();
    expect(await run.call(2).ask()).toBe('limit_effects');
    expect(await run.call(2).state()).toBe('intended');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 1+1/9', 'effect_sum: 400+400/1000']);
  });

  test('that an unknown call holds is held until somebody knows, and is there for the next when it was not done', async () => {
    const run = await newStepOf(ledger, [refund(10), refund(10)], refunds(1, 1_000));
    const lost = await run.call(0).lose();
    expect(await run.call(1).ask()).toBe('limit_effects');
    await run.call(0).settle(lost, 'rejected');
    await run.call(0).beginQuery();
    expect(await run.call(0).state()).toBe('not_committed');
    expect(await run.call(1).ask()).toBe('claimed');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+1/1', 'effect_sum: 0+10/1000']);
  });

  test('is taken once by a call that is sent again, under whatever key and attempt', async () => {
    const run = await newStepOf(ledger, [refund(10, 'keyed')], refunds(1, 10, 'tool_keyed'));
    await run.call(0).attempt('throttled');
    await run.call(0).attempt('not_sent');
    await run.call(0).attempt('unknown');
    await run.call(0).attempt('succeeded');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 1+0/1', 'effect_sum: 10+0/10']);
  });

  test.each([['10'], [-1], [null], [{}]])('cannot be counted from %j: the call is denied', async (amount) => {
    const run = await newStepOf(ledger, [refund(amount)], refunds(9, 1_000));
    expect(await run.call(0).ask()).toBe('denied');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+0/9', 'effect_sum: 0+0/1000']);
  });

  test('is taken once by a claim that is repeated because its acknowledgement was lost', async () => {
    const run = await newStepOf(ledger, [refund(10)], { ...refunds(5, 100), tokens: 90_000 });
    const attemptId = newId('att');
    expect(await run.call(0).ask({ attemptId })).toBe('claimed');
    expect(await run.call(0).ask({ attemptId })).toBe('claimed');
    const thinking = newId('att');
    await run.claimThink({ attemptId: thinking });
    const lines = await linesOf(ledger, run);
    expect((await run.claimThink({ attemptId: thinking })).kind).toBe('claimed');
    expect(await linesOf(ledger, run)).toEqual(lines);
    expect(lines.slice(1)).toEqual(['effect_count: 0+1/5', 'effect_sum: 0+10/100']);
  });

  test('stays held through a takeover and the sweeper, and is used when a person finds that it happened', async () => {
    const run = await newStepOf(ledger, [refund(10)], refunds(1, 10));
    await run.call(0).claimed();
    const next = await run.takenOver();
    expect(await linesOf(ledger, next)).toEqual(['effect_count: 0+1/1', 'effect_sum: 0+10/10']);
    const { epoch } = await ledger.runRow(run.runId);
    await closeOrphan(ledger.db, run.runId, epoch, 'workflow_failed');
    expect(await linesOf(ledger, next)).toEqual(['effect_count: 0+1/1', 'effect_sum: 0+10/10']);
    const { effect_id: effectId } = await run.call(0).effect();
    await settleByPerson(ledger.db, {
      ...{
        tenantId: 'default',
        effectId,
        actorId: 'user:olga',
        authority: 'operator',
        idempotencyKey: randomUUID(),
      },
      ...{ decided: 'committed', reference: 'pay_1', note: 'Seen in the statement.' },
    });
    expect(await linesOf(ledger, next)).toEqual(['effect_count: 1+0/1', 'effect_sum: 10+0/10']);
  });

  test('of another tool is not touched', async () => {
    const run = await newStepOf(ledger, [callOf('read')], refunds(0, 0));
    await run.call(0).attempt('succeeded');
    expect(await linesOf(ledger, run)).toEqual(['effect_count: 0+0/0', 'effect_sum: 0+0/0']);
  });
});

describe('tokens and cost of model calls', () => {
  const budget = { tokens: 20_000, cost: { micro_units: 100_000, currency: 'USD' } };

  test('are reserved at their worst and settled at what the provider counted', async () => {
    const run = await newSpender(ledger, budget);
    const attemptId = newId('att');
    const claim = await run.claimThink({ attemptId });
    run.step = 1;
    const [tokens, cost] = await linesOf(ledger, run);
    // The whole answer that the model may give, and a prompt of no more tokens than bytes.
    const reserved = Number(/0\+(\d+)\/20000/.exec(tokens!)?.[1]);
    expect(reserved).toBeGreaterThan(1_024 + 512);
    expect(reserved).toBeLessThan(4_000);
    expect(cost).toBe(`cost: 0+${(reserved - 1_024) * 3 + 1_024 * 15}/100000`);
    if (claim.kind !== 'claimed') throw new Error(claim.kind);
    await run.answerThink(claim, attemptId);
    expect(await linesOf(ledger, run)).toEqual([
      `tokens: ${SPENT}+0/20000`,
      `cost: ${USAGE.inputTokens * 3 + USAGE.outputTokens * 15}+0/100000`,
    ]);
  });

  test('of attempts that failed count what they took, and of those that nobody knows about the worst case', async () => {
    const run = await newSpender(ledger, budget);
    await failModel(run, 'rate_limited');
    expect((await linesOf(ledger, run))[0]).toBe('tokens: 10+0/20000');
    const claim = await run.claimThink({ step: 1 });
    expect(claim.kind).toBe('claimed');
    const held = Number(/10\+(\d+)\//.exec((await linesOf(ledger, run))[0]!)?.[1]);
    expect((await run.claimThink({ step: 1 })).kind).toBe('claimed');
    expect((await linesOf(ledger, run))[0]).toBe(`tokens: ${10 + held}+${held}/20000`);
  });

  test('of an attempt that was given up as lost are corrected when it is heard of', async () => {
    const run = await newSpender(ledger, budget);
    const lost = newId('att');
    const first = await run.claimThink({ attemptId: lost });
    run.step = 1;
    const held = Number(/0\+(\d+)\//.exec((await linesOf(ledger, run))[0]!)?.[1]);
    await run.claimThink({ step: 1 });
    if (first.kind !== 'claimed') throw new Error(first.kind);
    expect((await run.answerThink(first, lost)).kind).toBe('late');
    expect((await linesOf(ledger, run))[0]).toBe(`tokens: ${SPENT}+${held}/20000`);
    expect((await run.answerThink(first, lost)).kind).toBe('late');
    expect((await linesOf(ledger, run))[0]).toBe(`tokens: ${SPENT}+${held}/20000`);
  });

  test('stop the call whose worst case does not fit any more: nothing is opened for it (case 90)', async () => {
    const run = await newSpender(ledger, { tokens: 3_000 });
    await run.plan([callOf('opaque')]);
    await run.call(0).attempt('succeeded');
    await run.claimThink();
    // A takeover brings nothing back.
    const next = await run.takenOver();
    const answer = await next.claimThink();
    expect(answer).toEqual({ kind: 'limit', limit: 'limit_tokens', way: 'fail' });
    expect(
      await ledger.rows('select 1 from holdfast.model_attempts where run_id = $1', run.runId),
    ).toHaveLength(2);
  });

  test('that end up above the worst case are kept as they are, and said', async () => {
    const run = await newSpender(ledger, { tokens: 3_000 });
    const attemptId = newId('att');
    const claim = await run.claimThink({ attemptId });
    run.step = 1;
    if (claim.kind !== 'claimed') throw new Error(claim.kind);
    await run.answerThink(claim, attemptId, { usage: { ...USAGE, inputTokens: 9_000 } });
    expect(await linesOf(ledger, run)).toEqual(['tokens: 9020+0/3000']);
    expect(
      await ledger.rows(
        `select 1 from holdfast.run_events where run_id = $1 and type = 'budget.overrun'`,
        run.runId,
      ),
    ).toHaveLength(1);
  });

  test('of a call that the end of its run cut off stay counted at the worst case', async () => {
    const run = await newSpender(ledger, budget);
    await run.claimThink();
    const held = /0\+(\d+)\//.exec((await linesOf(ledger, run))[0]!)?.[1];
    await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
    expect((await linesOf(ledger, run))[0]).toBe(`tokens: ${held}+0/20000`);
  });
});

describe('runs of one tenant', () => {
  test('never overshoot its budget together: of 20 claims at once exactly as many go as fit', async () => {
    const tenantId = `t-${randomUUID()}`;
    expect(await setTenant(ledger, tenantId, refunds(7, 100_000))).toBe('set');
    const runs = await Promise.all(
      Array.from({ length: 20 }, () => newStepOf(ledger, [refund(100)], {}, { tenantId })),
    );
    const answers = await Promise.all(runs.map((run) => run.call(0).ask()));
    expect(answers.filter((answer) => answer === 'claimed')).toHaveLength(7);
    expect(answers.filter((answer) => answer === 'limit_effects')).toHaveLength(13);
    expect(await linesOf(ledger, tenantId)).toEqual(['effect_count: 0+7/7', 'effect_sum: 0+700/100000']);
  });

  test('and their settlements at once with claims leave used and reserved exact', async () => {
    const tenantId = `t-${randomUUID()}`;
    await setTenant(ledger, tenantId, refunds(5, 100_000));
    const runs = await Promise.all(
      Array.from({ length: 20 }, () => newStepOf(ledger, [refund(100)], refunds(1, 100), { tenantId })),
    );
    await Promise.all(
      runs.map(async (run, n) => {
        const claim = await run.call(0).claim();
        if (claim.kind === 'claimed') await run.call(0).settle(claim, n % 2 === 0 ? 'succeeded' : 'rejected');
      }),
    );
    const [row] = await ledger.rows<{ n: number }>(
      `select count(*)::int as n from holdfast.effects e where tenant_id = $1 and state = 'succeeded'`,
      tenantId,
    );
    expect(row!.n).toBeLessThanOrEqual(5);
    expect(await linesOf(ledger, tenantId)).toEqual([
      `effect_count: ${row!.n}+0/5`,
      `effect_sum: ${row!.n * 100}+0/100000`,
    ]);
  });

  test('count its steps and tool calls, and leave other tenants alone', async () => {
    const tenantId = `t-${randomUUID()}`;
    await setTenant(ledger, tenantId, { steps: 2, tool_calls: 1 });
    const run = await newStepOf(ledger, [callOf('opaque'), callOf('opaque')], {}, { tenantId });
    await run.call(0).attempt('throttled');
    await run.call(0).attempt('succeeded');
    expect(await run.call(1).ask()).toBe('limit_tool_calls');
    expect(await linesOf(ledger, tenantId)).toEqual(['steps: 1+0/2', 'tool_calls: 1+0/1']);
    const other = await newStepOf(ledger, [callOf('opaque')], {}, { tenantId: `t-${randomUUID()}` });
    expect(await other.call(0).ask()).toBe('claimed');
    await newStepOf(ledger, [], {}, { tenantId });
    const third = await newSpender(ledger, {}, { tenantId });
    expect(await third.claimThink()).toMatchObject({ kind: 'limit', limit: 'limit_steps' });
  });

  test('begin anew with the day, and what is settled later counts for the day of its claim', async () => {
    const tenantId = `t-${randomUUID()}`;
    await setTenant(ledger, tenantId, refunds(1, 1_000), { window: 'day' });
    const run = await newStepOf(ledger, [refund(10), refund(10)], {}, { tenantId });
    const claim = await run.call(0).claimed();
    expect(await run.call(1).ask()).toBe('limit_effects');
    await ledger.rows(`update holdfast.budgets set day = day - 1 where tenant_id = $1`, tenantId);
    expect(await run.call(1).ask()).toBe('claimed');
    await run.call(0).settle(claim, 'succeeded');
    expect(await linesOf(ledger, tenantId)).toEqual(['effect_count: 0+1/1', 'effect_sum: 0+10/1000']);
  });

  test('are held by a limit that was lowered below what stands there, and nothing of it is forgotten', async () => {
    const tenantId = `t-${randomUUID()}`;
    await setTenant(ledger, tenantId, refunds(5, 1_000));
    const run = await newStepOf(ledger, [refund(400), refund(10)], {}, { tenantId });
    const claim = await run.call(0).claimed();
    await setTenant(ledger, tenantId, refunds(5, 100));
    expect(await run.call(1).ask()).toBe('limit_effects');
    await run.call(0).settle(claim, 'succeeded');
    expect(await linesOf(ledger, tenantId)).toEqual(['effect_count: 1+0/5', 'effect_sum: 400+0/100']);
    await setTenant(ledger, tenantId, {});
    expect(await run.call(1).ask()).toBe('claimed');
    expect(await linesOf(ledger, tenantId)).toEqual(['effect_count: 1+1/none', 'effect_sum: 400+10/none']);
  });
});

test('a run that meets no budget reserves nothing and is not looked up again', async () => {
  const run = await ledger.newStep([callOf('opaque')]);
  await run.call(0).attempt('succeeded');
  expect(await ledger.rows('select budgeted from holdfast.runs where run_id = $1', run.runId)).toEqual([
    { budgeted: false },
  ]);
  expect(
    await ledger.rows('select 1 from holdfast.budget_reservations where run_id = $1', run.runId),
  ).toEqual([]);
});

test('what a person is shown has the digest of its RFC 8785 form', async () => {
  const run = await newStepOf(ledger, [refund(100.5)], {
    ...refunds(1, 100.25),
    on_reached: 'pause_and_ask',
  });
  expect(await run.call(0).ask()).toBe('limit_effects');
  const [wait] = await budgetWaits(run);
  expect(wait!.scope_sha256).toBe(sha256(canonicalJson(wait!.scope as never)));
  const { arguments: args, arguments_sha256: digest } = wait!.scope as {
    arguments: never;
    arguments_sha256: string;
  };
  expect(digest).toBe(sha256(canonicalJson(args)));
  expect(args).toMatchObject({
    limit: 'limit_effects',
    budget: 'effect_sum',
    subject: 'tool_opaque',
    needed: 100.5,
  });
});
