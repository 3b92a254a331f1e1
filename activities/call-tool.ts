import { CancelledFailure } from '@temporalio/common';
import type { JsonObject } from '../shared/domain/json.js';
import { appendProgress, type ClaimedEffect } from '../shared/ledger/effects.js';
import { writeMemory } from '../shared/ledger/memory.js';
import type { ActivityDeps } from './deps.js';
import { storableText } from './models/storable-text.js';
import { ProgressWriter } from './progress-writer.js';
import type { ActivityScope } from './scope.js';
import type { Tool, ToolAnswer } from './tools/tool.js';

/** How long a tool whose time is over may take to stop before it is left. */
export const STOP_GRACE_MS = 2_000;

/** What of a word on progress is kept. */
const PROGRESS_CHARACTERS_MAX = 500;

/** What a call came to. */
export interface Called {
  readonly answer: ToolAnswer;
  /** The answer still to come of a call that was left while it ran; null where the call is over. */
  readonly late: Promise<ToolAnswer> | null;
}

/**
 * Makes one call, bounded from outside as well. A tool that is told to stop is waited for until it has stopped, since
 * what still runs may still do it: a cancel or its own limit waits for the rest of its time, the end of the worker
 * for a moment. What does not stop is left as `still_running`, of which nobody knows what it will have done.
 */
export async function callTool(
  deps: ActivityDeps,
  scope: ActivityScope,
  tool: Tool,
  claim: ClaimedEffect,
  args: JsonObject,
): Promise<Called> {
  const timeoutMs = Math.min(tool.timeoutSeconds, claim.toolSeconds) * 1_000;
  const deadline = new AbortController();
  const signal = AbortSignal.any([scope.signal, deadline.signal]);
  const writer = progressWriter(deps, scope, claim);
  const call = tool
    .call({
      arguments: args,
      idempotencyKey: claim.idempotencyKey,
      effectId: claim.effectId,
      runId: scope.runId,
      tenantId: claim.tenantId,
      attempt: claim.attempt,
      signal,
      timeoutMs,
      progress: (progress) => writer.push(progress),
      writeMemory: () => writeMemory(deps.db, claim.effectId),
    })
    .catch((error: unknown): ToolAnswer => {
      // A tool that throws has broken its contract after it may have sent something: nobody knows.
      deps.log.error({ err: error, tool: tool.name, effectId: claim.effectId }, 'tool threw');
      return { kind: 'unknown', reason: 'tool_threw', body: null };
    });
  let timer: NodeJS.Timeout | undefined;
  let onAbort: (() => void) | undefined;
  const left = new Promise<'left'>((resolve) => {
    const leaveSoon = (): void => {
      clearTimeout(timer);
      deadline.abort();
      timer = setTimeout(() => resolve('left'), STOP_GRACE_MS);
    };
    timer = setTimeout(leaveSoon, timeoutMs);
    onAbort = (): void => {
      if (endsWithWorker(scope.signal)) leaveSoon();
    };
    if (scope.signal.aborted) onAbort();
    else scope.signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    const answer = await Promise.race([call, left]);
    await writer.close();
    if (answer !== 'left') return { answer, late: null };
    return { answer: { kind: 'unknown', reason: 'still_running', body: null }, late: call };
  } finally {
    clearTimeout(timer);
    if (onAbort !== undefined) scope.signal.removeEventListener('abort', onAbort);
  }
}

function progressWriter(deps: ActivityDeps, scope: ActivityScope, claim: ClaimedEffect): ProgressWriter {
  return new ProgressWriter({
    write: async ({ message, done, total }) => {
      const isHeard = await appendProgress(deps.db, scope, claim, {
        message: message === null ? null : storableText(message.slice(0, PROGRESS_CHARACTERS_MAX)),
        done: done !== null && Number.isFinite(done) ? done : null,
        total: total !== null && Number.isFinite(total) ? total : null,
      });
      if (isHeard) deps.announcer.announce(scope.runId);
      return isHeard;
    },
    onError: (error) => deps.log.warn({ err: error, effectId: claim.effectId }, 'progress was not told'),
  });
}

/** Whether the process is about to end, as opposed to a run that does not want the call any more. */
function endsWithWorker({ reason }: AbortSignal): boolean {
  return reason instanceof CancelledFailure && reason.message === 'WORKER_SHUTDOWN';
}
