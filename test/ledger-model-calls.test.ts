import { beforeAll, describe, expect, test } from 'vitest';
import { appendChunks, claimModelCall, failModelAttempt } from '../shared/ledger/model-calls.js';
import { newId } from '../shared/ledger/new-id.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { callOf, type LedgerRun, USAGE } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: a model call is answered once, whoever asks again gets that answer, and what every attempt cost is counted,
// whether or not its answer was kept (SPEC 3.4).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

async function running(contract: Readonly<Record<string, unknown>> = {}): Promise<LedgerRun> {
  const run = await ledger.newRun(contract);
  await run.start();
  return run;
}

/** A claim that must be granted, with the attempt's id. */
async function claimed(run: LedgerRun, options: Parameters<LedgerRun['claimThink']>[0] = {}) {
  const attemptId = options.attemptId ?? newId('att');
  const claim = await run.claimThink({ step: 1, ...options, attemptId });
  if (claim.kind !== 'claimed') throw new Error(`not claimed: ${claim.kind}`);
  return { ...claim, attemptId };
}
const answer = (
  run: LedgerRun,
  { attempt, attemptId }: { attempt: number; attemptId: string },
  options = {},
) => run.answerThink({ attempt }, attemptId, { step: 1, ...options });
const fail = (
  run: LedgerRun,
  { attempt, attemptId }: { attempt: number; attemptId: string },
  { usage = USAGE, reason = 'overloaded' } = {},
) =>
  failModelAttempt(
    ledger.db,
    run,
    { turn: 1, step: 1 },
    {
      ...{ attempt, attemptId, reason, detail: 'come later', requestId: null, usage },
    },
  );

const spentOf = async (run: LedgerRun): Promise<readonly [number, number]> => {
  const { input_tokens, output_tokens } = await ledger.runRow(run.runId);
  return [input_tokens, output_tokens];
};
const attemptsOf = (run: LedgerRun) =>
  ledger.rows<{ attempt: number; outcome: string | null; input: number }>(
    `select attempt, outcome, input_tokens::int as input from holdfast.model_attempts where run_id = $1 order by attempt`,
    run.runId,
  );
const typesOf = async (run: LedgerRun): Promise<string[]> =>
  (await ledger.events(run.runId)).map(({ type }) => type);

