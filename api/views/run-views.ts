import { z } from 'zod';
import { FORK_MODES, FORK_PINS } from '../../shared/domain/checkpoints.js';
import { COMMAND_KINDS } from '../../shared/domain/control-table.js';
import { ON_CANCEL } from '../../shared/domain/delegates.js';
import { EFFECT_CLASSES } from '../../shared/domain/effect-classes.js';
import { EFFECT_STATES } from '../../shared/domain/effect-machine.js';
import { CONTROL_STATES, RUN_STATES } from '../../shared/domain/run-machine.js';
import { COOLDOWN_KINDS } from '../../shared/ledger/reads/list-cooldowns.js';
import { INTERRUPT_KINDS, INTERRUPT_STATES } from '../../shared/ledger/reads/list-interrupts.js';
import { RunBudgetView } from './budget-views.js';
import { AnyJson, NextCursor, Sha256, Time } from './common.js';

/** A state of the run region. */
export const State = z.enum(RUN_STATES).meta({ id: 'RunState' });
/** A state of the control region. */
export const Control = z.enum(CONTROL_STATES).meta({ id: 'ControlState' });

/** Who must settle an unknown outcome, and by when. */
export const ReconciliationView = z
  .strictObject({ owner: z.string(), deadline_at: Time })
  .meta({ id: 'Reconciliation' });

const OpenEffectView = z
  .strictObject({
    effect_id: z.string(),
    tool: z.string(),
    effect_class: z.enum(EFFECT_CLASSES),
    state: z.enum(['intended', 'dispatching', 'unknown']),
    idempotency_key: z.string(),
    attempts: z.int(),
    attempts_max: z.int(),
    lease_until: Time.nullable(),
    reconciliation: ReconciliationView.nullable(),
  })
  .meta({ id: 'OpenEffect' });

const RetryStopView = z
  .strictObject({
    turn: z.int(),
    step: z.int(),
    slot: z.int().nullable().meta({ description: 'Null when the operation is a model call.' }),
    effect_id: z.string().nullable(),
    reason: z.string(),
    action: z.enum(['retry', 'ask_again', 'give_up', 'ask_person']),
    owner: z.string(),
    attempt: z.int(),
    attempts_max: z.int(),
    deadline_at: Time,
    eligible_at: Time.nullable(),
    retry_after_seconds: z.int().nullable(),
    at: Time,
  })
  .meta({ id: 'RetryStop' });

const RunControlView = z
  .strictObject({
    deadline_at: Time,
    draining: z
      .strictObject({ effects: z.int(), model_calls: z.int(), children: z.int() })
      .nullable()
      .meta({ description: 'While a pause is carried out: what is in flight and settles first.' }),
    drained: z.boolean().meta({ description: 'The run is paused: nothing is in flight.' }),
    interrupts: z
      .array(
        z.strictObject({
          interrupt_id: z.string(),
          kind: z.enum(INTERRUPT_KINDS),
          effect_id: z.string().nullable(),
          tool: z.string(),
          required_role: z.string(),
          expires_at: Time,
        }),
      )
      .readonly()
      .meta({ description: 'Who is waited for now; at most 100, oldest first.' }),
    taking_up: z
      .array(
        z.strictObject({
          interrupt_id: z.string(),
          kind: z.enum(INTERRUPT_KINDS),
          effect_id: z.string().nullable(),
          tool: z.string(),
          state: z.enum(INTERRUPT_STATES),
          decided_at: Time,
        }),
      )
      .readonly()
      .meta({
        description:
          'Decided, and not taken up by the run yet: it still reads `awaiting_approval`, say, and nobody is waited for ' +
          'over these. At most 100, oldest first.',
      }),
    commands: z
      .array(
        z.strictObject({
          command_id: z.string(),
          kind: z.enum(COMMAND_KINDS),
          actor_id: z.string(),
          created_at: Time,
        }),
      )
      .readonly()
      .meta({ description: 'Accepted and not carried out yet; at most 100, oldest first.' }),
    cooldown: z
      .strictObject({
        cooldown_id: z.string(),
        kind: z.enum(COOLDOWN_KINDS),
        target: z.string(),
        reason: z.string(),
        until: Time,
        turn_at: Time.meta({ description: 'When it is the run’s turn.' }),
      })
      .nullable()
      .meta({ description: 'What asked to come later, while the run waits for its turn there.' }),
    resume_blocked: z
      .strictObject({
        since: Time,
        checked_at: Time,
        worker: z.string().meta({ description: 'The process that looked last.' }),
        faults: z
          .array(
            z.strictObject({
              code: z.enum(['agent_unavailable', 'tool_missing', 'tool_changed', 'secret_missing']),
              name: z.string(),
            }),
          )
          .readonly(),
      })
      .nullable()
      .meta({ description: 'What the run has pinned and misses, so that its resume is not carried out.' }),
  })
  .meta({ id: 'RunControl' });

