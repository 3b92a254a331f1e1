import { ProtocolError, SdkError, SdkErrorCode, SdkHttpError } from '@modelcontextprotocol/client';
import { excerpt } from '../../shared/domain/json-rules.js';
import { bodyOfBytes, bodyOfJson, notSentAnswer, unknownAnswer } from './answers.js';
import { referenceAt } from './http-outcomes.js';
import type { McpToolDeclaration } from './mcp-format.js';
import type { NotSentReason } from './reasons.js';
import type { ToolAnswer } from './tool.js';

/** JSON-RPC errors by which a server refuses a request before it does anything. */
const REFUSALS: ReadonlySet<number> = new Set([-32_700, -32_600, -32_601, -32_602]);

/** Failures of `fetch` that come before a connection is open. */
const NOT_CONNECTED: ReadonlyMap<string, NotSentReason> = new Map([
  ['ECONNREFUSED', 'connection_refused'],
  ['ENOTFOUND', 'dns_failed'],
  ['EAI_AGAIN', 'dns_failed'],
  ['UND_ERR_CONNECT_TIMEOUT', 'connect_timed_out'],
]);

/** Errors that the protocol library raises before it hands a request to the transport. */
const LOCAL_REFUSALS: ReadonlySet<SdkErrorCode> = new Set([
  SdkErrorCode.NotConnected,
  SdkErrorCode.NotInitialized,
  SdkErrorCode.CapabilityNotSupported,
  SdkErrorCode.MethodNotSupportedByProtocolVersion,
]);

/** What a result of `tools/call` says. */
export function judgeMcpResult(
  result: { readonly isError?: boolean | undefined },
  declared: McpToolDeclaration,
): ToolAnswer {
  const body = bodyOfBytes(new TextEncoder().encode(JSON.stringify(result)), 'application/json');
  if (result.isError !== true) {
    return { kind: 'succeeded', reference: referenceAt(result, declared.reference), body };
  }
  if (declared.errorsMean === 'unknown') return unknownAnswer('tool_error', body);
  return { kind: 'rejected', status: 'tool_error', body };
}

/** What is left to say of a call that was handed to a session and gave no result. */
export interface McpFailure {
  readonly answer: ToolAnswer;
  /** The session is to blame, or may be: the next call needs another. */
  readonly isOfSession: boolean;
}

/** Reads the error of a call that was handed to a session. */
export function judgeMcpFailure(error: unknown): McpFailure {
  if (error instanceof ProtocolError) {
    const body = bodyOfJson({ error: 'mcp_error', code: error.code, message: excerpt(error.message, 500) });
    const answer: ToolAnswer = REFUSALS.has(error.code)
      ? { kind: 'rejected', status: `mcp_error_${Math.abs(error.code)}`, body }
      : unknownAnswer('server_error', body);
    return { answer, isOfSession: false };
  }
  if (error instanceof SdkHttpError) return { answer: judgeStatus(error.status), isOfSession: true };
  if (error instanceof SdkError) return { answer: judgeSdkError(error.code), isOfSession: true };
  const reason = NOT_CONNECTED.get(causeCodeOf(error) ?? '');
  const answer = reason === undefined ? unknownAnswer('connection_reset') : notSentAnswer(reason);
  return { answer, isOfSession: true };
}

function judgeStatus(status: number | undefined): ToolAnswer {
  if (status === undefined) return unknownAnswer('server_error');
  // The protocol's word for a session the server does not know: it took no call.
  if (status === 404) return notSentAnswer('session_lost');
  const isRefusal = status >= 400 && status < 500 && ![408, 409, 425, 429].includes(status);
  if (!isRefusal) return unknownAnswer(`http_${status}`);
  return { kind: 'rejected', status: `http_${status}`, body: bodyOfJson({ error: `http_${status}` }) };
}

function judgeSdkError(code: SdkErrorCode): ToolAnswer {
  if (LOCAL_REFUSALS.has(code)) return notSentAnswer('server_unreachable');
  if (code === SdkErrorCode.ConnectionClosed) return unknownAnswer('connection_closed');
  if (code === SdkErrorCode.RequestTimeout) return unknownAnswer('timed_out');
  // A result that is none, an unexpected content type, a failed send: the server may have acted.
  return unknownAnswer('answer_malformed');
}

function causeCodeOf(error: unknown): string | undefined {
  const cause = error instanceof Error ? error.cause : undefined;
  if (typeof cause !== 'object' || cause === null || !('code' in cause)) return undefined;
  return typeof cause.code === 'string' ? cause.code : undefined;
}
