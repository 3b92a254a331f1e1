import { comparableActor } from '../domain/actors.js';
import type { JsonObject, JsonValue } from '../domain/json.js';
import { type Decided, type NeededApproval, type NewDecision, scopeOf } from './approvals.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf, sha256 } from './digest.js';
import { newId } from './new-id.js';

/** A call that waits for an approval, as its edit would begin: under the id of the effect that would replace it. */
export interface EditableCall extends NeededApproval {
  readonly run_id: string;
  /** The effect whose arguments would be changed. */
  readonly supersedes: string;
  /** The tool's declaration in force, as the effect holds it. */
  readonly policy: JsonObject;
  /** The ledger's time. */
  readonly asked_at: string;
}

const BEGIN = { name: 'ledger/begin-edit', text: 'select holdfast.begin_edit($1, $2) as answer' };

/** The call behind an approval, or null when this tenant has no such approval. Reads only. */
export async function beginEdit(db: Db, tenantId: string, interruptId: string): Promise<EditableCall | null> {
  const answer = await callFunction(db, BEGIN, [tenantId, interruptId]);
  return answer['kind'] === 'editable' ? (answer as unknown as EditableCall) : null;
}

/** What the changed call asks for, never less than the call as it was asked about. */
export interface ChangedCall {
  /** RFC 8785 text that fits the tool's schema. */
  readonly arguments: string;
  readonly policy: JsonObject;
  readonly role: string;
  readonly quorum: number;
  readonly rules: NeededApproval['rules'];
  readonly expires_at: string;
}

const APPROVE = {
  name: 'ledger/approve-edited',
  text: 'select holdfast.approve_edited($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) as answer',
};

/**
 * One person's approval of a call with other arguments (SPEC 4.1), in one transaction: the old intent and its wait are
 * superseded and kept, another intent under a key of its own takes their place, and the word is about its digest.
 */
export async function approveEdited(
  db: Db,
  call: EditableCall,
  changed: ChangedCall,
  decision: Omit<NewDecision, 'decision'> & { readonly roles: readonly string[] },
): Promise<Decided> {
  const needed: NeededApproval = {
    ...call,
    ...{ arguments: changed.arguments, arguments_sha256: sha256(changed.arguments) },
    ...{ role: changed.role, quorum: changed.quorum, rules: changed.rules, expires_at: changed.expires_at },
  };
  const scope = { ...scopeOf(call.run_id, needed), supersedes: call.supersedes };
  const said = {
    actorId: comparableActor(decision.actorId),
    ...{ interruptId: decision.interruptId, decision: 'approve', note: decision.note },
    ...{ scopeSha256: decision.scopeSha256, arguments: needed.arguments_sha256 },
  } satisfies JsonValue;
  const answer = await callFunction(db, APPROVE, [
    ...[decision.tenantId, decision.interruptId, decision.actorId, decision.authority, [...decision.roles]],
    ...[decision.scopeSha256, decision.note, decision.endpoint, decision.idempotencyKey, digestOf(said)],
    jsonb({
      ...{ interrupt_id: newId('int'), scope, scope_sha256: digestOf(scope), policy: changed.policy },
      ...{ arguments: needed.arguments, arguments_sha256: needed.arguments_sha256 },
      ...{ role: needed.role, quorum: needed.quorum, expires_at: needed.expires_at },
    }),
  ]);
  return answer as unknown as Decided;
}
