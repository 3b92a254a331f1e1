import type { Logger } from '../shared/process/log.js';

export interface Repetition {
  /** Does the work soon, whatever the pause. */
  soon(): void;
  /** Ends after the round that is under way. */
  stop(): Promise<void>;
}

/**
 * Does `work` again and again, one round at a time, with `pauseMs` between two. A round that fails is logged and the
 * next one comes all the same: background work must outlive every outage of the servers it speaks to.
 */
export function repeat(name: string, pauseMs: number, log: Logger, work: () => Promise<void>): Repetition {
  let stopped = false;
  let wanted = false;
  let timer: NodeJS.Timeout | undefined;
  let round: Promise<void> | undefined;

  const next = (): void => {
    if (stopped) return;
    timer = setTimeout(run, wanted ? 0 : pauseMs);
  };
  const run = (): void => {
    wanted = false;
    round = work()
      .catch((error: unknown) =>
        log.warn({ err: error, work: name }, 'background work failed; it comes again'),
      )
      .then(() => {
        round = undefined;
        next();
      });
  };
  timer = setTimeout(run, 0);

  return {
    soon() {
      wanted = true;
      if (round !== undefined || stopped) return;
      clearTimeout(timer);
      next();
    },
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await round;
    },
  };
}
