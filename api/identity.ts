import { canonicalActor } from '../shared/domain/actors.js';
import { HoldfastError } from '../shared/domain/errors.js';
import { ROLES, type Role } from '../shared/domain/roles.js';
import type { Authenticate, Identity } from './deps.js';

/** The header in which a development client names itself. */
export const ACTOR_HEADER = 'holdfast-actor';

/** Who somebody is in development who does not say so. */
const DEFAULT_ACTOR = 'local';

/**
 * The identity in development, where everybody is who they say and may do everything. It still tells people apart, so
 * that an approver who is the requester is refused here as anywhere.
 *
 * @throws HoldfastError `invalid_request` for a name that is none
 */
export const developmentIdentity: Authenticate = ({ headers }) => {
  const named = headers[ACTOR_HEADER];
  const actorId = canonicalActor(named === undefined ? DEFAULT_ACTOR : String(named));
  if (actorId === null) {
    throw new HoldfastError(
      'invalid_request',
      'The Holdfast-Actor header must name somebody in 1 to 200 printable ASCII characters.',
      { errors: [{ at: `header/${ACTOR_HEADER}`, problem: 'not 1 to 200 printable ASCII characters' }] },
    );
  }
  return { tenantId: 'default', actorId, roles: ROLES };
};

/** `role`, when the identity has it. @throws HoldfastError `role_required` when it has none of `roles` */
export function requireRole(identity: Identity, roles: readonly Role[], act: string): Role {
  const held = roles.find((role) => identity.roles.includes(role));
  if (held !== undefined) return held;
  throw roleRequired(act, roles);
}

/** The refusal of an act for which one of `roles` is needed. */
export function roleRequired(act: string, roles: readonly string[]): HoldfastError {
  return new HoldfastError(
    'role_required',
    `To ${act} takes the role ${roles.join(' or ')}, which you do not have. Ask somebody who has it; nothing was done.`,
    { extensions: { roles: [...roles] } },
  );
}
