import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull } from './row-values.js';

/** `in_force`: nobody asks the target. `easing`: asked in turns until it has answered. */
export const COOLDOWN_STATES = ['in_force', 'easing', 'over'] as const;
export type CooldownState = (typeof COOLDOWN_STATES)[number];
export const COOLDOWN_KINDS = ['model', 'tool'] as const;
export type CooldownKind = (typeof COOLDOWN_KINDS)[number];

/** What asked one run to come later, and so all of them. It belongs to no tenant. */
export interface CooldownRecord {
  readonly cooldown_id: string;
  readonly kind: CooldownKind;
  readonly target: string;
  readonly state: CooldownState;
  readonly reason: string;
  readonly stops: number;
  /** The target's own word, uncapped; null where it said none. */
  readonly retry_after_seconds: number | null;
  /** What it said beside that, without keys and prompts. */
  readonly detail: string | null;
  readonly since: string;
  readonly until: string;
  /** Runs of the asking tenant whose turn has not come. */
  readonly waiting_runs: number;
  /** The turn that was given last. */
  readonly last_turn_at: string;
  readonly ended_at: string | null;
  readonly ended_by: 'success' | 'stop' | null;
  /** A person's word that it is over. `actor_id` is null where that is none of the asking tenant. */
  readonly cleared: { readonly at: string; readonly actor_id: string | null } | null;
}

/** Which are wanted; null asks for all. `open` are those that are not over. */
export interface CooldownFilters {
  readonly state: CooldownState | 'open' | null;
  readonly kind: CooldownKind | null;
}

const SELECT = `
    select * from (
      select c.cooldown_id, c.kind, c.target, c.reason, c.stops, ceil(c.said_ms / 1000.0)::float8 as retry_after_seconds,
             c.detail, c.since, c.until_at as until, c.last_slot_at as last_turn_at, c.ended_at, c.ended_by, c.cleared_at,
             case when c.cleared_tenant = $1 then c.cleared_by end as cleared_by,
             case when c.ended_at is not null then 'over' when c.until_at > clock_timestamp() then 'in_force'
                  else 'easing' end as state,
             (select count(*)::int from holdfast.runs r
               where r.cooldown_id = c.cooldown_id and r.cooldown_slot_at > clock_timestamp() and r.tenant_id = $1
                 and r.ended_at is null) as waiting_runs
        from holdfast.cooldowns c) c`;

const LIST = {
  name: 'reads/cooldowns',
  text: `${SELECT}
     where ($2::text is null or state = $2 or $2 = 'open' and state <> 'over')
       and ($3::text is null or kind = $3)
       and ($4 = '' or cooldown_id < $4)
     order by cooldown_id desc limit $5`,
};

/** Cool-downs, newest first, at most `limit`, after the one `after` ('' for the first). */
export async function listCooldowns(
  db: Db,
  tenantId: string,
  filters: CooldownFilters,
  page: { readonly after: string; readonly limit: number },
): Promise<CooldownRecord[]> {
  const { rows } = await db.query<CooldownRow>({
    ...LIST,
    values: [tenantId, filters.state, filters.kind, page.after, page.limit],
  });
  return rows.map(recordOf);
}

const READ = { name: 'reads/cooldown', text: `${SELECT} where cooldown_id = $2` };

/** The cool-down as it is now, or null when there is none of this id. */
export async function readCooldown(db: Db, tenantId: string, id: string): Promise<CooldownRecord | null> {
  const { rows } = await db.query<CooldownRow>({ ...READ, values: [tenantId, id] });
  return rows[0] === undefined ? null : recordOf(rows[0]);
}

type Times = 'since' | 'until' | 'last_turn_at';
type CooldownRow = Omit<CooldownRecord, Times | 'ended_at' | 'cleared'> &
  Readonly<Record<Times, Date>> & {
    readonly ended_at: Date | null;
    readonly cleared_at: Date | null;
    readonly cleared_by: string | null;
  };

function recordOf({ cleared_at, cleared_by, ...row }: CooldownRow): CooldownRecord {
  return {
    ...row,
    since: isoTime(row.since),
    until: isoTime(row.until),
    last_turn_at: isoTime(row.last_turn_at),
    ended_at: isoTimeOrNull(row.ended_at),
    cleared: cleared_at === null ? null : { at: isoTime(cleared_at), actor_id: cleared_by },
  };
}
