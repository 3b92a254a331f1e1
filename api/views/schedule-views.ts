import { z } from 'zod';
import { RunContract } from '../../shared/domain/contract.js';
import { idSchema } from '../../shared/domain/ids.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { RUN_STATES } from '../../shared/domain/run-machine.js';
import {
  OCCURRENCE_REASONS,
  OCCURRENCE_STATES,
  OVERLAP_RULES,
  SCHEDULE_RULES,
  ScheduleTiming,
} from '../../shared/domain/schedules.js';
import { AnyJson, NextCursor, Time } from './common.js';

const Name = z.string().regex(/^[ -~]{1,64}$/, { error: 'must be 1 to 64 printable ASCII characters' });

/** What a schedule runs, and when: the body of a new one, and of a change, which replaces the whole. */
export const ScheduleDefinitionBody = z.strictObject({
  name: Name.meta({ description: 'Unique among the schedules of the tenant.' }),
  agent: z.string().min(1).max(64).meta({ description: 'One of GET /v1/agents.' }),
  thread: idSchema('thr').nullable().default(null).meta({
    description: 'Stateful: each occurrence is a message to this thread. Null: each is a run of its own.',
  }),
  // The strict reader has made sure of JSON already; this only says that the member must be there.
  input: z
    .custom<JsonValue>((value) => value !== undefined, { error: 'is missing: give any JSON value' })
    .meta({ override: {}, description: 'What each run works on: any JSON, shown to the model.' }),
  contract: RunContract,
  ...SCHEDULE_RULES,
});

/** A schedule as it stands. */
export const ScheduleView = z
  .strictObject({
    schedule_id: z.string(),
    name: z.string(),
    version: z.int().meta({ description: 'Raised by every change, pauses included.' }),
    agent: z.string(),
    thread_id: z.string().nullable(),
    input: AnyJson,
    contract: z.record(z.string(), AnyJson),
    timing: ScheduleTiming,
    overlap: z.enum(OVERLAP_RULES),
    catch_up_seconds: z.int(),
    defined_by: z.string().meta({ description: 'The requester of its runs.' }),
    created_at: Time,
    changed_at: Time,
    paused_at: Time.nullable(),
    deleted_at: Time.nullable(),
    next_at: Time.nullable().meta({ description: 'The next planned time, as Temporal said last.' }),
    synced: z.boolean().meta({ description: 'Temporal has this version.' }),
    sync_problem: z
      .string()
      .nullable()
      .meta({ description: 'What Temporal said is wrong with this version.' }),
  })
  .meta({ id: 'Schedule' });

/** One page of schedules. */
export const ScheduleListView = z
  .strictObject({ schedules: z.array(ScheduleView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'ScheduleList' });

/** What became of one planned time. */
export const OccurrenceView = z
  .strictObject({
    occurrence_id: z.string(),
    planned_at: Time.meta({ description: 'Unique among the ticks of its schedule.' }),
    source: z.enum(['tick', 'run_now']),
    schedule_version: z.int().meta({ description: 'The definition it was made of.' }),
    state: z.enum(OCCURRENCE_STATES),
    reason: z.enum(OCCURRENCE_REASONS).nullable(),
    blocked_by: z.string().nullable().meta({
      description: 'On whose account it was skipped or had to wait: a run, a message, or an occurrence.',
    }),
    run_id: z.string().nullable(),
    run_state: z.enum(RUN_STATES).nullable(),
    message_id: z.string().nullable().meta({ description: 'Of a stateful schedule.' }),
    asked_by: z.string().nullable().meta({ description: 'Who asked for a start outside the plan.' }),
    created_at: Time,
    decided_at: Time.nullable(),
  })
  .meta({ id: 'Occurrence' });

/** One page of occurrences. */
export const OccurrenceListView = z
  .strictObject({ occurrences: z.array(OccurrenceView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'OccurrenceList' });
