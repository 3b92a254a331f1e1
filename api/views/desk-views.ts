import { z } from 'zod';
import { COMMAND_KINDS } from '../../shared/domain/control-table.js';
import { EFFECT_CLASSES } from '../../shared/domain/effect-classes.js';
import { EFFECT_STATES } from '../../shared/domain/effect-machine.js';
import { INTERRUPT_KINDS, INTERRUPT_STATES } from '../../shared/ledger/reads/list-interrupts.js';
import { SETTLEMENT_WORDS } from '../../shared/ledger/settlement.js';
import { AnyJson, NextCursor, Sha256, Time } from './common.js';
import { Control, State } from './run-views.js';
import { SettlementView } from './trail-views.js';

/** One control request with its fate. */
export const CommandView = z
  .strictObject({
    command_id: z.string(),
    run_id: z.string(),
    kind: z.enum(COMMAND_KINDS),
    reason: z.string().nullable(),
    compensate: z.boolean().meta({ description: 'Of a cancel: what the run did is to be undone.' }),
    actor_id: z.string(),
    authority: z.string().meta({ description: 'The role that let the actor do it.' }),
    expected_state_version: z.int().nullable(),
    fate: z.enum(['accepted', 'applied', 'rejected', 'expired']).meta({
      description: '`accepted`: in force, and not carried out yet. Every other fate is final.',
    }),
    code: z.string().nullable().meta({ description: 'Why it was rejected or expired: an error code.' }),
    state: State.meta({ description: 'What the run was when the command was judged.' }),
    control: Control,
    created_at: Time,
    decided_at: Time.nullable(),
  })
  .meta({ id: 'Command' });

