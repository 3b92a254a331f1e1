import type { EffectState } from '../../domain/effect-machine.js';
import type { JsonValue } from '../../domain/json.js';
import type { Db } from '../database.js';
import { type InterruptSummary, SUMMARY_COLUMNS, SUMMARY_FROM, summaryOf } from './list-interrupts.js';
import type { SummaryRow } from './list-interrupts.js';
import { isoTimeOrNull, jsonTime } from './row-values.js';

/** One person's word on a wait. */
export interface DecisionRecord {
  readonly actor_id: string;
  readonly decision: 'approve' | 'deny' | 'revoke' | 'answer';
  readonly authority: string;
  readonly scope_sha256: string;
  readonly note: string;
  /** What was answered; null for every other decision. */
  readonly answer: JsonValue;
  readonly at: string;
}

/** One wait with everything that somebody needs who decides it. */
export interface InterruptRecord extends InterruptSummary {
  /** What would run, or what is asked, made from the stored row (SPEC 4.1); `scope_sha256` is its digest. */
  readonly scope: JsonValue;
  /** JSON Schema of the answer. */
  readonly answer_schema: JsonValue;
  /** In order, at most 100. */
  readonly decisions: readonly DecisionRecord[];
  readonly consumed_at: string | null;
  /** The wait that this one took the place of, since somebody changed the arguments. */
  readonly supersedes: string | null;
  /** The wait that took the place of this one. */
  readonly superseded_by: string | null;
  /** Null where nothing would run. */
  readonly effect_state: EffectState | null;
  /** What the model wrote beside the call, at most 20,000 characters: its words, not what would run. */
  readonly model_words: string | null;
}

const READ_INTERRUPT = {
  name: 'reads/interrupt',
  text: `
    select ${SUMMARY_COLUMNS}, i.scope, i.answer_schema, i.consumed_at, e.state as effect_state, i.supersedes,
           (select n.interrupt_id from holdfast.interrupts n where n.supersedes = i.interrupt_id) as superseded_by,
           (select coalesce(jsonb_agg(to_jsonb(said) order by said.at), '[]') from (
              select d.actor_id, d.decision, d.authority, d.scope_sha256, d.note, d.answer::jsonb as answer,
                     d.created_at as at
                from holdfast.decisions d where d.interrupt_id = i.interrupt_id
              union all
              -- The words of a reconciliation are kept with its effect.
              select w.actor_id, 'answer', w.authority, i.scope_sha256, '', jsonb_strip_nulls(jsonb_build_object(
                     'decided', w.decided, 'reference', w.reference, 'note', w.note)), w.created_at
                from holdfast.settlement_words w where w.interrupt_id = i.interrupt_id
               order by at limit 100) said
           ) as decisions,
           (select left(string_agg(part ->> 'text', E'\\n' order by place), 20000)
              from holdfast.messages m,
                   jsonb_array_elements(m.content -> 'parts') with ordinality as parts (part, place)
             where m.run_id = i.run_id and m.turn = i.turn and m.step = i.step and m.role = 'assistant'
               and part ->> 'type' = 'text') as model_words
      ${SUMMARY_FROM}
     where i.interrupt_id = $1 and i.tenant_id = $2`,
};

/** The wait as it is now, or null when this tenant has no such wait. Decides nothing. */
export async function readInterrupt(
  db: Db,
  tenantId: string,
  interruptId: string,
): Promise<InterruptRecord | null> {
  const { rows } = await db.query<InterruptRow>({ ...READ_INTERRUPT, values: [interruptId, tenantId] });
  const row = rows[0];
  if (row === undefined) return null;
  return {
    ...row,
    ...summaryOf(row),
    decisions: row.decisions.map((said) => ({ ...said, at: jsonTime(said.at) })),
    consumed_at: isoTimeOrNull(row.consumed_at),
  };
}

type InterruptRow = SummaryRow &
  Omit<InterruptRecord, keyof InterruptSummary | 'consumed_at'> & { readonly consumed_at: Date | null };
