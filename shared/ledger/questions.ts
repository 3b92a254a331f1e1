import { comparableActor } from '../domain/actors.js';
import type { JsonValue } from '../domain/json.js';
import type { AskAnswer, Trail } from '../domain/protocol.js';
import { canonicalJson } from '../domain/strict-json.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import type { CallPlace } from './effects.js';
import { newId } from './new-id.js';
import type { Speaker } from './trail.js';

const ASK = {
  name: 'ledger/ask-question',
  text: 'select holdfast.ask_question($1, $2, $3, $4, $5, $6, $7, $8) as answer',
};

/**
 * Commits the trail and opens the wait of a planned question, once; when that wait is over, gives the call its one
 * result. Safe to repeat.
 *
 * @throws a refusal: `run_ended`, `unknown_execution`, `lost_ownership`, `out_of_step`, `effect_not_found`
 */
export async function askQuestion(
  db: Db,
  speaker: Speaker,
  place: CallPlace,
  trail: Trail,
): Promise<AskAnswer> {
  const answer = await callFunction(db, ASK, [
    speaker.runId,
    speaker.execution,
    trail.from,
    jsonb(trail.entries),
    place.turn,
    place.step,
    place.slot,
    newId('int'),
  ]);
  return answer as unknown as AskAnswer;
}

export interface NewAnswer {
  readonly tenantId: string;
  readonly interruptId: string;
  readonly actorId: string;
  readonly authority: string;
  readonly answer: JsonValue;
  /** Whether the answer fits the schema of this very wait; one that does not is refused and noted. */
  readonly fits: boolean;
  readonly note: string;
  readonly endpoint: string;
  readonly idempotencyKey: string;
}

/** Why an answer was not taken; each is an error code of the API. */
export type AnswerRefusal =
  | 'decision_mismatch'
  | 'interrupt_expired'
  | 'interrupt_decided'
  | 'interrupt_superseded'
  | 'role_required'
  | 'interrupt_withdrawn'
  | 'cancel_in_force'
  | 'run_ended'
  | 'answer_invalid';

export type Answered =
  | { readonly kind: 'decided' | 'replayed' | 'reused' | 'interrupt_not_found' }
  | { readonly kind: 'refused'; readonly code: AnswerRefusal };

const ANSWER = {
  name: 'ledger/answer-input',
  text: 'select holdfast.answer_input($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) as answer',
};

/** One person's answer to a wait for input. Of any number at once one is taken; the others are told so. */
export async function answerInput(db: Db, said: NewAnswer): Promise<Answered> {
  // A key that another person used says nothing about this one's word.
  const request = {
    actorId: comparableActor(said.actorId),
    interruptId: said.interruptId,
    answer: said.answer,
    note: said.note,
  } satisfies JsonValue;
  const answer = await callFunction(db, ANSWER, [
    said.tenantId,
    said.interruptId,
    said.actorId,
    said.authority,
    canonicalJson(said.answer),
    said.fits,
    said.note,
    said.endpoint,
    said.idempotencyKey,
    digestOf(request),
  ]);
  return answer as unknown as Answered;
}
