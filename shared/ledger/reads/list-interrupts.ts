import type { JsonValue } from '../../domain/json.js';
import type { ControlState, RunState } from '../../domain/run-machine.js';
import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull } from './row-values.js';
import { LINEAGE_JOIN, ROOT_OF_RUN } from './run-lineage.js';

export const INTERRUPT_KINDS = ['approval', 'input', 'reconciliation', 'budget'] as const;
export type InterruptKind = (typeof INTERRUPT_KINDS)[number];

/** Where a wait can stand. One that has run out is `expired` from that instant on, whoever has noticed. */
export const INTERRUPT_STATES = [
  'open',
  'approved',
  'denied',
  'answered',
  'consumed',
  'expired',
  'revoked',
  'superseded',
  'withdrawn',
] as const;
export type InterruptState = (typeof INTERRUPT_STATES)[number];

/** One wait for somebody, in one line. */
export interface InterruptSummary {
  readonly interrupt_id: string;
  readonly kind: InterruptKind;
  readonly state: InterruptState;
  readonly run_id: string;
  readonly parent_run_id: string | null;
  /** The agent that started the run as a child; null where a person started it. */
  readonly parent_agent: string | null;
  /** The top of the run's tree: itself where it is nobody's child. */
  readonly root_run_id: string;
  readonly run_state: RunState;
  readonly run_control: ControlState;
  readonly agent: string;
  readonly turn: number;
  readonly step: number;
  /** Null for a wait over the step's model call. */
  readonly slot: number | null;
  /** Null where nothing would run: a wait for input. */
  readonly effect_id: string | null;
  /** The tool or the question that was called; `model/` and the profile's name for a model call. */
  readonly tool: string;
  /** Of a reconciliation: whether it happened, or whether it is undone. Null for every other kind. */
  readonly asks: 'outcome' | 'undo' | null;
  /** For an approval, who may not decide it. */
  readonly requested_by: string;
  /** Who must see to it; null where only a role says who may. */
  readonly owner: string | null;
  /** What a decision must name. */
  readonly scope_sha256: string;
  readonly required_role: string;
  readonly quorum: number;
  /** Words that count towards the quorum: approvals of people who have the role still, or the settlement that stands. */
  readonly approvals: number;
  readonly on_expiry: 'deny' | 'escalate' | 'tell_model' | 'fail';
  readonly created_at: string;
  readonly expires_at: string;
  /** Its time is over and it waits still: only `escalate` does that. */
  readonly overdue: boolean;
  readonly decided_at: string | null;
}

/** Which waits are wanted; null asks for all. */
export interface InterruptFilters {
  readonly state: InterruptState | null;
  readonly kind: InterruptKind | null;
  readonly runId: string | null;
  /** Waits of the whole tree under this run. */
  readonly rootRunId: string | null;
  readonly agent: string | null;
  readonly role: string | null;
}

/** Whether the time of a row `i` of interrupts has ended it, as SQL. What escalates waits on, past its deadline too. */
export const RAN_OUT = `(i.on_expiry <> 'escalate' and i.expires_at <= clock_timestamp())`;

/** The condition of a state as SQL: literal, so that the index of what waits serves it. */
function stateIs(state: InterruptState | null): string {
  if (state === null) return 'true';
  if (state === 'expired') return `(i.state = 'expired' or i.state in ('open', 'approved') and ${RAN_OUT})`;
  return state === 'open' || state === 'approved'
    ? `i.state = '${state}' and i.state in ('open', 'approved') and not ${RAN_OUT}`
    : `i.state = '${state}'`;
}

/** The tool that a wait is about, for a row `i` of interrupts and the effect `e` that it may have. */
export const TOOL_OF_WAIT = `coalesce(e.tool, i.scope ->> 'tool')`;
const VERSION_OF_WAIT = `coalesce(e.tool_version, i.scope ->> 'tool_version')`;
const ARGUMENTS_OF_WAIT = `coalesce(e.arguments_sha256, i.scope ->> 'arguments_sha256')`;
/** What is asked about the act: whether it may run is another question than whether it did. */
const ASKS_OF_WAIT = `case i.kind when 'reconciliation' then i.scope ->> 'asks' end`;
const ACT = `${TOOL_OF_WAIT}, ${VERSION_OF_WAIT}, ${ARGUMENTS_OF_WAIT}, i.kind, coalesce(${ASKS_OF_WAIT}, '')`;

/** Columns of a summary, for a row `i` of interrupts with its run `r` and its effect `e`. */
export const SUMMARY_COLUMNS = `
           i.interrupt_id, i.kind, i.run_id, r.parent_run_id, p.agent as parent_agent, ${ROOT_OF_RUN} as root_run_id,
           r.state as run_state, r.control as run_control, r.agent, i.turn, i.step,
           i.slot, i.effect_id, ${TOOL_OF_WAIT} as tool, ${ASKS_OF_WAIT} as asks, i.requested_by, i.owner, i.scope_sha256, i.required_role, i.quorum, i.on_expiry,
           i.created_at, i.expires_at, i.decided_at,
           case when i.state in ('open', 'approved') and ${RAN_OUT} then 'expired' else i.state end as state,
           i.state = 'open' and i.on_expiry = 'escalate' and i.expires_at <= clock_timestamp() as overdue,
           case when i.kind <> 'reconciliation' then holdfast.counted_approvals(i.interrupt_id)
                when i.state = 'answered' then i.quorum
                else exists (select from holdfast.settlement_words s where s.interrupt_id = i.interrupt_id)::int end as approvals`;

