import type {
  ActAnswer,
  ChildSlot,
  CloseReason,
  EffectStanding,
  ExamineAnswer,
  PlannedSlot,
  Refused,
} from '../shared/domain/protocol.js';
import { decideRetry, type RetryKind } from '../shared/domain/retry-policy.js';
import { CancellationScope, sleep } from '@temporalio/workflow';
import { ledger } from './activities.js';
import { ask, settleQuestion } from './ask-person.js';
import { settleChild, startChild } from './await-child.js';
import { OutOfStep, RunFails } from './endings.js';
import { meetLimit } from './meet-limit.js';
import { reconcile } from './reconcile.js';
import { waitForTurn } from './wait-for-turn.js';
import type { Run } from './run.js';

/** Where a call stands after its activity ended: the ledger's word, or its word that nothing was written. */
type CallAnswer = Exclude<ActAnswer, Refused> | { readonly kind: 'absent' };

const INFRASTRUCTURE_WAIT_MAX_MS = 10_000;

/** A call of a step, by who answers it: a target, a person, or a child run. */
type StepCall =
  | (PlannedSlot & { readonly by: 'target' })
  | { readonly slot: number; readonly parallel: false; readonly by: 'person' }
  | (ChildSlot & { readonly by: 'child' });

/**
 * Settles every call of the current step, in order; neighbours that the tools declare parallel are tried beside each
 * other first. `questions` are the slots of calls that a person answers, `children` those that a run answers. Every call
 * has its result when this returns, even when the run then fails.
 */
export async function settleCalls(
  run: Run,
  planned: readonly PlannedSlot[],
  questions: readonly number[],
  children: readonly ChildSlot[],
): Promise<void> {
  const calls: readonly StepCall[] = [
    ...planned.map((call) => ({ ...call, by: 'target' as const })),
    ...questions.map((slot) => ({ slot, parallel: false as const, by: 'person' as const })),
    ...children.map((call) => ({ ...call, by: 'child' as const })),
  ].sort((a, b) => a.slot - b.slot);
  let failure: RunFails | undefined;
  for (const group of groupsOf(calls)) {
    const first = group.length > 1 ? await firstAttempts(run, group) : undefined;
    for (const call of group) {
      // Calls further on that need a person are shown together with this one.
      const showOthers = (): Promise<void> => openWaits(run, calls, call.slot);
      try {
        if (call.by === 'person') await settleQuestion(run, call.slot, showOthers);
        else if (call.by === 'child') await settleChild(run, call.slot);
        else await settleCall(run, call, first?.get(call.slot), showOthers);
      } catch (error) {
        if (!(error instanceof RunFails)) throw error;
        failure ??= error;
      }
    }
    if (failure !== undefined) throw failure;
  }
}

/** Opens the wait of each call after `slot` that needs a person: an approval, or an answer. */
async function openWaits(run: Run, calls: readonly StepCall[], slot: number): Promise<void> {
  for (const call of calls) {
    if (call.slot <= slot) continue;
    if (call.by === 'person') await ask(run, call.slot);
    else if (call.by === 'target' && call.gated) await tryCall(run, call, 0);
  }
}

/** Runs of neighbouring parallel calls; every other call stands alone. */
function groupsOf(calls: readonly StepCall[]): StepCall[][] {
  const groups: StepCall[][] = [];
  for (const call of calls) {
    const last = groups.at(-1);
    if (last !== undefined && call.parallel && last.every((other) => other.parallel)) last.push(call);
    else groups.push([call]);
  }
  return groups;
}

async function firstAttempts(run: Run, group: readonly StepCall[]): Promise<Map<number, CallAnswer>> {
  // Each attempt must find its past durable, and only one of them could carry it.
  await run.flush();
  const answers = new Map<number, CallAnswer>();
  await Promise.all(
    group.map(async (call) => {
      if (call.by === 'target') answers.set(call.slot, await tryCall(run, call, 0));
      // What became of it is asked again in its turn.
      else if (call.by === 'child') await startChild(run, call.slot);
    }),
  );
  return answers;
}

