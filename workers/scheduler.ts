import {
  type Client,
  ScheduleAlreadyRunning,
  ScheduleNotFoundError,
  type ScheduleOptions,
  type ScheduleSpec,
} from '@temporalio/client';
import { msToTs, requiredTsToDate } from '@temporalio/common/lib/time.js';
import type { Pool } from 'pg';
import { TICK_INPUT_VERSION, TICK_WORKFLOW_TYPE, type TickInput } from '../shared/domain/protocol.js';
import type { ScheduleTiming } from '../shared/domain/schedules.js';
import {
  confirmBackfill,
  confirmSchedule,
  dueBackfills,
  forgetScheduleSync,
  recordWatch,
  schedulesToWatch,
  type UnsyncedSchedule,
  unsyncedSchedules,
  type WatchedSchedule,
} from '../shared/ledger/schedule-sync.js';
import { startQueuedOccurrences } from '../shared/ledger/schedules.js';
import { eachOf } from '../shared/domain/each-of.js';
import type { Logger } from '../shared/process/log.js';
import { isRefusedByTemporal, isUnknownToTemporal, TEMPORAL_CALL_MS } from './temporal-calls.js';

export interface SchedulerDeps {
  readonly db: Pool;
  readonly client: Client;
  readonly namespace: string;
  readonly log: Logger;
}

/**
 * Keeps Temporal's schedules as the ledger has them, hands on backfills, starts what waited for the run before it, and looks
 * for planned times of which nothing was ever seen (SPEC 10). Of any number of workers each may do all of it at once: what is
 * told twice is the same, and a planned time is judged once.
 */
export function createScheduler({ db, client, namespace, log }: SchedulerDeps) {
  const call = <T>(work: () => Promise<T>): Promise<T> =>
    client.withDeadline(Date.now() + TEMPORAL_CALL_MS, work);

  const nextOf = async (scheduleId: string): Promise<Date | null> => {
    const { info } = await call(() => client.schedule.getHandle(scheduleId).describe());
    return info.nextActionTimes[0] ?? null;
  };

  const put = async (schedule: UnsyncedSchedule): Promise<void> => {
    const options = optionsOf(schedule);
    const handle = client.schedule.getHandle(schedule.scheduleId);
    try {
      await call(() => client.schedule.create(options));
      // Times that passed before Temporal heard of it, or while it knew nothing of it any more.
      const since = new Date(
        Math.max(schedule.watchedUntil.getTime(), Date.now() - schedule.catchUpSeconds * 1_000),
      );
      if (!schedule.paused)
        await call(() => handle.backfill({ start: since, end: new Date(), overlap: 'ALLOW_ALL' }));
    } catch (error) {
      if (!(error instanceof ScheduleAlreadyRunning)) throw error;
      await call(() => handle.update(() => options));
    }
  };

  const drop = async ({ scheduleId }: UnsyncedSchedule): Promise<void> => {
    try {
      await call(() => client.schedule.getHandle(scheduleId).delete());
    } catch (error) {
      if (!(error instanceof ScheduleNotFoundError)) throw error;
    }
  };

  const sync = async (): Promise<void> => {
    for (const schedule of await unsyncedSchedules(db)) {
      const { scheduleId } = schedule;
      try {
        await (schedule.deleted ? drop(schedule) : put(schedule));
        const nextAt = schedule.deleted ? null : await nextOf(scheduleId);
        await confirmSchedule(db, schedule, { problem: null, nextAt });
      } catch (error) {
        if (!isRefusedByTemporal(error)) throw error;
        log.error({ err: error, scheduleId }, 'Temporal refuses this schedule');
        await confirmSchedule(db, schedule, { problem: problemOf(error), nextAt: null });
      }
    }
  };

  const backfill = async (): Promise<void> => {
    for (const due of await dueBackfills(db)) {
      const handle = client.schedule.getHandle(due.scheduleId);
      // Temporal leaves out the start of a stretch and keeps its end.
      const start = new Date(due.from.getTime() - 1);
      try {
        await call(() => handle.backfill({ start, end: due.to, overlap: 'ALLOW_ALL' }));
        await confirmBackfill(db, due);
      } catch (error) {
        // Of a schedule that was lost it is told again once that is known. Neither holds up the others.
        if (isUnknownToTemporal(error)) await tellAgain(due.scheduleId);
        else if (!isRefusedByTemporal(error)) throw error;
        else log.error({ err: error, scheduleId: due.scheduleId }, 'Temporal refuses this backfill');
      }
    }
  };

  const tellAgain = async (scheduleId: string): Promise<void> => {
    log.warn({ scheduleId }, 'Temporal does not know this schedule any more; it is told again');
    await forgetScheduleSync(db, scheduleId);
  };

  const plannedTimes = async ({ scheduleId, from, until }: WatchedSchedule): Promise<Date[]> => {
    const { startTime } = await call(() =>
      client.workflowService.listScheduleMatchingTimes({
        namespace,
        scheduleId,
        startTime: msToTs(from.getTime()),
        endTime: msToTs(until.getTime()),
      }),
    );
    return startTime.map((time) => requiredTsToDate(time, 'startTime'));
  };

  return {
    /** Starts what may start, whether or not Temporal is there, and tells Temporal what changed. */
    async round(): Promise<void> {
      await eachOf([() => startQueuedOccurrences(db), sync, backfill], (work) => work());
    },

    /** Writes down each planned time whose catch-up window is over and of which nothing was seen. */
    async watch(): Promise<void> {
      for (const watched of await schedulesToWatch(db)) {
        const { scheduleId } = watched;
        try {
          const planned = await plannedTimes(watched);
          const missed = await recordWatch(db, watched, planned, await nextOf(scheduleId));
          if (missed > 0) log.warn({ scheduleId, missed }, 'planned times of a schedule were missed');
        } catch (error) {
          if (!isUnknownToTemporal(error)) throw error;
          await tellAgain(scheduleId);
        }
      }
    },
  };
}

/** Temporal's own words, cut to what is kept. */
function problemOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  return (cause instanceof Error ? cause.message : String(cause)).slice(0, 1_000);
}

function optionsOf(schedule: UnsyncedSchedule) {
  const input: TickInput = { version: TICK_INPUT_VERSION, scheduleId: schedule.scheduleId };
  return {
    scheduleId: schedule.scheduleId,
    spec: specOf(schedule.timing),
    action: {
      type: 'startWorkflow' as const,
      workflowType: TICK_WORKFLOW_TYPE,
      workflowId: `${schedule.scheduleId}-tick`,
      taskQueue: schedule.taskQueue,
      args: [input],
    },
    // The ledger judges overlaps: a tick is over long before the run that it admitted.
    policies: { overlap: 'ALLOW_ALL' as const, catchupWindow: schedule.catchUpSeconds * 1_000 },
    state: { paused: schedule.paused },
  } satisfies ScheduleOptions;
}

function specOf(timing: ScheduleTiming): ScheduleSpec {
  if ('cron' in timing) return { cronExpressions: timing.cron, timezone: timing.time_zone };
  return {
    intervals: [{ every: timing.every_seconds * 1_000, offset: timing.offset_seconds * 1_000 }],
  };
}
