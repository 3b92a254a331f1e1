import type { RunState } from '../../domain/run-machine.js';
import type { EffectClass } from '../../domain/effect-classes.js';
import type { EffectState } from '../../domain/effect-machine.js';
import type { JsonValue } from '../../domain/json.js';
import type { Db } from '../database.js';
import { type Evidence, readEvidence } from './read-evidence.js';
import type { SettlementRecord } from './read-effects.js';
import { isoTime } from './row-values.js';

/** An effect whose outcome nobody knew, with all that a person needs to find out (SPEC 3.6). */
export interface ReconciliationRecord extends Evidence {
  readonly effect_id: string;
  readonly run_id: string;
  readonly run_state: RunState;
  readonly agent: string;
  readonly effect_state: EffectState;
  /** What was to be done. */
  readonly intent: {
    readonly turn: number;
    readonly step: number;
    readonly slot: number;
    readonly redo: number;
    readonly tool: string;
    readonly tool_version: string;
    readonly effect_class: EffectClass;
    readonly namespace: string;
    /** The name under which the target may know the call. */
    readonly idempotency_key: string;
    readonly arguments: JsonValue;
    readonly arguments_sha256: string;
    readonly requested_by: string;
    readonly created_at: string;
  };
  /** Present exactly while the outcome is unknown. */
  readonly waiting: {
    readonly since: string;
    readonly age_seconds: number;
    /** Who must see to it. */
    readonly owner: string;
    readonly deadline_at: string;
    readonly overdue: boolean;
  } | null;
  readonly settlement: SettlementRecord | null;
}

/** Which items are wanted; null asks for all. */
export interface ReconciliationFilters {
  readonly state: 'open' | 'settled';
  readonly runId: string | null;
  readonly agent: string | null;
  readonly tool: string | null;
  /** Of open ones alone: a settled one has no owner any more. */
  readonly owner: string | null;
  readonly overdue: boolean | null;
}

/** The place of an item: its deadline, or when it was settled, in microseconds; then its effect. */
export type ReconciliationPlace = readonly [at: string, effectId: string];

/** Open ones: the most urgent first. Settled ones: the newest first. */
const ORDER = {
  open: { at: 'e.reconciliation_deadline_at', after: '>', direction: '' },
  settled: { at: 's.decided_at', after: '<', direction: 'desc' },
} as const;

const IS = {
  open: `e.state = 'unknown' and r.state in ('needs_reconciliation', 'reconciling')`,
  settled: 's.effect_id is not null',
} as const;

const COLUMNS = `
           e.effect_id, e.run_id, r.state as run_state, r.agent, e.state as effect_state, e.turn, e.step, e.slot,
           e.redo, e.tool, e.tool_version, e.effect_class, e.namespace, e.idempotency_key, e.arguments,
           e.arguments_sha256, e.requested_by, e.created_at, e.unknown_at, e.reconciliation_owner as owner,
           e.reconciliation_deadline_at as deadline_at, e.reconciliation_deadline_at <= clock_timestamp() as overdue,
           floor(extract(epoch from clock_timestamp() - e.unknown_at))::int as age_seconds,
           s.decided, s.source, s.evidence, s.actor_id, s.note, s.decided_at`;
const FROM = `
      from holdfast.effects e
      join holdfast.runs r using (run_id)
      left join holdfast.reconciliations s using (effect_id)`;
const MICROSECONDS = `'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'`;

/** The tenant's items, at most `limit`, after the place `after` where one is given; and the place of the last. */
export async function listReconciliations(
  db: Db,
  tenantId: string,
  filters: ReconciliationFilters,
  page: { readonly after: ReconciliationPlace | null; readonly limit: number },
): Promise<{ items: ReconciliationRecord[]; last: ReconciliationPlace | null }> {
  const { state, runId, agent, tool, owner, overdue } = filters;
  const { at, after, direction } = ORDER[state];
  const { rows } = await db.query<ItemRow & { readonly place_at: string }>({
    name: `reads/reconciliations/${state}`,
    text: `
    select ${COLUMNS}, to_char(${at} at time zone 'UTC', ${MICROSECONDS}) as place_at ${FROM}
     where e.tenant_id = $1 and ${IS[state]}
       and ($2::text is null or e.run_id = $2)
       and ($3::text is null or r.agent = $3)
       and ($4::text is null or e.tool = $4)
       and ($5::text is null or e.reconciliation_owner = $5)
       and ($6::boolean is null or (e.reconciliation_deadline_at <= clock_timestamp()) = $6)
       and ($7::timestamptz is null or (${at}, e.effect_id) ${after} ($7, $8))
     order by ${at} ${direction}, e.effect_id ${direction}
     limit $9`,
    values: [
      ...[tenantId, runId, agent, tool, owner, overdue],
      ...[page.after?.[0] ?? null, page.after?.[1] ?? null, page.limit],
    ],
  });
  const last = rows.at(-1);
  return {
    items: await withEvidence(db, rows),
    last: last === undefined ? null : [last.place_at, last.effect_id],
  };
}

