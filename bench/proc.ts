import { readdir, readFile } from 'node:fs/promises';

/** What Linux counts processor time in, whatever the kernel's own tick. */
const TICKS_A_SECOND = 100;

interface ProcessRow {
  readonly pid: number;
  readonly parent: number;
  readonly name: string;
  /** Of the process itself, in seconds. */
  readonly cpu: number;
  /** Of its children that have ended and were waited for. */
  readonly cpuOfEnded: number;
}

/** Every process of this machine, or none where there is no /proc to tell. */
async function processTable(): Promise<ProcessRow[]> {
  if (process.platform !== 'linux') return [];
  const names = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const rows = await Promise.all(names.map((name) => readRow(Number(name))));
  return rows.filter((row) => row !== null);
}

async function readRow(pid: number): Promise<ProcessRow | null> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
  const end = stat.lastIndexOf(')');
  if (end < 0) return null;
  const fields = stat
    .slice(end + 2)
    .split(' ')
    .map(Number);
  const ticks = (first: number): number => ((fields[first] ?? 0) + (fields[first + 1] ?? 0)) / TICKS_A_SECOND;
  const name = stat.slice(stat.indexOf('(') + 1, end);
  return { pid, parent: fields[1] ?? 0, name, cpu: ticks(11), cpuOfEnded: ticks(13) };
}

/** The processes of a tree, its root included. */
export async function treeOf(root: number): Promise<ProcessRow[]> {
  const table = await processTable();
  const tree = table.filter(({ pid }) => pid === root);
  for (const member of tree) tree.push(...table.filter(({ parent }) => parent === member.pid));
  return tree;
}

/**
 * Processor seconds that the trees of these processes have used so far; NaN where it cannot be told. Never goes back:
 * what a child used is its parent's once it has ended.
 */
export async function cpuSeconds(roots: readonly number[]): Promise<number> {
  if (process.platform !== 'linux') return Number.NaN;
  const trees = await Promise.all(roots.map(treeOf));
  return trees.flat().reduce((sum, { cpu, cpuOfEnded }) => sum + cpu + cpuOfEnded, 0);
}

/** Memory of one process, in bytes. */
export interface Memory {
  readonly pid: number;
  readonly command: string;
  /** Resident: pages that processes share are counted in each of them. */
  readonly rss: number;
  /** Proportional: shared pages are divided among those that share them. The sum over processes is what they take. */
  readonly pss: number;
}

export async function memoryOf(pid: number): Promise<Memory | null> {
  try {
    const rollup = await readFile(`/proc/${pid}/smaps_rollup`, 'utf8');
    const command = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0').join(' ').trim();
    const bytes = (name: string): number =>
      Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(rollup)?.[1] ?? Number.NaN) * 1024;
    return { pid, command, rss: bytes('Rss'), pss: bytes('Pss') };
  } catch (error) {
    // It ended between the look at the tree and this one, or has no memory of its own any more.
    if (['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '')) return null;
    throw error;
  }
}
