import { isoTime } from './row-values.js';
import type { Db } from '../database.js';
import type { RunEventRow } from './read-events.js';

/**
 * A place in a tenant's feed: after this event of the transaction `xid`. The feed's order is that of (xid, run, sequence):
 * the events of one run stand in their own order, those of several in one that is the same for every reader.
 */
export interface FeedPlace {
  readonly xid: number;
  /** Empty: before every event of `xid`. */
  readonly runId: string;
  readonly seq: number;
}

/** One event of the tenant's feed, and the place after it. */
export interface FeedEvent extends RunEventRow {
  readonly runId: string;
  readonly place: FeedPlace;
}

/** Events in order, and how far the reader has come with them. */
export interface FeedPage {
  readonly events: readonly FeedEvent[];
  /** Where the next page begins: after the last event, or further where nothing more is. */
  readonly next: FeedPlace;
  /** There is more to read now. */
  readonly more: boolean;
  /** Events are committed that cannot be told yet: an older transaction still runs, and may come before them. */
  readonly pending: boolean;
}

/** Where a tenant's feed stands. */
export interface FeedHead {
  /** Below this every transaction is over: nothing comes to be there any more. */
  readonly horizon: number;
  /** Of what stands up to here some was let go; 0 where nothing was. */
  readonly floor: number;
}

const READ_HEAD = {
  name: 'reads/feed-head',
  text: `
    select (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint as horizon,
           coalesce((select feed_xid from holdfast.feed_floors where tenant_id = $1), 0) as floor`,
};

/** Where the tenant's feed stands now. */
export async function readFeedHead(db: Db, tenantId: string): Promise<FeedHead> {
  const { rows } = await db.query<{ horizon: string; floor: string }>({ ...READ_HEAD, values: [tenantId] });
  return { horizon: Number(rows[0]?.horizon ?? 0), floor: Number(rows[0]?.floor ?? 0) };
}

/** How many transactions one look covers at first; each that finds nothing covers four times as many. */
const WINDOW = 10_000;

// One statement, so the horizon and the rows are of one snapshot. What stands below it is whole: a row that comes later
// was written by a transaction that runs still or has not begun, and its number is no less than that one's.
const READ_WINDOW = {
  name: 'reads/feed-window',
  text: `
    with bound as (
      select least($4::bigint, horizon) as upper, horizon
        from (select (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint as horizon) snapshot)
    select b.upper, b.horizon, e.*,
           exists (select from holdfast.run_events where tenant_id = $1 and feed_xid >= b.horizon) as pending
      from bound b
      left join lateral (
        select run_id, seq, feed_xid, type, created_at, data,
               sum(octet_length(data)) over (order by feed_xid, run_id, seq) as bytes,
               row_number() over (order by feed_xid, run_id, seq) as number
          from (select run_id, seq, feed_xid, type, created_at, data::text as data
                  from holdfast.run_events
                 where tenant_id = $1 and feed_xid >= $2 and feed_xid < b.upper
                   and (feed_xid, run_id::text, seq) > ($2, $3, $5::bigint)
                 order by feed_xid, run_id, seq
                 limit $6) next
      ) e on e.bytes <= $7 or e.number = 1
     order by e.feed_xid, e.run_id, e.seq`,
};

interface WindowRow {
  readonly upper: string;
  readonly horizon: string;
  readonly pending: boolean;
  readonly run_id: string | null;
  readonly seq: string;
  readonly feed_xid: string;
  readonly type: string;
  readonly created_at: Date;
  readonly data: string;
}

/**
 * The tenant's events after `place`, at most `limit` of them and `bytesMax` bytes (but always one where there is one).
 * Whoever goes on from `next` misses none and sees none twice, whatever is committed meanwhile and in whatever order.
 */
export async function readFeedPage(
  db: Db,
  tenantId: string,
  place: FeedPlace,
  page: { readonly limit: number; readonly bytesMax: number },
): Promise<FeedPage> {
  let from = place;
  for (let width = WINDOW; ; width *= 4) {
    const values = [tenantId, from.xid, from.runId, from.xid + width, from.seq, page.limit, page.bytesMax];
    const { rows } = await db.query<WindowRow>({ ...READ_WINDOW, values });
    const first = rows[0];
    if (first === undefined) throw new Error('bug: a bound has one row');
    const horizon = Number(first.horizon);
    const events = rows.flatMap((row) => (row.run_id === null ? [] : [eventOf(row, row.run_id)]));
    const last = events.at(-1);
    if (last !== undefined) {
      return { events, next: last.place, more: true, pending: first.pending };
    }
    // Nothing is there and nothing comes to be there: the window is passed for good.
    const upper = Math.max(from.xid, Number(first.upper));
    if (upper > from.xid) from = { xid: upper, runId: '', seq: 0 };
    if (upper >= horizon) return { events, next: from, more: false, pending: first.pending };
  }
}

function eventOf({ seq, feed_xid, type, created_at, data }: WindowRow, runId: string): FeedEvent {
  const place = { xid: Number(feed_xid), runId, seq: Number(seq) };
  return { runId, place, seq: place.seq, type, at: isoTime(created_at), dataText: data };
}
