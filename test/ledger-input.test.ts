import { beforeAll, describe, expect, test } from 'vitest';
import { lookAtRun, runsToNudge } from '../shared/ledger/commands.js';
import { closeOrphan } from '../shared/ledger/sweep.js';
import { decide, drain, newGate, openGate, submit } from './support/desk.js';
import {
  answer,
  ask,
  asking,
  claimModel,
  failModel,
  inputsOf,
  newWait,
  runOut,
  told,
  type Wait,
} from './support/input.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: a question is one wait and one result, whatever dies in between; of any number of answers one is taken, in
// time, by somebody who may; and a model call that only a person can mend is not made again unasked. Method: the
// ledger's own functions, repeated and raced; then what the model would read.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const stateOf = async ({ run, interruptId }: Wait): Promise<string> =>
  (await inputsOf(run)).find(({ interrupt_id }) => interrupt_id === interruptId)?.state ?? 'none';
const resultsOf = async (run: LedgerRun, slot = 0) =>
  (await ledger.messages(run.runId)).filter(({ position }) => position === slot + 2).map((m) => m.content);
const eventsOf = async (run: LedgerRun, type: string) =>
  (await ledger.events(run.runId)).filter((event) => event.type === type);
const waitFor = async (run: LedgerRun): Promise<Wait> => ({
  run,
  interruptId: (await inputsOf(run)).at(-1)!.interrupt_id,
});

describe('a question', () => {
  test('opens one wait, however often it is asked, and no effect', async () => {
    const { run } = await newWait(ledger);
    expect(await Promise.all([ask(run), ask(run), ask(run)])).toStrictEqual(['open', 'open', 'open']);
    const [wait, ...others] = await inputsOf(run);
    expect(others).toStrictEqual([]);
    expect(wait).toMatchObject({
      ...{ state: 'open', effect_id: null, slot: 0, on_expiry: 'tell_model', requested_by: 'user:ada' },
      scope: { asks: 'question', tool: 'ask_desk', arguments: { text: 'Which order?' } },
    });
    expect(await ledger.effects(run.runId)).toStrictEqual([]);
    expect(await eventsOf(run, 'interrupt.opened')).toHaveLength(1);
    expect(await ledger.runRow(run.runId)).toMatchObject({ tool_calls: 1 });
  });

  test('can never be dispatched: the claim knows no call in its slot', async () => {
    const { run } = await newWait(ledger);
    expect(await run.call(0).ask()).toBe('effect_not_found');
    expect(await ledger.effects(run.runId)).toStrictEqual([]);
  });

  test('that was never planned is not asked', async () => {
    const run = await ledger.newStep([callOf('read')]);
    expect(await ask(run)).toBe('effect_not_found');
    expect(await ask(run, 3)).toBe('effect_not_found');
    expect(await inputsOf(run)).toStrictEqual([]);
  });

  test('answered gives the model the answer as it was given, once', async () => {
    const wait = await newWait(ledger);
    expect(await told(wait, { answer: { order: 'ORD-9 ü' } })).toBe('decided');
    expect(await resultsOf(wait.run)).toStrictEqual([]);
    expect([await ask(wait.run), await ask(wait.run)]).toStrictEqual(['settled', 'settled']);
    expect(await resultsOf(wait.run)).toStrictEqual([
      { callId: 'call_0', toolName: 'ask_desk', isError: false, text: '{"order":"ORD-9 ü"}' },
    ]);
    expect(await eventsOf(wait.run, 'question.settled')).toHaveLength(1);
  });

  test.each([
    ['tell_model', 'settled'],
    ['fail', 'unanswered'],
  ] as const)(
    'that nobody answers, on expiry %s: %s, and the model has its result',
    async (onExpiry, kind) => {
      const wait = await newWait(ledger, { onExpiry });
      await runOut(wait);
      expect([await ask(wait.run), await ask(wait.run)]).toStrictEqual([kind, kind]);
      const [result, ...more] = await resultsOf(wait.run);
      expect(more).toStrictEqual([]);
      expect(result).toMatchObject({ isError: true });
      expect(JSON.parse(String(result?.['text']))).toMatchObject({ error: 'no_answer', reason: 'expired' });
      expect(await stateOf(wait)).toBe('expired');
      expect(await eventsOf(wait.run, 'interrupt.expired')).toHaveLength(1);
      expect(await told(wait)).toBe('interrupt_expired');
    },
  );

  test('is not opened while a pause is asked for, or past the run’s deadline', async () => {
    const paused = await ledger.newStep([asking('Which?')]);
    await submit(paused, 'pause');
    expect(await ask(paused)).toBe('pause_requested');
    expect(await inputsOf(paused)).toStrictEqual([]);
    const late = await ledger.newStep([asking('Which?')]);
    await ledger.rows('update holdfast.runs set deadline_at = now() where run_id = $1', late.runId);
    expect(await ask(late)).toBe('limit_wall_clock');
    expect(await inputsOf(late)).toStrictEqual([]);
  });

  test('waits no longer than its run may', async () => {
    const wait = await newWait(ledger, { expiresSeconds: 9_000 }, { limits: { wall_clock_seconds: 100 } });
    const [row] = await ledger.rows<{ same: boolean }>(
      `select i.expires_at = r.deadline_at as same from holdfast.interrupts i join holdfast.runs r using (run_id)
        where i.interrupt_id = $1`,
      wait.interruptId,
    );
    expect(row).toStrictEqual({ same: true });
  });

  test('is taken up by whoever takes the run over, and by nobody who lost it', async () => {
    const wait = await newWait(ledger);
    const next = await wait.run.takenOver();
    expect(await ask(wait.run)).toBe('lost_ownership');
    expect(await ask(next)).toBe('open');
    await told(wait);
    expect(await ask(next)).toBe('settled');
    expect(await resultsOf(next)).toHaveLength(1);
  });

  test('ends with its run: withdrawn, and no answer is taken', async () => {
    const wait = await newWait(ledger);
    await wait.run.commit({ kind: 'move', to: 'waiting_for_input', reason: 'input_needed' });
    const { epoch } = await ledger.runRow(wait.run.runId);
    await closeOrphan(ledger.db, wait.run.runId, epoch, 'workflow_terminated');
    expect(await ledger.runRow(wait.run.runId)).toMatchObject({ state: 'failed' });
    expect(await stateOf(wait)).toBe('withdrawn');
    expect(await told(wait)).toBe('run_ended');
  });

  test('keeps a run from completing while it is open', async () => {
    const { run } = await newWait(ledger);
    await expect(run.commit({ kind: 'move', to: 'completed', reason: 'answer_final' })).rejects.toThrow(
      /^open_interrupts/,
    );
  });

  test('holds back an approved call further on, which was asked for after it', async () => {
    const run = await ledger.newStep([asking('Which?'), callOf('opaque', { approval: 'required' })]);
    await ask(run);
    const gate = await openGate(run.call(1));
    await decide(gate);
    expect(await gate.call.ask()).toBe('approval_required');
    await told(await waitFor(run));
    expect(await gate.call.ask()).toBe('claimed');
  });
});

