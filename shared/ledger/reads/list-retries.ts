import type { EffectState } from '../../domain/effect-machine.js';
import type { JsonValue } from '../../domain/json.js';
import type { RunState } from '../../domain/run-machine.js';
import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull, jsonTime, jsonTimeOrNull, type RunKey } from './row-values.js';
import type { RetryStop } from './run-record.js';

/** `waiting`: for its next attempt. `asking`: a person. `exhausted`: given up. `over`: it went on. */
export const SERIES_STATES = ['waiting', 'asking', 'exhausted', 'over'] as const;
export type SeriesState = (typeof SERIES_STATES)[number];

/** What is to be done about a series, and by whom. */
export const SERIES_NEXT = [
  'wait',
  'resume_run',
  'answer_interrupt',
  'settle_effect',
  'start_new_run',
  'nothing',
] as const;
export type SeriesNext = (typeof SERIES_NEXT)[number];

type StopOf = Pick<RetryStop, 'reason' | 'action' | 'attempt' | 'eligible_at' | 'retry_after_seconds' | 'at'>;

/** Every stop of one operation, from its first attempt to its end (SPEC 3.5). */
export interface RetrySeries {
  readonly run_id: string;
  readonly agent: string;
  readonly run_state: RunState;
  readonly turn: number;
  readonly step: number;
  /** Null when the operation is a model call. */
  readonly slot: number | null;
  readonly effect_id: string | null;
  /** The tool; null for a model call. */
  readonly tool: string | null;
  readonly state: SeriesState;
  /** Of the newest stop: why, what is done about it, who owns it, and what the target said. */
  readonly reason: string;
  readonly action: RetryStop['action'];
  readonly owner: string;
  readonly retry_after_seconds: number | null;
  readonly attempt: number;
  readonly attempts_max: number;
  readonly deadline_at: string;
  /** When the next attempt may be made; null unless it waits for one. */
  readonly next_at: string | null;
  /** Effects of the run whose outcome nobody knows; at most 100. */
  readonly uncertain_effects: readonly string[];
  readonly next_step: SeriesNext;
  /** What the model said last in a run that failed over it: the best there is. Null otherwise. */
  readonly partial_result: JsonValue;
  /** The newest 100, in order. */
  readonly stops: readonly StopOf[];
}

export interface SeriesFilters {
  readonly state: SeriesState | null;
  readonly reason: string | null;
  readonly agent: string | null;
}

/** Where a page ended: the run and the newest stop of the series. */
export type SeriesPlace = readonly [runId: string, trailSeq: number];

// The newest stop stands for its series; who waits is told by the run.
const SELECT = `
    select * from (
      select q.run_id, r.agent, r.state as run_state, q.turn, q.step, q.slot, q.effect_id, e.tool, e.state as effect_state,
             q.reason, q.action, q.owner, q.retry_after_seconds::float8 as retry_after_seconds, q.attempt, q.attempts_max,
             q.deadline_at, q.eligible_at, q.trail_seq::float8 as trail_seq, r.control = 'active' as is_active,
             case when q.action = 'give_up' then 'exhausted'
                  when r.ended_at is null and q.eligible_at is not null
                       and (r.state = 'retry_wait' or r.state = 'compensating' and q.eligible_at > now())
                       and q.trail_seq = (select max(n.trail_seq) from holdfast.retries n where n.run_id = q.run_id)
                    then 'waiting'
                  when q.action = 'ask_person' and exists (
                       select from holdfast.interrupts i where i.run_id = q.run_id and i.kind = 'input' and i.state = 'open'
                          and i.turn = q.turn and i.step = q.step and i.slot is null) then 'asking'
                  else 'over' end as state,
             (select coalesce(jsonb_agg(u.effect_id order by u.effect_id), '[]') from (
                select effect_id from holdfast.effects where run_id = q.run_id and state = 'unknown' limit 100) u
             ) as uncertain_effects,
             case when q.action = 'give_up' and r.state = 'failed' then (
               select m.content from holdfast.messages m where m.run_id = q.run_id and m.role = 'assistant'
                order by m.turn desc, m.step desc limit 1) end as partial_result,
             (select jsonb_agg(to_jsonb(s) - 'trail_seq' order by s.trail_seq) from (
                select trail_seq, reason, action, attempt, eligible_at, retry_after_seconds, created_at as at
                  from holdfast.retries o where o.run_id = q.run_id and o.turn = q.turn and o.step = q.step
                   and o.slot is not distinct from q.slot order by trail_seq desc limit 100) s) as stops
        from holdfast.retries q
        join holdfast.runs r using (run_id)
        left join holdfast.effects e on e.effect_id = q.effect_id
       where q.tenant_id = $1 and ($2::text is null or q.run_id = $2)
         and not exists (select from holdfast.retries n where n.run_id = q.run_id and n.turn = q.turn and n.step = q.step
                          and n.slot is not distinct from q.slot and n.trail_seq > q.trail_seq)) q`;

