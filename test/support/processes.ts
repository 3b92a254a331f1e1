import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { afterAll } from 'vitest';
import { isReadyMessage } from '../../shared/process/child.js';
import type { ReadyMessage } from '../../shared/process/child.js';
import { tsxLoader } from '../../workers/stack/supervised-child.js';

/** How a process came to its end: exactly one of the two is not null. */
export interface ProcessEnd {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** A Node process that a test started, and that is killed with -9 after the test file if it still runs. */
export interface TestProcess {
  readonly pid: number;
  /** Resolves with its ready message; rejects, with its output, when it ends or stays silent instead. */
  readonly ready: Promise<ReadyMessage>;
  readonly ended: Promise<ProcessEnd>;
  /** Everything it wrote to stdout and stderr so far. */
  output(): string;
  /** The messages it sent over IPC so far. */
  messages(): readonly unknown[];
  send(message: object): void;
  /** Sends a signal; resolves when the process has ended, and at once for SIGSTOP and SIGCONT. */
  signal(signal: NodeJS.Signals): Promise<void>;
}

/**
 * Starts a TypeScript entry point in a process of its own, with an IPC channel.
 *
 * @param options.entry path from the repository's root, such as `workers/worker.ts`, or an absolute one
 * @param options.env laid over the test's own environment
 * @param options.readySeconds how long `ready` waits; 60 unless given
 */
export function startTestProcess(options: {
  readonly entry: string;
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly readySeconds?: number;
}): TestProcess {
  const root = new URL('../../', import.meta.url);
  const script = fileURLToPath(new URL(options.entry, root));
  const child = spawn(process.execPath, ['--import', tsxLoader(), script, ...(options.args ?? [])], {
    cwd: fileURLToPath(root),
    env: { ...process.env, ...options.env },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  const { pid } = child;
  if (pid === undefined) throw new Error(`${options.entry} could not be started`);
  const written: string[] = [];
  const received: unknown[] = [];
  child.stdout?.on('data', (chunk: Buffer) => written.push(chunk.toString()));
  child.stderr?.on('data', (chunk: Buffer) => written.push(chunk.toString()));
  child.on('message', (message) => received.push(message));
  const ended = new Promise<ProcessEnd>((resolve) => {
    child.once('close', (code, signal) => resolve({ code, signal }));
  });
  const ready = new Promise<ReadyMessage>((resolve, reject) => {
    const seconds = options.readySeconds ?? 60;
    const fail = (what: string): void =>
      reject(new Error(`${options.entry} ${what}. Its output:\n${written.join('')}`));
    const timer = setTimeout(() => fail(`was not ready after ${seconds} s`), seconds * 1000);
    child.on('message', (message) => {
      if (!isReadyMessage(message)) return;
      clearTimeout(timer);
      resolve(message);
    });
    void ended.then(({ code, signal }) => {
      clearTimeout(timer);
      fail(`ended before it was ready (${signal ?? `exit code ${code}`})`);
    });
  });
  // A test that never asks whether it is ready must not fail by an unhandled rejection.
  ready.catch(() => undefined);
  running.add(pid);
  void ended.then(() => running.delete(pid));
  return {
    pid,
    ready,
    ended,
    output: () => written.join(''),
    messages: () => received,
    send: (message) => void child.send(message),
    async signal(signal) {
      child.kill(signal);
      if (signal !== 'SIGSTOP' && signal !== 'SIGCONT') await ended;
    },
  };
}

const running = new Set<number>();

function killAll(): void {
  for (const pid of running) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }
}

afterAll(killAll);
process.on('exit', killAll);
