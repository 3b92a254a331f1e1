import { excerpt } from '../../shared/domain/json-rules.js';
import type { ModelFailureReason, ModelRequest } from '../../shared/domain/models.js';

/** What a provider, or the way to it, told of a failed call. */
export interface FailureFacts {
  /** HTTP status of the provider's answer; undefined where there was none. */
  readonly status?: number | undefined;
  /** The provider's own names of the error, such as `rate_limit_error`, `insufficient_quota`. */
  readonly type?: string | undefined;
  readonly code?: string | undefined;
  readonly message?: string | undefined;
}

/** Reads the error that a provider put into a body or a stream; all of them nest or flatten one shape. */
export function factsOfBody(body: unknown): FailureFacts {
  const outer = asRecord(body);
  const response = asRecord(outer?.['response']);
  const inner = asRecord(outer?.['error']) ?? asRecord(response?.['error']) ?? outer;
  if (!inner) return typeof body === 'string' ? { message: body } : {};
  return {
    type: word(inner['type']) ?? word(inner['status']),
    code: word(inner['code']),
    message: word(inner['message']),
  };
}

// In order: what the provider names wins over the HTTP status, since one status stands for several causes
// and an error inside a stream has none. The first that matches wins.
const NAMED: readonly (readonly [RegExp, ModelFailureReason])[] = [
  [/insufficient_quota|billing|payment_required|credits?_exhausted|insufficient_credits/, 'billing'],
  [
    /context_length|context_window|prompt_too_long|request_too_large|string_above_max_length/,
    'context_too_long',
  ],
  [/content_policy|content_filter|invalid_prompt|safety/, 'content_refused'],
  [/model_not_found|not_found_error/, 'model_not_found'],
  [/authentication|invalid_api_key|permission|unauthorized/, 'authentication'],
  [/rate_limit|too_many_requests|resource_exhausted/, 'rate_limited'],
  [/overload|unavailable/, 'overloaded'],
  [/timeout|timed_out|deadline/, 'timed_out'],
];
const SAID: readonly (readonly [RegExp, ModelFailureReason])[] = [
  [/credit balance is too low|exceeded your current quota|insufficient (credits|quota|balance)/i, 'billing'],
  [/maximum context length|prompt is too long|context window|too many (input )?tokens/i, 'context_too_long'],
];
const BY_STATUS: ReadonlyMap<number, ModelFailureReason> = new Map([
  [401, 'authentication'],
  [402, 'billing'],
  [403, 'authentication'],
  [404, 'model_not_found'],
  [408, 'timed_out'],
  [409, 'server_error'],
  [413, 'context_too_long'],
  [429, 'rate_limited'],
  [503, 'overloaded'],
  [504, 'timed_out'],
  [529, 'overloaded'],
]);

/** Which of the closed reasons a provider's error is. */
export function failureReason(facts: FailureFacts): ModelFailureReason {
  const names = `${facts.code ?? ''} ${facts.type ?? ''}`.toLowerCase();
  const status = failedStatus(facts);
  const named = NAMED.find(([pattern]) => pattern.test(names));
  if (named) return named[1];
  // Some causes have a name only in the sentence, under a type as general as `invalid_request_error`.
  const said = SAID.find(([pattern]) => pattern.test(facts.message ?? ''));
  if (said && (status === undefined || status < 500)) return said[1];
  if (status !== undefined) return BY_STATUS.get(status) ?? (status >= 500 ? 'server_error' : 'bad_request');
  return /invalid|bad_request|unsupported/.test(names) ? 'bad_request' : 'server_error';
}

/** The status of the failure: an error inside a stream came with 200, and may say its own as a code. */
function failedStatus(facts: FailureFacts): number | undefined {
  if (facts.status !== undefined && (facts.status < 200 || facts.status >= 300)) return facts.status;
  return /^[45]\d\d$/.test(facts.code ?? '') ? Number(facts.code) : undefined;
}

