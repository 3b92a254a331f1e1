import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import { ROLES } from '../../shared/domain/roles.js';
import {
  listRoleGrants,
  readRoleGrant,
  type RoleGrantFilters,
} from '../../shared/ledger/reads/list-role-grants.js';
import { grantRole, revokeRole } from '../../shared/ledger/role-grants.js';
import { byId, readPage } from '../cursor.js';
import { requireRole, roleRequired } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { Actor, PageQuery } from '../views/common.js';
import { RoleGrantListView, RoleGrantView } from '../views/grant-views.js';

/** GET /v1/role-grants: who may act in which role. */
export const listRoleGrantsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/role-grants',
    operationId: 'listRoleGrants',
    summary: 'List who may act in which role, oldest first',
    description:
      'As soon as a role has one grant, live or revoked, the grants alone say who has that role in this tenant, ' +
      'whatever an identity claims; a role without any is had by whoever’s identity carries it.',
    authenticated: true,
    query: z.strictObject({
      state: z.enum(['live', 'revoked', 'any']).default('live'),
      role: z.enum(ROLES).optional(),
      actor_id: Actor.optional(),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: RoleGrantListView } },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    const filters: RoleGrantFilters = {
      live: query.state === 'any' ? null : query.state === 'live',
      ...{ role: query.role ?? null, actorId: query.actor_id ?? null },
    };
    const scope = { list: 'role-grants', tenant: identity.tenantId, ...filters };
    const { rows, next } = await readPage(scope, query, byId('rgr', 'role_grant_id'), (after) =>
      listRoleGrants(pool, identity.tenantId, filters, { after: after ?? '', limit: query.limit }),
    );
    return reply(200, { role_grants: rows, next_cursor: next });
  },
);

const GrantRole = z.strictObject({ actor_id: Actor, role: z.enum(ROLES) }).meta({ id: 'GrantRole' });

/** POST /v1/role-grants: gives somebody a role. */
export const grantRoleRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/role-grants',
    operationId: 'grantRole',
    summary: 'Give somebody a role',
    description:
      'Takes the role admin. From the first grant of a role on, nobody else has it. The first grant of admin comes ' +
      'with one for whoever gives it. An actor who has the role already is answered with that grant.',
    authenticated: true,
    idempotent: true,
    body: GrantRole,
    replies: {
      200: {
        description: 'The grant as it is now; there before, by another request or by this one.',
        body: RoleGrantView,
        headers: { 'Idempotent-Replayed': '`true`, where it was this one' },
      },
      201: { description: 'Granted.', body: RoleGrantView },
    },
    errors: [
      ...WRITE_ERRORS,
      'role_required',
      'idempotency_key_reused',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ body, identity, idempotencyKey }, { pool }) => {
    const { tenantId, actorId } = identity;
    const authority = requireRole(identity, ['admin'], 'grant a role');
    const granted = await grantRole(pool, {
      ...{ tenantId, grantedBy: actorId, authority, idempotencyKey },
      ...{ actorId: body.actor_id, role: body.role },
    });
    if (granted.kind === 'role_required') throw roleRequired('grant a role', ['admin']);
    const grant = await readRoleGrant(pool, tenantId, granted.role_grant_id);
    if (granted.kind === 'reused' || grant === null) {
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key granted ${granted.role_grant_id}, another role or to somebody else. Nothing was done: send a new key.`,
        { extensions: { role_grant_id: granted.role_grant_id } },
      );
    }
    if (granted.kind === 'granted') return reply(201, grant);
    return reply(200, grant, granted.kind === 'replayed' ? { 'idempotent-replayed': 'true' } : {});
  },
);

/** DELETE /v1/role-grants/{role_grant_id}: takes a role back. */
export const revokeRoleRoute = defineRoute(
  {
    method: 'delete',
    path: '/v1/role-grants/{role_grant_id}',
    operationId: 'revokeRole',
    summary: 'Take a role back',
    description:
      'Takes the role admin. The row stays, with who revoked it; sent again it changes nothing. An approval of this ' +
      'actor that waits to be used counts no more: the claim looks again and asks anew.',
    authenticated: true,
    replies: { 200: { description: 'Revoked, now or before.', body: RoleGrantView } },
    errors: ['role_required', 'role_grant_not_found', 'last_admin', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) => {
    const { role_grant_id: id } = params;
    const { tenantId, actorId } = identity;
    const authority = requireRole(identity, ['admin'], 'revoke a role');
    if (!isId('rgr', id)) throw roleGrantNotFound(id);
    const { kind } = await revokeRole(pool, { tenantId, actorId, authority }, id);
    const grant = await readRoleGrant(pool, tenantId, id);
    if (kind === 'role_grant_not_found' || grant === null) throw roleGrantNotFound(id);
    switch (kind) {
      case 'role_required':
        throw roleRequired('revoke a role', ['admin']);
      case 'last_admin':
        throw new HoldfastError(
          'last_admin',
          `${grant.actor_id} is the last admin of this tenant. Grant admin to somebody else, then revoke ${id}.`,
          { extensions: { role_grant_id: id } },
        );
      case 'revoked':
        return reply(200, grant);
    }
  },
);

function roleGrantNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'role_grant_not_found',
    `There is no role grant ${excerpt(id, 60)}. GET /v1/role-grants lists those there are.`,
  );
}