describe('a claim', () => {
  test('opens the first attempt, with the transcript and what the contract lets', async () => {
    const run = await running({ timeouts: { model_seconds: 9 }, limits: { tool_calls_max: 7 } });
    const claim = await claimed(run);
    expect(claim).toMatchObject({ attempt: 1, agent: 'ledger-agent', modelSeconds: 9, toolCallsLeft: 7 });
    expect(claim.messages).toStrictEqual([
      { step: 1, position: 0, role: 'user', content: { text: 'Refund order ORD-1' } },
    ]);
    expect(await ledger.runRow(run.runId)).toMatchObject({ step: 1, model_calls: 1, model_attempts: 1 });
  });

  test('hands out only the messages after the step that is known', async () => {
    const run = await running();
    await run.plan([]);
    expect((await claimed(run, { step: 2, knownStep: 1 })).messages).toStrictEqual([]);
    expect((await claimed(run, { step: 2 })).messages.map(({ role }) => role)).toStrictEqual([
      'user',
      'assistant',
    ]);
  });

  test('whose acknowledgement was lost is the same attempt again', async () => {
    const run = await running();
    const first = await claimed(run);
    const again = await claimed(run, { attemptId: first.attemptId });
    expect(again).toStrictEqual(first);
    expect(await attemptsOf(run)).toHaveLength(1);
    expect((await typesOf(run)).filter((type) => type === 'model.started')).toHaveLength(1);
  });

  test('by another attempt takes the call over, and the one before is told that it is late', async () => {
    const run = await running();
    const first = await claimed(run);
    const second = await claimed(run);
    expect(second.attempt).toBe(2);
    expect(await run.claimThink({ step: 1, attemptId: first.attemptId })).toStrictEqual({ kind: 'late' });
    expect((await attemptsOf(run)).map(({ outcome }) => outcome)).toStrictEqual(['lost', null]);
  });

  test('of an answered call gets the committed answer, whoever asks and whatever is requested meanwhile', async () => {
    const run = await running();
    await run.plan([{ ...callOf('read'), parallel: true }, callOf('opaque')]);
    await run.commit({ kind: 'control', to: 'cancel_requested', reason: 'cancel_requested' });
    await ledger.rows(`update holdfast.runs set deadline_at = now() where run_id = $1`, run.runId);
    for (let time = 0; time < 2; time += 1) {
      expect(await run.claimThink({ step: 1 })).toMatchObject({
        ...{ kind: 'answered', stopReason: 'tool_calls', refused: 0 },
        calls: [
          { slot: 0, parallel: true },
          { slot: 1, parallel: false },
        ],
      });
    }
    expect(await attemptsOf(run)).toHaveLength(1);
  });

  test('is exhausted after as many attempts as the contract lets, lost ones not counted', async () => {
    const run = await running({ retry: { attempts_max: 2 } });
    await fail(run, await claimed(run));
    await claimed(run);
    // That one's worker died; the next is still the second attempt of the series.
    await fail(run, await claimed(run));
    expect(await run.claimThink({ step: 1 })).toStrictEqual({ kind: 'exhausted' });
    expect((await attemptsOf(run)).map(({ outcome }) => outcome)).toStrictEqual(['failed', 'lost', 'failed']);
  });

  test('is exhausted when thirty workers died of it', async () => {
    const run = await running({ retry: { attempts_max: 100 } });
    for (let time = 0; time < 30; time += 1) await claimed(run);
    expect(await run.claimThink({ step: 1 })).toStrictEqual({ kind: 'exhausted' });
  });

  test('meets the limits of steps and of time, and the request for control, before it opens anything', async () => {
    const steps = await running({ limits: { steps_max: 1 } });
    await steps.plan([]);
    expect(await steps.claimThink()).toStrictEqual({ kind: 'limit', limit: 'limit_steps', way: 'fail' });
    const time = await running();
    await ledger.rows(`update holdfast.runs set deadline_at = now() where run_id = $1`, time.runId);
    expect(await time.claimThink()).toStrictEqual({ kind: 'limit', limit: 'limit_wall_clock', way: 'fail' });
    const paused = await running();
    await paused.commit({ kind: 'control', to: 'pause_requested', reason: 'cancel_requested' });
    expect(await paused.claimThink()).toStrictEqual({ kind: 'control', control: 'pause_requested' });
    for (const run of [time, paused]) expect(await attemptsOf(run)).toStrictEqual([]);
  });

  test('is refused to others, to a run that waits and to one that ended', async () => {
    const run = await running();
    const place = { turn: 1, step: 1 };
    const ask = (execution: string) =>
      claimModelCall(ledger.db, { runId: run.runId, execution }, place, {
        ...{
          trail: { from: run.position + 1, entries: [] },
          attemptId: newId('att'),
          worker: 'w',
          knownStep: 0,
        },
      }).catch(refusalOf);
    expect(await ask('exec-stranger')).toBe('unknown_execution');
    await run.commit({ kind: 'move', to: 'retry_wait', reason: 'limit_stop' });
    expect(await ask(run.execution)).toBe('out_of_step');
    await run.commit({ kind: 'move', to: 'failed', reason: 'model_failed' });
    expect(await ask(run.execution)).toBe('out_of_step');
    expect(await ask('exec-stranger')).toBe('run_ended');
    expect(await attemptsOf(run)).toStrictEqual([]);
  });

  test('of twenty at once opens twenty attempts, and only the newest holds the call', async () => {
    const run = await running({ retry: { attempts_max: 100 } });
    const claims = await Promise.all(Array.from({ length: 20 }, () => claimed(run)));
    expect(claims.map(({ attempt }) => attempt).toSorted((a, b) => a - b)).toStrictEqual(
      Array.from({ length: 20 }, (_, index) => index + 1),
    );
    const answers = await Promise.all(claims.map((claim) => answer(run, claim)));
    expect(answers.filter(({ kind }) => kind === 'answered')).toHaveLength(1);
    expect(await spentOf(run)).toStrictEqual([20 * USAGE.inputTokens, 20 * USAGE.outputTokens]);
  });
});

