import type { EffectClass } from '../../domain/effect-classes.js';
import type { JsonValue } from '../../domain/json.js';
import type { ControlState, RunState } from '../../domain/run-machine.js';
import type { RunBudgetRecord } from './read-budgets.js';
import type { CompensationReport } from './run-compensation.js';
import type { CancelReport, RunControl } from './run-control.js';
import type { RunForks } from './run-forks.js';
import type { RunChildren } from './run-lineage.js';

/** An effect that nobody has settled yet. */
export interface OpenEffect {
  readonly effect_id: string;
  readonly tool: string;
  readonly effect_class: EffectClass;
  readonly state: 'intended' | 'dispatching' | 'unknown';
  readonly idempotency_key: string;
  readonly attempts: number;
  readonly attempts_max: number;
  /** When the newest attempt's lease ends; null while none is open. */
  readonly lease_until: string | null;
  /** Who must settle it and by when; present exactly while its outcome is unknown. */
  readonly reconciliation: { readonly owner: string; readonly deadline_at: string } | null;
}

/** The newest stop of a retry series. */
export interface RetryStop {
  readonly turn: number;
  readonly step: number;
  /** Null when the operation is a model call. */
  readonly slot: number | null;
  readonly effect_id: string | null;
  readonly reason: string;
  readonly action: 'retry' | 'ask_again' | 'give_up' | 'ask_person';
  readonly owner: string;
  readonly attempt: number;
  readonly attempts_max: number;
  readonly deadline_at: string;
  readonly eligible_at: string | null;
  /** The target's own word, uncapped. */
  readonly retry_after_seconds: number | null;
  readonly at: string;
}

/** A run as the ledger knew it at one instant (SPEC appendix A, RunState read). */
export interface RunRecord {
  readonly run_id: string;
  readonly identity: {
    readonly tenant_id: string;
    readonly actor_id: string;
    readonly job_id: string;
    readonly thread_id: string | null;
    readonly parent_run_id: string | null;
    /** The top of its tree of runs: itself where it is nobody's child. */
    readonly root_run_id: string;
    /** How many runs stand above it. */
    readonly depth: number;
    readonly agent: string;
    readonly agent_version: string;
    readonly turn: number;
  };
  /** Its place in a conversation; null for a run of its own. */
  readonly thread: {
    readonly thread_id: string;
    /** Its number among the runs of the thread. */
    readonly place: number;
    /** The message that took it out of the transcript; null while it stands there. */
    readonly rolled_back_by: string | null;
    /** What it was given: the message that began it, then those that joined it. */
    readonly message_ids: readonly string[];
  } | null;
  readonly contract: JsonValue;
  readonly contract_sha256: string;
  readonly pins: JsonValue;
  readonly input: JsonValue;
  readonly execution: {
    readonly state: RunState;
    readonly control: ControlState;
    /** Of the last move in the run region; null before the first. */
    readonly reason: string | null;
    readonly step: number;
    readonly admitted_at: string;
    /** When Temporal confirmed the start; null while the starter still owes it. */
    readonly start_confirmed_at: string | null;
    readonly started_at: string | null;
    readonly ended_at: string | null;
    readonly last_retry: RetryStop | null;
  };
  readonly concurrency: {
    readonly state_version: number;
    readonly epoch: number;
    readonly owner_execution: string | null;
  };
  readonly model: {
    readonly calls: number;
    readonly attempts: number;
    readonly last_stop_reason: string | null;
    readonly usage: { readonly input_tokens: number; readonly output_tokens: number };
  };
  readonly effects: {
    /** Tool calls that the model asked for. */
    readonly tool_calls: number;
    readonly total: number;
    /** Count by effect state; a state that no effect is in is left out. */
    readonly by_state: Readonly<Record<string, number>>;
    /** At most 100, oldest first; `total` and `by_state` count all. */
    readonly open: readonly OpenEffect[];
  };
  readonly children: RunChildren;
  readonly forks: RunForks;
  readonly control: RunControl;
  /** What is undone and what is left; null for a run that undoes nothing. */
  readonly compensation: CompensationReport | null;
  readonly budget: RunBudgetRecord;
  readonly recovery: {
    /** The newest one; null where the run's events are not held any more. */
    readonly checkpoint_id: string | null;
    /** Sequence of the last durable event, which is also the last id of the stream. */
    readonly event_seq: number;
    readonly trail_position: number;
    /** Digest of the last transition; '' before the first. */
    readonly last_transition_digest: string;
  };
  readonly terminal: {
    readonly outcome: RunState;
    readonly reason: string | null;
    /** Who wrote the last move: the workflow, as a rule. */
    readonly actor_id: string;
    readonly cancel: EndingCancel | null;
    readonly ended_at: string;
    /** What the model said last: the answer of a completed run, the partial result of any other. */
    readonly last_message: JsonValue;
    /** What a cancelled run had done; null for every other end. */
    readonly effects: CancelReport | null;
  } | null;
  readonly freshness: {
    /** The database's clock when the row was read. */
    readonly as_of: string;
    readonly event_seq: number;
    readonly updated_at: string;
  };
}

/** The cancel that ended a run, in the words of whoever asked for it. */
export interface EndingCancel {
  readonly command_id: string;
  readonly actor_id: string;
  readonly authority: string;
  readonly reason: string | null;
}
