import type { JsonValue } from '../../domain/json.js';
import type { Db } from '../database.js';
import type { RunKey } from './row-values.js';
import { isoTime, isoTimeOrNull, jsonTime, jsonTimeOrNull } from './row-values.js';
import { RUN_BUDGET_COLUMN, type RunBudgetRecord } from './read-budgets.js';
import { cancelReportOf, controlOf, RUN_CONTROL_COLUMNS, type RunControlRow } from './run-control.js';
import { compensationOf, RUN_COMPENSATION_COLUMN, type RunCompensationRow } from './run-compensation.js';
import { childrenOf, LINEAGE_COLUMNS, LINEAGE_JOIN, type LineageRow } from './run-lineage.js';
import { forksOf, RUN_FORKS_COLUMNS, type RunForksRow } from './run-forks.js';
import type { EndingCancel, OpenEffect, RetryStop, RunRecord } from './run-record.js';

// One statement is one snapshot: counts, open effects and state are of the same instant.
const READ_RUN = {
  name: 'reads/run',
  text: `
    select r.run_id, r.tenant_id, r.actor_id, r.job_id, r.thread_id, r.parent_run_id, r.agent,
           r.agent_version, r.pins, r.contract, r.contract_sha256, r.input, r.state, r.control, r.reason,
           r.state_version, r.last_digest, r.epoch, r.owner_execution, r.trail_position, r.event_seq, r.turn,
           r.step, r.model_calls, r.model_attempts, r.tool_calls, r.input_tokens, r.output_tokens, r.last_stop_reason,
           r.admitted_at, r.start_confirmed_at, r.started_at, r.deadline_at, r.ended_at, r.updated_at,
           clock_timestamp() as as_of,
           (select coalesce(jsonb_object_agg(s.state, s.count), '{}')
              from (select state, count(*) from holdfast.effects where run_id = r.run_id group by state) s
           ) as effect_counts,
           (select coalesce(jsonb_agg(to_jsonb(o) order by o.turn, o.step, o.slot, o.redo), '[]') from (
              select e.turn, e.step, e.slot, e.redo, e.effect_id, e.tool, e.effect_class, e.state,
                     e.idempotency_key, e.attempts, e.attempts_max, e.reconciliation_owner,
                     e.reconciliation_deadline_at,
                     (select max(a.lease_until) from holdfast.attempts a
                       where a.effect_id = e.effect_id and a.ended_at is null) as lease_until
                from holdfast.effects e
               where e.run_id = r.run_id and e.state in ('intended', 'dispatching', 'unknown')
               order by e.turn, e.step, e.slot, e.redo limit 100) o
           ) as open_effects,
           (select to_jsonb(x) from (
              select turn, step, slot, effect_id, reason, action, owner, attempt, attempts_max, deadline_at,
                     eligible_at, retry_after_seconds, created_at as at
                from holdfast.retries where run_id = r.run_id order by trail_seq desc limit 1) x
           ) as last_retry,
           (select t.actor_id from holdfast.transitions t
             where t.run_id = r.run_id and t.region = 'run' order by t.seq desc limit 1) as last_actor_id,
           (select m.content from holdfast.messages m
             where m.run_id = r.run_id and m.role = 'assistant' and m.turn > 0
             order by m.turn desc, m.step desc, m.position desc limit 1) as last_message,
           (select to_jsonb(c) from (
              select command_id, actor_id, authority, payload ->> 'reason' as reason from holdfast.commands
               where run_id = r.run_id and kind = 'cancel' and fate = 'applied' and created_at <= r.ended_at
                 and (r.state = 'cancelled' or r.compensation_cause = 'cancel_requested')
               order by created_at limit 1) c
           ) as ended_by_cancel,
           r.compensation_cause,
           case when r.thread_id is not null then jsonb_build_object(
             'thread_id', r.thread_id, 'place', r.thread_place, 'rolled_back_by', r.rolled_back_by,
             'message_ids', (select coalesce(jsonb_agg(s.message_id order by s.seq), '[]')
                               from holdfast.thread_messages s where s.run_id = r.run_id)) end as thread,
           ${RUN_COMPENSATION_COLUMN},
           holdfast.newest_checkpoint(r.run_id) as checkpoint_id,
           ${LINEAGE_COLUMNS}, ${RUN_FORKS_COLUMNS}, ${RUN_CONTROL_COLUMNS},
           ${RUN_BUDGET_COLUMN}
      from holdfast.runs r ${LINEAGE_JOIN}
     where r.run_id = $1 and r.tenant_id = $2`,
};

/** The run as it is now, or null when this tenant has no such run. Starts nothing. */
export async function readRun(db: Db, key: RunKey): Promise<RunRecord | null> {
  const { rows } = await db.query<RunRow>({ ...READ_RUN, values: [key.runId, key.tenantId] });
  const row = rows[0];
  return row === undefined ? null : recordOf(row);
}

