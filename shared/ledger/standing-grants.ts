import { comparableActor } from '../domain/actors.js';
import type { JsonObject, JsonValue } from '../domain/json.js';
import { parsePointer } from '../domain/json-pointer.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';

/** What one value of the arguments must be, at a JSON pointer. */
export type GrantConstraint = { readonly at: string } & (
  | { readonly equals: JsonValue }
  | { readonly one_of: JsonValue[] }
  | { readonly maximum: number }
  | { readonly minimum: number }
);

/** A yes given beforehand, within bounds (SPEC 4.1). */
export interface NewStandingGrant {
  readonly tenantId: string;
  readonly grantedBy: string;
  readonly authority: string;
  /** Null for every agent of the tenant. */
  readonly agent: string | null;
  readonly tool: string;
  readonly toolVersion: string;
  readonly constraints: readonly GrantConstraint[];
  readonly usesMax: number;
  readonly expiresAt: string;
  readonly note: string;
  readonly idempotencyKey: string;
}

export type StandingGrantGiven =
  | { readonly kind: 'given' | 'replayed' | 'reused'; readonly standing_grant_id: string }
  | { readonly kind: 'role_required' }
  | { readonly kind: 'expiry_out_of_range' };

const GIVE = {
  name: 'ledger/give-standing-grant',
  text: 'select holdfast.give_standing_grant($1, $2, $3, $4, $5, $6, $7) as answer',
};

/** Gives a standing grant. The claim uses it for calls within its bounds that nobody was asked about yet. */
export async function giveStandingGrant(db: Db, grant: NewStandingGrant): Promise<StandingGrantGiven> {
  const constraints = grant.constraints.map((each) => {
    const path = parsePointer(each.at);
    if (path === null) throw new Error(`bug: ${each.at} is no JSON pointer`);
    return { ...each, path } as unknown as JsonObject;
  });
  const stored = {
    ...{ agent: grant.agent, tool: grant.tool, tool_version: grant.toolVersion, constraints },
    ...{ uses_max: grant.usesMax, expires_at: grant.expiresAt, note: grant.note },
  } satisfies JsonValue;
  const answer = await callFunction(db, GIVE, [
    ...[newId('sgr'), grant.tenantId, grant.grantedBy, grant.authority, jsonb(stored), grant.idempotencyKey],
    digestOf({ ...stored, granted_by: comparableActor(grant.grantedBy) }),
  ]);
  return answer as unknown as StandingGrantGiven;
}

const REVOKE = {
  name: 'ledger/revoke-standing-grant',
  text: 'select holdfast.revoke_standing_grant($1, $2, $3, $4) as answer',
};

/** Takes a standing grant back; what it let go stays done. Safe to repeat. */
export async function revokeStandingGrant(
  db: Db,
  by: { readonly tenantId: string; readonly actorId: string; readonly authority: string },
  standingGrantId: string,
): Promise<{ readonly kind: 'revoked' | 'role_required' | 'standing_grant_not_found' }> {
  const answer = await callFunction(db, REVOKE, [by.tenantId, standingGrantId, by.actorId, by.authority]);
  return answer as { kind: 'revoked' };
}
