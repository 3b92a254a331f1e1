import { parseArgs } from 'node:util';

/** What the command line of the benchmark says. */
export interface BenchOptions {
  /** Which parts to measure. */
  readonly parts: ReadonlySet<Part>;
  /** Tool calls of the long run. */
  readonly steps: number;
  readonly rounds: number;
  readonly secondsABlock: number;
  readonly secondsALevel: number;
  readonly wavesMin: number;
  /** Whether model and tool are declared short (docs/decisions/0007). */
  readonly lane: Lane;
  /** The last line of standard output is one JSON object. */
  readonly json: boolean;
  readonly help: boolean;
}
export const LANES = ['fast', 'normal'] as const;
export type Lane = (typeof LANES)[number];
export const PARTS = ['compare', 'steps', 'idle', 'profile'] as const;
export type Part = (typeof PARTS)[number];

export const USAGE = `Measures what the ledger costs: the work "agent-loop-5" on Holdfast and on bare Temporal, in turn.

  npm run bench [-- --json] [-- --quick] [-- --compare] [-- --steps [N]] [-- --idle] [-- --profile] [-- --rounds N] [-- --lane L]

  --json       end standard output with one JSON line of everything measured
  --quick      fewer and shorter rounds, no long run: a first look in under a minute
  --compare    only runs a second, latency, processor time, commits and history beside bare Temporal
  --steps [N]  only the cost of a step in a run of N tool calls (200) beside a run of 5
  --idle       only the memory of an idle npm start
  --profile    only where the time goes: functions of the database, threads and code of both workers
  --rounds N   blocks of each side at each level (3, or 2 with --quick)
  --lane L     fast (model and tool are declared short, as they are), or normal: an activity for each step, as bare
               Temporal has it

Without one of compare, steps, idle and profile, the first three are measured, in under three minutes. It starts
servers of its own and stops them. Figures of a busy machine are worth what their spread says, and there are fewer
rounds unless --rounds asks for them; the ratios hold better, since both sides take turns.`;

/** @throws Error that says which argument is wrong and what is right */
export function readOptions(args: readonly string[]): BenchOptions {
  // The number after --steps may be left out, which parseArgs does not know.
  const filled = args.flatMap((arg, index) =>
    arg === '--steps' && !/^\d+$/.test(args[index + 1] ?? '') ? ['--steps', ''] : [arg],
  );
  const { values } = parseArgs({
    args: filled,
    options: {
      compare: { type: 'boolean', default: false },
      idle: { type: 'boolean', default: false },
      profile: { type: 'boolean', default: false },
      steps: { type: 'string' },
      rounds: { type: 'string' },
      lane: { type: 'string', default: 'fast' },
      quick: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  const { quick, json, help } = values;
  const asked = PARTS.filter((part) => (part === 'steps' ? values.steps !== undefined : values[part]));
  return {
    parts: new Set(asked.length > 0 ? asked : quick ? ['compare', 'idle'] : ['compare', 'steps', 'idle']),
    steps: numberOf('--steps', values.steps || (quick ? '50' : '200'), 20, 900),
    rounds: numberOf('--rounds', values.rounds ?? (quick ? '2' : '3'), 1, 100),
    secondsABlock: quick ? 2 : 4,
    secondsALevel: values.rounds === undefined ? (quick ? 8 : 30) : Number.POSITIVE_INFINITY,
    wavesMin: quick ? 1.5 : 2,
    lane: laneOf(values.lane),
    ...{ json, help },
  };
}

function laneOf(text: string): Lane {
  const lane = LANES.find((known) => known === text);
  if (lane !== undefined) return lane;
  throw new Error(`--lane ${text} cannot be: give ${LANES.join(' or ')}.`);
}

function numberOf(name: string, text: string, least: number, most: number): number {
  const number = Number(text);
  if (Number.isInteger(number) && number >= least && number <= most) return number;
  throw new Error(`${name} ${text} cannot be: give a whole number from ${least} to ${most}.`);
}