describe('an answer', () => {
  test('is kept with its message and plan, its cost counted, and may be committed again', async () => {
    const run = await running();
    const claim = await claimed(run);
    for (let time = 0; time < 3; time += 1) {
      expect(await answer(run, claim, { stopReason: 'length' })).toMatchObject({
        ...{ kind: 'answered', stopReason: 'length', state: 'running' },
      });
    }
    expect(await spentOf(run)).toStrictEqual([USAGE.inputTokens, USAGE.outputTokens]);
    expect(await attemptsOf(run)).toStrictEqual([
      { attempt: 1, outcome: 'answered', input: USAGE.inputTokens },
    ]);
    expect((await typesOf(run)).filter((type) => type === 'model.message')).toHaveLength(1);
  });

  test('that comes after another attempt took the call is paid for and dropped', async () => {
    const run = await running();
    const [first, second] = [await claimed(run), await claimed(run)];
    for (let time = 0; time < 2; time += 1) {
      expect(await answer(run, first, { text: 'late words' })).toStrictEqual({ kind: 'late' });
    }
    expect(await answer(run, second, { text: 'kept words' })).toMatchObject({ kind: 'answered' });
    // And once more, after the call was answered by the other.
    expect(await answer(run, first, { text: 'late words' })).toStrictEqual({ kind: 'late' });
    const words = (await ledger.messages(run.runId)).filter(({ role }) => role === 'assistant');
    expect(words.map(({ content }) => JSON.stringify(content))).toStrictEqual([
      '{"parts":[{"text":"kept words","type":"text"}]}',
    ]);
    expect(await attemptsOf(run)).toStrictEqual([
      { attempt: 1, outcome: 'lost', input: USAGE.inputTokens },
      { attempt: 2, outcome: 'answered', input: USAGE.inputTokens },
    ]);
    expect(await spentOf(run)).toStrictEqual([2 * USAGE.inputTokens, 2 * USAGE.outputTokens]);
  });

  test('of an execution that lost the run is paid for and dropped, and the new owner asks again', async () => {
    const run = await running();
    const claim = await claimed(run);
    const next = await run.takenOver();
    expect(await answer(run, claim)).toStrictEqual({ kind: 'late' });
    expect(await spentOf(run)).toStrictEqual([USAGE.inputTokens, USAGE.outputTokens]);
    expect(await answer(next, await claimed(next))).toMatchObject({ kind: 'answered' });
  });

  test('to a call that was never claimed is dropped', async () => {
    const run = await running();
    const claim = await claimed(run);
    expect(await run.answerThink(claim, newId('att'), { step: 7 })).toStrictEqual({ kind: 'late' });
    expect((await ledger.messages(run.runId)).map(({ role }) => role)).toStrictEqual(['user']);
  });

  test('for a run that ended is paid for and dropped', async () => {
    const run = await running();
    const claim = await claimed(run);
    await run.commit({ kind: 'move', to: 'failed', reason: 'limit_wall_clock' });
    expect(await answer(run, claim)).toStrictEqual({ kind: 'late' });
    expect(await spentOf(run)).toStrictEqual([USAGE.inputTokens, USAGE.outputTokens]);
    expect(await ledger.runRow(run.runId)).toMatchObject({ state: 'failed' });
  });

  test('that is final ends the run in the same commit, and its trail entry is counted', async () => {
    const run = await running();
    const claim = await claimed(run);
    for (let time = 0; time < 2; time += 1) {
      expect(await answer(run, claim, { complete: true })).toMatchObject({
        kind: 'answered',
        state: 'completed',
      });
    }
    expect(await ledger.path(run.runId)).toStrictEqual(['admitted', 'running', 'completed']);
    expect((await typesOf(run)).at(-1)).toBe('run.transition');
  });

  test.each([
    ['it asks for tools', {}, { calls: [callOf('read')], stopReason: 'tool_calls' }],
    ['it was cut off', {}, { stopReason: 'length' }],
    ['the workflow has more to say', {}, { complete: false }],
  ] as const)('does not end the run when %s', async (_, __, options) => {
    const run = await running();
    expect(await answer(run, await claimed(run), { complete: true, ...options })).toMatchObject({
      state: 'running',
    });
  });

  test('does not end the run when somebody asked for control meanwhile', async () => {
    const run = await running();
    const claim = await claimed(run);
    await run.commit({ kind: 'control', to: 'cancel_requested', reason: 'cancel_requested' });
    expect(await answer(run, claim, { complete: true })).toMatchObject({ state: 'running' });
  });

  test('cannot complete a run over an effect that nobody has settled', async () => {
    const run = await ledger.newStep([callOf('opaque')]);
    await run.call(0).attempt('unknown');
    const claim = await claimed(run, { step: 2 });
    const commit = run.answerThink(claim, claim.attemptId, { step: 2, complete: true });
    await expect(commit).rejects.toThrow(/^unresolved_effects/);
    expect(await ledger.runRow(run.runId)).toMatchObject({
      state: 'running',
      input_tokens: USAGE.inputTokens,
    });
  });
});

