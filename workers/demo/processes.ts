import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { StartError } from '../../shared/process/exit.js';

/** A Node process of ours to be started. */
export interface ChildOptions {
  /** For messages: `worker`, `api`. */
  readonly name: string;
  /** A TypeScript entry point, relative to the repository. */
  readonly script: string;
  readonly args?: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly cwd: string;
  /** Takes both output streams; appended to. */
  readonly outputPath: string;
}

/** A process that has said it is ready. */
export interface Child {
  readonly name: string;
  readonly pid: number;
  /** What it said over IPC when it was ready. */
  readonly ready: Readonly<Record<string, unknown>>;
  /** Undefined while it lives; afterwards how it ended, in words. */
  ending(): string | undefined;
  /** Kills it with -9 and returns when it is gone. */
  kill(): Promise<void>;
  /** Asks it to end, and kills it when it has not within 8 seconds. */
  stop(): Promise<void>;
}

const READY_WITHIN_MS = 45_000;
const STOP_WITHIN_MS = 8_000;

/**
 * Starts a Node process and waits for `{ kind: 'ready' }` over IPC.
 *
 * @throws StartError with the last lines of its output when it ends first or is not ready within 45 seconds;
 *   it is gone then
 */
export async function startChild(options: ChildOptions): Promise<Child> {
  const output = openSync(options.outputPath, 'a');
  const process_ = spawn(process.execPath, ['--import', 'tsx', options.script, ...(options.args ?? [])], {
    cwd: options.cwd,
    env: options.env,
    stdio: ['ignore', output, output, 'ipc'],
  });
  closeSync(output);

  let ending: string | undefined;
  const ended = new Promise<void>((resolve) => {
    const end = (words: string) => {
      ending ??= words;
      resolve();
    };
    process_.once('exit', (code, signal) => end(signal === null ? `exit code ${code}` : `signal ${signal}`));
    process_.once('error', (error) => end(error.message));
  });
  const kill = async (): Promise<void> => {
    process_.kill('SIGKILL');
    await ended;
  };

  const ready = await Promise.race([readyMessage(process_), ended, timeout(READY_WITHIN_MS)]);
  if (ready === undefined || process_.pid === undefined) {
    const what =
      ending === undefined ? `was not ready within ${READY_WITHIN_MS / 1000} s` : `ended (${ending})`;
    await kill();
    throw new StartError(
      `The ${options.name} ${what}. Its last words:\n${await lastLines(options.outputPath)}`,
    );
  }
  return {
    name: options.name,
    pid: process_.pid,
    ready,
    ending: () => ending,
    kill,
    async stop() {
      process_.kill('SIGTERM');
      await Promise.race([ended, timeout(STOP_WITHIN_MS)]);
      if (ending === undefined) await kill();
    },
  };
}

function readyMessage(child: ChildProcess): Promise<Readonly<Record<string, unknown>>> {
  return new Promise((resolve) => {
    child.on('message', (message) => {
      if (typeof message !== 'object' || message === null) return;
      const fields = message as Readonly<Record<string, unknown>>;
      if (fields['kind'] === 'ready') resolve(fields);
    });
  });
}

function timeout(ms: number): Promise<undefined> {
  return new Promise((resolve) => setTimeout(resolve, ms, undefined).unref());
}

async function lastLines(path: string): Promise<string> {
  const text = await readFile(path, 'utf8');
  return text.trimEnd().split('\n').slice(-15).join('\n');
}
