import type { JsonValue } from '../../domain/json.js';
import type { EffectState } from '../../domain/effect-machine.js';
import type { ControlState, RunState } from '../../domain/run-machine.js';
import type { DoubleTexting } from '../../domain/thread-table.js';
import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull, jsonTimeOrNull } from './row-values.js';

/** Whether somebody holds a run of the thread now. `gone`: its workflow was lost, and the ledger keeps the run. */
export const THREAD_RUNTIMES = ['none', 'starting', 'loaded', 'gone'] as const;
export type ThreadRuntime = (typeof THREAD_RUNTIMES)[number];

/** The newest run of a thread. */
export interface ThreadTurn {
  readonly run_id: string;
  readonly place: number;
  readonly state: RunState;
  readonly control: ControlState;
  readonly reason: string | null;
  readonly ended_at: string | null;
}

/** A run that was taken out of the transcript, and what it changed outside: that stays done. */
export interface RolledBackRun {
  readonly run_id: string;
  readonly message_id: string;
  readonly state: RunState;
  readonly effects: readonly {
    readonly effect_id: string;
    readonly tool: string;
    readonly state: EffectState;
    readonly reference: string | null;
  }[];
}

/** A thread at one instant: what holds it, its turn, its archival and how fresh that is are four facts (SPEC 5). */
export interface ThreadRecord {
  readonly thread_id: string;
  readonly agent: string;
  readonly policy: DoubleTexting;
  readonly contract: JsonValue;
  readonly created_by: string;
  readonly created_at: string;
  readonly runtime: ThreadRuntime;
  readonly turn: ThreadTurn | null;
  readonly archived: { readonly at: string; readonly by: string } | null;
  readonly messages: { readonly total: number; readonly by_state: Readonly<Record<string, number>> };
  readonly runs: number;
  readonly rolled_back: readonly RolledBackRun[];
  readonly freshness: { readonly as_of: string; readonly updated_at: string; readonly message_seq: number };
}

/** Of every run of a thread: the newest, and which runtime that means. */
const NEWEST_RUN = `
  left join lateral (
    select run_id, thread_place as place, state, control, reason, ended_at, owner_execution, updated_at
      from holdfast.runs where thread_id = t.thread_id order by thread_place desc limit 1) r on true`;
const RUNTIME = `
  case when r.run_id is null or r.ended_at is not null then 'none' when r.owner_execution is null then 'starting'
       when r.owner_execution = 'sweeper' then 'gone' else 'loaded' end as runtime`;

const READ_THREAD = {
  name: 'reads/thread',
  text: `
    select t.thread_id, t.agent, t.policy, t.contract, t.created_by, t.created_at, t.archived_at, t.archived_by,
           t.message_seq, t.run_seq, greatest(t.updated_at, r.updated_at) as updated_at, clock_timestamp() as as_of,
           ${RUNTIME}, to_jsonb(r) as turn,
           (select coalesce(jsonb_object_agg(c.state, c.count), '{}') from (
              select state, count(*) from holdfast.thread_messages where thread_id = t.thread_id group by state) c
           ) as message_counts,
           (select coalesce(jsonb_agg(to_jsonb(b) order by b.thread_place), '[]') from (
              select x.run_id, x.thread_place, x.rolled_back_by as message_id, x.state, (
                       select coalesce(jsonb_agg(to_jsonb(e) order by e.effect_id), '[]') from (
                         select f.effect_id, f.tool, f.state, p.reference from holdfast.effects f
                           left join holdfast.receipts p using (effect_id)
                          where f.run_id = x.run_id and f.effect_class <> 'read' order by f.effect_id limit 100) e
                     ) as effects
                from holdfast.runs x where x.thread_id = t.thread_id and x.rolled_back_by is not null
               order by x.thread_place desc limit 100) b
           ) as rolled_back
      from holdfast.threads t ${NEWEST_RUN}
     where t.thread_id = $1 and t.tenant_id = $2`,
};

