import type { JsonObject } from './json.js';

/** Provider-neutral messages: what the transcript stores and every adapter translates (SPEC 8). */
export type ModelMessage =
  | { readonly role: 'user'; readonly text: string }
  | { readonly role: 'assistant'; readonly parts: readonly AssistantPart[] }
  | { readonly role: 'tool'; readonly results: readonly ToolResultPart[] };

export type AssistantPart =
  | { readonly type: 'text'; readonly text: string; readonly providerMetadata?: JsonObject }
  | { readonly type: 'reasoning'; readonly text: string; readonly providerMetadata?: JsonObject }
  | {
      readonly type: 'tool_call';
      /** Unique in the transcript; ours where the provider's was empty or repeated. */
      readonly callId: string;
      readonly toolName: string;
      /** The arguments as a JSON object; `{}` where the model's text could not be read as one. */
      readonly arguments: JsonObject;
      readonly providerMetadata?: JsonObject;
    };

/** The one result of one tool call, as the model is told it. */
export interface ToolResultPart {
  readonly callId: string;
  readonly toolName: string;
  /** Well-formed text, at most 64 KiB. */
  readonly text: string;
  readonly isError: boolean;
}

/** What the model sees of a tool. */
export interface ToolSpec {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
}

export interface ModelRequest {
  readonly system: string;
  readonly messages: readonly ModelMessage[];
  readonly tools: readonly ToolSpec[];
  readonly maxOutputTokens: number;
  /** Names the logical call (run, turn, step); the same on every attempt. Sent as a header or user tag where a provider takes one. */
  readonly callKey: string;
  /** Of this logical call, from 1. */
  readonly attempt: number;
}

/** A piece of a streamed answer. */
export type ModelChunk =
  { readonly type: 'text'; readonly text: string } | { readonly type: 'reasoning'; readonly text: string };

export interface TokenUsage {
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Part of `inputTokens` that was read from the provider's cache. */
  readonly cachedInputTokens: number;
  /** Part of `outputTokens` that was reasoning. */
  readonly reasoningTokens: number;
}

export const MODEL_STOP_REASONS = [
  'stop',
  'tool_calls',
  'length',
  'content_filter',
  'error',
  'other',
] as const;
export type ModelStopReason = (typeof MODEL_STOP_REASONS)[number];

/** A tool call exactly as the model wrote it, before any check. */
export interface RawToolCall {
  readonly providerCallId: string;
  readonly toolName: string;
  readonly argumentsText: string;
  readonly providerMetadata?: JsonObject;
}

export type ModelResponsePart =
  | { readonly type: 'text'; readonly text: string; readonly providerMetadata?: JsonObject }
  | { readonly type: 'reasoning'; readonly text: string; readonly providerMetadata?: JsonObject }
  | ({ readonly type: 'raw_tool_call' } & RawToolCall);

export interface ModelResponse {
  readonly parts: readonly ModelResponsePart[];
  readonly stopReason: ModelStopReason;
  readonly usage: TokenUsage;
  /** The provider's id of the request or response, for its support desk; null where it gives none. */
  readonly requestId: string | null;
  /** The model that answered, as the provider names it. */
  readonly modelId: string;
  /** Losses and settings the provider ignored, as it words them. */
  readonly warnings: readonly string[];
}

/**
 * Why a model call gave no response. `retryable` ones are tried again by the run's own series;
 * `needs_person` ones (billing, credit, login, consent) are not (SPEC 3.5).
 */
export const MODEL_FAILURES = {
  rate_limited: 'retryable',
  overloaded: 'retryable',
  server_error: 'retryable',
  timed_out: 'retryable',
  disconnected: 'retryable',
  unreachable: 'retryable',
  malformed_response: 'retryable',
  bad_request: 'final',
  context_too_long: 'final',
  content_refused: 'final',
  model_not_found: 'final',
  aborted: 'final',
  authentication: 'needs_person',
  billing: 'needs_person',
} as const satisfies Record<string, 'retryable' | 'final' | 'needs_person'>;
export type ModelFailureReason = keyof typeof MODEL_FAILURES;

export type ModelOutcome =
  | { readonly kind: 'answered'; readonly response: ModelResponse }
  | {
      readonly kind: 'failed';
      readonly reason: ModelFailureReason;
      /** The provider's Retry-After (either form), in milliseconds, uncapped; absent where it gave none. */
      readonly retryAfterMs?: number;
      readonly httpStatus?: number;
      readonly requestId?: string;
      /** What the failed attempt is known to have cost. */
      readonly usage?: TokenUsage;
      /** For operators: at most 500 characters, no secret, no prompt text. */
      readonly detail: string;
    };

/** One way to reach one model. Adapters never retry; the run owns that. */
export interface ModelClient {
  /**
   * Makes one request. Resolves for every answer and every failure; rejects only for a bug.
   * `onChunk` hears pieces of text as they come. `signal` aborts the request and resolves as `aborted`.
   */
  call(
    request: ModelRequest,
    options: { readonly signal: AbortSignal; readonly onChunk: (chunk: ModelChunk) => void },
  ): Promise<ModelOutcome>;
}
