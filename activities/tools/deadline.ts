import type { ToolCall } from './tool.js';

/** Why an attempt was given up. */
export type GiveUpCause = 'timed_out' | 'aborted';

/** The end of one attempt's time: its own limit, the caller's budget or abort, whichever is first. */
export interface Deadline {
  /** Aborts when the attempt is given up. */
  readonly signal: AbortSignal;
  /** Null while there is time. */
  cause(): GiveUpCause | null;
  /** Starts the attempt's own limit anew, never past the caller's budget. */
  extend(): void;
  /** Frees the timers; call it when the attempt has an answer. */
  end(): void;
}

// The tool must answer before its caller gives up, or its answer is lost.
const MARGIN_SHARE = 0.1;
const MARGIN_MS_MAX = 250;

/**
 * Opens the deadline of one attempt.
 *
 * @param limitMs the tool's own limit; the caller's budget, less a margin for the answer, bounds it
 */
export function openDeadline(call: Pick<ToolCall, 'signal' | 'timeoutMs'>, limitMs: number): Deadline {
  const budgetMs = call.timeoutMs - Math.min(MARGIN_MS_MAX, call.timeoutMs * MARGIN_SHARE);
  const controller = new AbortController();
  let cause: GiveUpCause | null = null;
  const giveUp = (why: GiveUpCause) => {
    cause ??= why;
    controller.abort(new Error(`The attempt was given up: ${cause}.`));
  };
  const onAbort = () => {
    giveUp('aborted');
  };
  const onTimeOut = () => {
    giveUp('timed_out');
  };
  if (call.signal.aborted) onAbort();
  else call.signal.addEventListener('abort', onAbort, { once: true });
  const budget = setTimeout(onTimeOut, Math.max(0, budgetMs));
  let limit = setTimeout(onTimeOut, limitMs);
  return {
    signal: controller.signal,
    cause: () => cause,
    extend() {
      clearTimeout(limit);
      if (cause === null) limit = setTimeout(onTimeOut, limitMs);
    },
    end() {
      clearTimeout(budget);
      clearTimeout(limit);
      call.signal.removeEventListener('abort', onAbort);
    },
  };
}

/** Settles as `promise` does, or with the cause if the deadline is first. A late rejection is dropped. */
export async function withinDeadline<T>(promise: Promise<T>, deadline: Deadline): Promise<T | GiveUpCause> {
  const { signal } = deadline;
  let onAbort: (() => void) | undefined;
  const givenUp = new Promise<GiveUpCause>((resolve) => {
    onAbort = () => {
      resolve(deadline.cause() ?? 'aborted');
    };
    if (signal.aborted) onAbort();
    else signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([promise, givenUp]);
  } finally {
    if (onAbort !== undefined) signal.removeEventListener('abort', onAbort);
  }
}
