import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import {
  listStandingGrants,
  readStandingGrant,
  STANDING_GRANT_STATES,
  type StandingGrantFilters,
} from '../../shared/ledger/reads/list-standing-grants.js';
import { giveStandingGrant, revokeStandingGrant } from '../../shared/ledger/standing-grants.js';
import { byId, readPage } from '../cursor.js';
import { requireRole, roleRequired } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { Instant, PageQuery } from '../views/common.js';
import { GrantConstraintView, StandingGrantListView, StandingGrantView } from '../views/grant-views.js';

const Name = z.string().regex(/^[ -~]{1,64}$/, { error: 'must be 1 to 64 printable ASCII characters' });

/** GET /v1/standing-grants: what is allowed beforehand, and what it was used for. */
export const listStandingGrantsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/standing-grants',
    operationId: 'listStandingGrants',
    summary: 'List standing grants with their uses, oldest first',
    authenticated: true,
    query: z.strictObject({
      state: z.enum([...STANDING_GRANT_STATES, 'any']).default('live'),
      tool: Name.optional(),
      agent: Name.optional(),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: StandingGrantListView } },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    const filters: StandingGrantFilters = {
      state: query.state === 'any' ? null : query.state,
      ...{ tool: query.tool ?? null, agent: query.agent ?? null },
    };
    const scope = { list: 'standing-grants', tenant: identity.tenantId, ...filters };
    const { rows, next } = await readPage(scope, query, byId('sgr', 'standing_grant_id'), (after) =>
      listStandingGrants(pool, identity.tenantId, filters, { after: after ?? '', limit: query.limit }),
    );
    return reply(200, { standing_grants: rows, next_cursor: next });
  },
);

const GiveStandingGrant = z
  .strictObject({
    agent: Name.optional().meta({ description: 'Every agent of the tenant unless given.' }),
    tool: Name,
    tool_version: z
      .string()
      .regex(/^[0-9a-f]{64}$/, { error: 'must be the version of a tool: 64 hex digits' })
      .meta({ description: 'As the scope of an approval shows it. Another version is asked about.' }),
    constraints: z.array(GrantConstraintView).min(1).max(20).meta({
      description: 'All of them hold, or the call is asked about. What no constraint names may be anything.',
    }),
    count: z.int().min(1).max(10_000).meta({ description: 'Calls that it stands in for at most.' }),
    expires_at: Instant.meta({ description: 'At most 366 days from now.' }),
    note: z
      .string()
      .min(1)
      .max(4_000)
      .regex(/\S/, { error: 'must say why' })
      .meta({ description: 'Why it is given.' }),
  })
  .meta({ id: 'GiveStandingGrant' });

/** POST /v1/standing-grants: says yes beforehand, within bounds. */
export const giveStandingGrantRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/standing-grants',
    operationId: 'giveStandingGrant',
    summary: 'Approve calls of one tool beforehand, within bounds',
    description:
      'Takes the role approver. The claim of a call uses the grant in place of an approval that nobody was asked for ' +
      'yet, once a call, and writes down for which. Asked as usual is: another version, arguments outside, a count ' +
      'used up, a grant that expired or was revoked or whose giver lost the role, a run that its giver asked for, and ' +
      'a call whose approval takes more than one person or another role.',
    authenticated: true,
    idempotent: true,
    body: GiveStandingGrant,
    replies: {
      200: {
        description: 'Given by an earlier request with this key; the grant as it is now.',
        body: StandingGrantView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
      201: { description: 'Given.', body: StandingGrantView },
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
    const authority = requireRole(identity, ['approver'], 'give a standing grant');
    const given = await giveStandingGrant(pool, {
      ...{ tenantId, grantedBy: actorId, authority, idempotencyKey },
      ...{ agent: body.agent ?? null, tool: body.tool, toolVersion: body.tool_version },
      constraints: body.constraints,
      ...{ usesMax: body.count, expiresAt: body.expires_at, note: body.note },
    });
    if (given.kind === 'role_required') throw roleRequired('give a standing grant', ['approver']);
    if (given.kind === 'expiry_out_of_range') {
      const problem = 'must be in the future and at most 366 days away';
      throw new HoldfastError('invalid_request', `The body is not valid. body/expires_at: ${problem}.`, {
        errors: [{ at: 'body/expires_at', problem }],
      });
    }
    const grant = await readStandingGrant(pool, tenantId, given.standing_grant_id);
    if (given.kind === 'reused' || grant === null) {
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key gave ${given.standing_grant_id}, a grant in other words. Nothing was done: send a new key.`,
        { extensions: { standing_grant_id: given.standing_grant_id } },
      );
    }
    if (given.kind === 'given') return reply(201, grant);
    return reply(200, grant, { 'idempotent-replayed': 'true' });
  },
);

/** DELETE /v1/standing-grants/{standing_grant_id}: takes a standing grant back. */
export const revokeStandingGrantRoute = defineRoute(
  {
    method: 'delete',
    path: '/v1/standing-grants/{standing_grant_id}',
    operationId: 'revokeStandingGrant',
    summary: 'Take a standing grant back',
    description:
      'Takes the role approver, operator or admin. The row stays with its uses; sent again it changes nothing. What ' +
      'the grant let go already stays done.',
    authenticated: true,
    replies: { 200: { description: 'Revoked, now or before.', body: StandingGrantView } },
    errors: ['role_required', 'standing_grant_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, { pool }) => {
    const { standing_grant_id: id } = params;
    const { tenantId, actorId } = identity;
    const roles = ['approver', 'operator', 'admin'] as const;
    const authority = requireRole(identity, roles, 'revoke a standing grant');
    if (!isId('sgr', id)) throw standingGrantNotFound(id);
    const { kind } = await revokeStandingGrant(pool, { tenantId, actorId, authority }, id);
    if (kind === 'role_required') throw roleRequired('revoke a standing grant', roles);
    const grant = await readStandingGrant(pool, tenantId, id);
    if (kind === 'standing_grant_not_found' || grant === null) throw standingGrantNotFound(id);
    return reply(200, grant);
  },
);

function standingGrantNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'standing_grant_not_found',
    `There is no standing grant ${excerpt(id, 60)}. GET /v1/standing-grants lists those that are live.`,
  );
}
