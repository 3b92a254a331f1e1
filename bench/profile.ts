import { mkdir, readdir, readFile } from 'node:fs/promises';
import pg from 'pg';
import { sendSignal, waitUntil } from '../workers/stack/processes.js';
import { measureBlock } from './block.js';
import { readProfiles, type ThreadProfile } from './cpu-profile.js';
import { LOOP_CALLS, stepsOf } from './project.js';
import { align } from './report.js';
import type { Side } from './sides.js';
import { profilesFolder, type SideName, type World } from './world.js';

const RUNS = 80;
const AT_ONCE = 20;

export interface ProfileOptions {
  readonly say: (line: string) => void;
  readonly signal: AbortSignal;
}

/**
 * Where the time of a run goes: functions of the database, and code and threads of both workers. Watching costs time
 * itself, so these figures are for finding places and not for comparing with others.
 */
export async function profile(
  world: World,
  sides: Readonly<Record<SideName, Side>>,
  { say, signal }: ProfileOptions,
): Promise<string[]> {
  await mkdir(profilesFolder(world.dataDir), { recursive: true });
  const lines: string[] = [];
  for (const side of [sides.bare, sides.holdfast]) {
    say(`profile   ${RUNS} runs of ${side.name}, ${AT_ONCE} at once`);
    const plan = { runs: AT_ONCE * 2, atOnce: AT_ONCE, toolCalls: LOOP_CALLS };
    await measureBlock(world, side, plan, signal);
    const { pid } = world.workers[side.name];
    const before = await threadSeconds(pid);
    sendSignal(pid, 'SIGUSR2');
    const block = await measureBlock(world, side, { ...plan, runs: RUNS }, signal);
    sendSignal(pid, 'SIGUSR2');
    const after = await threadSeconds(pid);
    const profiles = await untilWritten(world, pid);
    const cpu = Object.entries(block.cpu).map(([part, seconds]) => `${part} ${perRun(seconds * 1000)}`);
    lines.push('', `${side.name}: processor milliseconds a run: ${cpu.join(', ')}`);
    lines.push(...threadLines(before, after), ...profiles.flatMap(profileLines));
  }
  return [...lines, '', ...(await functionLines(world))];
}

const perRun = (ms: number): string => (ms / RUNS).toFixed(2);

/** Processor seconds by thread name; threads of one pool bear one name. */
async function threadSeconds(pid: number): Promise<Map<string, number>> {
  const seconds = new Map<string, number>();
  for (const tid of await readdir(`/proc/${pid}/task`)) {
    const stat = await readFile(`/proc/${pid}/task/${tid}/stat`, 'utf8').catch(() => '');
    const end = stat.lastIndexOf(')');
    if (end < 0) continue;
    const fields = stat
      .slice(end + 2)
      .split(' ')
      .map(Number);
    const name = Number(tid) === pid ? 'main' : stat.slice(stat.indexOf('(') + 1, end);
    seconds.set(name, (seconds.get(name) ?? 0) + ((fields[11] ?? 0) + (fields[12] ?? 0)) / 100);
  }
  return seconds;
}

function threadLines(before: Map<string, number>, after: Map<string, number>): string[] {
  const rows = [...after]
    .map(([name, seconds]) => ({ name, ms: (seconds - (before.get(name) ?? 0)) * 1000 }))
    .filter(({ ms }) => ms > 0)
    .sort((a, b) => b.ms - a.ms);
  return align([['  threads', 'ms a run'], ...rows.map(({ name, ms }) => [`  ${name}`, perRun(ms)])]);
}

async function untilWritten(world: World, pid: number): Promise<ThreadProfile[]> {
  let profiles: ThreadProfile[] = [];
  await waitUntil(async () => {
    // A file that is half written does not parse.
    profiles = await readProfiles(profilesFolder(world.dataDir), pid).catch(() => []);
    return profiles.some(({ thread }) => thread === 'main') && profiles.length > 1;
  }, 20);
  return profiles;
}

function profileLines({ thread, busyMs, byOrigin, byFunction }: ThreadProfile): string[] {
  const table = (title: string, rows: ThreadProfile['byOrigin']): string[] =>
    align([[`    ${title}`, 'ms a run'], ...rows.map(([name, ms]) => [`    ${name}`, perRun(ms)])]);
  return [
    `  JavaScript of ${thread}: ${perRun(busyMs)} ms a run`,
    ...table('by origin', byOrigin),
    ...table('by function, itself alone', byFunction),
  ];
}

/** The database's own clock on every function that was called while anything was watched. */
async function functionLines({ databaseUrl }: World): Promise<string[]> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    const { rows } = await client.query<{ name: string; calls: string; total: number; self: number }>(`
      select funcname as name, calls, total_time as total, self_time as self
        from pg_stat_user_functions where schemaname = 'holdfast' order by self_time desc limit 25`);
    const runs = RUNS + AT_ONCE * 2;
    return [
      `database functions (${stepsOf(LOOP_CALLS)} steps a run; a trigger's or a constraint's time is its statement's)`,
      ...align([
        ['  function', 'calls a run', 'ms a run, with callees', 'ms a run, itself', 'ms a call, itself'],
        ...rows.map(({ name, calls, total, self }) => [
          `  ${name}`,
          (Number(calls) / runs).toFixed(1),
          (total / runs).toFixed(2),
          (self / runs).toFixed(2),
          (self / Number(calls)).toFixed(3),
        ]),
      ]),
    ];
  } finally {
    await client.end();
  }
}
