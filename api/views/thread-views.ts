import { z } from 'zod';
import { EFFECT_STATES } from '../../shared/domain/effect-machine.js';
import { DOUBLE_TEXTING, MESSAGE_STATES, MESSAGE_VERDICTS } from '../../shared/domain/thread-table.js';
import { THREAD_RUNTIMES } from '../../shared/ledger/reads/read-threads.js';
import { AnyJson, NextCursor, Time } from './common.js';
import { Control, State } from './run-views.js';

/** What a message makes of a run in progress (docs/thread-table.md). */
export const Policy = z.enum(DOUBLE_TEXTING).meta({ id: 'DoubleTexting' });

const Runtime = z.enum(THREAD_RUNTIMES).meta({
  description:
    'Whether somebody holds a run of it now. `gone`: the workflow was lost, and the ledger keeps the run.',
});

const ThreadTurnView = z
  .strictObject({
    run_id: z.string(),
    place: z.int().meta({ description: 'Its number among the runs of the thread.' }),
    state: State,
    control: Control,
    reason: z.string().nullable(),
    ended_at: Time.nullable(),
  })
  .meta({ id: 'ThreadTurn' });

/** A thread at one instant. */
export const ThreadView = z
  .strictObject({
    thread_id: z.string(),
    agent: z.string(),
    policy: Policy,
    contract: AnyJson.meta({
      description: 'What its runs are admitted under, unless a message brings its own.',
    }),
    created_by: z.string(),
    created_at: Time,
    runtime: Runtime,
    turn: ThreadTurnView.nullable().meta({
      description: 'The newest run; null before the first. Idle is not done.',
    }),
    archived: z.strictObject({ at: Time, by: z.string() }).nullable(),
    messages: z.strictObject({ total: z.int(), by_state: z.record(z.string(), z.int()) }),
    runs: z.int(),
    rolled_back: z
      .array(
        z.strictObject({
          run_id: z.string(),
          message_id: z.string().meta({ description: 'The message that rolled it back.' }),
          state: State,
          effects: z
            .array(
              z.strictObject({
                effect_id: z.string(),
                tool: z.string(),
                state: z.enum(EFFECT_STATES),
                reference: z.string().nullable(),
              }),
            )
            .readonly(),
        }),
      )
      .readonly()
      .meta({
        description:
          'Runs that are out of the transcript, with what they did outside: that stays as it is. The newest 100, at ' +
          'most 100 effects of each, reads left out.',
      }),
    freshness: z.strictObject({ as_of: Time, updated_at: Time, message_seq: z.int() }),
  })
  .meta({ id: 'Thread' });

const ThreadSummaryView = z
  .strictObject({
    thread_id: z.string(),
    agent: z.string(),
    policy: Policy,
    created_by: z.string(),
    created_at: Time,
    runtime: Runtime,
    turn: ThreadTurnView.nullable(),
    archived_at: Time.nullable(),
    messages: z.int(),
    updated_at: Time,
  })
  .meta({ id: 'ThreadSummary' });

/** A page of threads, newest first. */
export const ThreadListView = z
  .strictObject({ threads: z.array(ThreadSummaryView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'ThreadList' });

/** A message of a thread and what became of it. */
export const ThreadMessageView = z
  .strictObject({
    message_id: z.string(),
    thread_id: z.string(),
    seq: z.int(),
    actor_id: z.string(),
    text: z.string(),
    policy: Policy,
    verdict: z.enum(MESSAGE_VERDICTS).exclude(['thread_busy']).meta({
      description: 'What it was judged to do when it came.',
    }),
    state: z.enum(MESSAGE_STATES),
    code: z.string().nullable().meta({ description: 'Why nobody will read it.' }),
    met_run_id: z.string().nullable().meta({ description: 'The run that was in progress when it came.' }),
    run: z
      .strictObject({
        run_id: z.string(),
        state: State,
        step: z.int().nullable().meta({
          description: 'The step at which a run in progress took it up; null where it began the run.',
        }),
        last_message: AnyJson.meta({ description: 'What the model said last in that run.' }),
      })
      .nullable()
      .meta({ description: 'The run that it was given to.' }),
    created_at: Time,
    decided_at: Time.nullable(),
  })
  .meta({ id: 'ThreadMessage' });

/** A page of a thread's messages, in order. */
export const ThreadMessageListView = z
  .strictObject({ messages: z.array(ThreadMessageView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'ThreadMessageList' });
