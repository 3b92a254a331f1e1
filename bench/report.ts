import type { Comparison, CommitFigures, LevelFigures } from './compare.js';
import type { IdleFigures } from './idle.js';
import { LOOP_CALLS, stepsOf } from './project.js';
import type { Figure } from './statistics.js';
import type { StepFigures } from './steps.js';

/** What is measured against what it should be; the JSON line holds them all. */
export interface Verdict {
  readonly name: string;
  readonly value: number;
  readonly target: string;
  readonly met: boolean;
}

export interface Results {
  readonly comparison: (Omit<Comparison, 'commits'> & { readonly commits: CommitFigures }) | null;
  readonly steps: StepFigures | null;
  readonly idle: IdleFigures | null;
}

const COST_A_STEP_MAX = 1.25;
const BYTES_A_STEP_MAX = 3 * 1024;
const PAYLOAD_BYTES_MAX = 1024;
const IDLE_MIB_MAX = 700;

export function verdictsOf({ comparison, steps, idle }: Results): Verdict[] {
  const verdicts: Verdict[] = [];
  const atLeast = (name: string, value: number, least: number): void =>
    void verdicts.push({ name, value, target: `>= ${least}`, met: value >= least });
  const atMost = (name: string, value: number, most: number): void =>
    void verdicts.push({ name, value, target: `<= ${most}`, met: value <= most });
  if (comparison !== null) {
    for (const level of comparison.levels) {
      atLeast(`runs a second by bare Temporal's, ${level.at_once} at once`, level.ratio.median, 0.8);
    }
    atMost('commits a step', comparison.commits.per_step, 2);
    atMost('history bytes a step', comparison.history.holdfast.bytes_per_step, BYTES_A_STEP_MAX);
    atMost('largest payload, bytes', comparison.history.holdfast.payload_bytes_max, PAYLOAD_BYTES_MAX);
  }
  if (steps !== null) {
    const long = steps.long.tool_calls;
    atMost(`cpu a step, run of ${long} by run of ${LOOP_CALLS}`, steps.ratio.cpu, COST_A_STEP_MAX);
    atMost(`time a step, run of ${long} by run of ${LOOP_CALLS}`, steps.ratio.wall, COST_A_STEP_MAX);
    atMost(`history a step, run of ${long} by run of ${LOOP_CALLS}`, steps.ratio.history, COST_A_STEP_MAX);
  }
  if (idle !== null && idle.pss_mib !== null) atMost('idle stack, MiB', idle.pss_mib, IDLE_MIB_MAX);
  return verdicts;
}

/** Everything as tables for people. */
export function linesOf(results: Results): string[] {
  const { comparison, steps, idle } = results;
  return [
    ...(comparison === null ? [] : comparisonLines(comparison)),
    ...(steps === null ? [] : stepLines(steps)),
    ...(idle === null ? [] : idleLines(idle)),
    '',
    ...align([
      ['target', 'wanted', 'measured', ''],
      ...verdictsOf(results).map(({ name, value, target, met }) => [
        name,
        target,
        String(value),
        met ? 'met' : 'MISSED',
      ]),
    ]),
  ];
}

function comparisonLines({ levels, commits, history }: NonNullable<Results['comparison']>): string[] {
  const { holdfast, bare } = history;
  return [
    '',
    `agent-loop-${LOOP_CALLS}: ${stepsOf(LOOP_CALLS)} durable steps a run; median of the rounds (lowest–highest)`,
    ...align([
      [
        'at once',
        'side',
        'runs/s',
        'p50 ms',
        'p95 ms',
        'cpu ms/run',
        'worker',
        'temporal',
        'postgres',
        'runs',
      ],
      ...levels.flatMap(levelRows),
    ]),
    '',
    'commits of the ledger',
    ...align([
      ['a step', 'a run beside its steps', 'a run', 'reads a run', 'WAL bytes/step', 'idle/s'],
      [
        commits.per_step,
        commits.overhead_per_run,
        commits.per_run,
        commits.reads_per_run,
        commits.wal_bytes_per_step,
        commits.idle_per_second,
      ].map(String),
    ]),
    ...align([
      ['statement', 'a run', 'ms each'],
      ...Object.entries(commits.by_statement).map(([name, { per_run, ms }]) => [
        name,
        String(per_run),
        String(ms),
      ]),
    ]).map((line) => `  ${line}`),
    ...crossCheckLines(commits),
    '',
    'history in Temporal',
    ...align([
      ['side', 'bytes/step', 'bytes/run', 'events/run', 'largest payload'],
      ...Object.entries({ holdfast, bare }).map(([side, figures]) => [
        side,
        ...[
          figures.bytes_per_step,
          figures.bytes_per_run,
          figures.events_per_run,
          figures.payload_bytes_max,
        ].map(String),
      ]),
    ]),
  ];
}

function crossCheckLines({ cross_check }: CommitFigures): string[] {
  if (cross_check === null) return [];
  const { transaction_ids, statements, pg_stat_database } = cross_check;
  return [
    `over all of it ${statements} transactions were asked for and ${transaction_ids} wrote; pg_stat_database counts`,
    `${pg_stat_database}, since each notification that a listening connection takes in is one more`,
  ];
}

function levelRows(level: LevelFigures): string[][] {
  const rows = (['holdfast', 'bare'] as const).map((name) => {
    const side = level[name];
    const { worker, temporal, postgres } = side.cpu_seconds_per_run_of;
    return [
      String(level.at_once),
      name,
      spread(side.runs_per_second),
      ...[side.p50_ms, side.p95_ms].map(String),
      spread(side.cpu_seconds_per_run, 1000),
      ...[worker, temporal, postgres].map((seconds) => (seconds * 1000).toFixed(0)),
      String(side.runs),
    ];
  });
  return [...rows, ['', 'ratio', spread(level.ratio), '', '', spread(level.cpu_ratio)]];
}

function stepLines({ short, long, ratio, at_once, last_quarter_by_first }: StepFigures): string[] {
  return [
    '',
    `cost of one durable step, ${at_once} runs at once`,
    ...align([
      ['tool calls a run', 'cpu ms', 'wall ms', 'history bytes', 'transactions', 'executions', 'runs'],
      ...[short, long].map((cost) => [
        String(cost.tool_calls),
        ...[
          cost.cpu_ms_per_step,
          cost.wall_ms_per_step,
          cost.history_bytes_per_step,
          cost.transactions_per_step,
          cost.executions,
          cost.runs,
        ].map(String),
      ]),
      ['ratio', ...[ratio.cpu, ratio.wall, ratio.history, ratio.transactions].map(String)],
    ]),
    `within the long runs, time a step in the last quarter by the first: ${last_quarter_by_first}`,
  ];
}

function idleLines({ pss_mib, rss_mib, processes }: IdleFigures): string[] {
  if (pss_mib === null) return ['', 'memory of the idle stack: cannot be told without /proc'];
  return [
    '',
    'memory of the idle stack (npm start), MiB; PSS counts shared pages once',
    ...align([
      ['process', 'PSS', 'RSS'],
      ...processes.map(({ name, pss_mib: pss, rss_mib: rss }) => [name, String(pss), String(rss)]),
      ['all', String(pss_mib), String(rss_mib)],
    ]),
  ];
}

function spread({ median, lowest, highest }: Figure, factor = 1): string {
  const [middle, low, high] = [median, lowest, highest].map((value) => (value * factor).toPrecision(3));
  return `${middle} (${low}–${high})`;
}

export function align(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, column) =>
    Math.max(...rows.map((row) => (row[column] ?? '').length)),
  );
  return rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}
