import {
  AISDKError,
  APICallError,
  EmptyResponseBodyError,
  InvalidResponseDataError,
  JSONParseError,
  TypeValidationError,
} from '@ai-sdk/provider';
import type { ModelFailureReason, ModelOutcome, ModelRequest } from '../../shared/domain/models.js';
import type { CallLimits } from './call-limits.js';
import { factsOfBody, failureDetail, failureReason, networkFailure } from './model-failures.js';
import type { FailureFacts } from './model-failures.js';
import { AnswerTooLarge, requestIdOf } from './model-wire.js';
import type { Wire } from './model-wire.js';
import type { TokensSoFar } from './provider-tokens.js';
import { parseRetryAfter } from './retry-after.js';

/** Endings that we see ourselves. `ended_empty`: before any part of an answer. */
export interface FailedCall {
  readonly failedCall: 'ended_empty' | 'ended_early' | 'too_long';
}

/** Everything that is known of a call that gave no answer. */
export interface FailureContext {
  /** What was thrown, a provider's error out of the stream, or a `FailedCall`. */
  readonly error: unknown;
  readonly request: ModelRequest;
  readonly wire: Wire;
  readonly limits: CallLimits;
  readonly tokens: TokensSoFar;
  readonly secret: string | undefined;
  readonly nowMs: number;
}

/**
 * The outcome of a call that gave no answer.
 *
 * @throws the error itself where it is no failure of provider, network or answer: that is a bug
 */
export function failedCall(context: FailureContext): ModelOutcome {
  const { wire } = context;
  const verdict = judge(context);
  const requestId = requestIdOf(wire);
  const retryAfterMs = parseRetryAfter((name) => wire.headers?.get(name), context.nowMs);
  return {
    kind: 'failed',
    reason: verdict.reason,
    detail: failureDetail(verdict.sentence, verdict.facts, context),
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...(wire.status === undefined ? {} : { httpStatus: wire.status }),
    ...(requestId === undefined ? {} : { requestId }),
    ...context.tokens.field(),
  };
}

/** True for the error that the OpenAI-compatible adapter makes of a stream that stopped in the middle. */
export function isMissingFinish(error: unknown): boolean {
  return InvalidResponseDataError.isInstance(error) && /without a finish reason/.test(error.message);
}

interface Verdict {
  readonly reason: ModelFailureReason;
  readonly sentence: string;
  readonly facts: FailureFacts;
}

function judge(context: FailureContext): Verdict {
  const { error, wire, limits } = context;
  const status = wire.status;
  const answered = status !== undefined && status >= 200 && status < 300;
  const plain = (reason: ModelFailureReason, sentence: string): Verdict => ({
    reason,
    sentence,
    facts: { status },
  });
  switch (limits.endedBy()) {
    case 'aborted':
      return plain('aborted', 'The call was aborted before its answer was whole.');
    case 'timed_out':
      return plain('timed_out', "The answer was not whole within the profile's time limit.");
    case undefined:
  }
  if (isFailedCall(error)) return endedVerdict(error, context, plain);
  const chain = causesOf(error);
  if (chain.some((cause) => cause instanceof AnswerTooLarge)) {
    return plain('malformed_response', 'The answer is too large to be read.');
  }
  const network = networkFailure(error, answered);
  if (network) {
    const sentence = answered
      ? `The connection broke in the middle of the answer (${network.code}).`
      : `The provider could not be reached, or gave no answer (${network.code}).`;
    return plain(network.reason, sentence);
  }
  if (answered && chain.some(isMalformed)) {
    return plain('malformed_response', 'The answer is not in the form that this provider speaks.');
  }
  if (status !== undefined && status >= 300 && status < 400) {
    return plain(
      'bad_request',
      'The provider answered with a redirect, which is not followed; correct the base URL.',
    );
  }
  const facts = { status, ...factsOfError(error) };
  if (status !== undefined) {
    // What breaks while an answer is read is the answer's fault, unless the provider names another cause.
    const isNamed = facts.type !== undefined || facts.code !== undefined || facts.message !== undefined;
    if (answered && !isNamed) return plain('malformed_response', 'The answer could not be read.');
    return { reason: failureReason(facts), sentence: 'The provider refused or failed the request.', facts };
  }
  if (AISDKError.isInstance(error)) {
    return plain('bad_request', `The request could not be put into the provider's form (${error.name}).`);
  }
  throw error;
}

function endedVerdict(
  ended: FailedCall,
  context: FailureContext,
  plain: (reason: ModelFailureReason, sentence: string) => Verdict,
): Verdict {
  if (ended.failedCall === 'too_long')
    return plain('malformed_response', 'The answer is too long to be kept.');
  const contentType = context.wire.headers?.get('content-type') ?? '';
  if (ended.failedCall === 'ended_empty' && !/event-stream/i.test(contentType)) {
    const shown = /^[\w./+-]{1,60}/.exec(contentType)?.[0] ?? 'no content type';
    return plain('malformed_response', `The answer is not an event stream (${shown}); check the base URL.`);
  }
  return plain('disconnected', 'The stream ended before the answer was whole.');
}

function isFailedCall(error: unknown): error is FailedCall {
  return typeof error === 'object' && error !== null && 'failedCall' in error;
}

function factsOfError(error: unknown): FailureFacts {
  if (APICallError.isInstance(error)) {
    return error.data === undefined ? factsOfText(error.responseBody) : factsOfBody(error.data);
  }
  // The provider level's own errors quote the answer, so nothing of them is shown.
  return error instanceof Error ? {} : factsOfBody(error);
}

function factsOfText(text: string | undefined): FailureFacts {
  if (text === undefined || text.trim() === '') return {};
  try {
    return factsOfBody(JSON.parse(text));
  } catch {
    // A page of a proxy, for example: the status says enough.
    return {};
  }
}

function isMalformed(error: unknown): boolean {
  return (
    JSONParseError.isInstance(error) ||
    TypeValidationError.isInstance(error) ||
    InvalidResponseDataError.isInstance(error) ||
    EmptyResponseBodyError.isInstance(error) ||
    // The Anthropic adapter wraps what was wrong with a first event as text.
    (APICallError.isInstance(error) &&
      /"name":"AI_(JSONParse|TypeValidation)Error"/.test(error.responseBody ?? ''))
  );
}

function causesOf(error: unknown): unknown[] {
  const causes: unknown[] = [];
  let current = error;
  while (current !== undefined && current !== null && causes.length < 10) {
    causes.push(current);
    current = current instanceof Error ? current.cause : undefined;
  }
  return causes;
}