const OF_RUN = {
  name: 'reads/run-retries',
  text: `${SELECT} where trail_seq > $3 order by trail_seq limit $4`,
};

/** The series of a run in the order of their newest stops, at most `limit`, after the stop `after`. */
export async function listRunRetries(
  db: Db,
  key: RunKey,
  page: { readonly after: number; readonly limit: number },
): Promise<(RetrySeries & { readonly place: number })[]> {
  const { rows } = await db.query<SeriesRow>({
    ...OF_RUN,
    values: [key.tenantId, key.runId, page.after, page.limit],
  });
  return rows.map((row) => ({ ...seriesOf(row), place: row.trail_seq }));
}

const LIST = {
  name: 'reads/retries',
  text: `${SELECT}
     where ($3::text is null or state = $3) and ($4::text is null or reason = $4) and ($5::text is null or agent = $5)
       and ($6 = '' or (run_id, trail_seq) < ($6, $7))
     order by run_id desc, trail_seq desc limit $8`,
};

/** The tenant's series, those of the newest runs first, at most `limit`, after `after` (null for the first page). */
export async function listRetries(
  db: Db,
  tenantId: string,
  filters: SeriesFilters,
  page: { readonly after: SeriesPlace | null; readonly limit: number },
): Promise<(RetrySeries & { readonly place: number })[]> {
  const [runId, trailSeq] = page.after ?? ['', 0];
  const { rows } = await db.query<SeriesRow>({
    ...LIST,
    values: [tenantId, null, filters.state, filters.reason, filters.agent, runId, trailSeq, page.limit],
  });
  return rows.map((row) => ({ ...seriesOf(row), place: row.trail_seq }));
}

interface SeriesRow extends Omit<RetrySeries, 'deadline_at' | 'next_at' | 'next_step'> {
  readonly deadline_at: Date;
  readonly eligible_at: Date | null;
  readonly effect_state: EffectState | null;
  readonly is_active: boolean;
  readonly trail_seq: number;
}

function seriesOf(row: SeriesRow): RetrySeries {
  const { effect_state: _effect, is_active: _active, trail_seq: _place, eligible_at, ...series } = row;
  return {
    ...series,
    deadline_at: isoTime(row.deadline_at),
    next_at: row.state === 'waiting' ? isoTimeOrNull(eligible_at) : null,
    next_step: nextStepOf(row),
    stops: row.stops.map((stop) => ({
      ...stop,
      eligible_at: jsonTimeOrNull(stop.eligible_at),
      at: jsonTime(stop.at),
    })),
  };
}

function nextStepOf({ state, run_state, effect_state, is_active }: SeriesRow): SeriesNext {
  if (state === 'asking') return 'answer_interrupt';
  // A pause holds what comes due.
  if (state === 'waiting') return is_active ? 'wait' : 'resume_run';
  if (effect_state === 'unknown') return 'settle_effect';
  return state === 'exhausted' && run_state === 'failed' ? 'start_new_run' : 'nothing';
}
