import { z } from 'zod';
import { AnyJson, NextCursor, Time } from './common.js';

const MemoryView = z
  .strictObject({
    generation: z.int(),
    text: z.string(),
    run_id: z.string().meta({ description: 'The run that made it.' }),
    effect_id: z.string().meta({ description: 'The effect that wrote it; its intent holds the same text.' }),
    through_place: z.int().meta({
      description: 'The runs of the thread up to this place are consolidated in it.',
    }),
    created_at: Time,
  })
  .meta({ id: 'Memory' });

/** A page of the generations of a thread's memory, newest first. */
export const MemoryListView = z
  .strictObject({ generations: z.array(MemoryView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'MemoryList' });

const SleepTriggerView = z
  .strictObject({
    agent: z.string().meta({ description: 'Whose threads.' }),
    version: z.int(),
    sleeper: z.strictObject({
      agent: z.string().meta({ description: 'Who consolidates them.' }),
      idle_seconds: z.int(),
      contract: AnyJson,
    }),
    changed_by: z.string().meta({ description: 'The requester of its runs.' }),
    changed_at: Time,
  })
  .meta({ id: 'SleepTrigger' });

/** The tenant's sleep triggers in force. */
export const SleepTriggerList = z
  .strictObject({ items: z.array(SleepTriggerView).readonly() })
  .meta({ id: 'SleepTriggerList' });
