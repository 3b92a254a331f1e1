import type { JsonObject } from './json.js';

/** What a parent's cancel makes of a child: it ends first, or it goes on. */
export const ON_CANCEL = ['cancel', 'leave'] as const;
export type OnCancel = (typeof ON_CANCEL)[number];

/** Parts of the parent's own limits, each above 0 and at most 1; what the parent has left bounds them too. */
export interface DelegateShare {
  readonly steps: number;
  readonly toolCalls: number;
  readonly wallClock: number;
}

/** One agent that another may start as a child run, as an agent version pins it. To the model it is a tool. */
export interface DelegateManifest {
  readonly name: string;
  /** Digest of everything declared about the delegate; the agent behind it has versions of its own. */
  readonly version: string;
  /** For the model: what the other agent does, and what it must be told. */
  readonly description: string;
  /** The agent whose current version a child resolves when it is admitted. */
  readonly agent: string;
  readonly onCancel: OnCancel;
  /** Neighbouring calls of one step may run beside each other. */
  readonly parallel: boolean;
  readonly share: DelegateShare;
}

/** Characters of one task. */
export const TASK_CHARACTERS_MAX = 32_000;

/** The arguments of every delegate: the task, which is the child's input. */
export const TASK_INPUT_SCHEMA: JsonObject = {
  type: 'object',
  additionalProperties: false,
  required: ['task'],
  properties: {
    task: {
      type: 'string',
      minLength: 1,
      maxLength: TASK_CHARACTERS_MAX,
      description:
        'What to do, in full: the other agent sees these words and nothing else of the conversation.',
    },
  },
};
