import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { afterAll, inject } from 'vitest';
import type {} from './global-setup.js';
import { readConfig } from '../../shared/process/config.js';
import { findTemporalProgram } from '../../workers/stack/temporal-binaries.js';

/** A database of a test's own; dropped after the test file, or earlier by `drop`. */
export interface TestDatabase {
  readonly name: string;
  readonly url: string;
  /** Ends every connection to it and removes it. May be called again. */
  drop(): Promise<void>;
}

/** host:port of the dev server that all test files share: use a task queue and workflow ids of your own. */
export function temporalAddress(): string {
  return inject('temporalAddress');
}

/**
 * Makes a database with the ledger's schema, copied from a migrated template in about 50 ms.
 *
 * @param options.migrated false gives an empty one, for tests of migrating itself
 * @throws Error with the migration's failure, when the template could not be made
 */
export async function createTestDatabase(
  options: { readonly migrated?: boolean } = {},
): Promise<TestDatabase> {
  const problem = inject('templateProblem');
  const migrated = options.migrated ?? true;
  if (migrated && problem) throw new Error(`The template database could not be migrated: ${problem}`);
  const name = `test_${randomUUID().replaceAll('-', '')}`;
  const template = migrated ? inject('templateDatabase') : 'template0';
  await asSuperuser(`create database ${name} template ${template}`);
  const url = new URL(inject('databaseServerUrl'));
  url.pathname = `/${name}`;
  const database = { name, url: url.href, drop: () => dropDatabase(name) };
  open.add(database);
  return database;
}

/**
 * The path of Temporal's time-skipping server, for `TestWorkflowEnvironment.createTimeSkipping` with
 * `executable: { type: 'existing-path', path }`. The first call on a machine fetches it.
 *
 * @throws StartError that says what was tried
 */
export async function timeSkippingServerPath(): Promise<string> {
  const { binaries } = readConfig({ ...process.env, DATABASE_URL: '', TEMPORAL_ADDRESS: '' });
  return (await findTemporalProgram('test-server', binaries)).path;
}

const open = new Set<TestDatabase>();

afterAll(async () => {
  for (const database of open) await database.drop();
});

async function dropDatabase(name: string): Promise<void> {
  await asSuperuser(`drop database if exists ${name} with (force)`);
  for (const database of open) if (database.name === name) open.delete(database);
}

async function asSuperuser(sql: string): Promise<void> {
  const client = new pg.Client(inject('databaseServerUrl'));
  await client.connect();
  try {
    await client.query(sql);
  } finally {
    await client.end();
  }
}
