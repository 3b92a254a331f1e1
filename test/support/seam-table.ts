import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { FaultPoint } from '../../activities/fault-points.js';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { World } from './world.js';

/**
 * What becomes of a run with one effect, in one line: how often the target saw it and applied it, each effect's state
 * with the source of its receipt, and where the run rests.
 */
export type Summary = string;

export type ActPoint = Extract<FaultPoint, `act.${string}`>;
export type ThinkPoint = Extract<FaultPoint, `think.${string}`>;
export type QueryPoint = Extract<FaultPoint, `query.${string}`>;

/** An attempt that ends at a point and is heard of no more, by class. */
// prettier-ignore
export const CUT_AT: Record<ActPoint, Record<EffectClass, Summary>> = {
  'act.before_claim': {
    keyed:     '1/1 succeeded by response, completed',
    queryable: '1/1 succeeded by response, completed',
    opaque:    '1/1 succeeded by response, completed',
    read:      '1/0 succeeded by response, completed',
  },
  // Nothing has left, but nobody can know.
  'act.after_claim': {
    keyed:     '1/1 succeeded by response, completed',
    queryable: '1/1 not_committed by probe + succeeded by response, completed',
    opaque:    '0/0 unknown, needs_reconciliation',
    read:      '1/0 succeeded by response, completed',
  },
  // Applied, and the answer is gone.
  'act.after_call': {
    keyed:     '2/1 succeeded by response, completed',
    queryable: '1/1 committed by probe, completed',
    opaque:    '1/1 unknown, needs_reconciliation',
    read:      '2/0 succeeded by response, completed',
  },
  // The receipt is there: it is the answer.
  'act.after_settle': {
    keyed:     '1/1 succeeded by response, completed',
    queryable: '1/1 succeeded by response, completed',
    opaque:    '1/1 succeeded by response, completed',
    read:      '1/0 succeeded by response, completed',
  },
};

/** A model call that ends at a point: requests that the model saw, attempts that the ledger counted, and the rest. */
// prettier-ignore
export const THINK_CUT_AT: Record<ThinkPoint, Summary> = {
  'think.before_claim': '1 asked, 1 attempts, 0 lost; 1/1 succeeded by response, completed',
  'think.after_claim':  '1 asked, 2 attempts, 1 lost; 1/1 succeeded by response, completed',
  'think.after_answer': '2 asked, 2 attempts, 1 lost; 1/1 succeeded by response, completed',
  // The committed answer is given again: nobody pays twice.
  'think.after_commit': '1 asked, 1 attempts, 0 lost; 1/1 succeeded by response, completed',
};

/** A reconciler that ends at a point, after an effect that was done or one that never left. */
// prettier-ignore
export const QUERY_CUT_AT: Record<QueryPoint, Record<'done' | 'never left', Summary>> = {
  'query.before_begin': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
  'query.after_begin': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
  'query.after_probe': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
  'query.after_record': {
    'done':       '1/1 committed by probe, completed',
    'never left': '1/1 not_committed by probe + succeeded by response, completed',
  },
};

/** Where the attempt is cut off that leaves the effect to the reconciler. */
export const CUT_THAT_LEAVES = { done: 'act.after_call', 'never left': 'act.after_claim' } as const;

/** Waits until the run rests: at its end, or where only a person gets it on. */
export async function summaryOf(world: World, runId: string): Promise<Summary> {
  const run = await world.waitFor(
    runId,
    async ({ state, ended_at }) => {
      if (ended_at !== null) return true;
      if (state !== 'needs_reconciliation') return false;
      // Every other class gets on by itself.
      return (await world.effects(runId)).some((each) => each.effect_class === 'opaque');
    },
    60_000,
  );
  const receipts = new Map((await world.receipts(runId)).map((receipt) => [receipt.effect_id, receipt]));
  const effects = (await world.effects(runId)).map(({ effect_id, state }) => {
    const receipt = receipts.get(effect_id);
    return receipt === undefined ? state : `${state} by ${receipt.source}`;
  });
  return `${targetCount(world, runId)} ${effects.join(' + ')}, ${run.state}`;
}

/** How often the target saw the run's calls, and how often it applied one: `arrived/applied`. */
export function targetCount(world: World, runId: string): string {
  const log = world.targetLog(runId);
  const count = (wanted: 'arrived' | 'applied') => log.filter(({ kind }) => kind === wanted).length;
  return `${count('arrived')}/${count('applied')}`;
}

/** The summary with what the run's first model call took; needs a script that logs to `model.jsonl`. */
export async function summaryWithModel(world: World, runId: string): Promise<Summary> {
  const summary = await summaryOf(world, runId);
  const lines = (await readFile(join(world.folder, 'model.jsonl'), 'utf8')).trim().split('\n');
  const asked = lines
    .map((line) => JSON.parse(line) as { readonly callKey: string })
    .filter(({ callKey }) => callKey === `${runId}:t1:s1`).length;
  const [call] = await world.rows<{ attempts: number; lost_attempts: number }>(
    'select attempts, lost_attempts from holdfast.model_calls where run_id = $1 and step = 1',
    runId,
  );
  return `${asked} asked, ${call?.attempts} attempts, ${call?.lost_attempts} lost; ${summary}`;
}

/** Summaries that are being waited for, all at once; each is awaited by the test of its name. */
export class Playing {
  readonly #summaries = new Map<string, Promise<Summary>>();

  add(name: string, summary: Promise<Summary>): void {
    // Until its test awaits it, its failure is nobody's.
    summary.catch(() => undefined);
    this.#summaries.set(name, summary);
  }

  of(name: string): Promise<Summary> {
    const summary = this.#summaries.get(name);
    if (summary === undefined) throw new Error(`nothing plays under the name ${name}`);
    return summary;
  }

  async all(): Promise<Summary[]> {
    return await Promise.all(this.#summaries.values());
  }
}

/** The rows of a table. */
export function rows<Row extends string, Cell>(table: Partial<Record<Row, Cell>>): [Row, Cell][] {
  return Object.entries(table) as [Row, Cell][];
}

/** The cells of a table, row by row. */
export function cells<Row extends string, Column extends string>(
  table: Partial<Record<Row, Record<Column, Summary>>>,
): [Row, Column, Summary][] {
  return rows(table).flatMap(([row, columns]) =>
    rows<Column, Summary>(columns).map(([column, cell]): [Row, Column, Summary] => [row, column, cell]),
  );
}
