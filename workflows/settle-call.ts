import type {
  ActAnswer,
  CloseReason,
  EffectStanding,
  ExamineAnswer,
  PlannedSlot,
  Refused,
} from '../shared/domain/protocol.js';
import { decideRetry, type RetryKind } from '../shared/domain/retry-policy.js';
import { CancellationScope } from '@temporalio/workflow';
import { ledger } from './activities.js';
import { OutOfStep, RunFails } from './endings.js';
import { reconcile } from './reconcile.js';
import type { Run } from './run.js';

/** Where a call stands after its activity ended: the ledger's word, or its word that nothing was written. */
type CallAnswer = Exclude<ActAnswer, Refused> | { readonly kind: 'absent' };

const INFRASTRUCTURE_WAIT_MAX_MS = 10_000;

/**
 * Settles every call of the current step, in order; neighbours that the tools declare parallel are tried beside each
 * other first. Every call has its result when this returns, even when the run then fails.
 */
export async function settleCalls(run: Run, calls: readonly PlannedSlot[]): Promise<void> {
  let failure: RunFails | undefined;
  for (const group of groupsOf(calls)) {
    const first = group.length > 1 ? await firstAttempts(run, group) : undefined;
    for (const { slot } of group) {
      try {
        // Calls further on that need a person are shown together with this one.
        const gated = calls.filter((call) => call.gated && call.slot > slot).map((call) => call.slot);
        await settleCall(run, slot, first?.get(slot), gated);
      } catch (error) {
        if (!(error instanceof RunFails)) throw error;
        failure ??= error;
      }
    }
    if (failure !== undefined) throw failure;
  }
}

/** Runs of neighbouring parallel calls; every other call stands alone. */
function groupsOf(calls: readonly PlannedSlot[]): PlannedSlot[][] {
  const groups: PlannedSlot[][] = [];
  for (const call of calls) {
    const last = groups.at(-1);
    if (last !== undefined && call.parallel && last.every((other) => other.parallel)) last.push(call);
    else groups.push([call]);
  }
  return groups;
}

async function firstAttempts(run: Run, group: readonly PlannedSlot[]): Promise<Map<number, CallAnswer>> {
  // Each attempt must find its past durable, and only one of them could carry it.
  await run.flush();
  const answers = await Promise.all(
    group.map(async ({ slot }): Promise<[number, CallAnswer]> => [slot, await tryCall(run, slot, 0)]),
  );
  return new Map(answers);
}

/** Until the call has its one result. @throws RunFails when its contract ends the run over it */
export async function settleCall(
  run: Run,
  slot: number,
  first: CallAnswer | undefined,
  gated: readonly number[],
): Promise<void> {
  let redo = 0;
  let silent = 0;
  let answer = first ?? (await tryCall(run, slot, redo));
  for (;;) {
    run.heedAbort();
    if (run.isLarge) await run.continueAsNew();
    switch (answer.kind) {
      case 'effect': {
        const next = await settleStanding(run, slot, answer);
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
      case 'approval_required':
        await awaitApprovals(run, gated);
        break;
      case 'control':
        await run.flush();
        await run.obey();
        break;
      case 'limit':
        throw new RunFails(answer.limit);
      case 'key_conflict':
        throw new RunFails('key_conflict');
    }
    answer = await tryCall(run, slot, redo);
  }
}

/**
 * Waits until every approval that the step needs is decided or expired, holding no worker. Expiry is the ledger's to
 * judge; it denies the call, and never lets it run (SPEC 2).
 */
async function awaitApprovals(run: Run, gated: readonly number[]): Promise<void> {
  for (const slot of gated) await tryCall(run, slot, 0);
  let view = await run.obey();
  if (view.openApprovals === 0) return;
  run.move('ask_approval', 'approval_needed');
  while (view.openApprovals > 0) {
    if (run.isLarge) await run.continueAsNew();
    view = await run.waitForNews(view.nextExpiryMs);
  }
  run.move('approval_closed', 'approval_decided');
}

type Next =
  | 'settled'
  | { readonly kind: 'again'; readonly redo: number }
  | { readonly kind: 'look_again'; readonly answer: EffectStanding | { kind: 'absent' } };

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
      // Another attempt of ours holds it; when its lease is over, the ledger says what became of it.
      await run.waitFor(effect.leaseMsLeft ?? 1_000);
      return { kind: 'look_again', answer: await examine(run, slot) };
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
    random: Math.random(),
  });
  if (decision.kind === 'exhausted') {
    if (effect.state === 'intended' || effect.effectClass === 'read') return await giveUp(run, slot, effect);
    return { kind: 'look_again', answer: await reconcile(run, slot, effect) };
  }
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
async function tryCall(run: Run, slot: number, redo: number): Promise<CallAnswer> {
  try {
    return await run.trail.ride<ActAnswer>((trail) =>
      run.abortable(() =>
        run.act.executeWithOptions({ summary: `step ${run.step} call ${slot}` }, [
          { runId: run.id, turn: run.turn, step: run.step, slot, redo, trail },
        ]),
      ),
    );
  } catch (error) {
    if (error instanceof OutOfStep || CancellationScope.current().consideredCancelled) throw error;
    return await examine(run, slot);
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
