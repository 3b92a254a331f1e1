import type { ClientBase, Pool } from 'pg';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { EffectState } from '../../shared/domain/effect-machine.js';
import type { ControlState, RunState } from '../../shared/domain/run-machine.js';

export interface RunRow {
  readonly run_id: string;
  readonly state: RunState;
  readonly control: ControlState;
  readonly reason: string | null;
  readonly state_version: number;
  readonly epoch: number;
  readonly owner_execution: string | null;
  readonly turn: number;
  readonly step: number;
  readonly model_calls: number;
  readonly model_attempts: number;
  readonly tool_calls: number;
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly ended_at: Date | null;
}
export interface EffectRow {
  readonly effect_id: string;
  readonly run_id: string;
  readonly state: EffectState;
  readonly effect_class: EffectClass;
  readonly tool: string;
  readonly turn: number;
  readonly step: number;
  readonly slot: number;
  readonly redo: number;
  readonly supersedes: string | null;
  readonly idempotency_key: string;
  readonly attempts: number;
  readonly lost_attempts: number;
  readonly resends: number;
  readonly fencing_token: number;
  readonly reconciliation_owner: string | null;
  readonly reconciliation_deadline_at: Date | null;
}
export interface AttemptRow {
  readonly attempt_id: string;
  readonly effect_id: string;
  readonly attempt: number;
  readonly worker: string;
  readonly outcome: string | null;
  readonly reason: string | null;
  readonly evidence: Buffer | null;
}
export interface ReceiptRow {
  readonly effect_id: string;
  readonly attempt_id: string | null;
  readonly status: 'succeeded' | 'rejected' | 'committed' | 'not_committed';
  readonly source: 'response' | 'probe' | 'late_receipt' | 'person';
  readonly reference: string | null;
  readonly body: Buffer;
  readonly body_sha256: string;
  readonly content_type: string | null;
  readonly truncated: boolean;
}
export interface LateReceiptRow {
  readonly attempt_id: string;
  readonly effect_id: string;
  readonly outcome: string;
  readonly reference: string | null;
}
export interface TransitionRow {
  readonly seq: number;
  readonly region: 'run' | 'control';
  readonly from_state: string | null;
  readonly to_state: string;
  readonly reason: string;
  readonly epoch: number;
}
export interface EventRow {
  readonly seq: number;
  readonly type: string;
  readonly data: Record<string, unknown>;
}
export interface MessageRow {
  readonly turn: number;
  readonly step: number;
  readonly position: number;
  readonly role: 'user' | 'assistant' | 'tool';
  readonly content: Record<string, unknown>;
}

/** What the ledger holds, read by plain statements of its own, so that the product's readers judge nothing here. */
export class LedgerView {
  readonly #pool: Pool;
  readonly #db: Pool | ClientBase;

  constructor(pool: Pool, db: Pool | ClientBase = pool) {
    this.#pool = pool;
    this.#db = db;
  }

  /** Reads in one snapshot: what is compared must be of one moment, since a late answer may come between two reads. */
  async snapshot<T>(read: (view: LedgerView) => Promise<T>): Promise<T> {
    const client = await this.#pool.connect();
    try {
      await client.query('begin transaction isolation level repeatable read, read only');
      return await read(new LedgerView(this.#pool, client));
    } finally {
      await client.query('rollback');
      client.release();
    }
  }

  /** As the superuser: it may also break what the application cannot. */
  async rows<Row extends object>(sql: string, ...values: readonly unknown[]): Promise<Row[]> {
    const { rows } = await this.#db.query<Row & Record<string, unknown>>(sql, [...values]);
    return rows;
  }

  async runRow(runId: string): Promise<RunRow> {
    const [run] = await this.rows<RunRow>(
      `select run_id, state, control, reason, state_version, epoch, owner_execution, turn, step, model_calls,
              model_attempts, tool_calls, input_tokens::int, output_tokens::int, ended_at
         from holdfast.runs where run_id = $1`,
      runId,
    );
    if (run === undefined) throw new Error(`the ledger holds no run ${runId}`);
    return run;
  }

  /** In call order; a redo follows what it supersedes. */
  async effects(runId: string): Promise<EffectRow[]> {
    return await this.rows<EffectRow>(
      'select * from holdfast.effects where run_id = $1 order by turn, step, slot, redo',
      runId,
    );
  }

  async attempts(runId: string): Promise<AttemptRow[]> {
    return await this.rows<AttemptRow>(
      'select * from holdfast.attempts where run_id = $1 order by started_at, attempt',
      runId,
    );
  }

  async receipts(runId: string): Promise<ReceiptRow[]> {
    return await this.rows<ReceiptRow>(
      'select * from holdfast.receipts where run_id = $1 order by recorded_at',
      runId,
    );
  }

  async lateReceipts(runId: string): Promise<LateReceiptRow[]> {
    return await this.rows<LateReceiptRow>(
      'select * from holdfast.late_receipts where run_id = $1 order by recorded_at',
      runId,
    );
  }

  async transitions(runId: string): Promise<TransitionRow[]> {
    return await this.rows<TransitionRow>(
      'select * from holdfast.transitions where run_id = $1 order by seq',
      runId,
    );
  }

  /** The states of the run region, in order, from `admitted` on. */
  async path(runId: string): Promise<string[]> {
    const transitions = await this.transitions(runId);
    return transitions.filter(({ region }) => region === 'run').map(({ to_state }) => to_state);
  }

  async events(runId: string): Promise<EventRow[]> {
    return await this.rows<EventRow>(
      'select seq::int, type, data from holdfast.run_events where run_id = $1 order by seq',
      runId,
    );
  }

  async messages(runId: string): Promise<MessageRow[]> {
    return await this.rows<MessageRow>(
      `select turn, step, position, role, content from holdfast.messages
        where run_id = $1 order by turn, step, position`,
      runId,
    );
  }

  /** The run as an error message shows it. */
  async describe(runId: string): Promise<string> {
    const run = await this.runRow(runId);
    const path = await this.transitions(runId);
    const effects = await this.effects(runId);
    const attempts = await this.attempts(runId);
    return [
      `run ${run.state}/${run.control} (${run.reason}) step ${run.step} epoch ${run.epoch}`,
      ...path.map(({ seq, to_state, reason }) => `  ${seq} ${to_state} (${reason})`),
      ...effects.map(
        (e) => `  effect ${e.idempotency_key} ${e.effect_class} ${e.state} attempts ${e.attempts}`,
      ),
      ...attempts.map(
        (a) => `  attempt ${a.attempt} of ${a.effect_id} by ${a.worker}: ${a.outcome} ${a.reason}`,
      ),
    ].join('\n');
  }
}
