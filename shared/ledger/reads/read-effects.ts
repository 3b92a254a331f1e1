import type { EffectClass } from '../../domain/effect-classes.js';
import type { EffectState } from '../../domain/effect-machine.js';
import type { JsonValue } from '../../domain/json.js';
import { BODY_START_BYTES, isoTime, isoTimeOrNull, textStart } from './row-values.js';
import type { Db } from '../database.js';
import type { RunKey } from './row-values.js';

/** One try at dispatching an effect. */
export interface AttemptRecord {
  readonly attempt_id: string;
  readonly attempt: number;
  readonly epoch: number;
  readonly worker: string;
  readonly started_at: string;
  readonly lease_until: string;
  readonly ended_at: string | null;
  /** Null while the attempt is open. */
  readonly outcome: string | null;
  readonly reason: string | null;
}

/** The proof that settled an effect. */
export interface ReceiptRecord {
  readonly status: 'succeeded' | 'rejected' | 'committed' | 'not_committed';
  readonly source: 'response' | 'probe' | 'late_receipt' | 'person';
  readonly reference: string | null;
  readonly target_status: string | null;
  readonly content_type: string | null;
  readonly body_bytes: number;
  readonly body_sha256: string;
  /** The target sent more than was kept. */
  readonly truncated: boolean;
  /** The first 4,096 bytes of the body where they are well-formed text; null where they are not. */
  readonly body_start: string | null;
  readonly recorded_at: string;
}

/** How an unknown outcome was settled, by whom and on what evidence. */
export interface SettlementRecord {
  /** `compensated`: it happened, and a person had undone it. */
  readonly decided: 'committed' | 'not_committed' | 'compensated';
  /** `class`: a read commits nothing, whatever became of the request. */
  readonly source: 'late_receipt' | 'probe' | 'person' | 'class';
  readonly evidence: JsonValue;
  readonly actor_id: string;
  readonly note: string;
  readonly decided_at: string;
}

/** One intended outside consequence with everything known of it. */
export interface EffectRecord {
  readonly effect_id: string;
  /** Whose it is: another run's where it is inherited. */
  readonly run_id: string;
  /** Of a run that this one was forked from, before the cut. */
  readonly inherited: boolean;
  /** 0 for what is inherited, like the copied messages. */
  readonly turn: number;
  readonly step: number;
  readonly slot: number;
  /** The effect of another run whose receipt answered this call. */
  readonly reuses: string | null;
  readonly simulated: boolean;
  /** 0 for the first; a redo counts up and supersedes the one before. */
  readonly redo: number;
  readonly supersedes: string | null;
  /** The effect that this one undoes. */
  readonly compensates: string | null;
  readonly call_id: string;
  readonly tool: string;
  readonly tool_version: string;
  readonly effect_class: EffectClass;
  readonly namespace: string;
  readonly idempotency_key: string;
  readonly arguments: JsonValue;
  readonly arguments_sha256: string;
  readonly state: EffectState;
  readonly requested_by: string;
  readonly attempts: number;
  readonly attempts_max: number;
  readonly lost_attempts: number;
  readonly resends: number;
  readonly series_deadline_at: string;
  readonly created_at: string;
  readonly first_dispatched_at: string | null;
  readonly last_dispatched_at: string | null;
  readonly settled_at: string | null;
  /** The outside name of what the effect did, from its receipt. */
  readonly reference: string | null;
  /** Who must settle it and by when; present exactly while its outcome is unknown. */
  readonly reconciliation: { readonly owner: string; readonly deadline_at: string } | null;
  readonly settlement: SettlementRecord | null;
  readonly receipt: ReceiptRecord | null;
  /** The newest 100, in order. */
  readonly attempt_list: readonly AttemptRecord[];
  /** Answers that came after their attempt had lost the right to settle. */
  readonly late_receipts: number;
  readonly status_queries: number;
}

