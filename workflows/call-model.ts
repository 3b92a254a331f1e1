import { ActivityFailure, CancellationScope } from '@temporalio/workflow';
import type { Refused, ThinkAnswer } from '../shared/domain/protocol.js';
import { MODEL_FAILURES, type ModelFailureReason } from '../shared/domain/models.js';
import { decideRetry } from '../shared/domain/retry-policy.js';
import { awaitInput } from './await-input.js';
import { RunFails } from './endings.js';
import { meetLimit } from './meet-limit.js';
import { waitForTurn } from './wait-for-turn.js';
import type { Run } from './run.js';

type Answered = Extract<ThinkAnswer, { kind: 'answered' }>;
type Failed = Extract<ThinkAnswer, { kind: 'failed' }>;

/** The committed answer of the run's current step, however many attempts it takes. */
export async function callModel(run: Run): Promise<Answered> {
  for (;;) {
    if (run.isLarge) await run.continueAsNew();
    const answer = await think(run);
    switch (answer.kind) {
      case 'answered':
        run.stepAnswered();
        return answer;
      case 'failed':
        await waitAfterFailure(run, answer);
        break;
      case 'late':
        break;
      case 'person_needed':
        await awaitInput(run);
        break;
      case 'given_up':
        throw new RunFails('provider_needs_person');
      case 'exhausted':
        throw new RunFails('retries_exhausted');
      case 'limit':
        await meetLimit(run, answer);
        break;
      case 'agent_unavailable':
        throw new RunFails('agent_unavailable');
      case 'cooling':
        if (!(await waitForTurn(run, answer))) throw new RunFails('retries_exhausted');
        break;
      case 'control':
        await run.flush();
        await run.obey();
        break;
    }
  }
}

async function think(run: Run): Promise<Exclude<ThinkAnswer, Refused>> {
  try {
    return await run.trail.ride<ThinkAnswer>((trail) => run.abortable(() => run.think(trail)));
  } catch (error) {
    if (!(error instanceof ActivityFailure) || CancellationScope.current().consideredCancelled) throw error;
    // Aborted, or lost for good: the claim of the next one says what is to be done.
    return { kind: 'late' };
  }
}

/** @throws RunFails when the failure is final or the series ends */
async function waitAfterFailure(run: Run, failed: Failed): Promise<void> {
  // The worker was stopped in the middle of the call: another makes it again.
  if (failed.reason === 'aborted') return;
  const verdict = MODEL_FAILURES[failed.reason];
  const row = {
    kind: 'retry' as const,
    turn: run.turn,
    step: run.step,
    reason: failed.reason,
    attempt: failed.attempt,
    attemptsMax: failed.attemptsMax,
    ...(failed.retryAfterMs === null ? {} : { retryAfterSeconds: Math.ceil(failed.retryAfterMs / 1_000) }),
  };
  if (verdict === 'needs_person') {
    // The ledger opened the wait with the failure; the next claim says what they decided.
    run.note({ ...row, action: 'ask_person' });
    return await awaitInput(run);
  }
  if (verdict === 'final') {
    throw new RunFails(failed.reason === 'content_refused' ? 'model_content_refused' : 'model_failed');
  }
  const isLimit = isLimitStop(failed.reason);
  const decision = decideRetry({
    kind: isLimit ? 'limit' : 'transient',
    attempt: failed.attempt,
    attemptsMax: failed.attemptsMax,
    seriesMsLeft: failed.seriesMsLeft,
    retryAfterMs: failed.retryAfterMs,
    retryAfterMaxMs: failed.retryAfterMaxMs,
    notBeforeMs: failed.notBeforeMs,
    random: Math.random(),
  });
  run.move('wait_retry', isLimit ? 'limit_stop' : 'transient_fault');
  if (decision.kind === 'exhausted') {
    run.note({ ...row, action: 'give_up' });
    throw new RunFails('retries_exhausted');
  }
  run.note({ ...row, action: 'retry', waitMs: decision.waitMs });
  await run.waitFor(decision.waitMs);
  run.move('retry_due', 'retry_due');
}

/** Whether the provider asks to come later, as opposed to a fault that passes by itself. */
function isLimitStop(reason: ModelFailureReason): boolean {
  return reason === 'rate_limited' || reason === 'overloaded';
}