/** A page of a run's commands, oldest first. */
export const CommandListView = z
  .strictObject({ commands: z.array(CommandView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'CommandList' });

const InterruptSummary = z.strictObject({
  interrupt_id: z.string(),
  kind: z.enum(INTERRUPT_KINDS),
  state: z.enum(INTERRUPT_STATES),
  run_id: z.string(),
  parent_run_id: z.string().nullable(),
  parent_agent: z.string().nullable().meta({
    description: 'The agent that started the run as a child; null where a person started it.',
  }),
  root_run_id: z
    .string()
    .meta({ description: 'The top of the run’s tree: itself where it is nobody’s child.' }),
  run_state: State,
  run_control: Control,
  agent: z.string(),
  turn: z.int(),
  step: z.int(),
  slot: z.int().nullable().meta({ description: 'Null for a wait over the model call of the step.' }),
  effect_id: z.string().nullable().meta({ description: 'Null for a wait for input: nothing would run.' }),
  tool: z.string().meta({
    description: 'The tool or the question; `model/` and the name of the profile for a model call.',
  }),
  asks: z.enum(['outcome', 'undo']).nullable().meta({
    description: 'Of a reconciliation: did it happen, or is it undone? Null for every other kind.',
  }),
  requested_by: z.string().meta({ description: 'Who asked for the run, and so may not approve.' }),
  owner: z.string().nullable().meta({
    description: 'Who must see to it; null where only the role says who may.',
  }),
  scope_sha256: Sha256.meta({ description: 'What an approval must name: the digest of `scope`.' }),
  required_role: z.string(),
  quorum: z.int(),
  approvals: z.int().meta({
    description:
      'Words that count towards the quorum: approvals of people who have the role still, or the settlement that stands.',
  }),
  on_expiry: z.enum(['deny', 'escalate', 'tell_model', 'fail']).meta({
    description: '`escalate`: somebody is told, once, and the wait goes on; nothing is guessed.',
  }),
  created_at: Time,
  expires_at: Time,
  overdue: z.boolean().meta({ description: 'Past `expires_at` and waiting still.' }),
  decided_at: Time.nullable(),
});
const InterruptSummaryView = InterruptSummary.meta({ id: 'InterruptSummary' });

const DecisionView = z
  .strictObject({
    actor_id: z.string(),
    decision: z.enum(['approve', 'deny', 'revoke', 'answer']),
    authority: z.string(),
    scope_sha256: Sha256,
    note: z.string(),
    answer: AnyJson.meta({ description: 'What was answered; null for every other decision.' }),
    at: Time,
  })
  .meta({ id: 'Decision' });

/** One wait for somebody, with everything that is needed to decide it. */
export const InterruptView = z
  .strictObject({
    ...InterruptSummary.shape,
    scope: AnyJson.meta({
      description:
        'What would run, made from the stored arguments and from nothing that the model says of it. For a ' +
        'question, `arguments.text` is what the model asks, in its own words.',
    }),
    answer_schema: AnyJson.meta({
      description: 'JSON Schema: of `answer` where input is waited for, of the whole decision elsewhere.',
    }),
    decisions: z.array(DecisionView).readonly(),
    consumed_at: Time.nullable().meta({ description: 'When the approval was used; it is used once.' }),
    supersedes: z.string().nullable().meta({
      description: 'The wait that this one took the place of, since somebody changed the arguments.',
    }),
    superseded_by: z.string().nullable().meta({ description: 'The wait that took the place of this one.' }),
    effect_state: z.enum(EFFECT_STATES).nullable(),
    model_words: z.string().nullable().meta({
      description: 'What the model wrote beside the call. Its words alone: what would run is in `scope`.',
    }),
  })
  .meta({ id: 'Interrupt' });

/** A page of waits, oldest first. */
export const InterruptListView = z
  .strictObject({ interrupts: z.array(InterruptSummaryView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'InterruptList' });

const InterruptGroupView = z
  .strictObject({
    kind: z.enum(INTERRUPT_KINDS),
    asks: InterruptSummary.shape.asks,
    tool: z.string(),
    tool_version: Sha256,
    arguments: AnyJson,
    arguments_sha256: Sha256,
    count: z.int(),
    runs: z.int(),
    oldest_at: Time,
    first_expires_at: Time,
    interrupts: z
      .array(z.strictObject({ interrupt_id: z.string(), run_id: z.string(), scope_sha256: Sha256 }))
      .readonly()
      .meta({ description: 'The oldest 100. Each is decided by itself, under its own digest.' }),
  })
  .meta({ id: 'InterruptGroup' });

/** A page of waits for identical acts, in the order of tools. */
export const InterruptGroupListView = z
  .strictObject({ groups: z.array(InterruptGroupView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'InterruptGroupList' });

const bodyStart = {
  content_type: z.string().nullable(),
  body_bytes: z.int(),
  body_start: z.string().nullable().meta({ description: 'The first 4,096 bytes, where they are text.' }),
};

const SettlementWordView = z
  .strictObject({
    decided: z.enum(SETTLEMENT_WORDS),
    reference: z.string().nullable(),
    note: z.string(),
    actor_id: z.string(),
    authority: z.string(),
    at: Time,
  })
  .meta({ id: 'SettlementWord' });

/** An effect that a person is or was asked about, with the evidence. */
export const ReconciliationItemView = z
  .strictObject({
    effect_id: z.string(),
    run_id: z.string(),
    run_state: State,
    agent: z.string(),
    effect_state: z.enum(EFFECT_STATES),
    intent: z.strictObject({
      turn: z.int(),
      step: z.int(),
      slot: z.int(),
      redo: z.int(),
      tool: z.string(),
      tool_version: Sha256,
      effect_class: z.enum(EFFECT_CLASSES),
      namespace: z.string(),
      idempotency_key: z.string().meta({ description: 'The name under which the target may know the call.' }),
      arguments: AnyJson,
      arguments_sha256: Sha256,
      requested_by: z.string(),
      created_at: Time,
    }),
    waiting: z
      .strictObject({
        about: z.enum(['outcome', 'undo']).meta({
          description: '`outcome`: did it happen? `undo`: it happened and no tool undid it; is it undone?',
        }),
        since: Time,
        age_seconds: z.int(),
        owner: z.string(),
        deadline_at: Time,
        overdue: z.boolean(),
        overdue_since: Time.nullable(),
        escalated_at: Time.nullable().meta({
          description: 'When `reconciliation.overdue` was told: once for each deadline.',
        }),
        two_people: z.boolean().meta({ description: 'The contract has two people say the same.' }),
        first_word: SettlementWordView.nullable().meta({
          description: 'It stands until another person says the same.',
        }),
      })
      .nullable()
      .meta({ description: 'Present exactly while the outcome is unknown, or a person is to undo it.' }),
    settlement: SettlementView.nullable(),
    undo: z
      .strictObject({
        state: z.enum(['waiting', 'compensated', 'left']),
        why: z.string().meta({ description: 'Why no tool undid it.' }),
        compensation_effect_id: z.string().nullable(),
        reference: z.string().nullable(),
        actor_id: z.string().nullable(),
        note: z.string().nullable(),
        decided_at: Time.nullable(),
      })
      .nullable()
      .meta({ description: 'Present where a person had to undo the effect, or had.' }),
    attempts: z
      .array(
        z.strictObject({
          attempt_id: z.string(),
          attempt: z.int(),
          worker: z.string(),
          started_at: Time,
          ended_at: Time.nullable(),
          outcome: z.string().nullable(),
          reason: z.string().nullable(),
          evidence: z.strictObject(bodyStart).nullable(),
        }),
      )
      .readonly(),
    late_receipts: z
      .array(
        z.strictObject({
          attempt_id: z.string(),
          outcome: z.string(),
          reference: z.string().nullable(),
          target_status: z.string().nullable(),
          truncated: z.boolean(),
          ...bodyStart,
          recorded_at: Time,
        }),
      )
      .readonly(),
    queries: z
      .array(
        z.strictObject({
          query: z.int(),
          answer: z.enum(['found', 'absent', 'inconclusive']),
          counts: z.boolean().meta({ description: 'Before the settling time an `absent` says nothing.' }),
          reason: z.string().nullable(),
          reference: z.string().nullable(),
          body_start: z.string().nullable(),
          asked_at: Time,
        }),
      )
      .readonly(),
  })
  .meta({ id: 'ReconciliationItem' });

/** A page of the reconciliation desk. */
export const ReconciliationListView = z
  .strictObject({ reconciliations: z.array(ReconciliationItemView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'ReconciliationList' });
