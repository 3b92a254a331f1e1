/**
 * Why nothing left this process. `later`: another attempt may go through. `never`: it will be refused
 * again until somebody changes the arguments, the project or the server.
 */
export const NOT_SENT_REASONS = {
  aborted_before_send: 'later',
  timed_out_before_send: 'later',
  connection_refused: 'later',
  connect_timed_out: 'later',
  dns_failed: 'later',
  network_unreachable: 'later',
  tls_failed: 'later',
  /** An MCP server could not be started, reached or initialised. */
  server_unreachable: 'later',
  /** An MCP server forgot our session before it took the call. */
  session_lost: 'later',
  address_not_allowed: 'never',
  arguments_invalid: 'never',
  host_not_allowed: 'never',
  request_invalid: 'never',
  /** An MCP server offers the tool with another schema or description than the pinned one. */
  schema_drift: 'never',
  secret_missing: 'never',
  /** An MCP server no longer offers the tool. */
  tool_missing: 'never',
} as const satisfies Record<string, 'later' | 'never'>;
export type NotSentReason = keyof typeof NOT_SENT_REASONS;

/** Why an attempt has no definite answer; HTTP statuses come as `http_<status>`. */
export const UNKNOWN_REASONS = [
  'aborted',
  'answer_malformed',
  'answer_not_ours',
  'body_not_json',
  'body_truncated',
  'connection_closed',
  'connection_reset',
  'content_type_unexpected',
  'schema_mismatch',
  'server_error',
  /** It was told to stop and did not: it may do it yet, so a query that does not find it proves nothing. */
  'still_running',
  'timed_out',
  'tool_error',
  'tool_threw',
] as const;
export type UnknownReason = (typeof UNKNOWN_REASONS)[number] | `http_${number}`;

/**
 * Whether another attempt at something that was `not_sent` for `reason` can go better. Reasons that a
 * function tool words itself count as `later`.
 */
export function maySendLater(reason: string): boolean {
  return (NOT_SENT_REASONS as Readonly<Record<string, string | undefined>>)[reason] !== 'never';
}
