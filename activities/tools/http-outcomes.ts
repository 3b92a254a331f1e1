import { isIllFormed } from '../../shared/domain/json-rules.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { unknownAnswer } from './answers.js';
import type { AnswerRule } from './http-format.js';
import type { Exchange } from './http-request.js';
import type { Fits } from './input-schema.js';
import type { UnknownReason } from './reasons.js';
import { parseRetryAfter } from './retry-after.js';
import type { ProbeAnswer, ToolAnswer } from './tool.js';

/** An outcome that an answer's status, or a row of the tool's own table, stands for. */
export type StatusOutcome = 'succeeded' | 'rejected' | 'throttled' | 'in_progress' | 'unknown';

/** How the answers of one request are read. */
export interface AnswerReading<Outcome extends string> {
  readonly rules: readonly AnswerRule<Outcome>[];
  readonly expects: 'json' | 'any';
  readonly reference: string | undefined;
  readonly keyEcho: string | undefined;
  /** A 2xx body must fit it. */
  readonly fits: Fits | undefined;
}

/** What a tool says of its target beside the table. */
export interface TargetTraits {
  readonly limiterRunsBeforeExecution: boolean;
  /** A read that is redirected did nothing, so the redirect is its final answer. */
  readonly isRead: boolean;
}

/**
 * What a status means where the tool's table says nothing (SPEC 3.2); the first row that fits decides.
 * 408, 409 and 425 are 4xx that do not prove that nothing was done. A 5xx may come after a commit.
 */
export const DEFAULT_OUTCOMES: readonly {
  readonly from: number;
  readonly to: number;
  readonly outcome: StatusOutcome | 'throttled_if_limiter_first' | 'rejected_if_read';
}[] = [
  { from: 200, to: 299, outcome: 'succeeded' },
  { from: 300, to: 399, outcome: 'rejected_if_read' },
  { from: 408, to: 409, outcome: 'unknown' },
  { from: 425, to: 425, outcome: 'unknown' },
  { from: 429, to: 429, outcome: 'throttled_if_limiter_first' },
  { from: 400, to: 499, outcome: 'rejected' },
  { from: 503, to: 503, outcome: 'throttled_if_limiter_first' },
  { from: 500, to: 599, outcome: 'unknown' },
];

const REFERENCE_CHARACTERS_MAX = 200;

/** Turns what came of a request into the attempt's answer. */
export function judgeCall(
  result: Exchange,
  reading: AnswerReading<StatusOutcome>,
  target: TargetTraits,
  context: { readonly idempotencyKey: string; readonly nowMs: number },
): ToolAnswer {
  if (result.kind === 'broken') return unknownAnswer(result.reason, result.partial);
  const { status, body } = result;
  const document = readDocument(result);
  const outcome = ruleFor(reading.rules, status, document)?.outcome ?? defaultOutcome(status, target);
  const httpStatus = `http_${status}` as const;
  const retryAfterMs = parseRetryAfter(result.header('retry-after'), {
    responseDate: result.header('date'),
    nowMs: context.nowMs,
  });
  switch (outcome) {
    case 'succeeded': {
      const doubt = doubtIn(result, document, reading, context.idempotencyKey);
      if (doubt !== null) return unknownAnswer(doubt, body);
      return { kind: 'succeeded', reference: referenceIn(document, reading.reference), body };
    }
    case 'rejected':
      return { kind: 'rejected', status: httpStatus, body };
    case 'throttled':
    case 'in_progress':
      return { kind: outcome, retryAfterMs, body };
    case 'unknown':
      return unknownAnswer(httpStatus, body);
  }
}

/** Turns what came of a status query into the probe's answer; only the probe's own table settles anything. */
export function judgeProbe(
  result: Exchange,
  reading: AnswerReading<ProbeAnswer['kind']>,
  context: { readonly idempotencyKey: string },
): ProbeAnswer {
  if (result.kind === 'broken') {
    return { kind: 'inconclusive', reason: result.reason, body: result.partial };
  }
  const { status, body } = result;
  const document = readDocument(result);
  const outcome = ruleFor(reading.rules, status, document)?.outcome ?? 'inconclusive';
  if (outcome === 'inconclusive') return { kind: outcome, reason: `http_${status}`, body };
  if (outcome === 'absent') return { kind: outcome, body };
  const doubt = doubtIn(result, document, reading, context.idempotencyKey);
  if (doubt !== null) return { kind: 'inconclusive', reason: doubt, body };
  return { kind: 'found', reference: referenceIn(document, reading.reference), body };
}

