import type { JsonValue } from './json.js';

/**
 * Every error that anyone is told about, as data (SPEC 11). The code is the identity: it crosses HTTP as
 * the problem's `code` and Temporal as a failure's `type`, and is never renamed or reused. docs/errors.md
 * says of each what to do; test/docs.test.ts compares the two lists both ways.
 *
 * `http` is the status of the answer. `retry` tells whether the same request may be sent again: `later`
 * ones carry a Retry-After, `never` ones give the same answer until the request or the world is changed.
 */
export const ERRORS = {
  invalid_request: { http: 400, retry: 'never', title: 'The request is not valid' },
  invalid_json: { http: 400, retry: 'never', title: 'The body is not JSON that can be kept faithfully' },
  idempotency_key_missing: { http: 400, retry: 'never', title: 'The Idempotency-Key header is missing' },
  idempotency_key_invalid: { http: 400, retry: 'never', title: 'The Idempotency-Key header is not valid' },
  last_event_id_invalid: { http: 400, retry: 'never', title: 'The last event id is not one of this run' },
  cursor_invalid: { http: 400, retry: 'never', title: 'The cursor does not belong to this list' },
  role_required: { http: 403, retry: 'never', title: 'The actor lacks the role for this' },
  self_approval: { http: 403, retry: 'never', title: 'Nobody decides on what they asked for themselves' },
  run_not_found: { http: 404, retry: 'never', title: 'There is no such run' },
  checkpoint_not_found: { http: 404, retry: 'never', title: 'There is no such checkpoint' },
  command_not_found: { http: 404, retry: 'never', title: 'There is no such command' },
  interrupt_not_found: { http: 404, retry: 'never', title: 'There is no such interrupt' },
  role_grant_not_found: { http: 404, retry: 'never', title: 'There is no such role grant' },
  standing_grant_not_found: { http: 404, retry: 'never', title: 'There is no such standing grant' },
  effect_not_found: { http: 404, retry: 'never', title: 'There is no such effect to reconcile' },
  job_not_found: { http: 404, retry: 'never', title: 'There is no such job' },
  webhook_endpoint_not_found: { http: 404, retry: 'never', title: 'There is no such webhook endpoint' },
  webhook_delivery_not_found: { http: 404, retry: 'never', title: 'There is no such webhook delivery' },
  thread_not_found: { http: 404, retry: 'never', title: 'There is no such thread' },
  schedule_not_found: { http: 404, retry: 'never', title: 'There is no such schedule' },
  message_not_found: { http: 404, retry: 'never', title: 'There is no such message' },
  cooldown_not_found: { http: 404, retry: 'never', title: 'There is no such cool-down' },
  route_not_found: { http: 404, retry: 'never', title: 'There is no such route' },
  method_not_allowed: { http: 405, retry: 'never', title: 'The route does not take this method' },
  run_ended: { http: 409, retry: 'never', title: 'The run has ended' },
  cancel_in_force: { http: 409, retry: 'never', title: 'The run is being cancelled' },
  resume_in_progress: { http: 409, retry: 'never', title: 'A resume is being carried out' },
  pause_in_progress: { http: 409, retry: 'never', title: 'A pause is being carried out' },
  not_paused: { http: 409, retry: 'never', title: 'The run is not paused' },
  budget_not_set: { http: 409, retry: 'never', title: 'The run cannot count such a limit' },
  state_version_conflict: { http: 409, retry: 'never', title: 'The run has moved on' },
  interrupt_decided: { http: 409, retry: 'never', title: 'The interrupt is decided' },
  interrupt_superseded: { http: 409, retry: 'never', title: 'Another interrupt has taken its place' },
  interrupt_withdrawn: { http: 409, retry: 'never', title: 'The interrupt was taken back' },
  not_revocable: { http: 409, retry: 'never', title: 'There is no approval left to revoke' },
  scope_changed: { http: 409, retry: 'never', title: 'The digest is not that of this scope' },
  already_settled: { http: 409, retry: 'never', title: 'The effect is settled' },
  job_not_ended: { http: 409, retry: 'never', title: 'No run of the job has ended, or one still works' },
  job_decided: { http: 409, retry: 'never', title: 'The job is accepted or rejected' },
  checkpoint_not_forkable: { http: 409, retry: 'never', title: 'No fork can go on from this checkpoint' },
  webhook_endpoint_disabled: { http: 409, retry: 'never', title: 'The webhook endpoint is disabled' },
  secret_key_missing: { http: 409, retry: 'never', title: 'This API has no key for secrets' },
  not_unknown: { http: 409, retry: 'never', title: 'The outcome is not for a person to settle now' },
  last_admin: { http: 409, retry: 'never', title: 'Somebody must stay who can grant roles' },
  word_not_asked: { http: 409, retry: 'never', title: 'The word does not answer what is asked' },
  second_person_needed: { http: 409, retry: 'never', title: 'Another person must say the same' },
  words_differ: { http: 409, retry: 'never', title: 'Another person said something else' },
  idempotency_in_progress: { http: 409, retry: 'later', title: 'The first request with this key is at work' },
  fixture_impossible: { http: 409, retry: 'never', title: 'The run cannot become a fixture' },
  schedule_name_taken: { http: 409, retry: 'never', title: 'Another schedule has this name' },
  schedule_version_conflict: { http: 409, retry: 'never', title: 'The schedule has changed since' },
  thread_archived: { http: 409, retry: 'never', title: 'The thread is archived' },
  thread_busy: { http: 409, retry: 'never', title: 'A run of the thread is in progress' },
  events_gone: { http: 410, retry: 'never', title: 'The events were let go' },
  interrupt_expired: { http: 410, retry: 'never', title: 'The interrupt has expired' },
  payload_too_large: { http: 413, retry: 'never', title: 'The body is too large' },
  unsupported_media_type: { http: 415, retry: 'never', title: 'The body is not application/json in UTF-8' },
  idempotency_key_reused: { http: 422, retry: 'never', title: 'The key belongs to another request' },
  answer_invalid: { http: 422, retry: 'never', title: 'The answer does not fit the schema of the wait' },
  decision_mismatch: { http: 422, retry: 'never', title: 'The interrupt takes another kind of decision' },
  arguments_invalid: { http: 422, retry: 'never', title: 'The tool does not take these arguments' },
  thread_agent_mismatch: { http: 422, retry: 'never', title: 'The thread is of another agent' },
  agent_not_found: { http: 422, retry: 'never', title: 'There is no such agent' },
  contract_invalid: { http: 422, retry: 'never', title: 'The run contract cannot be met' },
  fork_edit_invalid: { http: 422, retry: 'never', title: 'The fork cannot go on from what it would hold' },
  webhook_url_refused: { http: 422, retry: 'never', title: 'Webhooks cannot go to this URL' },
  thread_full: { http: 429, retry: 'later', title: 'Too many messages wait on the thread' },
  rate_limited: { http: 429, retry: 'later', title: 'Too many requests' },
  internal: { http: 500, retry: 'later', title: 'The request failed for a reason of ours' },
  ledger_unavailable: { http: 503, retry: 'later', title: 'The ledger cannot be reached' },
} as const satisfies Record<string, ErrorFacts>;

