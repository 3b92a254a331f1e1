import type { RunContract } from '../domain/contract.js';
import type { JsonObject, JsonValue } from '../domain/json.js';
import type { Role } from '../domain/roles.js';
import type { OverlapRule, ScheduleTiming } from '../domain/schedules.js';
import { eachOf } from '../domain/each-of.js';
import { prepareRun, underOneKey } from './admission.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';

/** What a schedule runs, and when (SPEC 10). */
export interface ScheduleDefinition {
  readonly name: string;
  readonly agent: string;
  /** Null: each occurrence is a run of its own. Else each is a message to this thread. */
  readonly thread_id: string | null;
  readonly input: JsonValue;
  readonly contract: RunContract;
  readonly timing: ScheduleTiming;
  readonly overlap: OverlapRule;
  readonly catch_up_seconds: number;
}

export type ScheduleChange =
  | { readonly kind: 'created'; readonly definition: ScheduleDefinition; readonly taskQueue: string }
  | { readonly kind: 'changed'; readonly definition: ScheduleDefinition }
  | { readonly kind: 'paused' | 'resumed' | 'deleted' };

interface Asked {
  readonly tenantId: string;
  readonly actorId: string;
  readonly roles: readonly Role[];
  readonly idempotencyKey: string;
}

export type ScheduleChanged =
  /** `same`: it was paused, or was not, already. */
  | { readonly kind: 'done' | 'same' | 'replayed' | 'reused'; readonly scheduleId: string }
  | { readonly kind: 'schedule_version_conflict'; readonly version: number }
  | {
      readonly kind:
        | 'schedule_not_found'
        | 'role_required'
        | 'agent_not_found'
        | 'thread_not_found'
        | 'thread_agent_mismatch'
        | 'schedule_name_taken';
    };

const CHANGE = {
  name: 'ledger/change-schedule',
  text: 'select holdfast.change_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9) as answer',
};

/**
 * Makes a schedule, changes its definition, pauses, resumes or deletes it; a worker tells Temporal. What runs already keeps
 * the definition it began with; whatever is judged later has the new one.
 *
 * @param change.scheduleId of a new one, an id that nothing has
 */
export async function changeSchedule(
  db: Db,
  change: Asked & {
    readonly scheduleId: string;
    readonly endpoint: string;
    /** The version the change was made of; null where it does not matter. */
    readonly expectedVersion: number | null;
    readonly change: ScheduleChange;
  },
): Promise<ScheduleChanged> {
  const { tenantId, actorId, roles, scheduleId, expectedVersion } = change;
  const stored = {
    kind: change.change.kind,
    ...('definition' in change.change ? { definition: change.change.definition } : {}),
    ...('taskQueue' in change.change ? { task_queue: change.change.taskQueue } : {}),
  } as unknown as JsonObject;
  const answer = await callFunction(db, CHANGE, [
    ...[
      tenantId,
      scheduleId,
      actorId,
      roles,
      expectedVersion,
      jsonb(stored),
      change.endpoint,
      change.idempotencyKey,
    ],
    digestOf({ change: stored, expected: expectedVersion }),
  ]);
  return {
    ...answer,
    scheduleId: answer['schedule_id'],
  } as unknown as ScheduleChanged;
}

/** What an occurrence is made of: one version of its schedule. */
interface Current {
  readonly version: number;
  readonly agent: string;
  readonly input: JsonValue;
  readonly contract: RunContract;
  readonly taskQueue: string;
}

const READ_CURRENT = {
  name: 'ledger/current-schedule',
  text: `select version, agent, input, contract, task_queue as "taskQueue" from holdfast.schedules
          where schedule_id = $1 and deleted_at is null`,
};

/** How often a definition can change between its reading and its use, before we call it a bug. */
const CHANGES_MAX = 20;

/** Makes a run of the newest definition and hands it in, again where the definition changed meanwhile. */
async function withNewest(
  db: Db,
  scheduleId: string,
  handIn: (version: number, run: JsonObject) => Promise<Record<string, unknown>>,
): Promise<Record<string, unknown>> {
  for (let change = 0; change < CHANGES_MAX; change += 1) {
    const { rows } = await db.query<Current>({ ...READ_CURRENT, values: [scheduleId] });
    const current = rows[0];
    if (current === undefined) return { kind: 'gone' };
    const { run } = await prepareRun(db, current);
    const answer = await underOneKey(() => handIn(current.version, run));
    if (answer['kind'] !== 'changed') return answer;
  }
  throw new Error(`bug: the schedule ${scheduleId} never stands still`);
}

const DECIDE = {
  name: 'ledger/decide-occurrence',
  text: 'select holdfast.decide_occurrence($1, $2, $3, $4, $5, $6, $7, $8) as answer',
};

export type OccurrenceDecided =
  | { readonly kind: 'decided' | 'known'; readonly occurrenceId: string }
  /** The schedule was deleted. Nothing was written. */
  | { readonly kind: 'gone' };

/**
 * Judges one planned time of a schedule, or one start that somebody asks for: it becomes a run, waits for the one before it,
 * or is written down as skipped or refused. Judged once, whoever asks again.
 */
export async function decideOccurrence(
  db: Db,
  scheduleId: string,
  occasion:
    | { readonly source: 'tick'; readonly plannedAt: string }
    | { readonly source: 'run_now'; readonly actorId: string; readonly idempotencyKey: string },
): Promise<OccurrenceDecided> {
  const asked =
    occasion.source === 'tick'
      ? [occasion.plannedAt, 'tick', null, null]
      : [null, 'run_now', occasion.actorId, occasion.idempotencyKey];
  const answer = await withNewest(db, scheduleId, (version, run) =>
    callFunction(db, DECIDE, [scheduleId, newId('occ'), ...asked, version, jsonb(run)]),
  );
  return { kind: answer['kind'], occurrenceId: answer['occurrence_id'] } as OccurrenceDecided;
}

const QUEUED = { name: 'ledger/queued-occurrences', text: 'select * from holdfast.queued_occurrences()' };
const START_QUEUED = {
  name: 'ledger/start-queued',
  text: 'select holdfast.start_queued($1, $2, $3, $4) as answer',
};

/** Starts what waited for the run before it, where that has ended. What cannot be started holds up no other schedule. */
export async function startQueuedOccurrences(db: Db): Promise<void> {
  const { rows } = await db.query<{ schedule_id: string; occurrence_id: string }>(QUEUED);
  await eachOf(rows, async ({ schedule_id: scheduleId, occurrence_id: occurrenceId }) => {
    await withNewest(db, scheduleId, (version, run) =>
      callFunction(db, START_QUEUED, [scheduleId, occurrenceId, version, jsonb(run)]),
    );
  });
}

const BACKFILL = {
  name: 'ledger/ask-backfill',
  text: 'select holdfast.ask_backfill($1, $2, $3, $4, $5, $6, $7, $8) as answer',
};

/** Asks for the planned times of a stretch of the past; those that became runs already do not come again. */
export async function askBackfill(
  db: Db,
  ask: Asked & { readonly scheduleId: string; readonly from: string; readonly to: string },
): Promise<'done' | 'replayed' | 'reused' | 'schedule_not_found' | 'role_required'> {
  const { from, to } = ask;
  const answer = await callFunction(db, BACKFILL, [
    ...[ask.tenantId, ask.scheduleId, ask.actorId, ask.roles, from, to, ask.idempotencyKey],
    digestOf({ from, to }),
  ]);
  return answer['kind'] as 'done';
}