/** The thread as it is now, or null when this tenant has no such. Starts nothing. */
export async function readThread(db: Db, tenantId: string, threadId: string): Promise<ThreadRecord | null> {
  const { rows } = await db.query<ThreadRow>({ ...READ_THREAD, values: [threadId, tenantId] });
  const row = rows[0];
  if (row === undefined) return null;
  const { thread_id, agent, policy, contract, created_by, runtime, archived_at: at, archived_by: by } = row;
  return {
    ...{ thread_id, agent, policy, contract, created_by, created_at: isoTime(row.created_at), runtime },
    turn: row.turn === null ? null : turnOf(row.turn),
    archived: at === null || by === null ? null : { at: isoTime(at), by },
    messages: { total: row.message_seq, by_state: row.message_counts },
    runs: row.run_seq,
    rolled_back: row.rolled_back.map(({ run_id, message_id, state, effects }) => ({
      ...{ run_id, message_id, state, effects },
    })),
    freshness: {
      as_of: isoTime(row.as_of),
      updated_at: isoTime(row.updated_at),
      message_seq: row.message_seq,
    },
  };
}

function turnOf({ run_id, place, state, control, reason, ended_at }: ThreadTurn): ThreadTurn {
  return { run_id, place, state, control, reason, ended_at: jsonTimeOrNull(ended_at) };
}

interface ThreadRow {
  readonly thread_id: string;
  readonly agent: string;
  readonly policy: DoubleTexting;
  readonly contract: JsonValue;
  readonly created_by: string;
  readonly created_at: Date;
  readonly archived_at: Date | null;
  readonly archived_by: string | null;
  readonly message_seq: number;
  readonly run_seq: number;
  readonly updated_at: Date;
  readonly as_of: Date;
  readonly runtime: ThreadRuntime;
  readonly turn: ThreadTurn | null;
  readonly message_counts: Readonly<Record<string, number>>;
  readonly rolled_back: readonly RolledBackRun[];
}

/** A thread in one line. */
export interface ThreadSummary {
  readonly thread_id: string;
  readonly agent: string;
  readonly policy: DoubleTexting;
  readonly created_by: string;
  readonly created_at: string;
  readonly runtime: ThreadRuntime;
  readonly turn: ThreadTurn | null;
  readonly archived_at: string | null;
  readonly messages: number;
  readonly updated_at: string;
}

const LIST_THREADS = {
  name: 'reads/threads',
  text: `
    select t.thread_id, t.agent, t.policy, t.created_by, t.created_at, t.archived_at, t.message_seq as messages,
           greatest(t.updated_at, r.updated_at) as updated_at, ${RUNTIME}, to_jsonb(r) as turn
      from holdfast.threads t ${NEWEST_RUN}
     where t.tenant_id = $1 and ($2::text is null or t.agent = $2)
       and ($3::boolean is null or (t.archived_at is not null) = $3) and ($4::text is null or t.thread_id < $4)
     order by t.thread_id desc limit $5`,
};

/** The tenant's threads, newest first, at most `limit`, before the thread `before` where one is given. */
export async function listThreads(
  db: Db,
  tenantId: string,
  filters: { readonly agent: string | null; readonly archived: boolean | null },
  page: { readonly before: string | null; readonly limit: number },
): Promise<ThreadSummary[]> {
  const values = [tenantId, filters.agent, filters.archived, page.before, page.limit];
  type Row = Omit<ThreadSummary, 'created_at' | 'archived_at' | 'updated_at'> &
    Record<'created_at' | 'updated_at', Date> & { readonly archived_at: Date | null };
  const { rows } = await db.query<Row>({ ...LIST_THREADS, values });
  return rows.map((row) => ({
    ...row,
    created_at: isoTime(row.created_at),
    archived_at: isoTimeOrNull(row.archived_at),
    updated_at: isoTime(row.updated_at),
    turn: row.turn === null ? null : turnOf(row.turn),
  }));
}
