import type { ScheduleTiming } from '../domain/schedules.js';
import type { Db } from './database.js';
import { newId } from './new-id.js';

/** What Temporal is to be told of a schedule. */
export interface UnsyncedSchedule {
  readonly scheduleId: string;
  readonly version: number;
  readonly timing: ScheduleTiming;
  readonly catchUpSeconds: number;
  readonly taskQueue: string;
  readonly paused: boolean;
  readonly deleted: boolean;
  /** Temporal has heard of it before. */
  readonly known: boolean;
  readonly watchedUntil: Date;
}

const UNSYNCED = {
  name: 'ledger/unsynced-schedules',
  text: `select schedule_id as "scheduleId", version, timing, catch_up_seconds as "catchUpSeconds", task_queue as "taskQueue",
                paused_at is not null as paused, deleted_at is not null as deleted, synced_version > 0 as known,
                watched_until as "watchedUntil"
           from holdfast.schedules where synced_version <> version order by schedule_id limit 100`,
};

/** Schedules of which Temporal has not heard the newest version. */
export async function unsyncedSchedules(db: Db): Promise<UnsyncedSchedule[]> {
  return (await db.query<UnsyncedSchedule>(UNSYNCED)).rows;
}

/** Temporal has this version, or said what is wrong with it. */
export async function confirmSchedule(
  db: Db,
  schedule: Pick<UnsyncedSchedule, 'scheduleId' | 'version'>,
  told: { readonly problem: string | null; readonly nextAt: Date | null },
): Promise<void> {
  await db.query({
    name: 'ledger/confirm-schedule',
    text: 'select holdfast.confirm_schedule($1, $2, $3, $4)',
    values: [schedule.scheduleId, schedule.version, told.problem, told.nextAt],
  });
}

/** Temporal does not know the schedule any more: it is to be told again. */
export async function forgetScheduleSync(db: Db, scheduleId: string): Promise<void> {
  await db.query({
    name: 'ledger/forget-schedule-sync',
    text: 'select holdfast.forget_schedule_sync($1)',
    values: [scheduleId],
  });
}

/** A stretch of planned times that somebody asked for and Temporal has not been told of. */
export interface DueBackfill {
  readonly scheduleId: string;
  readonly key: string;
  readonly from: Date;
  readonly to: Date;
}

/** Backfills that are due, of schedules that Temporal knows as they are. */
export async function dueBackfills(db: Db): Promise<DueBackfill[]> {
  const { rows } = await db.query<DueBackfill>({
    name: 'ledger/due-backfills',
    text: `select schedule_id as "scheduleId", idempotency_key as key, from_at as "from", to_at as "to"
             from holdfast.schedule_backfills join holdfast.schedules using (schedule_id)
            where done_at is null and deleted_at is null and synced_version = version and sync_problem is null
            order by asked_at limit 20`,
  });
  return rows;
}

/** Temporal has been told of a backfill. Told twice, each planned time is judged once all the same. */
export async function confirmBackfill(db: Db, { scheduleId, key }: DueBackfill): Promise<void> {
  await db.query({
    name: 'ledger/confirm-backfill',
    text: 'select holdfast.confirm_backfill($1, $2)',
    values: [scheduleId, key],
  });
}

/** A stretch of time of a schedule whose planned times must all be there by now. */
export interface WatchedSchedule {
  readonly scheduleId: string;
  readonly version: number;
  readonly from: Date;
  readonly until: Date;
}

/** After its catch-up window a tick has this long to reach the ledger, in seconds, before it counts as missed. */
const GRACE_SECONDS = 60;

/** Schedules with planned times that nobody has looked for yet and that cannot come any more. */
export async function schedulesToWatch(db: Db): Promise<WatchedSchedule[]> {
  const { rows } = await db.query<WatchedSchedule>({
    name: 'ledger/schedules-to-watch',
    text: `select schedule_id as "scheduleId", version, watched_until as "from", until
             from holdfast.schedules, lateral (
               select clock_timestamp() - make_interval(secs => catch_up_seconds + $1)) as w (until)
            where deleted_at is null and synced_version = version and sync_problem is null
              and watched_until < until
            order by watched_until limit 100`,
    values: [GRACE_SECONDS],
  });
  return rows;
}

/** These were the planned times up to `until`: what nothing was seen of is written down as missed. @returns how many */
export async function recordWatch(
  db: Db,
  { scheduleId, version, until }: WatchedSchedule,
  planned: readonly Date[],
  nextAt: Date | null,
): Promise<number> {
  const { rows } = await db.query<{ missed: number }>({
    name: 'ledger/record-watch',
    text: 'select holdfast.record_watch($1, $2, $3, $4, $5, $6) as missed',
    values: [scheduleId, version, planned, planned.map(() => newId('occ')), until, nextAt],
  });
  return rows[0]?.missed ?? 0;
}