/** What a code stands for, the same for all of its occurrences. */
export interface ErrorFacts {
  readonly http: number;
  readonly retry: 'never' | 'later';
  /** A short sentence without a full stop; the problem's `title`. */
  readonly title: string;
}

export type ErrorCode = keyof typeof ERRORS;

/**
 * One fault in a request: where (`body/input/amount`, `query/limit`, `header/idempotency-key`) and what.
 */
export interface RequestFault {
  readonly at: string;
  readonly problem: string;
}

/** What a problem says beyond its detail. `extensions` become members of the problem, in snake_case. */
export interface ErrorExtras {
  readonly errors?: readonly RequestFault[];
  readonly extensions?: Readonly<Record<string, JsonValue>>;
  /** Replaces the default Retry-After of a `later` code. */
  readonly retryAfterSeconds?: number;
  readonly cause?: unknown;
}

/**
 * An expected failure, told to whoever has to act on it. Anything else that is thrown is a bug or an
 * outage.
 */
export class HoldfastError extends Error {
  override readonly name = 'HoldfastError';
  readonly code: ErrorCode;
  /** What happened, to which thing, and what to do. No secret, no prompt text, no driver message. */
  readonly detail: string;
  readonly errors: readonly RequestFault[];
  readonly extensions: Readonly<Record<string, JsonValue>>;
  readonly retryAfterSeconds: number | undefined;

  constructor(code: ErrorCode, detail: string, extras: ErrorExtras = {}) {
    super(detail, extras.cause === undefined ? undefined : { cause: extras.cause });
    this.code = code;
    this.detail = detail;
    this.errors = extras.errors ?? [];
    this.extensions = extras.extensions ?? {};
    this.retryAfterSeconds = extras.retryAfterSeconds;
  }
}

/** An error as HTTP tells it: RFC 9457 problem details, `application/problem+json`. */
export interface Problem {
  /** `urn:holdfast:problem:` and the code. */
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly code: ErrorCode;
  readonly retry: 'never' | 'later';
  /** Names this one occurrence: the request id as a URN, found in the API's log. */
  readonly instance: string;
  /** Every fault found, at most 50; absent where the code has none. */
  readonly errors?: readonly RequestFault[];
  readonly [extension: string]: JsonValue | readonly RequestFault[] | undefined;
}

const FAULTS_MAX = 50;

/** The problem that tells `error`. `requestId` names the request that met it. Pure. */
export function problemOf(error: HoldfastError, requestId: string): Problem {
  const { http, retry, title } = ERRORS[error.code];
  return {
    ...error.extensions,
    type: `urn:holdfast:problem:${error.code}`,
    title,
    status: http,
    detail: error.detail,
    code: error.code,
    retry,
    instance: `urn:holdfast:request:${requestId}`,
    ...(error.errors.length === 0 ? {} : { errors: error.errors.slice(0, FAULTS_MAX) }),
  };
}
