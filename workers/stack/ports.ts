import { readdir, readFile, readlink } from 'node:fs/promises';
import { createServer } from 'node:net';
import { StartError } from '../../shared/process/exit.js';
import { commandLine, runProgram } from './processes.js';

/** A port that is about to be taken, and the words for it in an error. */
export interface PortClaim {
  readonly host?: string;
  readonly port: number;
  /** What listens there: `Postgres`, `the API`. */
  readonly purpose: string;
  /** The setting that moves it. */
  readonly variable: string;
}

/**
 * Makes sure that a port can be listened on, and picks a free one for 0. Whoever takes it next may
 * still lose a race for it and then says so itself.
 *
 * @throws StartError naming the port, the process that holds it if it can be told, and the setting to change
 */
export async function claimPort(claim: PortClaim): Promise<number> {
  const outcome = await tryListen(claim.host ?? '127.0.0.1', claim.port);
  if (typeof outcome === 'number') return outcome;
  if (outcome === 'EADDRINUSE') {
    const holder = await findListener(claim.port);
    throw new StartError(
      `Port ${claim.port} for ${claim.purpose} is in use${holder ? ` by ${holder}` : ''}. ` +
        `Stop that process, or set ${claim.variable} to another port.`,
    );
  }
  throw new StartError(
    `Port ${claim.port} for ${claim.purpose} cannot be listened on (${outcome}). ` +
      `Set ${claim.variable} to another port.`,
  );
}

/** A free port on 127.0.0.1. */
export async function freePort(): Promise<number> {
  const outcome = await tryListen('127.0.0.1', 0);
  if (typeof outcome === 'number') return outcome;
  throw new StartError(`No free port on 127.0.0.1 (${outcome}). Close programs that hold many ports.`);
}

/** Whether a port can be listened on now. */
export async function isPortFree(port: number, host = '127.0.0.1'): Promise<boolean> {
  return typeof (await tryListen(host, port)) === 'number';
}

/** `process 4242 (node server.js)`, or null when the listener belongs to another user or cannot be told. */
export async function findListener(port: number): Promise<string | null> {
  const pid = process.platform === 'linux' ? await linuxListener(port) : await lsofListener(port);
  if (pid === null) return null;
  const command = (await commandLine(pid)).slice(0, 80);
  return `process ${pid}${command ? ` (${command})` : ''}`;
}

function tryListen(host: string, port: number): Promise<number | string> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
    server.listen({ host, port, exclusive: true }, () => {
      const address = server.address();
      const taken = address !== null && typeof address === 'object' ? address.port : port;
      server.close(() => resolve(taken));
    });
  });
}

async function linuxListener(port: number): Promise<number | null> {
  const inodes = new Set<string>();
  for (const table of ['/proc/net/tcp', '/proc/net/tcp6']) {
    const rows = (await readFile(table, 'utf8').catch(() => '')).split('\n').slice(1);
    for (const row of rows) {
      const [, local, , state, , , , , , inode] = row.trim().split(/\s+/);
      // State 0A is LISTEN; the port stands in hexadecimal after the colon.
      if (state === '0A' && inode && parseInt(local?.split(':')[1] ?? '', 16) === port) {
        inodes.add(`socket:[${inode}]`);
      }
    }
  }
  if (inodes.size === 0) return null;
  for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name))) {
    for (const fd of await readdir(`/proc/${pid}/fd`).catch(() => [])) {
      const target = await readlink(`/proc/${pid}/fd/${fd}`).catch(() => '');
      if (inodes.has(target)) return Number(pid);
    }
  }
  return null;
}

async function lsofListener(port: number): Promise<number | null> {
  const { stdout } = await runProgram('lsof', ['-nP', '-t', `-iTCP:${port}`, '-sTCP:LISTEN'], {
    timeoutSeconds: 5,
  });
  return Number.parseInt(stdout, 10) || null;
}
