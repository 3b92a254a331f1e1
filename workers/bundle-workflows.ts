import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { bundleWorkflowCode } from '@temporalio/worker';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

/** What ends up in the bundle, or decides how it is made. */
const SOURCES = ['workflows', 'shared/domain', 'package-lock.json'] as const;

/**
 * The workflow code as one script, made once per content of its sources and kept in `cacheDir`. Making it takes a
 * second and a hundred megabytes that the process then keeps; a worker that finds it made starts light.
 */
export async function bundleWorkflows(cacheDir: string): Promise<{ readonly code: string }> {
  const digest = await digestOfSources();
  const path = join(cacheDir, `workflows-${digest}.cjs`);
  const cached = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (cached !== undefined) return { code: cached };
  const { code } = await bundleWorkflowCode({
    workflowsPath: join(ROOT, 'workflows/index.ts'),
    logger: { trace() {}, debug() {}, info() {}, warn() {}, error() {}, log() {} },
  });
  await mkdir(cacheDir, { recursive: true });
  const temporary = `${path}.${process.pid}`;
  await writeFile(temporary, code);
  // Whole or not there: another process may be reading.
  await rename(temporary, path);
  return { code };
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
