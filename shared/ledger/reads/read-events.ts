import { isoTime } from './row-values.js';
import type { Db } from '../database.js';
import type { RunKey } from './row-values.js';

/** Where a run's trail ends now. */
export interface RunHead {
  /** Sequence of the last committed event; 0 before the first. */
  readonly eventSeq: number;
  /** Sequence of the first event that is still there; past `eventSeq` when none is. */
  readonly eventsFrom: number;
  readonly stateVersion: number;
  readonly ended: boolean;
}

/** Whether events right after `after` were there once and are gone. */
export const isGone = (head: RunHead, after: number): boolean => after + 1 < head.eventsFrom;

/** One committed event as the feed tells it. `dataText` is its data as JSON text on one line. */
export interface RunEventRow {
  readonly seq: number;
  readonly type: string;
  readonly at: string;
  readonly dataText: string;
}

/** Events of one run in order, and the head they were read under: one snapshot. */
export interface EventPage {
  readonly head: RunHead;
  readonly events: readonly RunEventRow[];
}

const READ_HEAD = {
  name: 'reads/head',
  text: `
    select event_seq, events_from, state_version, ended_at is not null as ended
      from holdfast.runs
     where run_id = $1 and tenant_id = $2`,
};

/** Where the run's trail ends, or null when this tenant has no such run. */
export async function readRunHead(db: Db, key: RunKey): Promise<RunHead | null> {
  const { rows } = await db.query<HeadRow>({ ...READ_HEAD, values: [key.runId, key.tenantId] });
  const row = rows[0];
  return row === undefined ? null : headOf(row);
}

// One statement, so head and events are of one snapshot: an event that the head counts is in the page or
// after it. The running sum bounds the page in bytes; its first event is given whatever its size.
const READ_PAGE = {
  name: 'reads/event-page',
  text: `
    select r.event_seq, r.events_from, r.state_version, r.ended_at is not null as ended, e.seq, e.type, e.created_at, e.data
      from holdfast.runs r
      left join lateral (
        select seq, type, created_at, data, sum(octet_length(data)) over (order by seq) as bytes
          from (select seq, type, created_at, data::text as data
                  from holdfast.run_events
                 where run_id = r.run_id and tenant_id = r.tenant_id and seq > $3
                 order by seq
                 limit $4) next
      ) e on e.bytes <= $5 or e.seq = $3 + 1
     where r.run_id = $1 and r.tenant_id = $2
     order by e.seq`,
};

/**
 * The events after sequence `after`, at most `limit` of them and at most `bytesMax` bytes of data (but
 * always one where there is one). Null when this tenant has no such run. Starts nothing.
 */
export async function readEventPage(
  db: Db,
  key: RunKey,
  page: { readonly after: number; readonly limit: number; readonly bytesMax: number },
): Promise<EventPage | null> {
  const values = [key.runId, key.tenantId, page.after, page.limit, page.bytesMax];
  const { rows } = await db.query<PageRow>({ ...READ_PAGE, values });
  const first = rows[0];
  if (first === undefined) return null;
  return {
    head: headOf(first),
    events: rows.flatMap(({ seq, type, created_at, data }) =>
      seq === null || type === null || created_at === null || data === null
        ? []
        : [{ seq: Number(seq), type, at: isoTime(created_at), dataText: data }],
    ),
  };
}

const READ_HEADS = {
  name: 'reads/heads',
  text: `select run_id, event_seq, ended_at is not null as ended from holdfast.runs where run_id = any($1)`,
};

/** The heads of many runs at once, whoever owns them: for waking streams, never for an answer. */
export async function readEventHeads(
  db: Db,
  runIds: readonly string[],
): Promise<ReadonlyMap<string, Pick<RunHead, 'eventSeq' | 'ended'>>> {
  const { rows } = await db.query<{ run_id: string; event_seq: string; ended: boolean }>({
    ...READ_HEADS,
    values: [runIds],
  });
  return new Map(rows.map((row) => [row.run_id, { eventSeq: Number(row.event_seq), ended: row.ended }]));
}

interface HeadRow {
  readonly event_seq: string;
  readonly events_from: string;
  readonly state_version: number;
  readonly ended: boolean;
}
interface PageRow extends HeadRow {
  readonly seq: string | null;
  readonly type: string | null;
  readonly created_at: Date | null;
  readonly data: string | null;
}

function headOf(row: HeadRow): RunHead {
  return {
    ...{ eventSeq: Number(row.event_seq), eventsFrom: Number(row.events_from) },
    ...{ stateVersion: row.state_version, ended: row.ended },
  };
}
