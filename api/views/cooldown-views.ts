import { z } from 'zod';
import { COOLDOWN_KINDS, COOLDOWN_STATES } from '../../shared/ledger/reads/list-cooldowns.js';
import { NextCursor, Time } from './common.js';

/** What asked one run to come later, and so all of them. */
export const CooldownView = z
  .strictObject({
    cooldown_id: z.string(),
    kind: z.enum(COOLDOWN_KINDS),
    target: z.string().meta({
      description: 'Provider, base URL and model of a model; the namespace of a tool.',
    }),
    state: z.enum(COOLDOWN_STATES).meta({
      description:
        '`in_force`: nobody asks the target. `easing`: it is asked in turns until it has answered. Then it is `over`.',
    }),
    reason: z.string(),
    stops: z.int().meta({ description: 'How many attempts met it.' }),
    retry_after_seconds: z
      .number()
      .nullable()
      .meta({ description: 'The target’s own word, uncapped; null where it said none.' }),
    detail: z
      .string()
      .nullable()
      .meta({ description: 'What it said beside that, without keys and prompts.' }),
    since: Time,
    until: Time,
    waiting_runs: z.int().meta({ description: 'Runs of this tenant whose turn has not come.' }),
    last_turn_at: Time.meta({ description: 'The turn that was given last.' }),
    ended_at: Time.nullable(),
    ended_by: z.enum(['success', 'stop']).nullable(),
    cleared: z
      .strictObject({ at: Time, actor_id: z.string().nullable() })
      .nullable()
      .meta({ description: 'A person’s word; `actor_id` is null where that is none of this tenant.' }),
  })
  .meta({ id: 'Cooldown' });

/** A page of cool-downs, newest first. */
export const CooldownListView = z
  .strictObject({ cooldowns: z.array(CooldownView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'CooldownList' });
