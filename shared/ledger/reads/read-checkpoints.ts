import type { CheckpointBoundary, CheckpointFault } from '../../domain/checkpoints.js';
import type { JsonValue } from '../../domain/json.js';
import type { ControlState, RunState } from '../../domain/run-machine.js';
import type { Db } from '../database.js';
import type { InterruptKind } from './list-interrupts.js';
import { jsonTime, type RunKey } from './row-values.js';

/** A validated recovery point of a run, the same at every read (SPEC 4.2). */
export interface CheckpointRecord {
  readonly checkpoint_id: string;
  readonly run_id: string;
  readonly boundary: CheckpointBoundary;
  readonly at: string;
  readonly schema_version: number;
  readonly agent: string;
  readonly agent_version: string;
  readonly pins: JsonValue;
  readonly phase: { readonly state: RunState; readonly control: ControlState };
  /** Up to which event and transition everything is in it. */
  readonly committed: { readonly event_seq: number; readonly state_version: number };
  readonly epoch: number;
  readonly turn: number;
  /** The newest step whose model call had begun; 0 before the first. */
  readonly step: number;
  /** Of that model call. */
  readonly attempt: number;
  readonly messages: {
    readonly count: number;
    /** The last one in the transcript. */
    readonly last: { readonly turn: number; readonly step: number; readonly position: number } | null;
  };
  readonly open: {
    /** The model was being called. */
    readonly model_call: boolean;
    readonly effects: readonly {
      readonly effect_id: string;
      readonly tool: string;
      readonly state: 'intended' | 'dispatching' | 'unknown';
    }[];
    readonly interrupts: readonly { readonly interrupt_id: string; readonly kind: InterruptKind }[];
  };
  /** Effects whose outcome nobody knew. */
  readonly unknown_effects: readonly string[];
  /** The last step that was whole: a fork goes on after it. 0 is before the first. */
  readonly resumes_after_step: number;
  readonly validation: { readonly valid: boolean; readonly faults: readonly CheckpointFault[] };
}

/** The checkpoint of this id, or null when this tenant has none. */
export async function readCheckpoint(
  db: Db,
  tenantId: string,
  checkpointId: string,
): Promise<CheckpointRecord | null> {
  const { rows } = await db.query<{ checkpoint: CheckpointRow | null }>({
    name: 'reads/checkpoint',
    text: 'select holdfast.read_checkpoint($1, $2) as checkpoint',
    values: [tenantId, checkpointId],
  });
  const row = rows[0]?.checkpoint ?? null;
  return row === null ? null : recordOf(row);
}

/** Checkpoints after the event `after`, in order, at most `limit`. */
export async function listCheckpoints(
  db: Db,
  key: RunKey,
  page: { readonly after: number; readonly limit: number },
): Promise<CheckpointRecord[]> {
  const { rows } = await db.query<{ checkpoint: CheckpointRow }>({
    name: 'reads/checkpoints',
    text: 'select checkpoint from holdfast.list_checkpoints($1, $2, $3, $4)',
    values: [key.tenantId, key.runId, page.after, page.limit],
  });
  return rows.map(({ checkpoint }) => recordOf(checkpoint));
}

/** A checkpoint as the ledger's function tells it. */
type CheckpointRow = Pick<
  CheckpointRecord,
  | 'checkpoint_id'
  | 'run_id'
  | 'boundary'
  | 'at'
  | 'schema_version'
  | 'agent'
  | 'agent_version'
  | 'pins'
  | 'epoch'
  | 'turn'
  | 'step'
  | 'attempt'
  | 'unknown_effects'
  | 'resumes_after_step'
> &
  CheckpointRecord['phase'] &
  CheckpointRecord['committed'] &
  CheckpointRecord['validation'] & {
    readonly messages: { readonly count: number } & {
      readonly [Place in 'turn' | 'step' | 'position']: number | null;
    };
    readonly calls_model: boolean;
    readonly open_effects: CheckpointRecord['open']['effects'];
    readonly open_interrupts: CheckpointRecord['open']['interrupts'];
  };

function recordOf(row: CheckpointRow): CheckpointRecord {
  const { checkpoint_id, run_id, boundary, schema_version, agent, agent_version, pins } = row;
  const { epoch, attempt, unknown_effects, resumes_after_step } = row;
  const { count, turn, step, position } = row.messages;
  const isPlaced = turn !== null && step !== null && position !== null;
  return {
    ...{ checkpoint_id, run_id, boundary, at: jsonTime(row.at), schema_version, agent, agent_version, pins },
    phase: { state: row.state, control: row.control },
    committed: { event_seq: row.event_seq, state_version: row.state_version },
    ...{ epoch, turn: row.turn, step: row.step, attempt },
    messages: { count, last: isPlaced ? { turn, step, position } : null },
    open: { model_call: row.calls_model, effects: row.open_effects, interrupts: row.open_interrupts },
    unknown_effects,
    resumes_after_step,
    validation: { valid: row.valid, faults: row.faults },
  };
}