const BY_NETWORK_CODE: ReadonlyMap<string, ModelFailureReason> = new Map([
  ['ECONNRESET', 'disconnected'],
  ['EPIPE', 'disconnected'],
  ['UND_ERR_SOCKET', 'disconnected'],
  ['ECONNABORTED', 'disconnected'],
  ['ETIMEDOUT', 'timed_out'],
  ['UND_ERR_HEADERS_TIMEOUT', 'timed_out'],
  ['UND_ERR_BODY_TIMEOUT', 'timed_out'],
  ['UND_ERR_CONNECT_TIMEOUT', 'unreachable'],
  ['ECONNREFUSED', 'unreachable'],
  ['ENOTFOUND', 'unreachable'],
  ['EAI_AGAIN', 'unreachable'],
  ['EHOSTUNREACH', 'unreachable'],
  ['ENETUNREACH', 'unreachable'],
]);

/**
 * Reason and code of an error of the network, however deep it is wrapped; undefined for any other error.
 * `answered`: headers of an answer had come, so what broke was the answer, not the way.
 */
export function networkFailure(
  error: unknown,
  answered: boolean,
): { readonly reason: ModelFailureReason; readonly code: string } | undefined {
  let current = error;
  let fetchFailed = false;
  // Ten wraps are more than any client makes; a cause that leads to itself must not hold the call.
  for (let depth = 0; depth < 10 && current instanceof Error; depth += 1) {
    const code: unknown = 'code' in current ? current.code : undefined;
    const reason = typeof code === 'string' ? BY_NETWORK_CODE.get(code) : undefined;
    if (reason) return { reason, code: String(code) };
    if (current instanceof TypeError && /^(fetch failed|terminated)$/.test(current.message))
      fetchFailed = true;
    current = current.cause;
  }
  // For example a certificate that is not trusted.
  return fetchFailed ? { reason: answered ? 'disconnected' : 'unreachable', code: 'network' } : undefined;
}

const DETAIL_CHARACTERS_MAX = 500;
const PROMPT_WINDOW = 16;

/**
 * One sentence for operators. The provider's words are added only where they repeat nothing of the prompt,
 * and with keys masked: providers quote both.
 */
export function failureDetail(sentence: string, facts: FailureFacts, hide: HiddenContent): string {
  const names = [
    facts.status === undefined ? '' : `HTTP ${facts.status}`,
    safeName(facts.type),
    safeName(facts.code),
  ];
  const known = names.filter((name) => name !== '').join(', ');
  const words = facts.message === undefined ? '' : safeWords(facts.message, hide);
  const parts = [
    sentence,
    known === '' ? '' : `(${known})`,
    words === '' ? '' : `The provider says: ${words}`,
  ];
  return excerpt(parts.filter((part) => part !== '').join(' '), DETAIL_CHARACTERS_MAX - 1);
}

/** What no detail may show. */
export interface HiddenContent {
  readonly secret: string | undefined;
  readonly request: ModelRequest;
}

function safeName(name: string | undefined): string {
  return name !== undefined && /^[\w.-]{1,60}$/.test(name) ? name : '';
}

function safeWords(message: string, hide: HiddenContent): string {
  const shown = message.slice(0, 300);
  const prompt = promptText(hide.request);
  for (let start = 0; start === 0 || start + PROMPT_WINDOW <= shown.length; start += 1) {
    const window = shown.slice(start, start + PROMPT_WINDOW);
    if (window.trim() !== '' && prompt.some((text) => text.includes(window)))
      return '(left out: it quotes the prompt)';
  }
  // Prompts shorter than a window.
  if (prompt.some((text) => text.length >= 4 && text.length < PROMPT_WINDOW && shown.includes(text))) {
    return '(left out: it quotes the prompt)';
  }
  const unkeyed = hide.secret ? shown.replaceAll(hide.secret, '***') : shown;
  return unkeyed.replace(/\b(sk|pk|rk|key|bearer)[-_ ][\w*.-]{4,}/gi, '$1-***');
}

function promptText(request: ModelRequest): string[] {
  const texts = [request.system];
  for (const message of request.messages) {
    if (message.role === 'user') texts.push(message.text);
    else if (message.role === 'tool') texts.push(...message.results.map((result) => result.text));
    else {
      for (const part of message.parts) {
        texts.push(part.type === 'tool_call' ? JSON.stringify(part.arguments) : part.text);
      }
    }
  }
  return texts;
}

function asRecord(value: unknown): Record<string, unknown> | undefined {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined;
}

function word(value: unknown): string | undefined {
  return typeof value === 'string' ? value : typeof value === 'number' ? String(value) : undefined;
}
