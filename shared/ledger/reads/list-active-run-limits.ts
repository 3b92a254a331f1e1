import type { Db } from '../database.js';
import { isoTime } from './row-values.js';

/** One limit on active runs, with what counts against it and what waits. */
export interface ActiveRunLimitRecord {
  readonly agent: string | null;
  readonly active_max: number;
  readonly active: number;
  readonly queued: number;
  readonly changed_by: string;
  readonly changed_at: string;
}

const LIST = {
  name: 'reads/active-run-limits',
  text: `
    select l.agent, l.active_max, l.changed_by, l.changed_at,
           (select count(*)::int from holdfast.active_runs a
             where a.tenant_id = l.tenant_id and (l.agent is null or a.agent = l.agent)) as active,
           (select count(*)::int from holdfast.runs r
             where r.tenant_id = l.tenant_id and (l.agent is null or r.agent = l.agent) and r.parent_run_id is null
               and r.state = 'admitted' and r.start_confirmed_at is null and r.start_granted_at is null) as queued
      from holdfast.active_run_limits l where l.tenant_id = $1 order by l.agent nulls first`,
};

/** The tenant's limits on active runs: that of all agents first. */
export async function listActiveRunLimits(db: Db, tenantId: string): Promise<ActiveRunLimitRecord[]> {
  const { rows } = await db.query<Omit<ActiveRunLimitRecord, 'changed_at'> & { changed_at: Date }>({
    ...LIST,
    values: [tenantId],
  });
  return rows.map((row) => ({ ...row, changed_at: isoTime(row.changed_at) }));
}
