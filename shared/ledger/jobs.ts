import { comparableActor } from '../domain/actors.js';
import type { JsonObject } from '../domain/json.js';
import { ROLES, type Role } from '../domain/roles.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';

/** One thing that was looked at. */
export interface Evidence {
  readonly name: string;
  /** Where it is found: an outside id, an address, an effect. */
  readonly reference: string;
  readonly sha256?: string | undefined;
}

/** A person's word on a job (SPEC 4.3). */
export interface NewJobDecision {
  readonly tenantId: string;
  readonly jobId: string;
  readonly actorId: string;
  readonly roles: readonly Role[];
  readonly decision: 'accepted' | 'rejected';
  readonly evidence: readonly Evidence[];
  readonly note: string;
  readonly idempotencyKey: string;
}

export type JobRefusal = 'role_required' | 'self_approval' | 'job_decided' | 'job_not_ended';

/** `replayed`: this key said so before; `reused`: it said something else. */
export type JobJudged =
  | { readonly kind: 'decided' | 'replayed' | 'reused' | 'job_not_found' }
  | { readonly kind: 'refused'; readonly code: JobRefusal };

const JUDGE = {
  name: 'ledger/judge-job',
  text: 'select holdfast.judge_job($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) as answer',
};

/** Accepts or rejects a job, once and for all. */
export async function judgeJob(db: Db, word: NewJobDecision): Promise<JobJudged> {
  const evidence: JsonObject[] = word.evidence.map(({ name, reference, sha256 }) => ({
    ...{ name, reference },
    ...(sha256 === undefined ? {} : { sha256 }),
  }));
  const { actorId, decision, note } = word;
  const answer = await callFunction(db, JUDGE, [
    ...[word.tenantId, word.jobId, actorId, word.roles, ROLES],
    ...[decision, jsonb(evidence), note, word.idempotencyKey],
    digestOf({ actorId: comparableActor(actorId), decision, evidence, note }),
  ]);
  return answer as unknown as JobJudged;
}
