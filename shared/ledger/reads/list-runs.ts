import type { ControlState, RunState } from '../../domain/run-machine.js';
import { isoTime, isoTimeOrNull } from './row-values.js';
import type { Db } from '../database.js';

/** A run in one line. */
export interface RunSummary {
  readonly run_id: string;
  readonly job_id: string;
  readonly thread_id: string | null;
  readonly parent_run_id: string | null;
  readonly actor_id: string;
  readonly agent: string;
  readonly agent_version: string;
  readonly state: RunState;
  readonly control: ControlState;
  /** Of the last transition; null before the first move. */
  readonly reason: string | null;
  readonly admitted_at: string;
  readonly started_at: string | null;
  readonly ended_at: string | null;
  readonly deadline_at: string;
  readonly updated_at: string;
}

/** Which runs are wanted; null asks for all. Times are ISO 8601, both ends left out. */
export interface RunFilters {
  readonly state: RunState | null;
  readonly agent: string | null;
  readonly jobId: string | null;
  readonly parentRunId: string | null;
  readonly threadId: string | null;
  readonly createdAfter: string | null;
  readonly createdBefore: string | null;
}

/** Every run. */
export const NO_FILTERS: RunFilters = {
  ...{ state: null, agent: null, jobId: null, parentRunId: null, threadId: null },
  ...{ createdAfter: null, createdBefore: null },
};

const LIST_RUNS = {
  name: 'reads/list-runs',
  text: `
    select run_id, job_id, thread_id, parent_run_id, actor_id, agent, agent_version, state, control, reason,
           admitted_at, started_at, ended_at, deadline_at, updated_at
      from holdfast.runs
     where tenant_id = $1
       and ($2::text is null or state = $2)
       and ($3::text is null or agent = $3)
       and ($4::text is null or job_id = $4)
       and ($5::timestamptz is null or admitted_at > $5)
       and ($6::timestamptz is null or admitted_at < $6)
       and ($7::text is null or run_id < $7)
       and ($8::text is null or parent_run_id = $8)
       and ($9::text is null or thread_id = $9)
     order by run_id desc
     limit $10`,
};

/** The tenant's runs, newest first, at most `limit`, before the run `before` where one is given. */
export async function listRuns(
  db: Db,
  tenantId: string,
  filters: RunFilters,
  page: { readonly before: string | null; readonly limit: number },
): Promise<RunSummary[]> {
  const { state, agent, jobId, createdAfter, createdBefore, parentRunId, threadId } = filters;
  const values = [
    ...[tenantId, state, agent, jobId, createdAfter, createdBefore, page.before, parentRunId, threadId],
    page.limit,
  ];
  const { rows } = await db.query<SummaryRow>({ ...LIST_RUNS, values });
  return rows.map((row) => ({
    ...row,
    admitted_at: isoTime(row.admitted_at),
    started_at: isoTimeOrNull(row.started_at),
    ended_at: isoTimeOrNull(row.ended_at),
    deadline_at: isoTime(row.deadline_at),
    updated_at: isoTime(row.updated_at),
  }));
}

type Times = 'admitted_at' | 'started_at' | 'ended_at' | 'deadline_at' | 'updated_at';
type SummaryRow = Omit<RunSummary, Times> & {
  readonly admitted_at: Date;
  readonly started_at: Date | null;
  readonly ended_at: Date | null;
  readonly deadline_at: Date;
  readonly updated_at: Date;
};
