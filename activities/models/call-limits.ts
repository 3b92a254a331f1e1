/** The end of one model call: its own time limit or the caller's abort, whichever comes first. */
export interface CallLimits {
  /** Aborted at the time limit, when the caller aborts, and by `close`. */
  readonly signal: AbortSignal;
  /** What ended the call early; undefined while nothing did. */
  endedBy(): 'aborted' | 'timed_out' | undefined;
  /** Stops the clock and whatever still listens to `signal`. Call it once the call is over. */
  close(): void;
}

/** Starts the clock of one call. */
export function startCallLimits(caller: AbortSignal, timeoutSeconds: number): CallLimits {
  const controller = new AbortController();
  let endedBy: 'aborted' | 'timed_out' | undefined;
  const end = (cause: 'aborted' | 'timed_out'): void => {
    endedBy ??= cause;
    controller.abort();
  };
  const onAbort = (): void => end('aborted');
  if (caller.aborted) onAbort();
  else caller.addEventListener('abort', onAbort, { once: true });
  // A longer delay than a timer can hold would fire at once.
  const timer = setTimeout(() => end('timed_out'), Math.min(timeoutSeconds * 1000, 2_147_483_647));
  return {
    signal: controller.signal,
    endedBy: () => endedBy,
    close() {
      clearTimeout(timer);
      caller.removeEventListener('abort', onAbort);
      controller.abort();
    },
  };
}
