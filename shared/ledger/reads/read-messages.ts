import type { JsonValue } from '../../domain/json.js';
import type { RunState } from '../../domain/run-machine.js';
import type { DoubleTexting, MessageState, MessageVerdict } from '../../domain/thread-table.js';
import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull } from './row-values.js';

/** A message of a thread and what became of it. */
export interface ThreadMessageRecord {
  readonly message_id: string;
  readonly thread_id: string;
  readonly seq: number;
  readonly actor_id: string;
  readonly text: string;
  readonly policy: DoubleTexting;
  readonly verdict: Exclude<MessageVerdict, 'thread_busy'>;
  readonly state: MessageState;
  /** Why nobody will read it; null while that is open, or somebody has. */
  readonly code: string | null;
  /** The run that worked when it came. */
  readonly met_run_id: string | null;
  /** The run that it was given to. */
  readonly run: {
    readonly run_id: string;
    readonly state: RunState;
    /** The step at which a run in progress took it up; null where it began the run. */
    readonly step: number | null;
    /** What the model said last: the answer of a completed run, the partial result of any other. */
    readonly last_message: JsonValue;
  } | null;
  readonly created_at: string;
  readonly decided_at: string | null;
}

const COLUMNS = `
  m.message_id, m.thread_id, m.seq, m.actor_id, m.text, m.policy, m.verdict, m.state, m.code, m.met_run_id, m.created_at,
  m.decided_at, case when r.run_id is not null then jsonb_build_object('run_id', r.run_id, 'state', r.state, 'step', m.step,
    'last_message', (select a.content from holdfast.messages a where a.run_id = r.run_id and a.role = 'assistant'
                      order by a.turn desc, a.step desc, a.position desc limit 1)) end as run`;

const READ_MESSAGE = {
  name: 'reads/thread-message',
  text: `
    select ${COLUMNS} from holdfast.thread_messages m left join holdfast.runs r on r.run_id = m.run_id
     where m.message_id = $1 and m.tenant_id = $2`,
};

/** One message, or null when this tenant has no such. */
export async function readMessage(
  db: Db,
  tenantId: string,
  messageId: string,
): Promise<ThreadMessageRecord | null> {
  const { rows } = await db.query<MessageRow>({ ...READ_MESSAGE, values: [messageId, tenantId] });
  return rows[0] === undefined ? null : messageOf(rows[0]);
}

// A page is bounded by what it holds too; one message is always given.
const LIST_MESSAGES = {
  name: 'reads/thread-messages',
  text: `
    select ${COLUMNS}
      from (select *, sum(octet_length(text)) over (order by seq) - octet_length(text) as before
              from holdfast.thread_messages where thread_id = $1 and tenant_id = $2 and seq > $3 order by seq limit $4) m
      left join holdfast.runs r on r.run_id = m.run_id
     where m.before < $5 order by m.seq`,
};

/** Messages of a thread after the number `after`, in order, at most `limit` and about `bytesMax` of text. */
export async function listThreadMessages(
  db: Db,
  tenantId: string,
  threadId: string,
  page: { readonly after: number; readonly limit: number; readonly bytesMax: number },
): Promise<ThreadMessageRecord[]> {
  const values = [threadId, tenantId, page.after, page.limit, page.bytesMax];
  const { rows } = await db.query<MessageRow>({ ...LIST_MESSAGES, values });
  return rows.map(messageOf);
}

type MessageRow = Omit<ThreadMessageRecord, 'created_at' | 'decided_at'> & {
  readonly created_at: Date;
  readonly decided_at: Date | null;
};

function messageOf(row: MessageRow): ThreadMessageRecord {
  return { ...row, created_at: isoTime(row.created_at), decided_at: isoTimeOrNull(row.decided_at) };
}
