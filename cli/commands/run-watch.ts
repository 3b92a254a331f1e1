import { Option } from 'commander';
import type { RunState } from '../../shared/domain/run-machine.js';
import type { CommandSpec } from '../command.js';
import type { Exit } from '../failures.js';
import { followRun } from '../follow.js';
import { colorsOf } from '../io.js';
import { wholeNumber } from '../read-value.js';
import type { Session } from '../session.js';
import { lineOfEvent } from './run-lines.js';
import { pathOf, RUN } from './shared.js';

interface WatchOptions {
  readonly from: number;
  readonly patience: number;
}

/** From the first event on, through an absence of the API of ten minutes. */
export const FROM_START: WatchOptions = { from: 0, patience: 600 };

/** `holdfast runs watch`. */
export const watchRun: CommandSpec = {
  name: 'watch',
  summary: 'Follow a run to its end',
  description:
    'Shows every event once, in order, and ends with the run, with the exit code of its end. A stream that breaks is opened ' +
    'again where it was, with growing pauses. Watching changes nothing, and the run goes on when it stops.',
  args: [RUN],
  options: [
    new Option('--from <event>', 'show what comes after this event')
      .argParser(wholeNumber(0, Number.MAX_SAFE_INTEGER))
      .default(FROM_START.from),
    new Option('--patience <seconds>', 'give up when the API stays away for so long')
      .argParser(wholeNumber(1, 86_400))
      .default(FROM_START.patience),
  ],
  examples: [
    'runs watch run_0190…',
    'runs watch run_0190… --json | jq -c \'select(.type == "run.transition")\'',
  ],
  async run(session, [runId], options: WatchOptions) {
    pathOf('runs', runId);
    return await watch(session, String(runId), options);
  },
};

const EXIT_OF_END: Partial<Record<RunState, Exit>> = {
  completed: 'ok',
  failed: 'failed',
  compensated: 'compensated',
  cancelled: 'cancelled',
};

/** Follows the run to its end. @returns the exit that the end stands for */
export async function watch(session: Session, runId: string, options: WatchOptions): Promise<Exit> {
  const { api, io, out } = session;
  const dim = colorsOf(io, 'stderr').dim;
  const onTerminal = io.stderr.isTTY === true;
  const events = followRun(api, runId, {
    after: options.from,
    patienceMs: options.patience * 1000,
    interrupted: io.interrupted,
    onBroken: (why, waitMs) => {
      if (onTerminal) void out.note(dim(`holdfast: the stream broke (${why}); again in ${waitMs} ms`));
    },
    onGone: (first, last) => {
      void out.note(
        `holdfast: events ${first} to ${last} were let go some time after the run’s end; runs story tells what it did`,
      );
    },
    onAgain: () => {
      if (onTerminal) void out.note(dim('holdfast: the stream goes on'));
    },
  });
  for (;;) {
    const next = await events.next();
    if (next.done === true) {
      await out.say(`The run is ${next.value}.`);
      return EXIT_OF_END[next.value] ?? 'failed';
    }
    await out.one(next.value, (event) => [lineOfEvent(event)]);
  }
}