/** Where the rows of `SUMMARY_COLUMNS` come from. */
export const SUMMARY_FROM = `
      from holdfast.interrupts i
      join holdfast.runs r on r.run_id = i.run_id
      ${LINEAGE_JOIN}
      left join holdfast.runs p on p.run_id = h.parent_run_id
      left join holdfast.effects e on e.effect_id = i.effect_id`;

const FILTERED = `i.tenant_id = $1
       and ($2::text is null or i.kind = $2)
       and ($3::text is null or i.run_id = $3)
       and ($4::text is null or r.agent = $4)
       and ($5::text is null or i.required_role = $5)
       and ($6::text is null or ${ROOT_OF_RUN} = $6)`;

function valuesOf(tenantId: string, filters: InterruptFilters): (string | null)[] {
  return [tenantId, filters.kind, filters.runId, filters.agent, filters.role, filters.rootRunId];
}

/** The tenant's waits, oldest first, at most `limit`, after the interrupt `after` ('' for the first). */
export async function listInterrupts(
  db: Db,
  tenantId: string,
  filters: InterruptFilters,
  page: { readonly after: string; readonly limit: number },
): Promise<InterruptSummary[]> {
  const { rows } = await db.query<SummaryRow>({
    name: `reads/interrupts/${filters.state ?? 'all'}`,
    text: `
    select ${SUMMARY_COLUMNS} ${SUMMARY_FROM}
     where ${stateIs(filters.state)} and ${FILTERED} and i.interrupt_id > $7
     order by i.interrupt_id
     limit $8`,
    values: [...valuesOf(tenantId, filters), page.after, page.limit],
  });
  return rows.map(summaryOf);
}

/** Waits of one kind for the very same act: one tool in one version with one set of arguments. */
export interface InterruptGroup {
  readonly kind: InterruptKind;
  readonly asks: InterruptSummary['asks'];
  readonly tool: string;
  readonly tool_version: string;
  readonly arguments: JsonValue;
  readonly arguments_sha256: string;
  readonly count: number;
  readonly runs: number;
  readonly oldest_at: string;
  readonly first_expires_at: string;
  /** The oldest 100. Each has a digest of its own and is decided by itself. */
  readonly interrupts: readonly {
    readonly interrupt_id: string;
    readonly run_id: string;
    readonly scope_sha256: string;
  }[];
}

/** The place of a group in the list; pages go on after one. */
export type GroupPlace = readonly [
  tool: string,
  toolVersion: string,
  argumentsSha256: string,
  kind: string,
  asks: string,
];

/** The tenant's waits by what they are about, in the order of tools, at most `limit` groups. */
export async function listInterruptGroups(
  db: Db,
  tenantId: string,
  filters: InterruptFilters,
  page: { readonly after: GroupPlace; readonly limit: number },
): Promise<InterruptGroup[]> {
  const { rows } = await db.query<GroupRow>({
    name: `reads/interrupt-groups/${filters.state ?? 'all'}`,
    text: `
    select i.kind, ${ASKS_OF_WAIT} as asks, ${TOOL_OF_WAIT} as tool, ${VERSION_OF_WAIT} as tool_version, ${ARGUMENTS_OF_WAIT} as arguments_sha256,
           coalesce(min(e.arguments), min((i.scope -> 'arguments')::text)) as arguments, count(*)::int as count,
           count(distinct i.run_id)::int as runs, min(i.created_at) as oldest_at, min(i.expires_at) as first_expires_at,
           to_jsonb((array_agg(jsonb_build_object('interrupt_id', i.interrupt_id, 'run_id', i.run_id,
             'scope_sha256', i.scope_sha256) order by i.interrupt_id))[1:100]) as interrupts
      ${SUMMARY_FROM}
     where ${stateIs(filters.state)} and ${FILTERED}
       and (${ACT}) > ($7, $8, $9, $10, $11)
     group by ${ACT}, ${ASKS_OF_WAIT}
     order by ${ACT}
     limit $12`,
    values: [...valuesOf(tenantId, filters), ...page.after, page.limit],
  });
  return rows.map((row) => ({
    ...row,
    arguments: JSON.parse(row.arguments) as JsonValue,
    oldest_at: isoTime(row.oldest_at),
    first_expires_at: isoTime(row.first_expires_at),
  }));
}

type Times = 'created_at' | 'expires_at' | 'decided_at';
export type SummaryRow = Omit<InterruptSummary, Times> & {
  readonly created_at: Date;
  readonly expires_at: Date;
  readonly decided_at: Date | null;
};
type GroupRow = Omit<InterruptGroup, 'arguments' | 'oldest_at' | 'first_expires_at'> & {
  readonly arguments: string;
  readonly oldest_at: Date;
  readonly first_expires_at: Date;
};

/** A summary as it leaves the ledger. */
export function summaryOf(row: SummaryRow): InterruptSummary {
  return {
    ...row,
    created_at: isoTime(row.created_at),
    expires_at: isoTime(row.expires_at),
    decided_at: isoTimeOrNull(row.decided_at),
  };
}
