import type { Role } from '../../domain/roles.js';
import type { Db } from '../database.js';
import { isoTime, isoTimeOrNull } from './row-values.js';

/** Somebody's right to act in a role, for as long as it is not revoked. */
export interface RoleGrantRecord {
  readonly role_grant_id: string;
  readonly actor_id: string;
  readonly role: Role;
  readonly granted_by: string;
  readonly created_at: string;
  readonly revoked_at: string | null;
  readonly revoked_by: string | null;
}

/** Which grants are wanted; null asks for all. */
export interface RoleGrantFilters {
  readonly live: boolean | null;
  readonly role: string | null;
  readonly actorId: string | null;
}

const COLUMNS = 'role_grant_id, actor_id, role, granted_by, created_at, revoked_at, revoked_by';

const LIST = {
  name: 'reads/role-grants',
  text: `
    select ${COLUMNS} from holdfast.role_grants
     where tenant_id = $1
       and ($2::boolean is null or (revoked_at is null) = $2)
       and ($3::text is null or role = $3)
       and ($4::text is null or actor_id = $4)
       and role_grant_id > $5
     order by role_grant_id limit $6`,
};

/** The tenant's role grants, oldest first, at most `limit`, after the grant `after` ('' for the first). */
export async function listRoleGrants(
  db: Db,
  tenantId: string,
  filters: RoleGrantFilters,
  page: { readonly after: string; readonly limit: number },
): Promise<RoleGrantRecord[]> {
  const { rows } = await db.query<RoleGrantRow>({
    ...LIST,
    values: [tenantId, filters.live, filters.role, filters.actorId, page.after, page.limit],
  });
  return rows.map(recordOf);
}

const READ = {
  name: 'reads/role-grant',
  text: `select ${COLUMNS} from holdfast.role_grants where tenant_id = $1 and role_grant_id = $2`,
};

/** The grant as it is now, or null when this tenant has no such grant. */
export async function readRoleGrant(db: Db, tenantId: string, id: string): Promise<RoleGrantRecord | null> {
  const { rows } = await db.query<RoleGrantRow>({ ...READ, values: [tenantId, id] });
  return rows[0] === undefined ? null : recordOf(rows[0]);
}

type RoleGrantRow = Omit<RoleGrantRecord, 'created_at' | 'revoked_at'> & {
  readonly created_at: Date;
  readonly revoked_at: Date | null;
};

function recordOf(row: RoleGrantRow): RoleGrantRecord {
  return { ...row, created_at: isoTime(row.created_at), revoked_at: isoTimeOrNull(row.revoked_at) };
}