type Answered = Extract<Exchange, { kind: 'answered' }>;
type Document = { readonly isJson: true; readonly value: unknown } | { readonly isJson: false };

function ruleFor<Outcome extends string>(
  rules: readonly AnswerRule<Outcome>[],
  status: number,
  document: Document,
): AnswerRule<Outcome> | undefined {
  return rules.find((rule) => {
    const patterns = Array.isArray(rule.status) ? rule.status : [rule.status];
    if (!patterns.some((pattern: string | number) => matchesStatus(pattern, status))) return false;
    if (rule.at === undefined) return true;
    if (!document.isJson) return false;
    const value = valueAt(document.value, rule.at);
    // Without `equals` the row asks only whether the place is there.
    return rule.equals === undefined
      ? value !== undefined
      : JSON.stringify(value) === JSON.stringify(rule.equals);
  });
}

function matchesStatus(pattern: string | number, status: number): boolean {
  if (typeof pattern === 'number') return pattern === status;
  if (pattern.endsWith('xx')) return Math.floor(status / 100) === Number(pattern[0]);
  const [from = NaN, to = from] = pattern.split('-').map(Number);
  return status >= from && status <= to;
}

function defaultOutcome(status: number, target: TargetTraits): StatusOutcome {
  const row = DEFAULT_OUTCOMES.find(({ from, to }) => status >= from && status <= to);
  if (row === undefined) return 'unknown';
  switch (row.outcome) {
    case 'throttled_if_limiter_first':
      return target.limiterRunsBeforeExecution ? 'throttled' : 'unknown';
    case 'rejected_if_read':
      return target.isRead ? 'rejected' : 'unknown';
    case 'succeeded':
    case 'rejected':
    case 'throttled':
    case 'in_progress':
    case 'unknown':
      return row.outcome;
  }
}

/** Why an answer that says "done" cannot be taken for one, or null. */
function doubtIn(
  result: Answered,
  document: Document,
  reading: Pick<AnswerReading<string>, 'expects' | 'keyEcho' | 'fits'>,
  idempotencyKey: string,
): UnknownReason | null {
  if (reading.expects === 'any') return null;
  if (result.status === 204 || result.status === 205) return null;
  if (!isJsonType(result.body.contentType)) return 'content_type_unexpected';
  // Past our cap the body cannot be read, but the target has said that it is done (FAULTS A14).
  if (result.capped) return null;
  if (!document.isJson) return 'body_not_json';
  if (reading.keyEcho !== undefined && valueAt(document.value, reading.keyEcho) !== idempotencyKey) {
    return 'answer_not_ours';
  }
  return reading.fits?.(document.value as JsonValue) === false ? 'schema_mismatch' : null;
}

function isJsonType(contentType: string | null): boolean {
  const type = contentType?.split(';', 1)[0]?.trim().toLowerCase() ?? '';
  return type === 'application/json' || /^application\/[a-z0-9.-]+\+json$/.test(type);
}

/** Read leniently: what a target confirmed stays so, even where its text could not be stored as text. */
function readDocument(result: Answered): Document {
  if (result.capped || result.body.truncated) return { isJson: false };
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(result.body.bytes);
    return { isJson: true, value: JSON.parse(text) as unknown };
  } catch {
    // Not UTF-8 or not JSON: the bytes are kept, and whoever needs the document is told that there is none.
    return { isJson: false };
  }
}

/** The value at a JSON pointer (RFC 6901), or undefined. Only own members are looked at. */
export function valueAt(document: unknown, pointer: string): unknown {
  let value = document;
  for (const part of pointer.split('/').slice(1)) {
    const name = part.replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
    value = (value as Record<string, unknown>)[name];
  }
  return value;
}

/** The outside name at a pointer; null where there is none that can be kept. */
export function referenceAt(document: unknown, pointer: string | undefined): string | null {
  if (pointer === undefined) return null;
  const value = valueAt(document, pointer);
  if (typeof value !== 'string' && typeof value !== 'number') return null;
  const text = String(value);
  return text === '' || text.length > REFERENCE_CHARACTERS_MAX || isIllFormed(text) ? null : text;
}

function referenceIn(document: Document, pointer: string | undefined): string | null {
  return document.isJson ? referenceAt(document.value, pointer) : null;
}
