import { waitUntil } from '../workers/stack/processes.js';
import type { CommitFigures } from './compare.js';
import { statementCounts } from './statements.js';
import type { World } from './world.js';

/**
 * Counts the same transactions in two ways, so that neither is believed alone. Postgres's own counter lags behind
 * while connections live, so at the end the worker is stopped and every other connection to the ledger is ended.
 *
 * @returns what ends the counting; nothing can run in this world after it
 */
export async function countTwice(world: World): Promise<() => Promise<CommitFigures['cross_check']>> {
  const before = await read(world);
  return async () => {
    await world.workers.holdfast.stop();
    await world.admin.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where datname = 'holdfast'`,
    );
    const gone = await waitUntil(async () => {
      const { rowCount } = await world.admin.query(`select from pg_stat_activity where datname = 'holdfast'`);
      return rowCount === 0;
    }, 10);
    if (!gone) return null;
    const after = await read(world);
    return {
      pg_stat_database: after.pg_stat_database - before.pg_stat_database,
      pg_stat_statements: after.pg_stat_statements - before.pg_stat_statements,
    };
  };
}

async function read({ admin }: World) {
  const { rows } = await admin.query<{ commits: string }>(
    `select xact_commit as commits from pg_stat_database where datname = 'holdfast'`,
  );
  const statements = [...(await statementCounts(admin)).values()];
  return {
    pg_stat_database: Number(rows[0]?.commits),
    pg_stat_statements: statements.reduce((all, { calls }) => all + calls, 0),
  };
}
