import type { ChildAnswer, Trail } from '../domain/protocol.js';
import { PIN_VERSIONS } from './admission.js';
import { callFunction, type Db, jsonb } from './database.js';
import type { CallPlace } from './effects.js';
import { newId } from './new-id.js';
import type { Speaker } from './trail.js';

const START = {
  name: 'ledger/start-child',
  text: 'select holdfast.start_child($1, $2, $3, $4, $5, $6, $7, $8, $9) as answer',
};

/**
 * Commits the trail and admits the child run of a planned call, once: a repeat finds the same child. When that run has
 * ended, gives the call its one result. Safe to repeat.
 *
 * @throws a refusal: `run_ended`, `unknown_execution`, `lost_ownership`, `out_of_step`, `effect_not_found`
 */
export async function startChild(
  db: Db,
  speaker: Speaker,
  place: CallPlace,
  trail: Trail,
): Promise<ChildAnswer> {
  const answer = await callFunction(db, START, [
    speaker.runId,
    speaker.execution,
    trail.from,
    jsonb(trail.entries),
    place.turn,
    place.step,
    place.slot,
    newId('run'),
    jsonb(PIN_VERSIONS),
  ]);
  return answer as unknown as ChildAnswer;
}
