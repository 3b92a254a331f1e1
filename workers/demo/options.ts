import { parseArgs } from 'node:util';

/** What the command line of the demo says. */
export interface DemoOptions {
  readonly runs: number;
  /** The last line of standard output is one JSON object; the story goes to standard error. */
  readonly json: boolean;
  /** Leaves the data folder behind, for a look at it. */
  readonly keep: boolean;
  readonly help: boolean;
}

/** As many runs as there are things to show, and two quiet ones. */
export const RUNS_DEFAULT = 11;

export const USAGE = `Shows that every effect is accounted for: refunds are made while things break.

  npm run demo [-- --runs N] [-- --json] [-- --keep]

  --runs N   how many refund runs to start (default ${RUNS_DEFAULT})
  --json     end standard output with one JSON line of counts; the story goes to standard error
  --keep     leave the data folder of the demo behind

With a model's key or address in the environment, the runs think with that model instead of the script.
The exit code is 1 when an effect is duplicated, lost or unexplained.`;

/** @throws Error that says which argument is wrong and what is right */
export function readOptions(args: readonly string[], runsMax: number): DemoOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      runs: { type: 'string', default: String(RUNS_DEFAULT) },
      json: { type: 'boolean', default: false },
      keep: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  const runs = Number(values.runs);
  if (!Number.isInteger(runs) || runs < 1 || runs > runsMax) {
    throw new Error(`--runs ${values.runs} cannot be: give a whole number from 1 to ${runsMax}.`);
  }
  return { runs, json: values.json, keep: values.keep, help: values.help };
}