function recordOf(row: RunRow): RunRecord {
  return {
    run_id: row.run_id,
    identity: identityOf(row),
    thread: row.thread,
    contract: row.contract,
    contract_sha256: row.contract_sha256,
    pins: row.pins,
    input: row.input,
    execution: executionOf(row),
    concurrency: {
      state_version: row.state_version,
      epoch: row.epoch,
      owner_execution: row.owner_execution,
    },
    model: {
      calls: row.model_calls,
      attempts: row.model_attempts,
      last_stop_reason: row.last_stop_reason,
      usage: { input_tokens: Number(row.input_tokens), output_tokens: Number(row.output_tokens) },
    },
    effects: {
      tool_calls: row.tool_calls,
      total: Object.values(row.effect_counts).reduce((sum, count) => sum + count, 0),
      by_state: row.effect_counts,
      open: row.open_effects.map(openEffectOf),
    },
    children: childrenOf(row),
    forks: forksOf(row),
    control: controlOf(row),
    compensation: compensationOf(row),
    budget: row.budget,
    recovery: {
      checkpoint_id: row.checkpoint_id,
      event_seq: Number(row.event_seq),
      trail_position: Number(row.trail_position),
      last_transition_digest: row.last_digest,
    },
    terminal: terminalOf(row),
    freshness: {
      as_of: isoTime(row.as_of),
      event_seq: Number(row.event_seq),
      updated_at: isoTime(row.updated_at),
    },
  };
}

function identityOf(row: RunRow): RunRecord['identity'] {
  const { tenant_id, actor_id, job_id, thread_id, agent, agent_version, turn } = row;
  const { parent_run_id, root_run_id, depth } = row;
  const lineage = { parent_run_id, root_run_id, depth };
  return { tenant_id, actor_id, job_id, thread_id, ...lineage, agent, agent_version, turn };
}

function executionOf(row: RunRow): RunRecord['execution'] {
  return {
    state: row.state,
    control: row.control,
    reason: row.reason,
    step: row.step,
    admitted_at: isoTime(row.admitted_at),
    start_confirmed_at: isoTimeOrNull(row.start_confirmed_at),
    started_at: isoTimeOrNull(row.started_at),
    ended_at: isoTimeOrNull(row.ended_at),
    last_retry: row.last_retry === null ? null : retryStopOf(row.last_retry),
  };
}

function terminalOf(row: RunRow): RunRecord['terminal'] {
  if (row.ended_at === null) return null;
  return {
    outcome: row.state,
    reason: row.reason,
    actor_id: row.last_actor_id,
    cancel: row.ended_by_cancel,
    ended_at: isoTime(row.ended_at),
    last_message: row.last_message,
    effects: cancelReportOf(row),
  };
}

function openEffectOf(row: OpenEffectJson): OpenEffect {
  const { effect_id, tool, effect_class, state, idempotency_key, attempts, attempts_max } = row;
  const { reconciliation_owner: owner, reconciliation_deadline_at: deadline } = row;
  return {
    ...{ effect_id, tool, effect_class, state, idempotency_key, attempts, attempts_max },
    lease_until: jsonTimeOrNull(row.lease_until),
    reconciliation: owner === null || deadline === null ? null : { owner, deadline_at: jsonTime(deadline) },
  };
}

function retryStopOf(row: RetryStop): RetryStop {
  return {
    ...row,
    deadline_at: jsonTime(row.deadline_at),
    eligible_at: jsonTimeOrNull(row.eligible_at),
    at: jsonTime(row.at),
  };
}

type OpenEffectJson = Omit<OpenEffect, 'reconciliation'> & {
  readonly reconciliation_owner: string | null;
  readonly reconciliation_deadline_at: string | null;
};

interface RunRow extends RunControlRow, RunCompensationRow, LineageRow, RunForksRow {
  readonly checkpoint_id: string | null;
  readonly budget: RunBudgetRecord;
  readonly thread: RunRecord['thread'];
  readonly run_id: string;
  readonly tenant_id: string;
  readonly actor_id: string;
  readonly job_id: string;
  readonly thread_id: string | null;
  readonly parent_run_id: string | null;
  readonly agent: string;
  readonly agent_version: string;
  readonly pins: JsonValue;
  readonly contract: JsonValue;
  readonly contract_sha256: string;
  readonly input: JsonValue;
  readonly reason: string | null;
  readonly state_version: number;
  readonly last_digest: string;
  readonly epoch: number;
  readonly owner_execution: string | null;
  readonly trail_position: string;
  readonly event_seq: string;
  readonly turn: number;
  readonly step: number;
  readonly model_calls: number;
  readonly model_attempts: number;
  readonly tool_calls: number;
  readonly input_tokens: string;
  readonly output_tokens: string;
  readonly last_stop_reason: string | null;
  readonly admitted_at: Date;
  readonly start_confirmed_at: Date | null;
  readonly started_at: Date | null;
  readonly ended_at: Date | null;
  readonly updated_at: Date;
  readonly as_of: Date;
  readonly open_effects: readonly OpenEffectJson[];
  readonly last_retry: RetryStop | null;
  readonly last_actor_id: string;
  readonly last_message: JsonValue;
  readonly ended_by_cancel: EndingCancel | null;
}