const RunChildrenView = z
  .strictObject({
    total: z.int(),
    by_state: z.record(z.string(), z.int()),
    runs: z
      .array(
        z.strictObject({
          run_id: z.string(),
          tool: z.string(),
          agent: z.string(),
          turn: z.int(),
          step: z.int(),
          slot: z.int(),
          on_cancel: z.enum(ON_CANCEL),
          state: State,
          control: Control,
          reason: z.string().nullable(),
          steps_granted: z.int(),
          tool_calls_granted: z.int(),
          created_at: Time,
          ended_at: Time.nullable(),
        }),
      )
      .readonly()
      .meta({ description: 'At most 100, open ones first; the counts are of all.' }),
  })
  .meta({ id: 'RunChildren' });

const RunForksView = z
  .strictObject({
    forked_from: z
      .strictObject({
        run_id: z.string(),
        checkpoint_id: z.string(),
        after_step: z.int().meta({ description: 'The source’s last step that the fork holds.' }),
        mode: z.enum(FORK_MODES),
        pins: z.enum(FORK_PINS),
        edits: AnyJson.meta({ description: 'What was changed on purpose.' }),
        actor_id: z.string(),
        authority: z.string(),
        at: Time,
      })
      .nullable()
      .meta({ description: 'Null for a run that is no fork.' }),
    inherited_effects: z.int().meta({
      description: 'Effects before the cut, read-only; no count of this run has them in it.',
    }),
    total: z.int(),
    runs: z
      .array(
        z.strictObject({
          run_id: z.string(),
          checkpoint_id: z.string(),
          mode: z.enum(FORK_MODES),
          state: State,
          at: Time,
        }),
      )
      .readonly()
      .meta({ description: 'The forks of this run; at most 100, the newest first.' }),
  })
  .meta({ id: 'RunForks' });

const EffectGroupView = z
  .strictObject({
    count: z.int(),
    effects: z
      .array(
        z.strictObject({
          effect_id: z.string(),
          tool: z.string(),
          state: z.enum(EFFECT_STATES),
          reference: z.string().nullable(),
        }),
      )
      .readonly()
      .meta({ description: 'At most 100; the count is of all.' }),
  })
  .meta({ id: 'EffectGroup' });

const CancelReportView = z
  .strictObject({
    happened: EffectGroupView,
    did_not_happen: EffectGroupView.meta({
      description: 'Sent, and refused by the target or found not to have been committed.',
    }),
    stopped: EffectGroupView.meta({ description: 'It never left.' }),
    unknown: EffectGroupView.meta({ description: 'Always empty once a run is cancelled.' }),
  })
  .meta({ id: 'CancelReport' });

const UndoGroupView = z
  .strictObject({
    count: z.int(),
    effects: z
      .array(
        z.strictObject({
          effect_id: z.string(),
          tool: z.string(),
          reference: z.string().nullable(),
          by: z.enum(['tool', 'person']).nullable(),
          compensation_effect_id: z.string().nullable(),
          undo_reference: z.string().nullable(),
          why: z.string().nullable().meta({ description: 'Why a person was asked.' }),
          actor_id: z.string().nullable(),
          note: z.string().nullable(),
        }),
      )
      .readonly()
      .meta({ description: 'At most 100, the newest first; the count is of all.' }),
  })
  .meta({ id: 'UndoGroup' });

const CompensationReportView = z
  .strictObject({
    cause: z.string().meta({ description: 'Why what the run did is undone.' }),
    undone: UndoGroupView,
    left: UndoGroupView.meta({ description: 'A person left it as it is.' }),
    open: UndoGroupView.meta({ description: 'Not undone yet; always empty once the run has ended.' }),
  })
  .meta({ id: 'CompensationReport' });

