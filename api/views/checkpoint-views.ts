import { z } from 'zod';
import { CHECKPOINT_BOUNDARIES, CHECKPOINT_FAULTS } from '../../shared/domain/checkpoints.js';
import { INTERRUPT_KINDS } from '../../shared/ledger/reads/list-interrupts.js';
import { AnyJson, NextCursor, Sha256, Time } from './common.js';
import { Control, State } from './run-views.js';

/** A recovery point of a run; it says the same at every read. */
export const CheckpointView = z
  .strictObject({
    checkpoint_id: z.string(),
    run_id: z.string(),
    boundary: z.enum(CHECKPOINT_BOUNDARIES),
    at: Time,
    schema_version: z.int(),
    agent: z.string(),
    agent_version: Sha256,
    pins: AnyJson.meta({ description: 'The versions in force.' }),
    phase: z.strictObject({ state: State, control: Control }),
    committed: z
      .strictObject({ event_seq: z.int(), state_version: z.int() })
      .meta({ description: 'Up to which event and transition everything is in it.' }),
    epoch: z.int(),
    turn: z.int(),
    step: z.int().meta({ description: 'The newest step whose model call had begun; 0 before the first.' }),
    attempt: z.int().meta({ description: 'Of that model call.' }),
    messages: z.strictObject({
      count: z.int(),
      last: z.strictObject({ turn: z.int(), step: z.int(), position: z.int() }).nullable(),
    }),
    open: z
      .strictObject({
        model_call: z.boolean(),
        effects: z
          .array(
            z.strictObject({
              effect_id: z.string(),
              tool: z.string(),
              state: z.enum(['intended', 'dispatching', 'unknown']),
            }),
          )
          .readonly(),
        interrupts: z
          .array(z.strictObject({ interrupt_id: z.string(), kind: z.enum(INTERRUPT_KINDS) }))
          .readonly(),
      })
      .meta({ description: 'What was under way, and who was waited for.' }),
    unknown_effects: z
      .array(z.string())
      .readonly()
      .meta({ description: 'Effects whose outcome nobody knew.' }),
    resumes_after_step: z.int().meta({
      description: 'The last step that was whole: a fork goes on after it. 0 is before the first.',
    }),
    validation: z.strictObject({
      valid: z.boolean().meta({ description: 'One that is not cannot be forked.' }),
      faults: z.array(z.enum(CHECKPOINT_FAULTS)).readonly(),
    }),
  })
  .meta({ id: 'Checkpoint' });

/** A page of checkpoints in order. */
export const CheckpointListView = z
  .strictObject({ checkpoints: z.array(CheckpointView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'CheckpointList' });