describe('a failed attempt', () => {
  test('is counted with what it cost, says where the series stands, and may be reported again', async () => {
    const run = await running({ retry: { attempts_max: 3, series_seconds_max: 100 } });
    const claim = await claimed(run);
    for (let time = 0; time < 3; time += 1) {
      const standing = await fail(run, claim);
      expect(standing).toMatchObject({
        kind: 'failed',
        attempt: 1,
        attemptsMax: 3,
        retryAfterMaxMs: 3_600_000,
      });
      if (standing.kind === 'failed') expect(standing.seriesMsLeft).toBeGreaterThan(50_000);
    }
    expect(await spentOf(run)).toStrictEqual([USAGE.inputTokens, USAGE.outputTokens]);
    expect((await typesOf(run)).filter((type) => type === 'model.failed')).toHaveLength(1);
  });

  test('that no longer holds the call is late, and its cost counted all the same', async () => {
    const run = await running();
    const first = await claimed(run);
    await claimed(run);
    expect(await fail(run, first)).toStrictEqual({ kind: 'late' });
    expect(await spentOf(run)).toStrictEqual([USAGE.inputTokens, USAGE.outputTokens]);
    expect((await attemptsOf(run)).map(({ outcome }) => outcome)).toStrictEqual(['lost', null]);
  });

  test('that a stop of its worker aborted counts as lost, once', async () => {
    const run = await running({ retry: { attempts_max: 1 } });
    const aborted = await claimed(run);
    for (let time = 0; time < 2; time += 1) {
      expect(await fail(run, aborted, { reason: 'aborted' })).toMatchObject({ kind: 'failed', attempt: 0 });
    }
    await fail(run, await claimed(run));
    expect((await attemptsOf(run)).map(({ outcome }) => outcome)).toStrictEqual(['lost', 'failed']);
    expect(await run.claimThink({ step: 1 })).toStrictEqual({ kind: 'exhausted' });
  });

  test('that cost nothing is no spend', async () => {
    const run = await running();
    await fail(run, await claimed(run), { usage: { ...USAGE, inputTokens: 0, outputTokens: 0 } });
    expect(await spentOf(run)).toStrictEqual([0, 0]);
  });
});

describe('pieces of a streaming answer', () => {
  const piece = { type: 'text', text: 'Dear ' } as const;
  const append = (run: LedgerRun, attempt: number, execution = run.execution) =>
    appendChunks(ledger.db, { runId: run.runId, execution }, { turn: 1, step: 1 }, attempt, [piece]);

  test('become events in order while the attempt holds the call, and it is told when it does not', async () => {
    const run = await running();
    const first = await claimed(run);
    expect(await append(run, first.attempt)).toBe(true);
    expect(await append(run, first.attempt, 'exec-stranger')).toBe(false);
    const second = await claimed(run);
    expect(await append(run, first.attempt)).toBe(false);
    expect(await append(run, second.attempt)).toBe(true);
    await answer(run, second);
    expect(await append(run, second.attempt)).toBe(false);
    const chunks = (await ledger.events(run.runId)).filter(({ type }) => type === 'model.chunk');
    expect(chunks.map(({ data }) => [data['attempt'], data['text']])).toStrictEqual([
      [1, 'Dear '],
      [2, 'Dear '],
    ]);
  });

  test('of a call that was never claimed are dropped', async () => {
    const run = await running();
    expect(await append(run, 1)).toBe(false);
  });
});
