import { Context } from '@temporalio/activity';
import { ApplicationFailure } from '@temporalio/common';
import type { Refused } from '../shared/domain/protocol.js';
import { isLedgerUnavailable, refusalOf } from '../shared/ledger/refusals.js';
import type { Speaker } from '../shared/ledger/trail.js';
import type { ActivityDeps } from './deps.js';

/** What an activity knows of itself, from its own Temporal context: a reset cannot lie about it. */
export interface ActivityScope extends Speaker {
  /** Aborted when the run, Temporal or the worker's shutdown no longer wants the activity. */
  readonly signal: AbortSignal;
  /** Silence after which Temporal takes the activity for lost; null where it does not watch (local activities). */
  readonly heartbeatMs: number | null;
  /** How long this process may sleep before another may take its place. */
  readonly silenceMs: number;
}

/** How long Temporal waits for a workflow task before another worker gets it: a local activity is a part of one. */
const WORKFLOW_TASK_MS = 10_000;

const LEDGER_WAIT_FIRST_MS = 100;
const LEDGER_WAIT_MAX_MS = 3_000;

/**
 * Runs an activity's body: heartbeats beside it, and nothing of what goes wrong reaches Temporal but a code, since
 * a driver's or a provider's message may hold content (SPEC intro). The feeds hear that the run has news, unless the body
 * only `reads`.
 */
export async function inScope<A>(
  name: string,
  runId: string,
  { announcer, log }: Pick<ActivityDeps, 'announcer' | 'log'>,
  body: (scope: ActivityScope) => Promise<A>,
  { reads = false }: { readonly reads?: boolean } = {},
): Promise<A> {
  const context = Context.current();
  const heartbeatMs = context.info.isLocal ? null : (context.info.heartbeatTimeoutMs ?? null);
  const scope: ActivityScope = {
    runId,
    execution: context.info.workflowExecution?.runId ?? '',
    signal: context.cancellationSignal,
    heartbeatMs,
    silenceMs: heartbeatMs ?? WORKFLOW_TASK_MS,
  };
  const beat =
    heartbeatMs === null ? undefined : setInterval(() => context.heartbeat(), Math.max(heartbeatMs / 4, 50));
  try {
    return await body(scope);
  } catch (error) {
    throw codeOf(error, log, { activity: name, runId });
  } finally {
    clearInterval(beat);
    if (!reads) announcer.announce(runId);
  }
}

/** What Temporal hears of an error: a code. The log has the rest, with `where` it happened. */
export function codeOf(
  error: unknown,
  log: ActivityDeps['log'],
  where: Readonly<Record<string, string>>,
): ApplicationFailure {
  if (error instanceof ApplicationFailure) return error;
  const code = isLedgerUnavailable(error) ? 'ledger_unavailable' : 'internal';
  log.error({ err: error, ...where, code }, 'activity failed');
  const failure = ApplicationFailure.retryable(code, code);
  failure.stack = '';
  return failure;
}

/**
 * Makes a ledger call that may be repeated, until the ledger answers. Postgres down or an acknowledgement lost is
 * never a failure of the run: the call is read again by its key (SPEC 3.8). Ends early only when nobody wants the
 * activity any more.
 */
export async function untilLedgerAnswers<A>(
  scope: ActivityScope,
  { announcer, log }: Pick<ActivityDeps, 'announcer' | 'log'>,
  call: () => Promise<A>,
): Promise<A> {
  for (let waitMs = LEDGER_WAIT_FIRST_MS; ; waitMs = Math.min(waitMs * 2, LEDGER_WAIT_MAX_MS)) {
    try {
      const answer = await call();
      announcer.announce(scope.runId);
      return answer;
    } catch (error) {
      if (!isLedgerUnavailable(error) || scope.signal.aborted) throw error;
      log.warn({ err: error, runId: scope.runId, waitMs }, 'ledger unavailable; asking again');
      await sleepUnlessAborted(waitMs, scope.signal);
    }
  }
}

/** Turns the ledger's refusals that concern ownership into answers the workflow understands. */
export async function orRefused<A>(call: () => Promise<A>): Promise<A | Refused> {
  try {
    return await call();
  } catch (error) {
    switch (refusalOf(error)) {
      case 'unknown_execution':
      case 'out_of_step':
      case 'illegal_move':
        return { kind: 'out_of_step' };
      case 'lost_ownership':
        return { kind: 'lost_ownership' };
      case 'run_ended':
        return { kind: 'run_ended' };
      case 'must_compensate':
        return { kind: 'must_compensate' };
      default:
        if (isEndTooSoon(error)) return { kind: 'out_of_step' };
        throw error;
    }
  }
}

/** The database refused an end over an unresolved effect or an open child: the workflow must look again before it ends. */
function isEndTooSoon(error: unknown): boolean {
  return error instanceof Error && /^(unresolved_effects|open_children)/.test(error.message);
}

function sleepUnlessAborted(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done, { once: true });
  });
}
