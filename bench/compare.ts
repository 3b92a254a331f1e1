import { type Block, measureBlock } from './block.js';
import { historyCost, largestPayload } from './history.js';
import { LOOP_CALLS, stepsOf } from './project.js';
import type { Side } from './sides.js';
import { type Figure, figureOf, median, quantile, round } from './statistics.js';
import { combine, isOfStep, type StatementCost, type StatementCounts, sum, wrote } from './statements.js';
import type { SideName, World } from './world.js';

export interface ComparePlan {
  /** Blocks of each side at each level; every second round begins with the other side. */
  readonly rounds: number;
  /** How long a block is meant to take. */
  readonly secondsABlock: number;
  /** No further round begins after this time: on a busy machine there are fewer, and the figures say how many. */
  readonly secondsALevel: number;
  /** Runs of a block at least, as a multiple of those under way at once. */
  readonly wavesMin: number;
  /** Runs under way at once, one table row for each. */
  readonly levels: readonly number[];
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
}

export interface SideFigures {
  readonly runs_per_second: Figure;
  readonly p50_ms: number;
  readonly p95_ms: number;
  readonly cpu_seconds_per_run: Figure;
  readonly cpu_seconds_per_run_of: {
    readonly worker: number;
    readonly temporal: number;
    readonly postgres: number;
  };
  readonly runs: number;
}
export interface LevelFigures {
  readonly at_once: number;
  readonly holdfast: SideFigures;
  readonly bare: SideFigures;
  /** Runs a second, Holdfast's by the bare side's, round by round: both blocks of a round stand next to each other. */
  readonly ratio: Figure;
  readonly cpu_ratio: Figure;
}
export interface CommitFigures {
  /** Claims and receipts of model calls and effects. */
  readonly per_step: number;
  /** The rest of a run's life: its admission, its start, trails that nothing carried. */
  readonly overhead_per_run: number;
  readonly per_run: number;
  /** Transactions that only looked: nothing of them reaches the disk. */
  readonly reads_per_run: number;
  readonly wal_bytes_per_step: number;
  readonly idle_per_second: number;
  readonly by_statement: Readonly<Record<string, { readonly per_run: number; readonly ms: number }>>;
  /** The same transactions counted in three ways, over these runs and everything around them. */
  readonly cross_check: {
    /** Those that wrote. */
    readonly transaction_ids: number;
    /** What was asked, as the figures above count it. */
    readonly statements: number;
    /** With one more for each notification that each listening connection took in. */
    readonly pg_stat_database: number;
  } | null;
}
export interface HistoryFigures {
  readonly bytes_per_run: number;
  readonly bytes_per_step: number;
  readonly events_per_run: number;
  readonly payload_bytes_max: number;
}
export interface Comparison {
  readonly levels: readonly LevelFigures[];
  readonly commits: Omit<CommitFigures, 'cross_check'>;
  readonly history: Readonly<Record<SideName, HistoryFigures>>;
}

type Sides = Readonly<Record<SideName, Side>>;

/** "agent-loop-5" on both sides, block by block in turn, so that a noisy neighbour disturbs both alike. */
export async function compare(world: World, sides: Sides, plan: ComparePlan): Promise<Comparison> {
  const levels: LevelFigures[] = [];
  const all: Record<SideName, Block[]> = { holdfast: [], bare: [] };
  for (const atOnce of plan.levels) {
    const runs = await sizeOfBlock(world, sides, atOnce, plan);
    plan.say(`compare   up to ${plan.rounds} rounds of ${runs} runs a side, ${atOnce} at once`);
    const rounds = await playRounds(world, sides, { ...plan, runs, atOnce });
    levels.push(figuresOfLevel(atOnce, rounds));
    all.holdfast.push(...rounds.holdfast);
    all.bare.push(...rounds.bare);
  }
  return {
    levels,
    commits: commitsOf(all),
    history: { holdfast: await historyOf(world, all.holdfast), bare: await historyOf(world, all.bare) },
  };
}

/** A first block warms everything up and tells how many runs fill the time. */
async function sizeOfBlock(world: World, sides: Sides, atOnce: number, plan: ComparePlan): Promise<number> {
  const first = { runs: Math.max(2, atOnce), atOnce, toolCalls: LOOP_CALLS };
  const rates: number[] = [];
  for (const side of [sides.bare, sides.holdfast]) {
    const { runs, seconds } = await measureBlock(world, side, first, plan.signal);
    rates.push(runs.length / seconds);
  }
  // More than a wave at least: a block's beginning and end are not like its middle.
  const [least, most] = [Math.max(3, plan.wavesMin * atOnce), 400];
  return Math.min(most, Math.max(least, Math.round(Math.min(...rates) * plan.secondsABlock)));
}

/** One round with either side first, whatever the time. */
const ROUNDS_MIN = 2;

