import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, open, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { StartError } from '../../shared/process/exit.js';
import { claimPort, freePort } from './ports.js';
import { processIdentity, stopProcess, waitUntil } from './processes.js';
import { SEARCH_ATTRIBUTE_NAMES } from './search-attributes.js';
import { probeLocalTemporal } from './temporal-check.js';

/** Our own Temporal dev server, which outlives this process unless `stop` is called. */
export interface TemporalServer {
  /** host:port of its gRPC service. */
  readonly address: string;
  /** Null when it was started without one. */
  readonly webUiUrl: string | null;
  readonly pid: number;
  /** Whether it was left running by an earlier, killed supervisor. */
  readonly reused: boolean;
  stop(): Promise<void>;
}

export interface TemporalServerOptions {
  /** The `temporal` program. */
  readonly program: string;
  /** Holds the database, the log and the mark that lets a later start find this server. */
  readonly folder: string;
  /** `file` survives kill -9 of everything; `memory` is faster and gone with the process. */
  readonly storage: 'file' | 'memory';
  /** 0 takes any free port. */
  readonly port: number;
  /** Port of the Web UI, 0 for any free one; null for none. */
  readonly uiPort: number | null;
  readonly namespace: string;
  /** Temporal's own dynamic configuration; values are JSON text. Tests lower limits with it. */
  readonly dynamicConfig?: Readonly<Record<string, string>>;
}

/** The usual start takes 0.2 s, and 1.3 s after a kill -9; a large database on a slow disk takes longer. */
const START_SECONDS = 60;

/**
 * Starts the Temporal dev server, or takes over the one that a killed supervisor left behind with the
 * same settings. Hold the folder's lock: only one process may do this.
 *
 * @throws StartError when a port is taken or the server does not come up
 */
export async function startTemporalServer(options: TemporalServerOptions): Promise<TemporalServer> {
  await mkdir(options.folder, { recursive: true, mode: 0o700 });
  const left = await leftRunning(options);
  if (left) {
    if (left.suits && (await probeLocalTemporal(left.address, options.namespace)) === null) {
      return { ...left, reused: true, stop: () => stopServer(left.pid, options.folder) };
    }
    await stopServer(left.pid, options.folder);
  }
  for (let tries = 1; ; tries += 1) {
    try {
      return await launchServer(options);
    } catch (error) {
      // The server picks ports of its own beside ours and does not hold them while it starts: somebody was quicker.
      if (tries >= LAUNCHES_MAX || !(error instanceof EndedWhileStarting)) throw error;
    }
  }
}

/** How often a server that ends while it starts is started anew before that is the answer. */
const LAUNCHES_MAX = 3;

class EndedWhileStarting extends StartError {}

async function launchServer(options: TemporalServerOptions): Promise<TemporalServer> {
  const port = await claimPort({
    port: options.port,
    purpose: 'Temporal',
    variable: 'HOLDFAST_TEMPORAL_PORT',
  });
  const uiPort = options.uiPort === null ? null : await claimUiPort(options.uiPort, port);
  const address = `127.0.0.1:${port}`;
  const webUiUrl = uiPort === null ? null : `http://127.0.0.1:${uiPort}`;
  const logFile = join(options.folder, 'server.log');
  const pid = await launch(options.program, serverArguments(options, port, uiPort), logFile);
  const identity = await processIdentity(pid);
  await writeMark(options.folder, { identity, pid, address, webUiUrl, asked: digestOf(options) });
  await untilServing({ pid, address, namespace: options.namespace, logFile });
  return { address, webUiUrl, pid, reused: false, stop: () => stopServer(pid, options.folder) };
}

/** Stops a dev server that a killed supervisor left running for `folder`, if there is one. */
export async function stopLeftTemporal(folder: string): Promise<void> {
  const left = await readLiveMark(folder);
  if (left) await stopServer(left.pid, folder);
}

async function claimUiPort(wanted: number, serverPort: number): Promise<number> {
  // Two free ports asked for one after the other may be the same one.
  let uiPort = await claimPort({
    port: wanted,
    purpose: 'the Temporal Web UI',
    variable: 'HOLDFAST_TEMPORAL_UI_PORT',
  });
  while (uiPort === serverPort) uiPort = await freePort();
  return uiPort;
}

