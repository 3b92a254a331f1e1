import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { tsxLoader } from '../workers/stack/supervised-child.js';
import { type Memory, memoryOf, treeOf } from './proc.js';
import { median } from './statistics.js';
import { makeFolder, ownEnvironment } from './world.js';

export interface IdleFigures {
  /** What all processes take together, pages that they share counted once. Null where there is no /proc to tell. */
  readonly pss_mib: number | null;
  /** The sum of what each process holds, shared pages counted in each. */
  readonly rss_mib: number | null;
  readonly processes: readonly {
    readonly name: string;
    readonly pss_mib: number;
    readonly rss_mib: number;
  }[];
}

const START_MS_MAX = 120_000;
/** Memory is looked at this often, once a second, until it holds still. */
const LOOKS_MAX = 30;
const LOOKS_COMPARED = 4;

/** What `npm start` takes while nobody asks anything of it: all its processes, from the supervisor on. */
export async function measureIdle(options: {
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
}): Promise<IdleFigures> {
  if (process.platform !== 'linux') return { pss_mib: null, rss_mib: null, processes: [] };
  const stops: (() => Promise<unknown>)[] = [];
  try {
    const folder = await makeFolder(stops);
    const pid = await startAll(join(folder, 'data'), stops);
    options.say(`idle      npm start runs, process ${pid}; waiting until its memory holds still`);
    return figuresOf(await settled(pid, options.signal));
  } finally {
    for (const stop of stops.reverse()) await stop();
  }
}

async function startAll(dataDir: string, stops: (() => Promise<unknown>)[]): Promise<number> {
  const entry = fileURLToPath(new URL('../workers/start.ts', import.meta.url));
  const ports = ['API', 'POSTGRES', 'TEMPORAL', 'TEMPORAL_UI'].map((name) => [`HOLDFAST_${name}_PORT`, '0']);
  const child = spawn(process.execPath, ['--import', tsxLoader(), entry], {
    env: { ...ownEnvironment(process.env), HOLDFAST_DATA_DIR: dataDir, ...Object.fromEntries(ports) },
    // It ends by itself when the channel closes because we were killed.
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  const ended = once(child, 'exit');
  stops.push(async () => {
    child.kill('SIGTERM');
    await ended;
  });
  let output = '';
  const ready = new Promise<void>((resolve) => {
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on('data', (chunk: Buffer) => {
        output += chunk.toString();
        if (output.includes('Ctrl-C stops all of it')) resolve();
      });
    }
  });
  const deadline = delay(START_MS_MAX, 'late', { ref: false });
  const outcome = await Promise.race([ready, ended, deadline]);
  if (outcome !== undefined || child.pid === undefined)
    throw new Error(`npm start does not come up:\n${output}`);
  return child.pid;
}

/** Looks until the last few sums differ by less than a hundredth, and gives the middle one of them. */
async function settled(root: number, signal: AbortSignal): Promise<readonly Memory[]> {
  const looks: { readonly pss: number; readonly memories: readonly Memory[] }[] = [];
  for (;;) {
    const memories = (await Promise.all((await treeOf(root)).map(({ pid }) => memoryOf(pid)))).filter(
      (memory) => memory !== null,
    );
    looks.push({ pss: memories.reduce((all, { pss }) => all + pss, 0), memories });
    const last = looks.slice(-LOOKS_COMPARED);
    const sums = last.map(({ pss }) => pss);
    const still = looks.length > LOOKS_COMPARED && Math.max(...sums) < Math.min(...sums) * 1.01;
    if (still || looks.length >= LOOKS_MAX) {
      const middle = median(sums);
      return last.reduce((best, look) =>
        Math.abs(look.pss - middle) < Math.abs(best.pss - middle) ? look : best,
      ).memories;
    }
    await delay(1_000, undefined, { signal }).catch(() => signal.throwIfAborted());
  }
}

function figuresOf(memories: readonly Memory[]): IdleFigures {
  const groups = new Map<string, { pss: number; rss: number }>();
  for (const { command, pss, rss } of memories) {
    const name = nameOf(command);
    const known = groups.get(name) ?? { pss: 0, rss: 0 };
    groups.set(name, { pss: known.pss + pss, rss: known.rss + rss });
  }
  const mib = (bytes: number): number => Math.round(bytes / 1024 / 102.4) / 10;
  return {
    pss_mib: mib(memories.reduce((all, { pss }) => all + pss, 0)),
    rss_mib: mib(memories.reduce((all, { rss }) => all + rss, 0)),
    processes: [...groups]
      .map(([name, { pss, rss }]) => ({ name, pss_mib: mib(pss), rss_mib: mib(rss) }))
      .sort((a, b) => b.pss_mib - a.pss_mib),
  };
}

function nameOf(command: string): string {
  const rules: readonly (readonly [RegExp, string])[] = [
    [/postgres/, 'postgres'],
    [/server start-dev/, 'temporal'],
    [/workers\/worker\b/, 'worker'],
    [/api\/server\b/, 'api'],
    [/workers\/start\b/, 'supervisor'],
    [/esbuild/, 'esbuild (tsx, development only)'],
    [/mcp|modelcontextprotocol/, 'tool servers'],
  ];
  return rules.find(([pattern]) => pattern.test(command))?.[1] ?? command.slice(0, 40);
}