/** The place of an effect in its run; pages go on after one. */
export type EffectPlace = readonly [turn: number, step: number, slot: number, redo: number];

const LIST_EFFECTS = {
  name: 'reads/effects',
  text: `
    select e.effect_id, e.run_id, p.inherited, p.turn, p.step, p.slot, p.redo, e.reuses, e.simulated, e.supersedes, e.compensates, e.call_id, e.tool, e.tool_version,
           e.effect_class, e.namespace, e.idempotency_key, e.arguments, e.arguments_sha256, e.state,
           e.requested_by, e.attempts, e.attempts_max, e.lost_attempts, e.resends, e.series_deadline_at,
           e.created_at, e.first_dispatched_at, e.last_dispatched_at, e.settled_at, e.reconciliation_owner,
           e.reconciliation_deadline_at,
           c.status, c.source, c.reference, c.target_status, c.content_type, c.body_sha256, c.truncated,
           c.recorded_at, octet_length(c.body) as body_bytes,
           substring(c.body from 1 for ${BODY_START_BYTES}) as body_start,
           s.decided, s.source as settlement_source, s.evidence, s.actor_id, s.note, s.decided_at,
           (select count(*)::int from holdfast.late_receipts l
             where l.effect_id = e.effect_id) as late_receipts,
           (select count(*)::int from holdfast.status_queries q
             where q.effect_id = e.effect_id) as status_queries
      from (select effect_id, turn, step, slot, redo, false as inherited from holdfast.effects where run_id = $1
            union all
            select effect_id, 0, step, slot, redo, true from holdfast.inherited_effects where run_id = $1) p
      join holdfast.effects e using (effect_id)
      left join holdfast.receipts c using (effect_id)
      left join holdfast.reconciliations s using (effect_id)
     where e.tenant_id = $2 and (p.turn, p.step, p.slot, p.redo) > ($3, $4, $5, $6)
     order by p.turn, p.step, p.slot, p.redo
     limit $7`,
};

const LIST_ATTEMPTS = {
  name: 'reads/attempts',
  text: `
    select effect_id, attempt_id, attempt, epoch, worker, started_at, lease_until, ended_at, outcome, reason
      from (select effect_id, attempt_id, attempt, epoch, worker, started_at, lease_until, ended_at, outcome,
                   reason, row_number() over (partition by effect_id order by attempt desc) as age
              from holdfast.attempts
             where effect_id = any($1)) numbered
     where age <= 100
     order by effect_id, attempt`,
};

/**
 * Effects after the place `after`, in the order the model asked for them, at most `limit`, with their
 * attempts.
 */
export async function listEffects(
  db: Db,
  key: RunKey,
  page: { readonly after: EffectPlace; readonly limit: number },
): Promise<EffectRecord[]> {
  const { rows } = await db.query<EffectRow>({
    ...LIST_EFFECTS,
    values: [key.runId, key.tenantId, ...page.after, page.limit],
  });
  // An attempt younger than the effects' snapshot may show; a state ahead of its attempts never does.
  const attempts = await db.query<AttemptRow>({
    ...LIST_ATTEMPTS,
    values: [rows.map((row) => row.effect_id)],
  });
  const byEffect = new Map<string, AttemptRow[]>(rows.map((row) => [row.effect_id, []]));
  for (const attempt of attempts.rows) byEffect.get(attempt.effect_id)?.push(attempt);
  return rows.map((row) => effectOf(row, byEffect.get(row.effect_id) ?? []));
}

