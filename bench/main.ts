import { cpus, loadavg } from 'node:os';
import { runMain, StartError } from '../shared/process/exit.js';
import { compare } from './compare.js';
import { countThrice } from './cross-check.js';
import { measureIdle } from './idle.js';
import { type BenchOptions, type Lane, readOptions, USAGE } from './options.js';
import { profile } from './profile.js';
import { LOOP_CALLS } from './project.js';
import { linesOf, type Results, verdictsOf } from './report.js';
import { bareSide, checkWork, holdfastSide, type Side } from './sides.js';
import { round } from './statistics.js';
import { measureSteps } from './steps.js';
import { inWorld, type SideName, type World } from './world.js';

type Talk = { readonly say: (line: string) => void; readonly signal: AbortSignal };
type Sides = Readonly<Record<SideName, Side>>;

async function main(): Promise<void> {
  const options = readArguments();
  if (options.help) {
    process.stdout.write(`${USAGE}\n`);
    return;
  }
  const began = performance.now();
  const interrupt = new AbortController();
  const say = (line: string): void => {
    const seconds = ((performance.now() - began) / 1000).toFixed(0).padStart(4);
    process.stdout.write(`${seconds} s  ${line}\n`);
  };
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.on(signal, () => {
      say(`${signal}: stopping everything that was started`);
      interrupt.abort(new StartError(`Stopped by ${signal}; nothing of the benchmark is left running.`));
    });
  }
  const talk: Talk = { say, signal: interrupt.signal };
  const load = [loadavg()[0] ?? 0];
  const results = await measure(options, talk);
  load.push(loadavg()[0] ?? 0);
  const machine = {
    processors: cpus().length,
    load_before_and_after: load.map(round),
    node: process.version,
  };
  const lines = [
    ...linesOf(results),
    '',
    `${options.lane} lane, on ${machine.processors} processors, load ${load.map((value) => value.toFixed(1)).join(' before, ')} after`,
  ];
  process.stdout.write(`${lines.join('\n')}\n`);
  if (options.json) {
    const seconds = Math.round((performance.now() - began) / 1000);
    const verdicts = verdictsOf(results);
    process.stdout.write(
      `${JSON.stringify({ work: `agent-loop-${LOOP_CALLS}`, lane: options.lane, seconds, machine, verdicts, ...results })}\n`,
    );
  }
}

async function measure(options: BenchOptions, talk: Talk): Promise<Results> {
  const { parts } = options;
  let results: Results = { comparison: null, steps: null, idle: null };
  if (parts.has('compare') || parts.has('steps')) results = await measureRuns(options, talk);
  if (parts.has('profile')) await showProfile(talk, options.lane);
  return parts.has('idle') ? { ...results, idle: await measureIdle(talk) } : results;
}

async function measureRuns(options: BenchOptions, talk: Talk): Promise<Results> {
  const { parts, steps: toolCalls, lane } = options;
  return await inWorld({ ...talk, lane, lengths: [LOOP_CALLS, toolCalls] }, async (world) => {
    const counted = await countThrice(world);
    const measured = await withSides(world, async (sides) => ({
      comparison: parts.has('compare')
        ? await compare(world, sides, { ...options, ...talk, levels: [1, 20] })
        : null,
      steps: parts.has('steps') ? await measureSteps(world, sides.holdfast, { ...talk, toolCalls }) : null,
    }));
    const { comparison, steps } = measured;
    if (comparison === null) return { comparison, steps, idle: null };
    const commits = { ...comparison.commits, cross_check: await counted() };
    return { comparison: { ...comparison, commits }, steps, idle: null };
  });
}

async function showProfile(talk: Talk, lane: Lane): Promise<void> {
  const preload = new URL('profile-on-signal.mjs', import.meta.url).href;
  const options = { ...talk, lane, lengths: [LOOP_CALLS], trackFunctions: true, workerPreload: preload };
  const lines = await inWorld(options, (world) => withSides(world, (sides) => profile(world, sides, talk)));
  process.stdout.write(`${lines.join('\n')}\n`);
}

async function withSides<T>(world: World, use: (sides: Sides) => Promise<T>): Promise<T> {
  const sides = { holdfast: await holdfastSide(world), bare: bareSide(world) };
  try {
    const used = await use(sides);
    await checkWork(world, Object.values(sides));
    return used;
  } finally {
    await sides.holdfast.close();
    await sides.bare.close();
  }
}

function readArguments(): BenchOptions {
  try {
    return readOptions(process.argv.slice(2));
  } catch (error) {
    throw new StartError(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`);
  }
}

runMain('bench', main);
