import { link, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { StartError } from '../../shared/process/exit.js';
import { processIdentity } from './processes.js';

/** A folder held by this process until `release`, or until the process is gone, however it ended. */
export interface FolderLock {
  release(): Promise<void>;
}

/**
 * Takes a folder for this process alone, so that two supervisors never run servers over the same data.
 * A lock left by a process that no longer runs is taken over.
 *
 * @throws StartError naming the process that holds it
 */
export async function lockFolder(folder: string): Promise<FolderLock> {
  await mkdir(folder, { recursive: true });
  const path = join(folder, 'lock');
  const mine = await processIdentity(process.pid);
  if (mine === null) throw new Error('bug: this process cannot tell its own identity');
  const draft = join(folder, `lock.${process.pid}`);
  await writeFile(draft, mine);
  try {
    if (!(await linkNew(draft, path))) await takeOver({ path, draft, folder });
  } finally {
    await rm(draft, { force: true });
  }
  return {
    async release() {
      if ((await readOwner(path)) === mine) await rm(path, { force: true });
    },
  };
}

/** `link` creates the lock with its content in one step: no reader ever sees a lock without an owner. */
async function linkNew(draft: string, path: string): Promise<boolean> {
  try {
    await link(draft, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

async function takeOver(lock: { path: string; draft: string; folder: string }): Promise<void> {
  const owner = await folderOwner(lock.folder);
  if (owner !== null) throw inUse(lock.folder, owner);
  await rename(lock.draft, lock.path);
  // Two processes may have found the same dead owner; the later rename stands, and the other must see it.
  await delay(100);
  const winner = await folderOwner(lock.folder);
  if (winner !== null && winner !== process.pid) throw inUse(lock.folder, winner);
}

function inUse(folder: string, pid: number): StartError {
  return new StartError(
    `${folder} is in use by another Holdfast, process ${pid}. ` +
      `Stop that one, or set HOLDFAST_DATA_DIR to another folder.`,
  );
}

/** The process that holds a folder now, or null. */
export async function folderOwner(folder: string): Promise<number | null> {
  const owner = await readOwner(join(folder, 'lock'));
  if (owner === null) return null;
  const pid = Number.parseInt(owner, 10);
  return (await processIdentity(pid)) === owner ? pid : null;
}

async function readOwner(path: string): Promise<string | null> {
  return await readFile(path, 'utf8').catch(() => null);
}