/** Until the call has its one result. @throws RunFails when its contract ends the run over it */
export async function settleCall(
  run: Run,
  call: PlannedSlot,
  first: CallAnswer | undefined,
  showOthers: () => Promise<void>,
): Promise<void> {
  let redo = 0;
  let silent = 0;
  let answer = first ?? (await tryCall(run, call, redo));
  for (;;) {
    run.heedAbort();
    if (run.isLarge) await run.continueAsNew();
    switch (answer.kind) {
      case 'effect': {
        const next = await settleStanding(run, call.slot, answer);
        if (next === 'settled') return;
        if (next.kind === 'look_again') {
          answer = next.answer;
          continue;
        }
        redo = next.redo;
        break;
      }
      case 'absent':
        // The activity died before its first write, so nothing left: the same call again, soon.
        silent += 1;
        if (silent > 1) await run.waitFor(Math.min(2 ** silent * 250, INFRASTRUCTURE_WAIT_MAX_MS));
        break;
      case 'cooling':
        if (await waitForTurn(run, answer, call.slot)) break;
        answer = await examine(run, call.slot);
        if (answer.kind === 'absent') break;
        {
          const next = await endSeries(run, call.slot, answer);
          if (next === 'settled') return;
          answer = next.answer;
        }
        continue;
      case 'approval_required':
        await showOthers();
        await awaitApprovals(run);
        break;
      case 'control':
        await run.flush();
        await run.obey();
        break;
      case 'limit':
        await meetLimit(run, answer);
        break;
      case 'key_conflict':
        throw new RunFails('key_conflict');
    }
    answer = await tryCall(run, call, redo);
  }
}

/**
 * Waits until every approval that the step needs is decided or expired, holding no worker. Expiry is the ledger's to
 * judge; it denies the call, and never lets it run (SPEC 2).
 */
async function awaitApprovals(run: Run): Promise<void> {
  let view = await run.obey();
  if (view.openApprovals === 0) return;
  run.move('ask_approval', 'approval_needed');
  while (view.openApprovals > 0) {
    if (run.isLarge) await run.continueAsNew();
    view = await run.waitForNews(view.nextExpiryMs);
  }
  run.move('approval_closed', 'approval_decided');
}

type Ended = 'settled' | { readonly kind: 'look_again'; readonly answer: EffectStanding };
type Next = Ended | { readonly kind: 'again'; readonly redo: number };

async function settleStanding(run: Run, slot: number, effect: EffectStanding): Promise<Next> {
  const again: Next = { kind: 'again', redo: effect.redo };
  switch (effect.state) {
    case 'succeeded':
    case 'rejected':
    case 'committed':
    case 'denied':
    case 'withdrawn':
    case 'superseded':
      return 'settled';
    case 'not_committed':
      if (effect.next === 'redo') return { kind: 'again', redo: effect.redo + 1 };
      await close(run, slot, 'withdrawn', effect.effectClass === 'read' ? 'lost_read' : 'not_committed');
      if (effect.next === 'fail') throw new RunFails('settled_not_committed');
      return 'settled';
    case 'intended':
      return effect.attempt === 0 || effect.outcome === 'lost'
        ? again
        : await retryOrGiveUp(run, slot, effect);
    case 'dispatching':
      throw new Error('bug: a dispatch was not waited for');
    case 'unknown':
      if (effect.next === 'resend') return await retryOrGiveUp(run, slot, effect);
      if (effect.next === 'give_up') return await giveUp(run, slot, effect);
      return { kind: 'look_again', answer: await reconcile(run, slot, effect) };
  }
}

