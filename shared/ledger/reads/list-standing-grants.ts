import type { Db } from '../database.js';
import type { GrantConstraint } from '../standing-grants.js';
import { isoTime, isoTimeOrNull, jsonTime } from './row-values.js';

/** Where a grant can stand: only a `live` one is used. */
export const STANDING_GRANT_STATES = ['live', 'used_up', 'expired', 'revoked'] as const;
export type StandingGrantState = (typeof STANDING_GRANT_STATES)[number];

/** A yes given beforehand, with what it was used for. */
export interface StandingGrantRecord {
  readonly standing_grant_id: string;
  readonly state: StandingGrantState;
  readonly agent: string | null;
  readonly tool: string;
  readonly tool_version: string;
  readonly constraints: readonly GrantConstraint[];
  readonly count: number;
  readonly used: number;
  readonly granted_by: string;
  readonly authority: string;
  readonly note: string;
  readonly created_at: string;
  readonly expires_at: string;
  readonly revoked_at: string | null;
  readonly revoked_by: string | null;
  /** The newest 100, in order. */
  readonly uses: readonly {
    readonly use: number;
    readonly effect_id: string;
    readonly run_id: string;
    readonly arguments_sha256: string;
    readonly used_at: string;
  }[];
}

/** Which grants are wanted; null asks for all. */
export interface StandingGrantFilters {
  readonly state: StandingGrantState | null;
  readonly tool: string | null;
  readonly agent: string | null;
}

const SELECT = `
    select * from (
      select g.standing_grant_id, g.agent, g.tool, g.tool_version, g.uses_max as count, g.uses as used, g.granted_by,
             g.authority, g.note, g.created_at, g.expires_at, g.revoked_at, g.revoked_by,
             (select jsonb_agg(c - 'path' order by n) from jsonb_array_elements(g.constraints) with ordinality as t (c, n)
             ) as constraints,
             case when g.revoked_at is not null then 'revoked' when g.uses >= g.uses_max then 'used_up'
                  when g.expires_at <= clock_timestamp() then 'expired' else 'live' end as state,
             (select coalesce(jsonb_agg(to_jsonb(used) order by used.use), '[]') from (
                select u.use, u.effect_id, u.run_id, u.arguments_sha256, u.used_at from holdfast.standing_grant_uses u
                 where u.standing_grant_id = g.standing_grant_id order by u.use desc limit 100) used) as uses
        from holdfast.standing_grants g where g.tenant_id = $1) g`;

const LIST = {
  name: 'reads/standing-grants',
  text: `${SELECT}
     where ($2::text is null or state = $2)
       and ($3::text is null or tool = $3)
       and ($4::text is null or agent = $4)
       and standing_grant_id > $5
     order by standing_grant_id limit $6`,
};

/** The tenant's standing grants, oldest first, at most `limit`, after the grant `after` ('' for the first). */
export async function listStandingGrants(
  db: Db,
  tenantId: string,
  filters: StandingGrantFilters,
  page: { readonly after: string; readonly limit: number },
): Promise<StandingGrantRecord[]> {
  const { rows } = await db.query<StandingGrantRow>({
    ...LIST,
    values: [tenantId, filters.state, filters.tool, filters.agent, page.after, page.limit],
  });
  return rows.map(recordOf);
}

const READ = { name: 'reads/standing-grant', text: `${SELECT} where standing_grant_id = $2` };

/** The grant as it is now, or null when this tenant has no such grant. */
export async function readStandingGrant(
  db: Db,
  tenantId: string,
  id: string,
): Promise<StandingGrantRecord | null> {
  const { rows } = await db.query<StandingGrantRow>({ ...READ, values: [tenantId, id] });
  return rows[0] === undefined ? null : recordOf(rows[0]);
}

type StandingGrantRow = Omit<StandingGrantRecord, 'created_at' | 'expires_at' | 'revoked_at'> & {
  readonly created_at: Date;
  readonly expires_at: Date;
  readonly revoked_at: Date | null;
};

function recordOf(row: StandingGrantRow): StandingGrantRecord {
  return {
    ...row,
    created_at: isoTime(row.created_at),
    expires_at: isoTime(row.expires_at),
    revoked_at: isoTimeOrNull(row.revoked_at),
    uses: row.uses.map((use) => ({ ...use, used_at: jsonTime(use.used_at) })),
  };
}