describe('an answer', () => {
  test('of the wrong role, after the run’s cancel, or that does not fit, is refused, noted and changes nothing', async () => {
    const wait = await newWait(ledger);
    expect(await told(wait, { authority: 'none' })).toBe('role_required');
    expect(await told(wait, { fits: false })).toBe('answer_invalid');
    expect(await stateOf(wait)).toBe('open');
    await submit(wait.run, 'cancel');
    expect(await told(wait)).toBe('cancel_in_force');
    expect(await stateOf(wait)).toBe('open');
    expect(
      (await eventsOf(wait.run, 'interrupt.decision_refused')).map(({ data }) => [
        data['actor_id'],
        data['code'],
      ]),
    ).toStrictEqual([
      ['user:olga', 'role_required'],
      ['user:olga', 'answer_invalid'],
      ['user:olga', 'cancel_in_force'],
    ]);
  });

  test('of twenty at once is one; the same key gives the same answer for ever', async () => {
    const wait = await newWait(ledger);
    const words = await Promise.all(
      Array.from({ length: 20 }, (_, n) =>
        told(wait, { actorId: `user:${n}`, answer: { order: `ORD-${n}` } }),
      ),
    );
    expect(words.toSorted()).toStrictEqual(['decided', ...Array<string>(19).fill('interrupt_decided')]);
    const other = await newWait(ledger);
    expect(await told(other, { idempotencyKey: 'k1' })).toBe('decided');
    expect(await told(other, { idempotencyKey: 'k1' })).toBe('replayed');
    expect(await told(other, { idempotencyKey: 'k1', answer: { order: 'ORD-8' } })).toBe('reused');
    expect(await told(other, { idempotencyKey: 'k1', actorId: 'user:eve' })).toBe('reused');
    expect(await told(other, { idempotencyKey: 'k2' })).toBe('interrupt_decided');
    await runOut(other);
    expect(await told(other, { idempotencyKey: 'k1' })).toBe('replayed');
    await ask(other.run);
    expect(await resultsOf(other.run)).toMatchObject([{ text: '{"order":"ORD-7"}' }]);
  });

  test('around the expiry is taken or expired, and the result says which', async () => {
    const words = await Promise.all(
      Array.from({ length: 24 }, async (_, n) => {
        const wait = await newWait(ledger);
        await runOut(wait, 6 - n * 20);
        const word = await told(wait);
        // A question answered a moment before its expiry stays answered when it is looked at after it.
        await runOut(wait, 1);
        await ask(wait.run);
        const [result] = await resultsOf(wait.run);
        return [word, await stateOf(wait), result?.['isError']].join(' ');
      }),
    );
    expect(new Set(words)).toStrictEqual(
      new Set(['decided answered false', 'interrupt_expired expired true']),
    );
  });

  test('to another kind of wait is refused, and so is an approval of a question', async () => {
    const gate = await newGate(ledger);
    expect(await told({ run: gate.run, interruptId: gate.interruptId })).toBe('decision_mismatch');
    const wait = await newWait(ledger);
    const [{ scope_sha256 } = { scope_sha256: '' }] = await inputsOf(wait.run);
    const said = await decide({
      ...gate,
      run: wait.run,
      interruptId: wait.interruptId,
      scopeSha256: scope_sha256,
    });
    expect(said).toStrictEqual({ kind: 'refused', code: 'decision_mismatch' });
    expect(await stateOf(wait)).toBe('open');
  });

  test('to a superseded wait, another tenant’s or none names which', async () => {
    const wait = await newWait(ledger);
    expect(await told(wait, { tenantId: 'other' })).toBe('interrupt_not_found');
    await ledger.rows(
      `update holdfast.interrupts set state = 'superseded', decided_at = now() where interrupt_id = $1`,
      wait.interruptId,
    );
    expect(await told(wait)).toBe('interrupt_superseded');
  });

  test('is no answer to the next question, and an earlier wake-up does not close it (case 66)', async () => {
    const run = await ledger.newStep([asking('First?')]);
    await ask(run);
    const first = await waitFor(run);
    await told(first);
    await ask(run);
    await run.plan([asking('Second?')]);
    expect(await ask(run)).toBe('open');
    expect(await told(first, { answer: { order: 'late' } })).toBe('interrupt_decided');
    expect(await ask(run)).toBe('open');
    const second = await waitFor(run);
    expect((await Promise.all([told(second), told(second)])).toSorted()).toStrictEqual([
      'decided',
      'interrupt_decided',
    ]);
  });
});

