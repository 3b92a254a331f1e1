import { execFile } from 'node:child_process';
import { readdir, readFile, readlink } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';

/**
 * Names one life of a process: its id and the moment it began, since ids are given out again. Null
 * when no such process runs; a zombie, which only waits for its parent to read its end, does not run.
 */
export async function processIdentity(pid: number): Promise<string | null> {
  if (!Number.isInteger(pid) || pid <= 0) return null;
  if (process.platform !== 'linux') {
    const started = await ps(pid, 'stat=,lstart=');
    return started && !started.startsWith('Z') ? `${pid}:${started.replace(/^\S+\s+/, '')}` : null;
  }
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => null);
  // The name in parentheses may hold spaces and parentheses; the fields are counted from its end.
  const fields = stat?.slice(stat.lastIndexOf(')') + 2).split(' ');
  const [state, threads, startedTicks] = [fields?.[0], fields?.[17], fields?.[19]];
  if (!state || !startedTicks) return null;
  // A killed program's first thread is a zombie while its others still end, and hold its ports and files.
  const ended = 'ZX'.includes(state) && Number(threads) <= 1;
  return ended ? null : `${pid}:${startedTicks}`;
}

/** Whether the process runs, by its id alone. */
export async function isRunning(pid: number): Promise<boolean> {
  return (await processIdentity(pid)) !== null;
}

/** The command line of a process, arguments parted by spaces; empty when it cannot be told. */
export async function commandLine(pid: number): Promise<string> {
  if (process.platform !== 'linux') return (await ps(pid, 'command=')) ?? '';
  const raw = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  return raw.split('\0').join(' ').trim();
}

/**
 * Ids of the processes whose working folder is `folder`. Linux only; empty elsewhere, where it cannot
 * be told.
 */
export async function processesIn(folder: string): Promise<number[]> {
  if (process.platform !== 'linux') return [];
  const found: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const cwd = await readlink(`/proc/${name}/cwd`).catch(() => null);
    if (cwd === folder && (await isRunning(Number(name)))) found.push(Number(name));
  }
  return found;
}

/**
 * Asks a process to end and waits until it has; past `graceSeconds` it is ended with `lastSignal`.
 * A process that is gone already is no error.
 *
 * @throws Error when it still runs 10 s after the last signal
 */
export async function stopProcess(
  pid: number,
  options: {
    readonly signal: NodeJS.Signals;
    readonly lastSignal: NodeJS.Signals;
    readonly graceSeconds: number;
  },
): Promise<void> {
  const identity = await processIdentity(pid);
  if (identity === null) return;
  const ended = async (): Promise<boolean> => (await processIdentity(pid)) !== identity;
  sendSignal(pid, options.signal);
  if (await waitUntil(ended, options.graceSeconds)) return;
  sendSignal(pid, options.lastSignal);
  if (await waitUntil(ended, 10)) return;
  throw new Error(`Process ${pid} does not end, not even by ${options.lastSignal}. End it by hand.`);
}

/** Sends a signal. @returns false when the process was gone already */
export function sendSignal(pid: number, signal: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}

/** Looks every 25 ms until the condition holds. @returns false when it did not within the deadline */
export async function waitUntil(
  condition: () => Promise<boolean> | boolean,
  deadlineSeconds: number,
): Promise<boolean> {
  const deadline = Date.now() + deadlineSeconds * 1000;
  for (;;) {
    if (await condition()) return true;
    if (Date.now() > deadline) return false;
    await delay(25);
  }
}

/** What a finished program said. `code` is null when it could not be run or was ended by a signal. */
export interface ProgramResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * Runs a program to its end, at most `timeoutSeconds`. Never throws: a program that is not there has
 * code null.
 */
export function runProgram(
  file: string,
  args: readonly string[],
  options: {
    readonly timeoutSeconds: number;
    readonly user?: { uid: number; gid: number };
    readonly env?: NodeJS.ProcessEnv;
  },
): Promise<ProgramResult> {
  return new Promise((resolve) => {
    const settings = {
      // Not our own working folder: another user may not be allowed to stand in it.
      cwd: '/',
      timeout: options.timeoutSeconds * 1000,
      maxBuffer: 1024 * 1024,
      ...(options.user ? { uid: options.user.uid, gid: options.user.gid } : {}),
      ...(options.env ? { env: options.env } : {}),
    };
    execFile(file, args, settings, (error, stdout, stderr) => {
      const code = error ? (typeof error.code === 'number' ? error.code : null) : 0;
      resolve({ code, stdout, stderr: stderr || (error && code === null ? error.message : '') });
    });
  });
}

async function ps(pid: number, columns: string): Promise<string | null> {
  const { code, stdout } = await runProgram('ps', ['-o', columns, '-p', String(pid)], { timeoutSeconds: 5 });
  return code === 0 ? stdout.trim() || null : null;
}
