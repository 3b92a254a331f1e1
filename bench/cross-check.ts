import { waitUntil } from '../workers/stack/processes.js';
import type { CommitFigures } from './compare.js';
import { statementCounts } from './statements.js';
import type { World } from './world.js';

/**
 * Counts the same transactions in three ways, so that none is believed alone. `pg_stat_database` lags behind while
 * connections live, so at the end the worker is stopped and every other connection to the ledger is ended; and it
 * counts a transaction for each notification that each listening connection takes in.
 *
 * @returns what ends the counting; nothing can run in this world after it
 */
export async function countThrice(world: World): Promise<() => Promise<CommitFigures['cross_check']>> {
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
      transaction_ids: after.transaction_ids - before.transaction_ids,
      statements: after.statements - before.statements,
      pg_stat_database: after.pg_stat_database - before.pg_stat_database,
    };
  };
}

async function read({ admin }: World) {
  // Only what writes gets a transaction id.
  const { rows } = await admin.query<{ ids: string; commits: string }>(`
    select pg_snapshot_xmax(pg_current_snapshot())::text as ids, xact_commit as commits
      from pg_stat_database where datname = 'holdfast'`);
  const statements = [...(await statementCounts(admin)).values()];
  return {
    transaction_ids: Number(rows[0]?.ids),
    statements: statements.reduce((all, { calls }) => all + calls, 0),
    pg_stat_database: Number(rows[0]?.commits),
  };
}
