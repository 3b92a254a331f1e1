import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { readFile, rename, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { isReadyMessage } from '../../shared/process/child.js';
import type { ReadyMessage } from '../../shared/process/child.js';
import { StartError } from '../../shared/process/exit.js';
import { processIdentity, stopProcess } from './processes.js';

/** A child process that is started again when it dies, until `stop`. */
export interface SupervisedChild {
  readonly role: ReadyMessage['role'];
  /** Of its present life; null between two lives. */
  pid(): number | null;
  stop(): Promise<void>;
  /** Ends the child at once, without waiting for it. */
  kill(): void;
}

export interface ChildOptions {
  readonly role: ReadyMessage['role'];
  /** Its entry point without the ending: `.ts` in development, `.js` in a build. */
  readonly entry: URL;
  readonly nodeFlags: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly say: (line: string) => void;
  /** Remembers its process id, so that a later start can end it should we be killed. */
  readonly register: (role: string, pid: number) => Promise<void>;
}

/** A worker bundles its workflows first; on a busy small machine that takes a while. */
const READY_SECONDS = 120;
const STOP_SECONDS = 20;
const BACKOFF_FIRST_MS = 500;
const BACKOFF_LAST_MS = 30_000;
/** A child that lived this long starts its next series of restarts from the shortest wait. */
const STABLE_MS = 60_000;

/**
 * Starts a child and waits until it says that it is ready.
 *
 * @throws StartError when it ends or stays silent instead; it is not running then
 */
export async function superviseChild(
  options: ChildOptions,
): Promise<{ readonly child: SupervisedChild; readonly ready: ReadyMessage }> {
  let current = await launch(options);
  const ready = await untilReady(current, options.role);
  const stopping = new AbortController();
  const watching = keepAlive(options, current, stopping.signal, (next) => {
    current = next;
  });
  return {
    ready,
    child: {
      role: options.role,
      pid: () => (current.exitCode === null && current.signalCode === null ? (current.pid ?? null) : null),
      kill: () => void current.kill('SIGKILL'),
      async stop() {
        stopping.abort();
        await endChild(current);
        await watching;
      },
    },
  };
}

async function keepAlive(
  options: ChildOptions,
  first: ChildProcess,
  stopping: AbortSignal,
  replace: (next: ChildProcess) => void,
): Promise<void> {
  let child = first;
  let waitMs = BACKOFF_FIRST_MS;
  for (;;) {
    const begun = Date.now();
    await ended(child);
    if (stopping.aborted) return;
    waitMs = Date.now() - begun > STABLE_MS ? BACKOFF_FIRST_MS : waitMs;
    options.say(
      `${options.role.padEnd(9)} ended unexpectedly (${howEnded(child)}); again in ${waitMs / 1000} s`,
    );
    await delay(waitMs, undefined, { signal: stopping }).catch(() => undefined);
    waitMs = Math.min(waitMs * 2, BACKOFF_LAST_MS);
    if (stopping.aborted) return;
    try {
      child = await launch(options);
      replace(child);
      // `stop` may have looked at the child before this one.
      if (stopping.aborted) return await endChild(child);
      await untilReady(child, options.role);
      options.say(`${options.role.padEnd(9)} ready again, process ${child.pid}`);
    } catch (error) {
      // A child that ended is told of at the top of the loop; one that could not be started is told of here.
      const reason = error instanceof Error ? error.message : String(error);
      if (!(error instanceof StartError)) options.say(`${options.role.padEnd(9)} not started: ${reason}`);
    }
  }
}

async function launch(options: ChildOptions): Promise<ChildProcess> {
  const typescript = import.meta.url.endsWith('.ts');
  const tsx = typescript ? ['--import', tsxLoader()] : [];
  const script = `${fileURLToPath(options.entry)}.${typescript ? 'ts' : 'js'}`;
  const child = spawn(process.execPath, [...options.nodeFlags, ...tsx, script], {
    env: options.env,
    // A session of its own: Ctrl-C reaches only us, and we stop the parts in their order.
    detached: true,
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  await new Promise<void>((resolve, reject) => {
    child.once('spawn', resolve);
    child.once('error', reject);
  });
  // A message to a child that is just ending fails; its end is seen by `ended`.
  child.on('error', () => undefined);
  if (child.pid) await options.register(options.role, child.pid);
  return child;
}

/** Where Node finds tsx's loader, whatever the working folder is. */
export function tsxLoader(): string {
  return pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
}

async function untilReady(child: ChildProcess, role: string): Promise<ReadyMessage> {
  const timeout = new AbortController();
  const message = await Promise.race([
    new Promise<ReadyMessage>((resolve) => {
      child.on('message', (received) => {
        if (isReadyMessage(received)) resolve(received);
      });
    }),
    ended(child).then(() => null),
    delay(READY_SECONDS * 1000, undefined, { signal: timeout.signal }).catch(() => undefined),
  ]);
  timeout.abort();
  if (message) return message;
  if (message === undefined) await endChild(child);
  throw new StartError(
    message === null
      ? `The ${role} ended before it was ready (${howEnded(child)}). Its own message stands above.`
      : `The ${role} was not ready after ${READY_SECONDS} s and was stopped. Its own messages stand above.`,
  );
}

function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  return new Promise((resolve) => {
    child.once('exit', () => resolve());
  });
}

function howEnded(child: ChildProcess): string {
  return child.signalCode ? `by ${child.signalCode}` : `exit code ${child.exitCode}`;
}

async function endChild(child: ChildProcess): Promise<void> {
  if (!child.pid || child.exitCode !== null || child.signalCode !== null) return;
  await stopProcess(child.pid, { signal: 'SIGTERM', lastSignal: 'SIGKILL', graceSeconds: STOP_SECONDS });
}

/**
 * Ends the children that an earlier, killed supervisor left running.
 *
 * @returns what writes down a child of this supervisor at `path`, so that the next one can do the same
 */
export async function openChildRegister(
  path: string,
  say: (line: string) => void,
): Promise<ChildOptions['register']> {
  const text = await readFile(path, 'utf8').catch(() => null);
  for (const [role, identity] of Object.entries(text ? (JSON.parse(text) as Record<string, string>) : {})) {
    const pid = Number.parseInt(identity, 10);
    if ((await processIdentity(pid)) !== identity) continue;
    say(`${role.padEnd(9)} process ${pid} of an earlier start is still there; stopping it`);
    await stopProcess(pid, { signal: 'SIGTERM', lastSignal: 'SIGKILL', graceSeconds: STOP_SECONDS });
  }
  const known: Record<string, string> = {};
  // One write after the other: two children may be started at the same time.
  let writing = Promise.resolve();
  return async (role, pid) => {
    const identity = await processIdentity(pid);
    if (identity === null) return;
    known[role] = identity;
    writing = writing.then(async () => {
      await writeFile(`${path}.new`, JSON.stringify(known));
      await rename(`${path}.new`, path);
    });
    await writing;
  };
}
