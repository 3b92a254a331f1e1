import { type Block, measureBlock } from './block.js';
import { historyCost } from './history.js';
import { LOOP_CALLS, stepsOf } from './project.js';
import type { Side } from './sides.js';
import { median, round } from './statistics.js';
import type { World } from './world.js';

export interface StepCost {
  readonly tool_calls: number;
  readonly runs: number;
  readonly cpu_ms_per_step: number;
  /** Of one run: its own time by its steps. */
  readonly wall_ms_per_step: number;
  readonly history_bytes_per_step: number;
  /** Everything the ledger was asked meanwhile, admissions and polling too. */
  readonly transactions_per_step: number;
  /** Executions that Temporal holds of a run: it continues as new before its history grows large. */
  readonly executions: number;
}

export interface StepFigures {
  readonly at_once: number;
  readonly short: StepCost;
  readonly long: StepCost;
  /** The long run's cost a step by the short one's: 1 where a step costs the same however long the run is. */
  readonly ratio: {
    readonly cpu: number;
    readonly wall: number;
    readonly history: number;
    readonly transactions: number;
  };
  /** Within the long runs: the time from step to step in the last quarter by that in the first. */
  readonly last_quarter_by_first: number;
}

/** Runs side by side: few, so that each step has its turn at once and the whole stays short. */
const AT_ONCE = 2;
const SHORT_RUNS = 14;

/**
 * What a step costs in a run of a few and in a run of many. The short runs come before and after the long ones, so
 * that a machine which gets slower or faster meanwhile is not taken for the length.
 */
export async function measureSteps(
  world: World,
  side: Side,
  options: { readonly toolCalls: number; readonly say: (line: string) => void; readonly signal: AbortSignal },
): Promise<StepFigures> {
  const { toolCalls, say, signal } = options;
  say(`steps     ${AT_ONCE} runs of ${toolCalls} tool calls between 2 times ${SHORT_RUNS} of ${LOOP_CALLS}`);
  const play = (runs: number, calls: number): Promise<Block> =>
    measureBlock(world, side, { runs, atOnce: AT_ONCE, toolCalls: calls }, signal);
  await play(AT_ONCE, LOOP_CALLS);
  const before = await play(SHORT_RUNS, LOOP_CALLS);
  const many = await play(AT_ONCE, toolCalls);
  const after = await play(SHORT_RUNS, LOOP_CALLS);
  const short = await costOf(world, [before, after], LOOP_CALLS);
  const long = await costOf(world, [many], toolCalls);
  return {
    at_once: AT_ONCE,
    short,
    long,
    ratio: {
      cpu: round(long.cpu_ms_per_step / short.cpu_ms_per_step),
      wall: round(long.wall_ms_per_step / short.wall_ms_per_step),
      history: round(long.history_bytes_per_step / short.history_bytes_per_step),
      transactions: round(long.transactions_per_step / short.transactions_per_step),
    },
    last_quarter_by_first: await growthWithin(world, many, toolCalls),
  };
}

async function costOf(world: World, blocks: readonly Block[], toolCalls: number): Promise<StepCost> {
  const runs = blocks.flatMap((block) => block.runs);
  const steps = runs.length * stepsOf(toolCalls);
  const cpu = blocks.reduce((all, { cpu }) => all + cpu.worker + cpu.temporal + cpu.postgres, 0);
  const transactions = blocks
    .flatMap(({ statements }) => [...statements.values()])
    .reduce((all, { calls }) => all + calls, 0);
  const looked = runs.slice(0, AT_ONCE);
  const histories = [];
  for (const { runId } of looked) histories.push(await historyCost(world.client, runId));
  return {
    tool_calls: toolCalls,
    runs: runs.length,
    cpu_ms_per_step: round((cpu * 1000) / steps),
    wall_ms_per_step: round(median(runs.map(({ ms }) => ms / stepsOf(toolCalls)))),
    history_bytes_per_step: round(median(histories.map(({ bytes }) => bytes)) / stepsOf(toolCalls)),
    transactions_per_step: round(transactions / steps),
    executions: median(histories.map(({ executions }) => executions)),
  };
}

/** By the ledger's own times: a mean over a quarter of the steps, so that one slow step decides nothing. */
async function growthWithin(world: World, { runs }: Block, toolCalls: number): Promise<number> {
  const { rows } = await world.ledger.query<{ first: number; last: number }>({
    name: 'bench/quarters',
    text: `
      select extract(epoch from max(created_at) filter (where step = 1 + $2::int / 4)
                              - min(created_at) filter (where step = 1))::float8 as first,
             extract(epoch from max(created_at) filter (where step = 1 + $2)
                              - min(created_at) filter (where step = 1 + $2 - $2::int / 4))::float8 as last
        from holdfast.model_calls where run_id = any ($1) group by run_id`,
    values: [runs.map(({ runId }) => runId), toolCalls],
  });
  return round(median(rows.map(({ first, last }) => last / first)));
}
