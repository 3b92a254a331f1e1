import { comparableActor } from '../domain/actors.js';
import type { JsonValue } from '../domain/json.js';
import type { Role } from '../domain/roles.js';
import { callFunction, type Db } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';

export interface NewRoleGrant {
  readonly tenantId: string;
  /** Who grants it, and the role that lets them. */
  readonly grantedBy: string;
  readonly authority: string;
  readonly actorId: string;
  readonly role: Role;
  readonly idempotencyKey: string;
}

export type RoleGranted =
  /** `held`: the actor has it already, by the grant that is named. */
  | { readonly kind: 'granted' | 'held' | 'replayed' | 'reused'; readonly role_grant_id: string }
  | { readonly kind: 'role_required' };

const GRANT = {
  name: 'ledger/grant-role',
  text: 'select holdfast.grant_role($1, $2, $3, $4, $5, $6, $7, $8, $9) as answer',
};

/**
 * Gives somebody a role. From the first grant of a role on, the tenant's grants alone say who has it, whatever an
 * identity claims.
 */
export async function grantRole(db: Db, grant: NewRoleGrant): Promise<RoleGranted> {
  const { tenantId, grantedBy, authority, actorId, role, idempotencyKey } = grant;
  const asked = { grantedBy, actorId: comparableActor(actorId), role } satisfies JsonValue;
  // Of the two the row for whoever grants is the earlier.
  const own = newId('rgr');
  const answer = await callFunction(db, GRANT, [
    ...[newId('rgr'), own, tenantId, grantedBy, authority, actorId, role, idempotencyKey],
    digestOf(asked),
  ]);
  return answer as unknown as RoleGranted;
}

export type RoleRevoked = {
  readonly kind: 'revoked' | 'role_required' | 'role_grant_not_found' | 'last_admin';
};

const REVOKE = { name: 'ledger/revoke-role', text: 'select holdfast.revoke_role($1, $2, $3, $4) as answer' };

/** Takes a role back, for good. An approval that waits to be used counts no more from here on. Safe to repeat. */
export async function revokeRole(
  db: Db,
  by: { readonly tenantId: string; readonly actorId: string; readonly authority: string },
  roleGrantId: string,
): Promise<RoleRevoked> {
  const answer = await callFunction(db, REVOKE, [by.tenantId, roleGrantId, by.actorId, by.authority]);
  return answer as unknown as RoleRevoked;
}

const RULED = {
  name: 'ledger/roles-of',
  text: `
    select role, bool_or(revoked_at is null and actor_id = $2) as held
      from holdfast.role_grants where tenant_id = $1 group by role`,
};

/** The roles that an actor really has: as the ledger says where it rules over a role, as claimed where it does not. */
export async function rolesOf(
  db: Db,
  tenantId: string,
  actorId: string,
  claimed: readonly Role[],
): Promise<readonly Role[]> {
  const { rows } = await db.query<{ role: Role; held: boolean }>({
    ...RULED,
    values: [tenantId, comparableActor(actorId)],
  });
  if (rows.length === 0) return claimed;
  const ruled = new Set(rows.map(({ role }) => role));
  const held = rows.filter((row) => row.held).map(({ role }) => role);
  return [...claimed.filter((role) => !ruled.has(role)), ...held];
}
