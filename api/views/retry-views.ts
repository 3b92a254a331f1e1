import { z } from 'zod';
import { SERIES_NEXT, SERIES_STATES } from '../../shared/ledger/reads/list-retries.js';
import { AnyJson, NextCursor, Time } from './common.js';
import { State } from './run-views.js';

const ACTION = z.enum(['retry', 'ask_again', 'give_up', 'ask_person']);
const RetryAfter = z.number().nullable().meta({ description: 'The target’s own word, uncapped.' });

/** Every stop of one operation, from its first attempt to its end. */
export const RetrySeriesView = z
  .strictObject({
    run_id: z.string(),
    agent: z.string(),
    run_state: State,
    turn: z.int(),
    step: z.int(),
    slot: z.int().nullable().meta({ description: 'Null when the operation is a model call.' }),
    effect_id: z.string().nullable(),
    tool: z.string().nullable(),
    state: z.enum(SERIES_STATES).meta({
      description:
        '`waiting` for its next attempt, `asking` a person, `exhausted` and given up, or `over`: it went on.',
    }),
    reason: z.string(),
    action: ACTION,
    owner: z.string(),
    retry_after_seconds: RetryAfter,
    attempt: z.int(),
    attempts_max: z.int(),
    deadline_at: Time,
    next_at: Time.nullable().meta({
      description: 'When the next attempt may be made, where it waits for one.',
    }),
    uncertain_effects: z
      .array(z.string())
      .readonly()
      .meta({ description: 'Effects of the run whose outcome nobody knows; at most 100.' }),
    next_step: z.enum(SERIES_NEXT),
    partial_result: AnyJson.meta({
      description: 'What the model said last in a run that failed over it; null otherwise.',
    }),
    stops: z
      .array(
        z.strictObject({
          reason: z.string(),
          action: ACTION,
          attempt: z.int(),
          eligible_at: Time.nullable(),
          retry_after_seconds: RetryAfter,
          at: Time,
        }),
      )
      .readonly()
      .meta({ description: 'The newest 100, in order.' }),
  })
  .meta({ id: 'RetrySeries' });

/** A page of retry series. */
export const RetrySeriesListView = z
  .strictObject({ retries: z.array(RetrySeriesView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'RetrySeriesList' });
