import { z } from 'zod';
import { ROLES } from '../../shared/domain/roles.js';
import { parsePointer } from '../../shared/domain/json-pointer.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { STANDING_GRANT_STATES } from '../../shared/ledger/reads/list-standing-grants.js';
import { NextCursor, Sha256, Time } from './common.js';

/** Any JSON value that is there. */
const JsonConst = z
  .custom<JsonValue>((value) => value !== undefined, { error: 'is missing' })
  .meta({
    override: ({ jsonSchema }) => {
      jsonSchema.description = 'Any JSON value.';
    },
  });

/** Somebody's right to act in a role. */
export const RoleGrantView = z
  .strictObject({
    role_grant_id: z.string(),
    actor_id: z.string(),
    role: z.enum(ROLES),
    granted_by: z.string(),
    created_at: Time,
    revoked_at: Time.nullable().meta({ description: 'Null while it is in force.' }),
    revoked_by: z.string().nullable(),
  })
  .meta({ id: 'RoleGrant' });

/** A page of role grants, oldest first. */
export const RoleGrantListView = z
  .strictObject({ role_grants: z.array(RoleGrantView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'RoleGrantList' });

const at = z
  .string()
  .max(1_000)
  .refine((text) => parsePointer(text) !== null, { error: 'must be a JSON pointer, such as /amount' })
  .meta({ description: 'JSON pointer (RFC 6901) to the value; empty for the arguments as a whole.' });

/** What one value of the arguments must be. */
export const GrantConstraintView = z
  .union([
    z.strictObject({ at, equals: JsonConst }),
    z.strictObject({ at, one_of: z.array(JsonConst).min(1).max(100) }),
    z.strictObject({ at, maximum: z.number() }),
    z.strictObject({ at, minimum: z.number() }),
  ])
  .meta({
    id: 'GrantConstraint',
    description: 'A value that is not there, or no number where one is compared, is outside.',
  });

/** A yes given beforehand, with what it was used for. */
export const StandingGrantView = z
  .strictObject({
    standing_grant_id: z.string(),
    state: z.enum(STANDING_GRANT_STATES).meta({ description: 'Only a `live` one is used.' }),
    agent: z.string().nullable().meta({ description: 'Null for every agent of the tenant.' }),
    tool: z.string(),
    tool_version: Sha256,
    constraints: z.array(GrantConstraintView).readonly(),
    count: z.int(),
    used: z.int(),
    granted_by: z.string(),
    authority: z.string(),
    note: z.string(),
    created_at: Time,
    expires_at: Time,
    revoked_at: Time.nullable(),
    revoked_by: z.string().nullable(),
    uses: z
      .array(
        z.strictObject({
          use: z.int(),
          effect_id: z.string(),
          run_id: z.string(),
          arguments_sha256: Sha256,
          used_at: Time,
        }),
      )
      .readonly()
      .meta({ description: 'The newest 100, in order.' }),
  })
  .meta({ id: 'StandingGrant' });

/** A page of standing grants, oldest first. */
export const StandingGrantListView = z
  .strictObject({ standing_grants: z.array(StandingGrantView).readonly(), next_cursor: NextCursor })
  .meta({ id: 'StandingGrantList' });