/** A run at one instant (SPEC appendix A). */
export const RunView = z
  .strictObject({
    run_id: z.string(),
    identity: z.strictObject({
      tenant_id: z.string(),
      actor_id: z.string(),
      job_id: z.string(),
      thread_id: z.string().nullable(),
      parent_run_id: z.string().nullable(),
      root_run_id: z
        .string()
        .meta({ description: 'The top of its tree: itself where it is nobody’s child.' }),
      depth: z.int().meta({ description: 'How many runs stand above it.' }),
      agent: z.string(),
      agent_version: Sha256,
      turn: z.int(),
    }),
    thread: z
      .strictObject({
        thread_id: z.string(),
        place: z.int().meta({ description: 'Its number among the runs of the thread.' }),
        rolled_back_by: z.string().nullable().meta({
          description: 'The message that took it out of the transcript; what it did outside stays done.',
        }),
        message_ids: z.array(z.string()).readonly().meta({
          description: 'The message that began it, then those that joined it.',
        }),
      })
      .nullable()
      .meta({ description: 'Its place in a conversation; null for a run of its own.' }),
    contract: AnyJson.meta({
      description: 'Given at admission and immutable, with every default filled in.',
    }),
    contract_sha256: Sha256,
    pins: AnyJson.meta({ description: 'The versions in force for the whole life of the run.' }),
    input: AnyJson,
    execution: z.strictObject({
      state: State,
      control: Control,
      reason: z.string().nullable(),
      step: z.int(),
      admitted_at: Time,
      start_confirmed_at: Time.nullable(),
      started_at: Time.nullable(),
      ended_at: Time.nullable(),
      last_retry: RetryStopView.nullable(),
    }),
    concurrency: z.strictObject({
      state_version: z.int(),
      epoch: z.int(),
      owner_execution: z.string().nullable(),
    }),
    model: z.strictObject({
      calls: z.int(),
      attempts: z.int(),
      last_stop_reason: z.string().nullable(),
      usage: z.strictObject({ input_tokens: z.int(), output_tokens: z.int() }),
    }),
    effects: z.strictObject({
      tool_calls: z.int(),
      total: z.int(),
      by_state: z.record(z.string(), z.int()),
      open: z.array(OpenEffectView).readonly().meta({ description: 'At most 100; the counts are of all.' }),
    }),
    children: RunChildrenView.meta({ description: 'The runs that this one started, and waits for.' }),
    forks: RunForksView.meta({ description: 'Which run it was forked from, and which were forked from it.' }),
    control: RunControlView,
    compensation: CompensationReportView.nullable().meta({
      description: 'What is undone and what is left; null for a run that undoes nothing.',
    }),
    budget: RunBudgetView,
    recovery: z.strictObject({
      checkpoint_id: z.string().nullable().meta({
        description: 'The newest checkpoint; null where the events of the run are not held any more.',
      }),
      event_seq: z.int(),
      trail_position: z.int(),
      last_transition_digest: z.string(),
    }),
    terminal: z
      .strictObject({
        outcome: State,
        reason: z.string().nullable(),
        actor_id: z.string().meta({ description: 'Who wrote the last move: the workflow, as a rule.' }),
        cancel: z
          .strictObject({
            command_id: z.string(),
            actor_id: z.string(),
            authority: z.string(),
            reason: z.string().nullable(),
          })
          .nullable()
          .meta({
            description: 'Who asked for the cancel that ended it, and why; null for every other end.',
          }),
        ended_at: Time,
        last_message: AnyJson.meta({
          description: 'What the model said last: the answer of a completed run, else the partial result.',
        }),
        effects: CancelReportView.nullable().meta({
          description: 'What a cancelled run had done; null for every other end.',
        }),
      })
      .nullable(),
    freshness: z.strictObject({ as_of: Time, event_seq: z.int(), updated_at: Time }),
  })
  .meta({ id: 'Run' });

/** A run in one line. */
export const RunSummaryView = z
  .strictObject({
    run_id: z.string(),
    job_id: z.string(),
    thread_id: z.string().nullable(),
    parent_run_id: z.string().nullable(),
    actor_id: z.string(),
    agent: z.string(),
    agent_version: Sha256,
    state: State,
    control: Control,
    reason: z.string().nullable(),
    admitted_at: Time,
    started_at: Time.nullable(),
    ended_at: Time.nullable(),
    deadline_at: Time,
    updated_at: Time,
  })
  .meta({ id: 'RunSummary' });

/** A page of runs, newest first. */
export const RunListView = z
  .strictObject({ runs: z.array(RunSummaryView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'RunList' });
