import type { CompensationManifest } from './compensation.js';
import type { EffectClass } from './effect-classes.js';
import type { DelegateManifest } from './delegates.js';
import type { JsonObject } from './json.js';
import type { PolicyRule } from './policy.js';
import type { QuestionManifest } from './questions.js';

/** One tool as an agent version pins it: what the model sees and what policy knows, without its code. */
export interface ToolManifest {
  readonly name: string;
  /** Digest of everything declared about the tool; a worker that holds another version does not run it. */
  readonly version: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
  readonly effectClass: EffectClass;
  readonly namespace: string;
  readonly keyed: {
    readonly windowSeconds: number;
    readonly resendsMax: number;
    readonly comparesBodies: boolean;
    readonly keepsServerErrors: boolean;
  } | null;
  /** Present when the tool has a probe. */
  readonly query: {
    readonly settlingSeconds: number;
    readonly equalAnswers: number;
    readonly intervalSeconds: number;
    readonly queriesMax: number;
  } | null;
  /** How a call of it is undone; null where a person must. */
  readonly compensation: CompensationManifest | null;
  readonly parallel: boolean;
  /** Its calls take the fast lane. */
  readonly short: boolean;
  readonly timeoutSeconds: number;
  /** `required`: a person approves each call before it runs. `not_required`: the operator said so in the agent's file. */
  readonly approval: 'required' | 'not_required';
}

/** A way to reach a model, without its secret: `apiKeyEnv` names the variable that holds it. */
export interface ModelProfile {
  readonly name: string;
  /** `openai` speaks chat completions, `openai-responses` the responses API (without storing there). */
  readonly provider: 'scripted' | 'openai' | 'openai-responses' | 'anthropic' | 'openai-compatible';
  /** The provider's name of the model; for `scripted`, the script's file name. */
  readonly model: string;
  readonly baseUrl: string | null;
  readonly apiKeyEnv: string | null;
  readonly maxOutputTokens: number;
  readonly timeoutSeconds: number;
  /** Its calls take the fast lane. */
  readonly short: boolean;
  /** What it costs; absent where nobody said so, and then it has no cost that a budget could count. */
  readonly price?: ModelPrice;
}

/** Prices of a model, in millionths of the currency for a million tokens. */
export interface ModelPrice {
  readonly currency: string;
  readonly inputPerMillion: number;
  readonly outputPerMillion: number;
}

/** Longest time-out, in seconds, of what may call itself short: the fast lane holds a place of the workflow's worker. */
export const SHORT_SECONDS_MAX = 10;

/** How much of a transcript one prompt holds at most, in characters of its messages as JSON. */
export interface ContextLimit {
  readonly charactersMax: number;
}

/** Limits of an agent's runs; a run's contract may lower them. */
export interface AgentLimits {
  readonly stepsMax: number;
  readonly toolCallsMax: number;
  readonly wallClockSecondsMax: number;
}

/** The immutable content of an agent version; its digest names it, and a run pins it at admission (SPEC 7). */
export interface AgentManifest {
  readonly name: string;
  readonly instructions: string;
  readonly model: ModelProfile;
  readonly tools: readonly ToolManifest[];
  /** What it may ask a person; absent where that is nothing. */
  readonly questions?: readonly QuestionManifest[];
  /** Agents that it may start; absent where it starts none. */
  readonly delegates?: readonly DelegateManifest[];
  readonly limits: AgentLimits;
  /** Absent where every prompt holds the whole transcript. */
  readonly context?: ContextLimit;
  /** The project's rules that can concern its tools, in their order; absent where there are none. */
  readonly policy?: readonly PolicyRule[];
}