const READ_ITEM = {
  name: 'reads/reconciliation',
  text: `
    select ${COLUMNS} ${FROM}
     where e.effect_id = $1 and e.tenant_id = $2 and (e.state = 'unknown' or s.effect_id is not null)`,
};

/** The item as it is now, or null when this tenant has no such effect or its outcome was never in doubt. */
export async function readReconciliation(
  db: Db,
  tenantId: string,
  effectId: string,
): Promise<ReconciliationRecord | null> {
  const { rows } = await db.query<ItemRow>({ ...READ_ITEM, values: [effectId, tenantId] });
  return (await withEvidence(db, rows))[0] ?? null;
}

async function withEvidence(db: Db, rows: readonly ItemRow[]): Promise<ReconciliationRecord[]> {
  // Evidence younger than the items' snapshot may show; an item ahead of its evidence never does.
  const evidence = await readEvidence(
    db,
    rows.map((row) => row.effect_id),
  );
  return rows.map((row) => ({
    ...itemOf(row),
    ...(evidence.get(row.effect_id) ?? { attempts: [], late_receipts: [], queries: [] }),
  }));
}

interface ItemRow extends Pick<
  ReconciliationRecord,
  'effect_id' | 'run_id' | 'run_state' | 'agent' | 'effect_state'
> {
  readonly turn: number;
  readonly step: number;
  readonly slot: number;
  readonly redo: number;
  readonly tool: string;
  readonly tool_version: string;
  readonly effect_class: EffectClass;
  readonly namespace: string;
  readonly idempotency_key: string;
  readonly arguments: string;
  readonly arguments_sha256: string;
  readonly requested_by: string;
  readonly created_at: Date;
  readonly unknown_at: Date | null;
  readonly owner: string | null;
  readonly deadline_at: Date | null;
  readonly overdue: boolean | null;
  readonly age_seconds: number | null;
  readonly decided: SettlementRecord['decided'] | null;
  readonly source: SettlementRecord['source'];
  readonly evidence: JsonValue;
  readonly actor_id: string;
  readonly note: string;
  readonly decided_at: Date;
}

function itemOf(row: ItemRow): Omit<ReconciliationRecord, keyof Evidence> {
  const { effect_id, run_id, run_state, agent, effect_state } = row;
  const { turn, step, slot, redo, tool, tool_version, effect_class, namespace, idempotency_key } = row;
  return {
    ...{ effect_id, run_id, run_state, agent, effect_state },
    intent: {
      ...{ turn, step, slot, redo, tool, tool_version, effect_class, namespace, idempotency_key },
      arguments: JSON.parse(row.arguments) as JsonValue,
      arguments_sha256: row.arguments_sha256,
      requested_by: row.requested_by,
      created_at: isoTime(row.created_at),
    },
    waiting: waitingOf(row),
    settlement: settlementOf(row),
  };
}

function waitingOf({ unknown_at, owner, deadline_at, overdue, age_seconds }: ItemRow) {
  if (unknown_at === null || owner === null || deadline_at === null) return null;
  return {
    since: isoTime(unknown_at),
    age_seconds: age_seconds ?? 0,
    owner,
    deadline_at: isoTime(deadline_at),
    overdue: overdue === true,
  };
}

function settlementOf(row: ItemRow): SettlementRecord | null {
  const { decided, source, evidence, actor_id, note } = row;
  if (decided === null) return null;
  return { decided, source, evidence, actor_id, note, decided_at: isoTime(row.decided_at) };
}
