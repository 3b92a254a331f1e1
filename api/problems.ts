import type { ErrorRequestHandler, Request, Response } from 'express';
import { ERRORS, HoldfastError, problemOf } from '../shared/domain/errors.js';
import { isLedgerUnavailable } from '../shared/ledger/refusals.js';
import type { Logger } from '../shared/process/log.js';
import { ClientGone } from './body.js';

/** Media type of every error (RFC 9457). */
export const PROBLEM_TYPE = 'application/problem+json';

const RETRY_AFTER_SECONDS = 1;

/** Answers with the problem that `error` is. */
export function sendProblem(response: Response, error: HoldfastError, requestId: string): void {
  const { http, retry } = ERRORS[error.code];
  if (retry === 'later') {
    response.setHeader('retry-after', String(error.retryAfterSeconds ?? RETRY_AFTER_SECONDS));
  }
  const body = JSON.stringify(problemOf(error, requestId));
  response.status(http).type(PROBLEM_TYPE).setHeader('cache-control', 'no-store').end(body);
}

/**
 * The one place where what was thrown becomes an answer. What it does not know it logs and does not repeat:
 * messages of drivers name tables, hosts and query text.
 */
export function answerErrors(log: Logger): ErrorRequestHandler {
  return (thrown: unknown, request: Request, response: Response, next) => {
    const requestId = requestIdOf(response);
    if (thrown instanceof ClientGone || request.socket.destroyed) {
      log.info({ request_id: requestId }, 'the sender hung up before its request was whole');
      response.destroy();
      return;
    }
    if (response.headersSent) {
      next(thrown);
      return;
    }
    const known = knownError(thrown, request);
    if (known.code === 'internal' || known.code === 'ledger_unavailable') {
      log.error({ request_id: requestId, err: thrown, code: known.code }, 'the request failed');
    }
    sendProblem(response, known, requestId);
  };
}

/** The id given to this request as it came in; also in its X-Request-Id header. */
export function requestIdOf(response: Response): string {
  return String(response.getHeader('x-request-id') ?? '');
}

/** What `thrown` is in the words of ERRORS; `internal` for all that is in nobody's list. */
export function knownError(thrown: unknown, request: Pick<Request, 'method'>): HoldfastError {
  if (thrown instanceof HoldfastError) return thrown;
  if (isLedgerUnavailable(thrown)) {
    // A commit whose acknowledgement was lost may have happened: only the key can tell.
    const detail =
      request.method === 'POST' || request.method === 'PUT'
        ? 'The ledger did not answer: whether this was done is unknown. Send it again with the same key.'
        : 'The ledger cannot be read now. Send the request again later.';
    return new HoldfastError('ledger_unavailable', detail, { cause: thrown });
  }
  if (isBadPath(thrown)) {
    return new HoldfastError('invalid_request', 'The path holds a percent sign that escapes no character.', {
      errors: [{ at: 'path', problem: 'not percent-encoded UTF-8' }],
    });
  }
  const detail = 'Something went wrong here and was logged under this instance. Send the request again later';
  const how =
    request.method === 'POST' || request.method === 'PUT' ? ', with the same Idempotency-Key.' : '.';
  return new HoldfastError('internal', detail + how, { cause: thrown });
}

/** Express reports a path that decodeURIComponent refuses as an error with status 400. */
function isBadPath(thrown: unknown): boolean {
  return thrown instanceof URIError && (thrown as { status?: unknown }).status === 400;
}