async function retryOrGiveUp(run: Run, slot: number, effect: EffectStanding): Promise<Next> {
  // A worker that died counts as no attempt: the same key goes out again at once.
  if (effect.outcome === 'lost') return { kind: 'again', redo: effect.redo };
  const kind = retryKind(effect);
  const decision = decideRetry({
    kind,
    attempt: effect.attempt,
    attemptsMax: effect.attemptsMax,
    seriesMsLeft: effect.seriesMsLeft,
    retryAfterMs: effect.retryAfterMs,
    retryAfterMaxMs: effect.retryAfterMaxMs,
    notBeforeMs: effect.notBeforeMs,
    random: Math.random(),
  });
  if (decision.kind === 'exhausted') return await endSeries(run, slot, effect);
  // A run that undoes waits where it stands: `retry_wait` leads back to work.
  if (!run.undoes) run.move('wait_retry', REASON_OF[kind]);
  run.note({
    ...retryRow(run, slot, effect),
    action: kind === 'in_progress' ? 'ask_again' : 'retry',
    waitMs: decision.waitMs,
  });
  await run.waitFor(decision.waitMs);
  if (!run.undoes) run.move('retry_due', 'retry_due');
  return { kind: 'again', redo: effect.redo };
}

/** No attempt is left: what is in doubt is found out, and what is not is given up. */
async function endSeries(run: Run, slot: number, effect: EffectStanding): Promise<Ended> {
  if (effect.state === 'intended' || effect.effectClass === 'read') return await giveUp(run, slot, effect);
  return { kind: 'look_again', answer: await reconcile(run, slot, effect) };
}

/** The series is over and nothing is in doubt: the model is told, or the run fails, as the contract says. */
async function giveUp(run: Run, slot: number, effect: EffectStanding): Promise<'settled'> {
  run.note({ ...retryRow(run, slot, effect), action: 'give_up' });
  await close(run, slot, 'withdrawn', effect.effectClass === 'read' ? 'lost_read' : 'retries_exhausted');
  if (effect.onExhausted === 'fail') throw new RunFails('retries_exhausted');
  return 'settled';
}

const REASON_OF = {
  limit: 'limit_stop',
  transient: 'transient_fault',
  in_progress: 'in_progress_at_target',
} as const satisfies Record<RetryKind, string>;

function retryKind(effect: EffectStanding): RetryKind {
  if (effect.outcome === 'throttled') return 'limit';
  return effect.outcome === 'in_progress' ? 'in_progress' : 'transient';
}

function retryRow(run: Run, slot: number, effect: EffectStanding) {
  return {
    kind: 'retry' as const,
    turn: run.turn,
    step: run.step,
    slot,
    reason: effect.outcome ?? 'unknown',
    attempt: effect.attempt,
    attemptsMax: effect.attemptsMax,
    ...(effect.retryAfterMs === null ? {} : { retryAfterSeconds: Math.ceil(effect.retryAfterMs / 1_000) }),
  };
}

/** One attempt; an activity that ends without an answer is looked up in the ledger, never tried again blindly. */
async function tryCall(run: Run, call: PlannedSlot, redo: number): Promise<CallAnswer> {
  try {
    const answer = await run.trail.ride<ActAnswer>((trail) =>
      run.abortable(() => run.act(call, redo, trail)),
    );
    if (answer.kind !== 'effect' || answer.state !== 'dispatching') return answer;
    // An attempt of ours holds it whose end was lost with its worker. When its lease is over, the ledger says what became
    // of it.
    await run.abortable(() => sleep(answer.leaseMsLeft ?? 1_000));
    return await examine(run, call.slot);
  } catch (error) {
    if (error instanceof OutOfStep || CancellationScope.current().consideredCancelled) throw error;
    return await examine(run, call.slot);
  }
}

/** What the ledger says of a call whose activity ended without an answer. */
export function examine(run: Run, slot: number): Promise<EffectStanding | { kind: 'absent' }> {
  return run.trail.ride<ExamineAnswer>((trail) =>
    ledger.examineEffect({ runId: run.id, turn: run.turn, step: run.step, slot, trail }),
  );
}

async function close(run: Run, slot: number, state: 'denied' | 'withdrawn', why: CloseReason): Promise<void> {
  await run.trail.ride<ExamineAnswer>((trail) =>
    ledger.closeEffect({ runId: run.id, turn: run.turn, step: run.step, slot, trail, state, why }),
  );
}
