import { comparableActor } from '../domain/actors.js';
import type { JsonObject, JsonValue } from '../domain/json.js';
import { parseStrictJson } from '../domain/strict-json.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';
import type { Speaker } from './trail.js';

/** What the ledger says of an effect that needs an approval and has none open. */
export interface NeededApproval {
  readonly effect_id: string;
  readonly tenant_id: string;
  readonly agent: string;
  readonly agent_version: string;
  readonly tool: string;
  readonly tool_version: string;
  readonly namespace: string;
  readonly effect_class: string;
  /** RFC 8785 text. */
  readonly arguments: string;
  readonly arguments_sha256: string;
  readonly requested_by: string;
  readonly expires_at: string;
  readonly role: string;
  readonly quorum: number;
  /** The rules of the project's policy that ask, in its order; none where the tool, its class or the contract does. */
  readonly rules: readonly NamedRule[];
}

/** A rule of a policy by its name and the digest of what it says. */
export interface NamedRule {
  readonly name: string;
  readonly sha256: string;
}

const OPEN = {
  name: 'ledger/open-approval',
  text: 'select holdfast.open_approval($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) as answer',
};

/** The answer that an approval takes. */
const DECISION_SCHEMA = {
  type: 'object',
  additionalProperties: false,
  required: ['decision', 'scope_sha256'],
  properties: {
    decision: { enum: ['approve', 'deny', 'revoke'] },
    scope_sha256: { type: 'string' },
    note: { type: 'string', maxLength: 4000 },
    arguments: { type: 'object' },
  },
} as const;

/**
 * Opens the wait for an approval (SPEC 4.1). The scope is made from the stored row, after everything that could change
 * it, and its digest is what a person approves. Opened once, however often this is called.
 */
export async function openApproval(db: Db, speaker: Speaker, needed: NeededApproval): Promise<void> {
  const scope = scopeOf(speaker.runId, needed);
  await callFunction(db, OPEN, [
    speaker.runId,
    speaker.execution,
    needed.effect_id,
    newId('int'),
    jsonb(scope),
    digestOf(scope),
    jsonb(DECISION_SCHEMA),
    needed.role,
    needed.quorum,
    needed.expires_at,
  ]);
}

/** What a person approves (SPEC 4.1), made from what is stored and from nothing that the model says of it. */
export function scopeOf(runId: string, needed: NeededApproval): JsonObject {
  const parsed = parseStrictJson(needed.arguments);
  if (!parsed.ok) throw new Error(`bug: the stored arguments of ${needed.effect_id} are no JSON`);
  const { role, quorum } = needed;
  const rules = needed.rules.map(({ name, sha256 }) => ({ name, sha256 }));
  return {
    tenant_id: needed.tenant_id,
    run_id: runId,
    effect_id: needed.effect_id,
    agent: needed.agent,
    agent_version: needed.agent_version,
    tool: needed.tool,
    tool_version: needed.tool_version,
    target: needed.namespace,
    effect_class: needed.effect_class,
    arguments: parsed.value,
    arguments_sha256: needed.arguments_sha256,
    requested_by: needed.requested_by,
    policy: { rule: rules.length === 0 ? 'approval_required' : 'policy', rules, role, quorum },
    expires_at: needed.expires_at,
  };
}

export const APPROVAL_DECISIONS = ['approve', 'deny', 'revoke'] as const;
export type ApprovalDecision = (typeof APPROVAL_DECISIONS)[number];

export interface NewDecision {
  readonly tenantId: string;
  readonly interruptId: string;
  readonly actorId: string;
  readonly authority: string;
  readonly decision: ApprovalDecision;
  /** The digest of what the person saw. */
  readonly scopeSha256: string;
  readonly note: string;
  readonly endpoint: string;
  readonly idempotencyKey: string;
}

/** Why a decision was not taken; each is an error code of the API. */
export type DecisionRefusal =
  | 'decision_mismatch'
  | 'interrupt_expired'
  | 'interrupt_decided'
  | 'not_revocable'
  | 'role_required'
  | 'self_approval'
  | 'scope_changed'
  | 'interrupt_withdrawn'
  | 'cancel_in_force'
  | 'run_ended';

export type Decided =
  /** `interrupt_id`: the wait that the word is about, which is another than the one asked where arguments changed. */
  | { readonly kind: 'decided' | 'replayed' | 'reused'; readonly interrupt_id: string }
  | { readonly kind: 'interrupt_not_found' }
  | { readonly kind: 'refused'; readonly code: DecisionRefusal };

const DECIDE = {
  name: 'ledger/decide-approval',
  text: 'select holdfast.decide_approval($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) as answer',
};

/** One person's word on an approval. Of any number at once, each is judged after the one before. */
export async function decideApproval(db: Db, decision: NewDecision): Promise<Decided> {
  // A key that another person used says nothing about this one's word.
  const said = {
    actorId: comparableActor(decision.actorId),
    interruptId: decision.interruptId,
    decision: decision.decision,
    scopeSha256: decision.scopeSha256,
    note: decision.note,
  } satisfies JsonValue;
  const answer = await callFunction(db, DECIDE, [
    decision.tenantId,
    decision.interruptId,
    decision.actorId,
    decision.authority,
    decision.decision,
    decision.scopeSha256,
    decision.note,
    decision.endpoint,
    decision.idempotencyKey,
    digestOf(said),
  ]);
  return answer as unknown as Decided;
}