describe('a waiting run', () => {
  test('sees how many are waited for and until when, and that one ran out', async () => {
    const wait = await newWait(ledger, { expiresSeconds: 60 });
    const open = await lookAtRun(ledger.db, wait.run);
    expect(open).toMatchObject({ openInputs: 1, openApprovals: 0, nextExpiryMs: null, inputExpired: false });
    expect(open.nextInputExpiryMs).toBeLessThanOrEqual(60_000);
    await runOut(wait);
    expect(await lookAtRun(ledger.db, wait.run)).toMatchObject({
      ...{ openInputs: 0, nextInputExpiryMs: null, inputExpired: true },
    });
  });

  test('is told again of an answer it has not taken up, and of nothing while another is open', async () => {
    const run = await ledger.newStep([asking('First?'), asking('Second?')]);
    await ask(run, 0);
    const first = await waitFor(run);
    await ask(run, 1);
    const second = await waitFor(run);
    await run.commit({ kind: 'move', to: 'waiting_for_input', reason: 'input_needed' });
    await told(first);
    expect(await runsToNudge(ledger.db, 1_000, 0)).not.toContain(run.runId);
    await told(second);
    expect(await runsToNudge(ledger.db, 1_000, 0)).toContain(run.runId);
    expect(await runsToNudge(ledger.db, 1_000, 60)).not.toContain(run.runId);
  });
});