async function playRounds(
  world: World,
  sides: Sides,
  plan: ComparePlan & { readonly runs: number; readonly atOnce: number },
): Promise<Record<SideName, Block[]>> {
  const blocks: Record<SideName, Block[]> = { holdfast: [], bare: [] };
  const from = performance.now();
  const isLate = (): boolean => performance.now() - from > plan.secondsALevel * 1000;
  for (let turn = 0; turn < plan.rounds && !(turn >= ROUNDS_MIN && isLate()); turn += 1) {
    const order = turn % 2 === 0 ? [sides.holdfast, sides.bare] : [sides.bare, sides.holdfast];
    for (const side of order) {
      const { runs, atOnce } = plan;
      const block = await measureBlock(world, side, { runs, atOnce, toolCalls: LOOP_CALLS }, plan.signal);
      blocks[side.name].push(block);
    }
  }
  return blocks;
}

const rateOf = ({ runs, seconds }: Block): number => runs.length / seconds;
const cpuOf = ({ cpu, runs }: Block): number => (cpu.worker + cpu.temporal + cpu.postgres) / runs.length;

function figuresOfLevel(atOnce: number, { holdfast, bare }: Record<SideName, Block[]>): LevelFigures {
  const roundByRound = (value: (block: Block) => number): Figure =>
    figureOf(holdfast.map((block, index) => value(block) / value(bare[index]!)));
  return {
    at_once: atOnce,
    holdfast: figuresOfSide(holdfast),
    bare: figuresOfSide(bare),
    ratio: roundByRound(rateOf),
    cpu_ratio: roundByRound(cpuOf),
  };
}

function figuresOfSide(blocks: readonly Block[]): SideFigures {
  const latencies = blocks.flatMap(({ runs }) => runs.map(({ ms }) => ms));
  const of = (part: 'worker' | 'temporal' | 'postgres'): number =>
    round(median(blocks.map(({ cpu, runs }) => cpu[part] / runs.length)));
  return {
    runs_per_second: figureOf(blocks.map(rateOf)),
    p50_ms: round(quantile(latencies, 0.5)),
    p95_ms: round(quantile(latencies, 0.95)),
    cpu_seconds_per_run: figureOf(blocks.map(cpuOf)),
    cpu_seconds_per_run_of: { worker: of('worker'), temporal: of('temporal'), postgres: of('postgres') },
    runs: latencies.length,
  };
}

/** What Holdfast's runs committed. While the bare side works, Holdfast idles: what it asks then is no run's. */
function commitsOf({ holdfast, bare }: Record<SideName, Block[]>): Omit<CommitFigures, 'cross_check'> {
  const secondsOf = (blocks: readonly Block[]): number =>
    blocks.reduce((all, { seconds }) => all + seconds, 0);
  const idle = sum(bare.map(({ statements }) => statements));
  const share = secondsOf(holdfast) / secondsOf(bare);
  const own = combine(sum(holdfast.map(({ statements }) => statements)), idle, -share);
  const runs = holdfast.reduce((all, block) => all + block.runs.length, 0);
  const rows = [...own].filter(([, { calls }]) => calls / runs >= 0.005).sort(([, a], [, b]) => b.ms - a.ms);
  const callsOf = (counts: StatementCounts, wanted: (name: string, cost: StatementCost) => boolean): number =>
    [...counts].reduce((all, [name, cost]) => all + (wanted(name, cost) ? cost.calls : 0), 0);
  const ofSteps = callsOf(own, isOfStep);
  const overhead = callsOf(own, (name, cost) => !isOfStep(name) && wrote(cost));
  const reads = callsOf(own, (name, cost) => !isOfStep(name) && !wrote(cost));
  const wal = [...own.values()].reduce((all, { walBytes }) => all + walBytes, 0);
  const steps = runs * stepsOf(LOOP_CALLS);
  return {
    per_step: round(ofSteps / steps),
    overhead_per_run: round(overhead / runs),
    per_run: round((ofSteps + overhead) / runs),
    reads_per_run: round(reads / runs),
    wal_bytes_per_step: round(wal / steps),
    idle_per_second: round(callsOf(idle, () => true) / secondsOf(bare)),
    by_statement: Object.fromEntries(
      rows.map(([name, { calls, ms }]) => [name, { per_run: round(calls / runs), ms: round(ms / calls) }]),
    ),
  };
}

const HISTORIES_LOOKED_AT = 12;

async function historyOf({ client }: World, blocks: readonly Block[]): Promise<HistoryFigures> {
  const runs = blocks.flatMap((block) => block.runs);
  const every = Math.max(1, Math.floor(runs.length / HISTORIES_LOOKED_AT));
  const looked = runs.filter((_, index) => index % every === 0).map(({ runId }) => runId);
  const costs = [];
  const payloads = [];
  for (const runId of looked) {
    costs.push(await historyCost(client, runId));
    payloads.push(await largestPayload(client, runId));
  }
  const bytes = median(costs.map((cost) => cost.bytes));
  return {
    bytes_per_run: round(bytes),
    bytes_per_step: round(bytes / stepsOf(LOOP_CALLS)),
    events_per_run: median(costs.map((cost) => cost.events)),
    payload_bytes_max: Math.max(...payloads),
  };
}
