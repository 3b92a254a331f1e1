/** What an actor may do (SPEC 11); an identity carries any number of them. */
export const ROLES = ['requester', 'approver', 'operator', 'releaser', 'auditor', 'admin'] as const;
export type Role = (typeof ROLES)[number];