describe('a model call that only a person can mend', () => {
  const newRun = async (contract = {}): Promise<LedgerRun> => {
    const run = await ledger.newRun(contract);
    await run.start();
    return run;
  };

  test.each(['billing', 'authentication'] as const)('by %s opens a wait with its failure', async (reason) => {
    const run = await newRun();
    expect(await failModel(run, reason)).toBe('failed');
    expect(await inputsOf(run)).toMatchObject([
      {
        ...{ state: 'open', slot: null, step: 1, effect_id: null, on_expiry: 'fail' },
        scope: {
          asks: 'model_call',
          tool: 'model/desk',
          arguments: { reason },
          attempt: 1,
          detail: 'The account is empty.',
        },
      },
    ]);
    expect((await claimModel(run)).kind).toBe('person_needed');
    expect((await ledger.runRow(run.runId)).model_attempts).toBe(1);
  });

  test.each(['server_error', 'rate_limited', 'bad_request'] as const)('is not one by %s', async (reason) => {
    const run = await newRun();
    await failModel(run, reason);
    expect(await inputsOf(run)).toStrictEqual([]);
  });

  test('is made again after “try again”, with a series of its own, and asks anew when it fails again', async () => {
    const run = await newRun({ retry: { attempts_max: 1 } });
    await failModel(run, 'billing');
    const first = await waitFor(run);
    expect(await told(first, { answer: { action: 'try_again' } })).toBe('decided');
    const { kind, attemptId } = await claimModel(run);
    expect(kind).toBe('claimed');
    await failModel(run, 'billing', { attemptId });
    expect((await inputsOf(run)).map(({ state }) => state)).toStrictEqual(['answered', 'open']);
    expect((await claimModel(run)).kind).toBe('person_needed');
    await told(await waitFor(run), { answer: { action: 'try_again' } });
    expect((await claimModel(run)).kind).toBe('claimed');
  });

  test('gets one new series from one word, and not one for each attempt', async () => {
    const run = await newRun({ retry: { attempts_max: 1 } });
    await failModel(run, 'billing');
    await told(await waitFor(run), { answer: { action: 'try_again' } });
    const { attemptId } = await claimModel(run);
    await failModel(run, 'server_error', { attemptId });
    expect((await claimModel(run)).kind).toBe('exhausted');
  });

  test('whose second try is lost with its worker is made again without another word', async () => {
    const run = await newRun();
    await failModel(run, 'billing');
    await told(await waitFor(run), { answer: { action: 'try_again' } });
    expect((await claimModel(run)).kind).toBe('claimed');
    expect((await claimModel(run)).kind).toBe('claimed');
    expect(await inputsOf(run)).toHaveLength(1);
  });

  test('is given up by word or by expiry, and never made again', async () => {
    const byWord = await newRun();
    await failModel(byWord, 'billing');
    await told(await waitFor(byWord), { answer: { action: 'give_up' } });
    const byTime = await newRun({ timeouts: { input_seconds: 5 } });
    await failModel(byTime, 'billing');
    await runOut(await waitFor(byTime));
    for (const run of [byWord, byTime]) {
      expect([(await claimModel(run)).kind, (await claimModel(run)).kind]).toStrictEqual([
        'given_up',
        'given_up',
      ]);
      expect((await ledger.runRow(run.runId)).model_attempts).toBe(1);
    }
    expect((await inputsOf(byTime)).map(({ state }) => state)).toStrictEqual(['expired']);
  });

  test('opens one wait however often its failure is committed, and none for an attempt that lost the call', async () => {
    const run = await newRun();
    const { attemptId } = await claimModel(run);
    await failModel(run, 'billing', { attemptId });
    await failModel(run, 'billing', { attemptId });
    expect(await inputsOf(run)).toHaveLength(1);
    const late = await newRun();
    const { attemptId: lost } = await claimModel(late);
    await claimModel(late);
    expect(await failModel(late, 'billing', { attemptId: lost })).toBe('late');
    expect(await inputsOf(late)).toStrictEqual([]);
  });

  test('is held by a pause first, and by the wait after the resume', async () => {
    const run = await newRun();
    await failModel(run, 'billing');
    await submit(run, 'pause');
    await drain(run);
    expect((await claimModel(run)).kind).toBe('control');
    expect((await answer(await waitFor(run), { answer: { action: 'try_again' } })).kind).toBe('decided');
    expect((await claimModel(run)).kind).toBe('control');
  });
});
