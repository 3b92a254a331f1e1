import { z } from 'zod';
import { EFFECT_CLASSES } from '../../shared/domain/effect-classes.js';
import { EFFECT_STATES } from '../../shared/domain/effect-machine.js';
import { EVENT_TYPES, STATE_TYPES } from '../../shared/domain/run-events.js';
import { AnyJson, NextCursor, Sha256, Time } from './common.js';
import { ReconciliationView } from './run-views.js';

const TransitionView = z
  .strictObject({
    seq: z.int(),
    region: z.enum(['run', 'control']),
    from_state: z.string().nullable(),
    to_state: z.string(),
    reason: z.string(),
    actor_id: z.string(),
    epoch: z.int(),
    at: Time,
    prev_digest: z.string(),
    digest: Sha256,
  })
  .meta({ id: 'Transition' });

/** A page of transitions in order. */
export const TransitionListView = z
  .strictObject({ transitions: z.array(TransitionView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'TransitionList' });

/** One durable event, the same here and in the stream. */
export const RunEventView = z
  .strictObject({
    run_id: z.string(),
    seq: z.int(),
    type: z.string().meta({
      description: 'What happened; new types may come. See docs/events.md.',
      examples: [...Object.keys(EVENT_TYPES), ...Object.keys(STATE_TYPES)],
    }),
    at: Time,
    data: AnyJson,
  })
  .meta({ id: 'RunEvent' });

/** A page of events in order. */
export const RunEventListView = z
  .strictObject({ events: z.array(RunEventView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'RunEventList' });

const MessageView = z
  .strictObject({
    turn: z.int().meta({ description: '0: inherited by a fork, at steps up to 0.' }),
    step: z.int(),
    position: z
      .int()
      .meta({ description: "0: the user's or the assistant's message; n + 1: result of slot n." }),
    role: z.enum(['user', 'assistant', 'tool']),
    content: AnyJson,
    at: Time,
  })
  .meta({ id: 'Message' });

/** A page of the transcript in order. */
export const TranscriptView = z
  .strictObject({ messages: z.array(MessageView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'Transcript' });

const AttemptView = z
  .strictObject({
    attempt_id: z.string(),
    attempt: z.int(),
    epoch: z.int(),
    worker: z.string(),
    started_at: Time,
    lease_until: Time,
    ended_at: Time.nullable(),
    outcome: z.string().nullable(),
    reason: z.string().nullable(),
  })
  .meta({ id: 'Attempt' });

const ReceiptView = z
  .strictObject({
    status: z.enum(['succeeded', 'rejected', 'committed', 'not_committed']),
    source: z.enum(['response', 'probe', 'late_receipt', 'person']),
    reference: z.string().nullable(),
    target_status: z.string().nullable(),
    content_type: z.string().nullable(),
    body_bytes: z.int(),
    body_sha256: Sha256,
    truncated: z.boolean(),
    body_start: z.string().nullable().meta({ description: 'The first 4,096 bytes, where they are text.' }),
    recorded_at: Time,
  })
  .meta({ id: 'Receipt' });

/** How an unknown outcome was settled. */
export const SettlementView = z
  .strictObject({
    decided: z.enum(['committed', 'not_committed', 'compensated']),
    source: z.enum(['late_receipt', 'probe', 'person', 'class']),
    evidence: AnyJson,
    actor_id: z.string(),
    note: z.string(),
    decided_at: Time,
  })
  .meta({ id: 'Settlement' });

const EffectView = z
  .strictObject({
    effect_id: z.string(),
    run_id: z.string().meta({ description: 'Whose it is: another run’s where it is inherited.' }),
    inherited: z.boolean().meta({
      description:
        'Of the runs that this one was forked from, before the cut; its place is turn 0, read-only.',
    }),
    turn: z.int(),
    step: z.int(),
    slot: z.int(),
    redo: z.int(),
    reuses: z.string().nullable().meta({
      description: 'The effect of another run whose receipt answered this call, so that nothing was sent.',
    }),
    simulated: z.boolean().meta({ description: 'Of a fork that sends nothing.' }),
    supersedes: z.string().nullable(),
    compensates: z.string().nullable().meta({ description: 'The effect that this one undoes.' }),
    call_id: z.string(),
    tool: z.string(),
    tool_version: Sha256,
    effect_class: z.enum(EFFECT_CLASSES),
    namespace: z.string(),
    idempotency_key: z.string(),
    arguments: AnyJson,
    arguments_sha256: Sha256,
    state: z.enum(EFFECT_STATES),
    requested_by: z.string(),
    attempts: z.int(),
    attempts_max: z.int(),
    lost_attempts: z.int(),
    resends: z.int(),
    series_deadline_at: Time,
    created_at: Time,
    first_dispatched_at: Time.nullable(),
    last_dispatched_at: Time.nullable(),
    settled_at: Time.nullable(),
    reference: z.string().nullable().meta({ description: 'The outside name of what was done.' }),
    reconciliation: ReconciliationView.nullable().meta({
      description: 'Present exactly while the outcome is unknown.',
    }),
    settlement: SettlementView.nullable(),
    receipt: ReceiptView.nullable(),
    attempt_list: z.array(AttemptView).readonly().meta({ description: 'The newest 100, in order.' }),
    late_receipts: z.int(),
    status_queries: z.int(),
  })
  .meta({ id: 'Effect' });

/** A page of a run's effects, in the order the model asked for them. */
export const EffectListView = z
  .strictObject({ effects: z.array(EffectView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'EffectList' });

const AgentToolView = z
  .strictObject({
    name: z.string(),
    version: Sha256,
    description: z.string(),
    effect_class: z.enum(EFFECT_CLASSES),
    approval: z.enum(['required', 'not_required']),
  })
  .meta({ id: 'AgentTool' });

const AgentView = z
  .strictObject({
    agent: z.string(),
    agent_version: Sha256,
    model: z.strictObject({ provider: z.string(), model: z.string() }),
    limits: z.strictObject({
      steps_max: z.int(),
      tool_calls_max: z.int(),
      wall_clock_seconds_max: z.int(),
    }),
    tools: z.array(AgentToolView).readonly(),
    questions: z
      .array(
        z.strictObject({
          name: z.string(),
          version: Sha256,
          description: z.string(),
          answer_schema: AnyJson.meta({ description: 'JSON Schema of the answer.' }),
          required_role: z.string(),
          expires_seconds: z.int(),
          on_expiry: z.enum(['tell_model', 'fail']),
        }),
      )
      .readonly()
      .meta({ description: 'What it may ask a person; to the model each is a tool.' }),
    policy: z
      .array(
        z.strictObject({
          name: z.string(),
          sha256: Sha256.meta({ description: 'What an approval’s scope names.' }),
          when: AnyJson,
          role: z.string(),
          quorum: z.int(),
          expires_seconds: z.int().nullable(),
        }),
      )
      .readonly()
      .meta({ description: 'The rules that may ask about calls of its tools, whatever `approval` says.' }),
    updated_at: Time,
  })
  .meta({ id: 'Agent' });

/** A page of agents by name. */
export const AgentListView = z
  .strictObject({ agents: z.array(AgentView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'AgentList' });
