import { z } from 'zod';
import { EFFECT_CLASSES } from '../../shared/domain/effect-classes.js';
import { EFFECT_STATES } from '../../shared/domain/effect-machine.js';
import { STORY_OUTCOMES } from '../../shared/ledger/reads/read-story.js';
import { NextCursor, Time } from './common.js';
import { State } from './run-views.js';

const PreciseTime = z.iso.datetime({ precision: 6 }).meta({ description: 'UTC, in microseconds.' });

const StoryGroupView = z
  .strictObject({
    count: z.int(),
    effects: z
      .array(
        z.strictObject({
          effect_id: z.string(),
          tool: z.string(),
          effect_class: z.enum(EFFECT_CLASSES),
          reference: z.string().nullable(),
          actor: z.string().nullable().meta({ description: 'Whose word it is.' }),
          owner: z.string().nullable().meta({ description: 'Who must find out, while it is unknown.' }),
          deadline_at: Time.nullable(),
        }),
      )
      .readonly()
      .meta({ description: 'The first 1,000, in call order; the count is of all.' }),
  })
  .meta({ id: 'StoryGroup' });

/** A run's story. */
export const StoryView = z
  .strictObject({
    run_id: z.string(),
    end: z
      .strictObject({
        outcome: State,
        reason: z.string(),
        actor_id: z.string().meta({ description: 'Who made the last move.' }),
        asked_by: z.string().nullable().meta({ description: 'Who asked for the cancel that ended it.' }),
        at: PreciseTime,
        meaning: z.string(),
      })
      .nullable()
      .meta({ description: 'Null while the run is open.' }),
    effects: z.strictObject({
      happened: StoryGroupView,
      did_not_happen: StoryGroupView,
      never_sent: StoryGroupView,
      unknown: StoryGroupView,
      reads: z.int().meta({ description: 'Calls that change nothing, only counted.' }),
    }),
    actors: z
      .array(z.strictObject({ actor: z.string(), did: z.record(z.string(), z.int()) }))
      .readonly()
      .meta({ description: 'Who did what how often, in the order of their first act.' }),
    chain: z.strictObject({
      holds: z.boolean().meta({ description: 'False: somebody changed, removed or added a transition.' }),
      transitions: z.int(),
      broken: z.strictObject({ seq: z.int(), problem: z.string() }).nullable(),
    }),
    disagreements: z
      .array(
        z.strictObject({
          effect_id: z.string(),
          state: z.enum(EFFECT_STATES),
          outcome: z.enum(STORY_OUTCOMES),
        }),
      )
      .readonly()
      .meta({ description: 'Effects whose own state says something else than their rows do.' }),
    entries_total: z.int(),
    entries: z
      .array(
        z.strictObject({
          at: PreciseTime,
          kind: z.string(),
          actor: z.string(),
          what: z.string(),
          reason: z.string().nullable(),
          ids: z.record(z.string(), z.string()),
        }),
      )
      .readonly(),
    next_cursor: NextCursor,
  })
  .meta({ id: 'Story' });
