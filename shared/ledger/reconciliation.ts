import type { EffectStanding, Trail } from '../domain/protocol.js';
import { callFunction, type Db, jsonb } from './database.js';
import { type CallPlace, standing } from './effects.js';
import type { Speaker } from './trail.js';

/** What to ask a target about, and with which key. */
export interface QueryClaim {
  readonly kind: 'query';
  readonly effectId: string;
  readonly tenantId: string;
  readonly tool: string;
  readonly toolVersion: string;
  /** RFC 8785 text. */
  readonly arguments: string;
  readonly idempotencyKey: string;
  readonly toolSeconds: number;
  /** Number of the question in the effect's series. */
  readonly query: number;
  /** When the question was opened, by the database's clock; an answer is as old as its question. */
  readonly askedAt: string;
}

const BEGIN = {
  name: 'ledger/begin-query',
  text: 'select holdfast.begin_query($1, $2, $3, $4, $5, $6, $7) as answer',
};

/**
 * Opens one look at an unknown effect (SPEC 3.6). A late receipt settles it here; otherwise the answer says what to
 * ask the target, or that no query is left and a person must settle.
 */
export async function beginQuery(
  db: Db,
  speaker: Speaker,
  place: CallPlace,
  trail: Trail,
): Promise<QueryClaim | EffectStanding> {
  const a = await callFunction(db, BEGIN, [
    speaker.runId,
    speaker.execution,
    trail.from,
    jsonb(trail.entries),
    place.turn,
    place.step,
    place.slot,
  ]);
  if (a['kind'] !== 'query') return standing(a);
  return {
    kind: 'query',
    effectId: a['effect_id'] as string,
    tenantId: a['tenant_id'] as string,
    tool: a['tool'] as string,
    toolVersion: a['tool_version'] as string,
    arguments: a['arguments'] as string,
    idempotencyKey: a['idempotency_key'] as string,
    toolSeconds: a['tool_seconds'] as number,
    query: a['query'] as number,
    askedAt: a['asked_at'] as string,
  };
}

/** One answer of a target to a status query. */
export interface QueryAnswer {
  readonly answer: 'found' | 'absent' | 'inconclusive';
  readonly reason: string | null;
  readonly reference: string | null;
  readonly body: Uint8Array;
  readonly bodySha256: string;
  readonly contentType: string | null;
  readonly truncated: boolean;
  readonly resultText: string;
}

const RECORD = {
  name: 'ledger/record-query',
  text: 'select holdfast.record_query($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as answer',
};

/**
 * Stores the answer to a question and settles the effect when the series allows it; the standing says what comes next.
 * Safe to repeat: the answer is counted once.
 */
export async function recordQuery(
  db: Db,
  speaker: Speaker,
  question: Pick<QueryClaim, 'effectId' | 'query' | 'askedAt'>,
  answer: QueryAnswer,
): Promise<EffectStanding> {
  const a = await callFunction(db, RECORD, [
    speaker.runId,
    speaker.execution,
    question.effectId,
    question.query,
    question.askedAt,
    answer.answer,
    answer.reason?.slice(0, 200) ?? null,
    answer.reference?.slice(0, 1_000) ?? null,
    Buffer.from(answer.body),
    answer.bodySha256,
    answer.contentType?.slice(0, 200) ?? null,
    answer.truncated,
    answer.resultText,
  ]);
  return standing(a);
}