function serverArguments(options: TemporalServerOptions, port: number, uiPort: number | null): string[] {
  const args = ['server', 'start-dev', '--ip', '127.0.0.1', '--port', String(port)];
  args.push('--namespace', options.namespace, '--log-level', 'warn', '--log-format', 'json');
  if (options.storage === 'file') {
    args.push('--db-filename', join(options.folder, 'temporal.db'));
    // WAL has 2.5 times the throughput; with synchronous=FULL (2) a committed write is still on disk.
    args.push('--sqlite-pragma', 'journal_mode=wal', '--sqlite-pragma', 'synchronous=2');
  }
  if (uiPort === null) args.push('--headless');
  else args.push('--ui-port', String(uiPort));
  for (const name of SEARCH_ATTRIBUTE_NAMES) args.push('--search-attribute', `${name}=Keyword`);
  // Without it a backlog of one tenant stands before everybody else's tasks.
  for (const [key, value] of Object.entries({
    'matching.enableFairness': 'true',
    ...options.dynamicConfig,
  })) {
    args.push('--dynamic-config-value', `${key}=${value}`);
  }
  return args;
}

async function launch(program: string, args: readonly string[], logFile: string): Promise<number> {
  const log = await open(logFile, 'a', 0o600);
  try {
    // A session of its own: Ctrl-C and a kill of the supervisor reach only the supervisor. No TEMPORAL_*
    // name from our environment: a profile for some other server must not change this one.
    const child = spawn(program, args, {
      cwd: '/',
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
      env: {},
    });
    const pid = await new Promise<number>((resolve, reject) => {
      child.once('error', reject);
      child.once('spawn', () => resolve(child.pid ?? 0));
    });
    child.unref();
    return pid;
  } finally {
    await log.close();
  }
}

async function untilServing(server: {
  pid: number;
  address: string;
  namespace: string;
  logFile: string;
}): Promise<void> {
  let problem: string | null = null;
  let ended = false;
  const answered = await waitUntil(async () => {
    ended = (await processIdentity(server.pid)) === null;
    if (ended) return true;
    problem = await probeLocalTemporal(server.address, server.namespace);
    return problem === null;
  }, START_SECONDS);
  if (answered && !ended) return;
  const log = (await readFile(server.logFile, 'utf8').catch(() => '')).trim().split('\n').slice(-3).join(' ');
  if (ended) {
    throw new EndedWhileStarting(
      `The Temporal dev server ended while starting (${log.slice(-400)}). Its log is ${server.logFile}.`,
    );
  }
  throw new StartError(
    `The Temporal dev server does not serve after ${START_SECONDS} s (${problem ?? ''}). Its log is ${server.logFile}.`,
  );
}

async function stopServer(pid: number, folder: string): Promise<void> {
  await stopProcess(pid, { signal: 'SIGTERM', lastSignal: 'SIGKILL', graceSeconds: 20 });
  await rm(markPath(folder), { force: true });
}

/** What a start writes down so that the next one knows its server again. */
interface Mark {
  readonly identity: string | null;
  readonly pid: number;
  readonly address: string;
  readonly webUiUrl: string | null;
  /** Digest of the options that were asked for: other options need another server. */
  readonly asked: string;
}

async function leftRunning(options: TemporalServerOptions): Promise<(Mark & { suits: boolean }) | null> {
  const mark = await readLiveMark(options.folder);
  return mark && { ...mark, suits: mark.asked === digestOf(options) && samePorts(mark, options) };
}

async function readLiveMark(folder: string): Promise<Mark | null> {
  const text = await readFile(markPath(folder), 'utf8').catch(() => null);
  if (text === null) return null;
  const mark = JSON.parse(text) as Mark;
  return mark.identity !== null && (await processIdentity(mark.pid)) === mark.identity ? mark : null;
}

async function writeMark(folder: string, mark: Mark): Promise<void> {
  await writeFile(`${markPath(folder)}.new`, JSON.stringify(mark), { mode: 0o600 });
  await rename(`${markPath(folder)}.new`, markPath(folder));
}

function markPath(folder: string): string {
  return join(folder, 'server.json');
}

/** Digest of all that makes a server another one; ports are compared apart, since 0 suits any. */
function digestOf(options: TemporalServerOptions): string {
  const { port: _port, uiPort, ...rest } = options;
  return createHash('sha256')
    .update(JSON.stringify({ ...rest, webUi: uiPort !== null }))
    .digest('hex');
}

function samePorts(mark: Mark, options: TemporalServerOptions): boolean {
  const suits = (url: string, wanted: number): boolean => wanted === 0 || url.endsWith(`:${wanted}`);
  return (
    suits(mark.address, options.port) &&
    (options.uiPort === null || mark.webUiUrl === null || suits(mark.webUiUrl, options.uiPort))
  );
}
