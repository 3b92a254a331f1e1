import type { RunState } from '../../domain/run-machine.js';
import type { EffectClass } from '../../domain/effect-classes.js';
import type { EffectState } from '../../domain/effect-machine.js';
import type { JsonValue } from '../../domain/json.js';
import type { Db } from '../database.js';
import { type Evidence, readEvidence } from './read-evidence.js';
import type { SettlementRecord } from './read-effects.js';
import type { SettlementWord } from '../settlement.js';
import { isoTime, isoTimeOrNull, jsonTime, jsonTimeOrNull } from './row-values.js';

/** An effect that a person was asked about, with all that they need to find out (SPEC 3.6, 3.7). */
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
  /** Present exactly while a person is waited for, or a machine still finds out. */
  readonly waiting: {
    /** Whether it happened, or whether it is undone. */
    readonly about: 'outcome' | 'undo';
    readonly since: string;
    readonly age_seconds: number;
    /** Who must see to it. */
    readonly owner: string;
    readonly deadline_at: string;
    readonly overdue: boolean;
    /** When it became overdue. */
    readonly overdue_since: string | null;
    /** When that was told: once for each deadline. */
    readonly escalated_at: string | null;
    /** Two people must say the same. */
    readonly two_people: boolean;
    /** The word that stands until another person says the same. */
    readonly first_word: SettlementWordRecord | null;
  } | null;
  readonly settlement: SettlementRecord | null;
  readonly undo: UndoRecord | null;
}

/** What a person said of an effect that no tool undoes. */
export interface UndoRecord {
  readonly state: 'waiting' | 'compensated' | 'left';
  readonly why: string;
  /** The compensation that was tried last. */
  readonly compensation_effect_id: string | null;
  readonly reference: string | null;
  readonly actor_id: string | null;
  readonly note: string | null;
  readonly decided_at: string | null;
}

/** One person's word, where two must say the same. */
export interface SettlementWordRecord {
  readonly decided: SettlementWord;
  readonly reference: string | null;
  readonly note: string;
  readonly actor_id: string;
  readonly authority: string;
  readonly at: string;
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
  open: { at: 'coalesce(u.deadline_at, e.reconciliation_deadline_at)', after: '>', direction: '' },
  settled: { at: 'coalesce(u.decided_at, s.decided_at)', after: '<', direction: 'desc' },
} as const;

const IS = {
  open: `e.effect_id in (
             select effect_id from holdfast.effects where tenant_id = $1 and state = 'unknown'
             union all select effect_id from holdfast.undos where tenant_id = $1 and state = 'waiting')
       and (u.state = 'waiting' or r.state in ('needs_reconciliation', 'reconciling'))`,
  settled: `e.effect_id in (
             select effect_id from holdfast.reconciliations where tenant_id = $1
             union select effect_id from holdfast.undos where tenant_id = $1)
       and u.state is distinct from 'waiting'`,
} as const;

const COLUMNS = `
           e.effect_id, e.run_id, r.state as run_state, r.agent, e.state as effect_state, e.turn, e.step, e.slot,
           e.redo, e.tool, e.tool_version, e.effect_class, e.namespace, e.idempotency_key, e.arguments,
           e.arguments_sha256, e.requested_by, e.created_at, w.*,
           w.deadline_at <= clock_timestamp() as overdue,
           floor(extract(epoch from clock_timestamp() - w.since))::int as age_seconds,
           coalesce(r.contract #> '{reconciliation,two_people}' ? e.effect_class, false) as two_people,
           (select created_at from holdfast.escalations x
             where x.effect_id = e.effect_id and x.deadline_at = w.deadline_at) as escalated_at,
           (select to_jsonb(f) from (
              select decided, reference, note, f.actor_id, authority, f.created_at as at
                from holdfast.settlement_words f join holdfast.interrupts i using (interrupt_id)
               where f.effect_id = e.effect_id and i.state = 'open' order by word desc limit 1) f) as first_word,
           (select to_jsonb(d) from (
              select u.state, u.why, (select c.effect_id from holdfast.effects c where c.compensates = e.effect_id
                                       order by c.redo desc limit 1) as compensation_effect_id,
                     u.reference, u.actor_id, u.note, u.decided_at where u.effect_id is not null) d) as undo,
           s.decided, s.source, s.evidence, s.actor_id, s.note, s.decided_at`;
const FROM = `
      from holdfast.effects e
      join holdfast.runs r using (run_id)
      left join holdfast.reconciliations s using (effect_id)
      left join holdfast.undos u using (effect_id)
      cross join lateral (
        select case when u.state = 'waiting' then 'undo' when e.state = 'unknown' then 'outcome' end as about,
               case when u.state = 'waiting' then u.since else e.unknown_at end as since,
               case when u.state = 'waiting' then u.owner else e.reconciliation_owner end as owner,
               case when u.state = 'waiting' then u.deadline_at else e.reconciliation_deadline_at end as deadline_at) w`;
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
       and ($5::text is null or w.owner = $5)
       and ($6::boolean is null or (w.deadline_at <= clock_timestamp()) = $6)
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
     where e.effect_id = $1 and e.tenant_id = $2 and (e.state = 'unknown' or s.effect_id is not null or u.effect_id is not null)`,
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
  readonly about: 'outcome' | 'undo' | null;
  readonly since: Date | null;
  readonly owner: string | null;
  readonly deadline_at: Date | null;
  readonly overdue: boolean | null;
  readonly age_seconds: number | null;
  readonly two_people: boolean;
  readonly escalated_at: Date | null;
  readonly first_word: SettlementWordRecord | null;
  readonly undo: UndoRecord | null;
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
    undo: row.undo === null ? null : { ...row.undo, decided_at: jsonTimeOrNull(row.undo.decided_at) },
  };
}

function waitingOf(row: ItemRow): ReconciliationRecord['waiting'] {
  const { about, since, owner, deadline_at, overdue, two_people, escalated_at, first_word } = row;
  if (about === null || since === null || owner === null || deadline_at === null) return null;
  return {
    about,
    since: isoTime(since),
    age_seconds: row.age_seconds ?? 0,
    owner,
    deadline_at: isoTime(deadline_at),
    overdue: overdue === true,
    overdue_since: overdue === true ? isoTime(deadline_at) : null,
    escalated_at: isoTimeOrNull(escalated_at),
    two_people,
    first_word: two_people && first_word !== null ? { ...first_word, at: jsonTime(first_word.at) } : null,
  };
}

function settlementOf(row: ItemRow): SettlementRecord | null {
  const { decided, source, evidence, actor_id, note } = row;
  if (decided === null) return null;
  return { decided, source, evidence, actor_id, note, decided_at: isoTime(row.decided_at) };
}
