import { cpuSeconds } from './proc.js';
import { type StatementCounts, statementCounts, subtract } from './statements.js';
import type { Side, TimedRun } from './sides.js';
import type { World } from './world.js';

/** Processor seconds by who used them. */
export interface Cpu {
  readonly worker: number;
  readonly temporal: number;
  readonly postgres: number;
}

/** Some runs of one side, one after the other or side by side, and all they cost. */
export interface Block {
  readonly runs: readonly TimedRun[];
  readonly seconds: number;
  readonly cpu: Cpu;
  /** Statements of the ledger's database, by name: each is a transaction of its own. */
  readonly statements: StatementCounts;
}

export interface BlockPlan {
  readonly runs: number;
  /** Runs under way at any time; a new one begins as soon as one has ended. */
  readonly atOnce: number;
  readonly toolCalls: number;
}

export async function measureBlock(
  world: World,
  side: Side,
  plan: BlockPlan,
  signal: AbortSignal,
): Promise<Block> {
  const before = await readCosts(world, side);
  const from = performance.now();
  const runs = await perform(side, plan, signal);
  const seconds = (performance.now() - from) / 1000;
  const after = await readCosts(world, side);
  return {
    runs,
    seconds,
    cpu: {
      worker: after.cpu.worker - before.cpu.worker,
      temporal: after.cpu.temporal - before.cpu.temporal,
      postgres: after.cpu.postgres - before.cpu.postgres,
    },
    statements: subtract(after.statements, before.statements),
  };
}

async function perform(side: Side, plan: BlockPlan, signal: AbortSignal): Promise<TimedRun[]> {
  const done: TimedRun[] = [];
  let begun = 0;
  const lane = async (): Promise<void> => {
    while (begun < plan.runs) {
      signal.throwIfAborted();
      begun += 1;
      done.push(await side.run(plan.toolCalls));
    }
  };
  await Promise.all(Array.from({ length: Math.min(plan.atOnce, plan.runs) }, lane));
  return done;
}

async function readCosts(world: World, side: Side) {
  const [worker, temporal, postgres] = await Promise.all([
    cpuSeconds([world.workers[side.name].pid]),
    cpuSeconds([world.pids.temporal]),
    cpuSeconds([world.pids.postgres]),
  ]);
  return { cpu: { worker, temporal, postgres }, statements: await statementCounts(world.admin) };
}
