import type {
  OccurrenceReason,
  OccurrenceState,
  OverlapRule,
  ScheduleTiming,
} from '../../domain/schedules.js';
import type { JsonObject, JsonValue } from '../../domain/json.js';
import type { RunState } from '../../domain/run-machine.js';
import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull } from './row-values.js';

/** A schedule as it stands (SPEC 10). */
export interface ScheduleRecord {
  readonly schedule_id: string;
  readonly name: string;
  readonly version: number;
  readonly agent: string;
  readonly thread_id: string | null;
  readonly input: JsonValue;
  readonly contract: JsonObject;
  readonly timing: ScheduleTiming;
  readonly overlap: OverlapRule;
  readonly catch_up_seconds: number;
  readonly defined_by: string;
  readonly created_at: string;
  readonly changed_at: string;
  readonly paused_at: string | null;
  readonly deleted_at: string | null;
  /** The next planned time, as Temporal said last; null while paused or until it has heard of the schedule. */
  readonly next_at: string | null;
  /** Whether Temporal has this version, and what it said is wrong with it. */
  readonly synced: boolean;
  readonly sync_problem: string | null;
}

const SELECT = `
    select schedule_id, name, version, agent, thread_id, input, contract, timing, overlap, catch_up_seconds, defined_by,
           created_at, changed_at, paused_at, deleted_at, case when paused_at is null then next_at end as next_at,
           synced_version = version and sync_problem is null as synced, sync_problem
      from holdfast.schedules where tenant_id = $1`;

/** The tenant's schedules that are not deleted, oldest first, at most `limit`, after the schedule `after`. */
export async function listSchedules(
  db: Db,
  tenantId: string,
  page: { readonly after: string; readonly limit: number },
): Promise<ScheduleRecord[]> {
  const { rows } = await db.query<ScheduleRow>({
    name: 'reads/schedules',
    text: `${SELECT} and deleted_at is null and schedule_id > $2 order by schedule_id limit $3`,
    values: [tenantId, page.after, page.limit],
  });
  return rows.map(scheduleOf);
}

/** The schedule, deleted ones included, or null when this tenant has no such one. */
export async function readSchedule(
  db: Db,
  tenantId: string,
  scheduleId: string,
): Promise<ScheduleRecord | null> {
  const { rows } = await db.query<ScheduleRow>({
    name: 'reads/schedule',
    text: `${SELECT} and schedule_id = $2`,
    values: [tenantId, scheduleId],
  });
  return rows[0] === undefined ? null : scheduleOf(rows[0]);
}

type Times = 'created_at' | 'changed_at' | 'paused_at' | 'deleted_at' | 'next_at';
type ScheduleRow = Omit<ScheduleRecord, Times> & {
  readonly created_at: Date;
  readonly changed_at: Date;
  readonly paused_at: Date | null;
  readonly deleted_at: Date | null;
  readonly next_at: Date | null;
};

function scheduleOf(row: ScheduleRow): ScheduleRecord {
  return {
    ...row,
    created_at: isoTime(row.created_at),
    changed_at: isoTime(row.changed_at),
    paused_at: isoTimeOrNull(row.paused_at),
    deleted_at: isoTimeOrNull(row.deleted_at),
    next_at: isoTimeOrNull(row.next_at),
  };
}

/** What became of one planned time, or of one start that somebody asked for. */
export interface OccurrenceRecord {
  readonly occurrence_id: string;
  readonly planned_at: string;
  readonly source: 'tick' | 'run_now';
  readonly schedule_version: number;
  readonly state: OccurrenceState;
  readonly reason: OccurrenceReason | null;
  /** On whose account it was skipped or had to wait: a run, a message, or another occurrence. */
  readonly blocked_by: string | null;
  readonly run_id: string | null;
  readonly run_state: RunState | null;
  readonly message_id: string | null;
  readonly asked_by: string | null;
  readonly created_at: string;
  readonly decided_at: string | null;
}

const OCCURRENCES = `
    select o.occurrence_id, o.planned_at, o.source, o.schedule_version, o.state, o.reason, o.blocked_by,
           coalesce(o.run_id, m.run_id) as run_id, r.state as run_state, o.message_id, o.asked_by, o.created_at, o.decided_at
      from holdfast.schedule_occurrences o
      left join holdfast.thread_messages m on m.message_id = o.message_id
      left join holdfast.runs r on r.run_id = coalesce(o.run_id, m.run_id)
     where o.tenant_id = $1 and o.schedule_id = $2`;

/** Occurrences of a schedule, the newest planned time first, at most `limit`, after the place `after`. */
export async function listOccurrences(
  db: Db,
  { tenantId, scheduleId }: { readonly tenantId: string; readonly scheduleId: string },
  state: OccurrenceState | null,
  page: { readonly after: readonly [string, string] | null; readonly limit: number },
): Promise<OccurrenceRecord[]> {
  const { rows } = await db.query<OccurrenceRow>({
    name: 'reads/occurrences',
    text: `${OCCURRENCES} and ($3::text is null or o.state = $3)
              and ($4::timestamptz is null or (date_trunc('milliseconds', o.planned_at), o.occurrence_id::text) < ($4, $5))
            order by date_trunc('milliseconds', o.planned_at) desc, o.occurrence_id desc limit $6`,
    values: [tenantId, scheduleId, state, page.after?.[0] ?? null, page.after?.[1] ?? null, page.limit],
  });
  return rows.map(occurrenceOf);
}

/** One occurrence of this tenant, or null. */
export async function readOccurrence(
  db: Db,
  { tenantId, scheduleId }: { readonly tenantId: string; readonly scheduleId: string },
  occurrenceId: string,
): Promise<OccurrenceRecord | null> {
  const { rows } = await db.query<OccurrenceRow>({
    name: 'reads/occurrence',
    text: `${OCCURRENCES} and o.occurrence_id = $3`,
    values: [tenantId, scheduleId, occurrenceId],
  });
  return rows[0] === undefined ? null : occurrenceOf(rows[0]);
}

type OccurrenceRow = Omit<OccurrenceRecord, 'planned_at' | 'created_at' | 'decided_at'> & {
  readonly planned_at: Date;
  readonly created_at: Date;
  readonly decided_at: Date | null;
};

function occurrenceOf(row: OccurrenceRow): OccurrenceRecord {
  return {
    ...row,
    planned_at: isoTime(row.planned_at),
    created_at: isoTime(row.created_at),
    decided_at: isoTimeOrNull(row.decided_at),
  };
}
