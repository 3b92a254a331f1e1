import type { JsonObject } from './json.js';
import type { Role } from './roles.js';

/** One question that an agent may put to a person, as an agent version pins it. To the model it is a tool. */
export interface QuestionManifest {
  readonly name: string;
  /** Digest of everything declared about the question. */
  readonly version: string;
  /** For the model: when to ask, and what comes back. */
  readonly description: string;
  /** JSON Schema of the answer; pinned in each wait, and the only one that its answer is checked against. */
  readonly answerSchema: JsonObject;
  /** Who may answer. */
  readonly role: Role;
  /** How long an answer is waited for; the run's own deadline bounds it. */
  readonly expiresSeconds: number;
  /** What follows when nobody answers in time. */
  readonly onExpiry: 'tell_model' | 'fail';
}

/** Characters of one question, and of one answer's JSON text. */
export const QUESTION_CHARACTERS_MAX = 4_000;
export const ANSWER_CHARACTERS_MAX = 65_536;

/** The arguments of every question: its words. */
export const QUESTION_INPUT_SCHEMA: JsonObject = {
  type: 'object',
  additionalProperties: false,
  required: ['text'],
  properties: {
    text: {
      type: 'string',
      minLength: 1,
      maxLength: QUESTION_CHARACTERS_MAX,
      description: 'What to ask, in full: the person sees these words and nothing else of the conversation.',
    },
  },
};

/** The answer to a wait over a model call that only a person can mend (SPEC 3.5). */
export const MODEL_WAIT_SCHEMA: JsonObject = {
  type: 'object',
  additionalProperties: false,
  required: ['action'],
  properties: { action: { enum: ['try_again', 'give_up'] } },
};

/** Who answers it. */
export const MODEL_WAIT_ROLE: Role = 'operator';

/** What a wait for input shows and under which rules it stands; `open_input` makes the row of it. */
export interface InputWait {
  /** `tool`, `tool_version`, `arguments` and their digest stand in the scope of every kind of wait. */
  readonly scope: JsonObject;
  readonly scopeSha256: string;
  readonly answerSchema: JsonObject;
  readonly role: Role;
  readonly onExpiry: 'tell_model' | 'fail';
}
