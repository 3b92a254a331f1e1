import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { bundleWorkflowCode } from '@temporalio/worker';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const WRITER = fileURLToPath(new URL('./write-bundle.ts', import.meta.url));

/** What ends up in the bundle, or decides how it is made. */
const SOURCES = ['workflows', 'shared/domain', 'package-lock.json'] as const;

/**
 * The workflow code as one script, made once per content of its sources and kept in `cacheDir`.
 *
 * Made by a process of its own: the bundler takes two hundred megabytes, which a worker that ran it would keep.
 */
export async function bundleWorkflows(cacheDir: string): Promise<{ readonly code: string }> {
  const path = join(cacheDir, `workflows-${await digestOfSources()}.cjs`);
  const cached = await readIfThere(path);
  if (cached !== undefined) return { code: cached };
  await mkdir(cacheDir, { recursive: true });
  await promisify(execFile)(process.execPath, ['--import', import.meta.resolve('tsx'), WRITER, path]);
  return { code: await readFile(path, 'utf8') };
}

/** Bundles and writes `path`, whole or not at all: another process may be reading it, or writing the same. */
export async function writeBundle(path: string): Promise<void> {
  const { code } = await bundleWorkflowCode({
    workflowsPath: join(ROOT, 'workflows/index.ts'),
    logger: { trace() {}, debug() {}, info() {}, warn() {}, error() {}, log() {} },
  });
  const temporary = `${path}.${process.pid}`;
  await writeFile(temporary, code);
  await rename(temporary, path);
}

async function readIfThere(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

async function digestOfSources(): Promise<string> {
  const hash = createHash('sha256');
  for (const source of SOURCES) {
    for (const file of await filesOf(join(ROOT, source))) {
      hash
        .update(file.slice(ROOT.length))
        .update('\0')
        .update(await readFile(file))
        .update('\0');
    }
  }
  return hash.digest('hex').slice(0, 32);
}

async function filesOf(path: string): Promise<string[]> {
  if (/\.\w+$/.test(path)) return [path];
  const entries = await readdir(path, { withFileTypes: true, recursive: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}