function effectOf(row: EffectRow, attempts: readonly AttemptRow[]): EffectRecord {
  const { reconciliation_owner: owner, reconciliation_deadline_at: deadline } = row;
  return {
    effect_id: row.effect_id,
    run_id: row.run_id,
    inherited: row.inherited,
    turn: row.turn,
    step: row.step,
    slot: row.slot,
    redo: row.redo,
    reuses: row.reuses,
    simulated: row.simulated,
    supersedes: row.supersedes,
    compensates: row.compensates,
    call_id: row.call_id,
    tool: row.tool,
    tool_version: row.tool_version,
    effect_class: row.effect_class,
    namespace: row.namespace,
    idempotency_key: row.idempotency_key,
    arguments: JSON.parse(row.arguments) as JsonValue,
    arguments_sha256: row.arguments_sha256,
    state: row.state,
    requested_by: row.requested_by,
    attempts: row.attempts,
    attempts_max: row.attempts_max,
    lost_attempts: row.lost_attempts,
    resends: row.resends,
    series_deadline_at: isoTime(row.series_deadline_at),
    created_at: isoTime(row.created_at),
    first_dispatched_at: isoTimeOrNull(row.first_dispatched_at),
    last_dispatched_at: isoTimeOrNull(row.last_dispatched_at),
    settled_at: isoTimeOrNull(row.settled_at),
    reference: row.reference,
    reconciliation: owner === null || deadline === null ? null : { owner, deadline_at: isoTime(deadline) },
    settlement: settlementOf(row),
    receipt: receiptOf(row),
    attempt_list: attempts.map(attemptOf),
    late_receipts: row.late_receipts,
    status_queries: row.status_queries,
  };
}

function attemptOf(row: AttemptRow): AttemptRecord {
  const { attempt_id, attempt, epoch, worker, outcome, reason } = row;
  return {
    ...{ attempt_id, attempt, epoch, worker },
    started_at: isoTime(row.started_at),
    lease_until: isoTime(row.lease_until),
    ended_at: isoTimeOrNull(row.ended_at),
    ...{ outcome, reason },
  };
}

function receiptOf(row: EffectRow): ReceiptRecord | null {
  if (row.status === null) return null;
  const { status, source, reference, target_status, content_type, body_bytes, body_sha256, truncated } = row;
  return {
    ...{ status, source, reference, target_status, content_type, body_bytes, body_sha256, truncated },
    body_start: textStart(row.body_start),
    recorded_at: isoTime(row.recorded_at),
  };
}

function settlementOf(row: EffectRow): SettlementRecord | null {
  if (row.decided === null) return null;
  const { decided, settlement_source: source, evidence, actor_id, note } = row;
  return { decided, source, evidence, actor_id, note, decided_at: isoTime(row.decided_at) };
}

interface AttemptRow {
  readonly effect_id: string;
  readonly attempt_id: string;
  readonly attempt: number;
  readonly epoch: number;
  readonly worker: string;
  readonly started_at: Date;
  readonly lease_until: Date;
  readonly ended_at: Date | null;
  readonly outcome: string | null;
  readonly reason: string | null;
}

type ReceiptColumns =
  | { readonly status: null; readonly reference: null }
  | (Omit<ReceiptRecord, 'body_start' | 'recorded_at'> & {
      readonly body_start: Buffer;
      readonly recorded_at: Date;
    });

type SettlementColumns =
  | { readonly decided: null }
  | {
      readonly decided: SettlementRecord['decided'];
      readonly settlement_source: SettlementRecord['source'];
      readonly evidence: JsonValue;
      readonly actor_id: string;
      readonly note: string;
      readonly decided_at: Date;
    };

type EffectTimes =
  'series_deadline_at' | 'created_at' | 'first_dispatched_at' | 'last_dispatched_at' | 'settled_at';
type EffectRow = Omit<
  EffectRecord,
  EffectTimes | 'arguments' | 'reference' | 'reconciliation' | 'settlement' | 'receipt' | 'attempt_list'
> & {
  readonly arguments: string;
  readonly series_deadline_at: Date;
  readonly created_at: Date;
  readonly first_dispatched_at: Date | null;
  readonly last_dispatched_at: Date | null;
  readonly settled_at: Date | null;
  readonly reconciliation_owner: string | null;
  readonly reconciliation_deadline_at: Date | null;
} & ReceiptColumns &
  SettlementColumns;
