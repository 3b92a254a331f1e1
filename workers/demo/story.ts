import type { EffectView } from './api-client.js';
import type { ComparedRow, Comparison } from './compare.js';
import type { PeopleDeeds } from './people.js';
import type { DemoRun } from './runs.js';

/** One run of the demo after it came to rest. */
export interface PlayedRun extends DemoRun {
  readonly runId: string;
  readonly state: string;
}

/** The counts of the demo's last line; `compare` defines all but the first two. */
export interface DemoSummary {
  /** Runs started. */
  readonly runs: number;
  /** Runs that ended in `completed`; the others are told in the table. */
  readonly completed: number;
  readonly effects: number;
  readonly applied: number;
  readonly duplicates: number;
  readonly lost: number;
  readonly unexplained: number;
  /** What people did over the API. */
  readonly approved: number;
  readonly cancelled: number;
  readonly settled: number;
}

/** @returns the counts, in the order in which they are printed */
export function summaryOf(
  runs: readonly PlayedRun[],
  comparison: Comparison,
  people: PeopleDeeds,
): DemoSummary {
  return {
    runs: runs.length,
    completed: runs.filter((run) => run.state === 'completed').length,
    effects: comparison.effects,
    applied: comparison.applied,
    duplicates: comparison.duplicates,
    lost: comparison.lost,
    unexplained: comparison.unexplained,
    ...people,
  };
}

/** Whether the promise held: nothing done twice, nothing claimed but not done, nothing unaccounted for. */
export function promiseHeld(summary: DemoSummary): boolean {
  return summary.duplicates === 0 && summary.lost === 0 && summary.unexplained === 0;
}

/** The table of all effects, the ledger's word beside the provider's, as lines. */
export function tableOf(
  runs: readonly PlayedRun[],
  effects: readonly EffectView[],
  comparison: Comparison,
): string[] {
  const head = ['order', 'trouble', 'run', 'effect', 'ledger says', 'tries', 'done', 'verdict'];
  const attemptsOf = new Map(effects.map((effect) => [effect.effect_id, effect.attempts]));
  const cellsOf = ({ effect, verdict, timesDone }: ComparedRow): string[] => {
    const tries = effect === null ? '-' : String(attemptsOf.get(effect.effect_id) ?? '-');
    return [effect?.tool ?? '-', effect?.state ?? '-', tries, `${timesDone}x`, verdict];
  };
  const rows = runs.flatMap((run) => {
    const own = comparison.rows.filter((row) => row.effect?.run_id === run.runId).map(cellsOf);
    const cells = own.length > 0 ? own : [['-', '-', '-', '-', '-']];
    return cells.map((rest, index) =>
      index === 0 ? [run.orderId, run.trouble, run.state, ...rest] : ['', '', '', ...rest],
    );
  });
  const strays = comparison.rows
    .filter((row) => row.effect === null)
    .map((row) => ['?', 'no effect explains this deed', '-', ...cellsOf(row)]);
  return align([head, ...rows, ...strays]);
}

/** Everything that is not simply done and said to be done, one sentence each. */
export function remarksOf(runs: readonly PlayedRun[], comparison: Comparison): string[] {
  const orderOf = new Map(runs.map((run) => [run.runId, run.orderId]));
  return comparison.rows
    .filter((row) => row.verdict !== 'agrees')
    .map((row) => {
      const { effect } = row;
      if (effect === null) return `${row.verdict}: ${row.why}`;
      const order = orderOf.get(effect.run_id) ?? '?';
      return `${row.verdict}: ${order} ${effect.tool} (${effect.effect_id}): ${row.why}`;
    });
}

/** The closing words: each number with what it counts. */
export function closingWords(summary: DemoSummary, comparison: Comparison): string[] {
  const { runs, completed, effects, applied, duplicates, lost, unexplained } = summary;
  const { approved, cancelled, settled } = summary;
  const others = runs === completed ? '' : `, ${runs - completed} in another state, which the table tells`;
  return [
    `${runs} runs, ${completed} completed${others}`,
    `${effects} effects that the ledger says were done, ${applied} deeds in the provider's own journal`,
    `${approved} approved, ${cancelled} cancelled, ${settled} settled by people, over the API`,
    `${comparison.open} open: nobody can know, so a named person settles them by a date`,
    `${duplicates} duplicates, ${lost} lost, ${unexplained} unexplained`,
  ];
}

function align(rows: readonly (readonly string[])[]): string[] {
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
