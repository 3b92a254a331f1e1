import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { modelOverrideFromEnv } from '../../activities/models/profile-from-env.js';
import { runMain, StartError } from '../../shared/process/exit.js';
import { type DemoOptions, readOptions, USAGE } from './options.js';
import { type Ending, play } from './play.js';
import { allDemoRuns, type DemoRun } from './runs.js';
import { closingWords, promiseHeld, remarksOf, summaryOf, tableOf } from './story.js';
import { startWorld } from './world.js';

const repositoryDir = fileURLToPath(new URL('../..', import.meta.url));

async function main(): Promise<void> {
  const runs = await allDemoRuns(join(repositoryDir, 'examples/refund-desk/orders.json'));
  const options = readArguments(runs.length);
  if (options.help) {
    process.stdout.write(`${USAGE}\n`);
    return;
  }
  const began = performance.now();
  const story = options.json ? process.stderr : process.stdout;
  const say = (line: string): void => {
    const seconds = ((performance.now() - began) / 1000).toFixed(1).padStart(5);
    story.write(`${seconds} s  ${line}\n`);
  };
  const interrupt = new AbortController();
  const onSignal = (signal: NodeJS.Signals): void => {
    if (!interrupt.signal.aborted) say(`${signal}: stopping everything that was started`);
    interrupt.abort(new StartError(`Stopped by ${signal}; nothing of the demo is left running.`));
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);

  const model = modelOverrideFromEnv(process.env);
  say(
    `the refund desk thinks with ${model === undefined ? 'its script' : `${model.provider} ${model.model}`}`,
  );
  const ending = await perform(runs.slice(0, options.runs), options, { say, signal: interrupt.signal });

  const { comparison } = ending;
  const summary = summaryOf(ending.runs, comparison, ending.people);
  const lines = [
    '',
    ...tableOf(ending.runs, ending.effects, comparison),
    '',
    ...remarksOf(ending.runs, comparison),
    '',
    ...closingWords(summary, comparison),
  ];
  story.write(`${lines.join('\n')}\n`);
  // The very last line, after everything has been stopped: a script may read it with `tail -n 1`.
  if (options.json) process.stdout.write(`${JSON.stringify(summary)}\n`);
  if (!promiseHeld(summary)) process.exitCode = 1;
}

/** Plays in a world of its own, and takes the world down again whatever happens. */
async function perform(
  runs: readonly DemoRun[],
  options: DemoOptions,
  { say, signal }: { say: (line: string) => void; signal: AbortSignal },
): Promise<Ending> {
  const dataDir = await mkdtemp(join(tmpdir(), 'holdfast-demo-'));
  // Started by root, Postgres runs as another user. If that one cannot pass through, the stack puts its data
  // where a long-lived one keeps it, and that would outlive the demo.
  await chmod(dataDir, 0o711);
  try {
    const world = await startWorld({ dataDir, repositoryDir, env: process.env, signal, say });
    try {
      return await play(runs, { stage: world, signal, say });
    } finally {
      await world.stop();
      say('everything that was started is stopped');
    }
  } finally {
    if (options.keep) say(`kept ${dataDir}: HOLDFAST_DATA_DIR=${dataDir} npm start shows it again`);
    else await rm(dataDir, { recursive: true, force: true });
  }
}

function readArguments(runsMax: number): DemoOptions {
  try {
    return readOptions(process.argv.slice(2), runsMax);
  } catch (error) {
    throw new StartError(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`);
  }
}

runMain('demo', main);
