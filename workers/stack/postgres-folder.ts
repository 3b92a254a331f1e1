import { createHash, randomBytes } from 'node:crypto';
import { chmod, chown, mkdir, readFile, realpath, rename, rm, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { StartError } from '../../shared/process/exit.js';
import { canReach, ROOT_STATE_FOLDER } from './postgres-binaries.js';
import type { PostgresBinaries, ServerUser } from './postgres-binaries.js';
import { runProgram } from './processes.js';

/** The database superuser of our own Postgres, and the name of its database. */
export const DATABASE_USER = 'holdfast';

/** A Postgres data folder that exists and is whole, with the password made for it. */
export interface PostgresFolder {
  readonly data: string;
  readonly logFile: string;
  readonly password: string;
}

/**
 * Finds or makes the Postgres data folder of a stack.
 *
 * It is `<dataDir>/postgres`. Only where we are root and the postgres user cannot enter that folder
 * is it /var/lib/holdfast/<digest of the path>: durable as well, and named in `<dataDir>/postgres.location`,
 * which is obeyed from then on, so that the data is found again after the repository was moved.
 */
export async function preparePostgresFolder(
  dataDir: string,
  binaries: PostgresBinaries,
): Promise<PostgresFolder> {
  const root = await chooseRoot(dataDir, binaries.user);
  const folder = { data: join(root, 'data'), logFile: join(root, 'server.log') };
  const passwordFile = join(root, 'password');
  // initdb writes to a draft and one rename makes it real: a kill in between leaves no half database.
  const made = await readFile(join(folder.data, 'PG_VERSION'), 'utf8').catch(() => null);
  if (made === null) await initialise({ root, data: folder.data, passwordFile, binaries });
  const major = binaries.version.split('.')[0];
  if (made !== null && made.trim() !== major) {
    throw new StartError(
      `${folder.data} was made by Postgres ${made.trim()}, this is ${major}. ` +
        `Dump it with the older version and load it with this one, or set HOLDFAST_DATA_DIR to a new folder.`,
    );
  }
  return { ...folder, password: (await readFile(passwordFile, 'utf8')).trim() };
}

/** Where the Postgres of a stack keeps its data, log and password; it need not exist yet. */
export async function postgresRoot(dataDir: string): Promise<string> {
  const recorded = await readFile(locationFile(dataDir), 'utf8').catch(() => null);
  return recorded?.trim() ?? defaultRoot(dataDir);
}

const locationFile = (dataDir: string): string => join(dataDir, 'postgres.location');
const defaultRoot = (dataDir: string): string => join(dataDir, 'postgres');

async function chooseRoot(dataDir: string, user: ServerUser): Promise<string> {
  await mkdir(dataDir, { recursive: true, mode: 0o755 });
  const root = await postgresRoot(dataDir);
  await makeOwned(root, user);
  if (root !== defaultRoot(dataDir) || (await canReach(root, user))) return root;
  await removeEmpty(root);
  const digest = createHash('sha256')
    .update(await realpath(dataDir))
    .digest('hex');
  const elsewhere = join(ROOT_STATE_FOLDER, digest.slice(0, 16));
  await mkdir(ROOT_STATE_FOLDER, { recursive: true });
  await chmod(ROOT_STATE_FOLDER, 0o755);
  await makeOwned(elsewhere, user);
  await writeFile(locationFile(dataDir), `${elsewhere}\n`);
  return elsewhere;
}

/**
 * Never more than an empty folder: one that holds data was reachable once, and its data is not ours to
 * drop.
 */
async function removeEmpty(folder: string): Promise<void> {
  try {
    await rmdir(folder);
  } catch (error) {
    throw new StartError(
      `The user postgres can no longer enter ${folder}, which holds data. ` +
        `Make every folder above it passable (chmod o+x), or set HOLDFAST_DATA_DIR to another one.`,
      { cause: error },
    );
  }
}

async function makeOwned(folder: string, user: ServerUser): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  if (user) await chown(folder, user.uid, user.gid);
}

async function initialise(options: {
  root: string;
  data: string;
  passwordFile: string;
  binaries: PostgresBinaries;
}): Promise<void> {
  const { root, data, passwordFile, binaries } = options;
  const draft = join(root, 'data.new');
  await rm(draft, { recursive: true, force: true });
  await writeFile(passwordFile, `${randomBytes(18).toString('base64url')}\n`, { mode: 0o600 });
  if (binaries.user) await chown(passwordFile, binaries.user.uid, binaries.user.gid);
  const args = [`--pgdata=${draft}`, `--username=${DATABASE_USER}`, `--pwfile=${passwordFile}`];
  // The built-in C.UTF-8 depends on no locale of the machine, so text sorts alike everywhere and for ever.
  args.push('--encoding=UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8');
  args.push('--auth-local=reject', '--auth-host=scram-sha-256');
  const result = await runProgram(binaries.initdb, args, {
    timeoutSeconds: 120,
    ...(binaries.user ? { user: binaries.user } : {}),
  });
  if (result.code !== 0) {
    throw new StartError(
      `initdb could not make the database in ${root}: ${result.stderr.trim().split('\n').at(-1) ?? ''} ` +
        `Make the folder writable, or set HOLDFAST_DATA_DIR to another one.`,
    );
  }
  await rename(draft, data);
}
