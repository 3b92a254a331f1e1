import { excerpt } from '../../shared/domain/json-rules.js';
import { bodyOfValue } from './answers.js';
import type { ProbeAnswer, ToolAnswer } from './tool.js';

// A symbol, so that a tool's own JSON with a member `kind` is never taken for an answer. Registered
// globally, because a project's modules may load another copy of this file.
const ANSWER: unique symbol = Symbol.for('holdfast.answer') as never;
const PROBE_ANSWER: unique symbol = Symbol.for('holdfast.probe-answer') as never;

const REASON_CHARACTERS_MAX = 200;
const REFERENCE_CHARACTERS_MAX = 200;

/** An answer that a tool's `run` gives by name; a plain returned value is `succeeded` without a reference. */
export interface NamedAnswer {
  readonly [ANSWER]: ToolAnswer;
}

/** What a tool's `probe` found out about a key. */
export interface NamedProbeAnswer {
  readonly [PROBE_ANSWER]: ProbeAnswer;
}

/** The target did it. `reference` is the outside name of what it did, at most 200 characters. */
export function succeeded(answer: { reference?: string | null; value?: unknown } = {}): NamedAnswer {
  const reference = referenceOf(answer.reference ?? null);
  return { [ANSWER]: { kind: 'succeeded', reference, body: bodyOfValue(answer.value) } };
}

/** The target refused for good: it did nothing under this key and never will. `status` says why. */
export function rejected(answer: { status: string; value?: unknown }): NamedAnswer {
  const status = excerpt(answer.status, REASON_CHARACTERS_MAX);
  return { [ANSWER]: { kind: 'rejected', status, body: bodyOfValue(answer.value) } };
}

/** Nothing left this process, and the tool can prove it. Never use it after a request was sent. */
export function notSent(reason: string): NamedAnswer {
  return { [ANSWER]: { kind: 'not_sent', reason: excerpt(reason, REASON_CHARACTERS_MAX) } };
}

/** The target says that it did nothing and asks to come later. */
export function throttled(answer: { retryAfterMs?: number | null; value?: unknown } = {}): NamedAnswer {
  return { [ANSWER]: { kind: 'throttled', ...laterOf(answer) } };
}

/** The target still works on this very key. */
export function inProgress(answer: { retryAfterMs?: number | null; value?: unknown } = {}): NamedAnswer {
  return { [ANSWER]: { kind: 'in_progress', ...laterOf(answer) } };
}

/** The key was found: the effect happened. */
export function found(answer: { reference?: string | null; value?: unknown } = {}): NamedProbeAnswer {
  const reference = referenceOf(answer.reference ?? null);
  return { [PROBE_ANSWER]: { kind: 'found', reference, body: bodyOfValue(answer.value) } };
}

/** The target knows nothing of the key. */
export function absent(answer: { value?: unknown } = {}): NamedProbeAnswer {
  return { [PROBE_ANSWER]: { kind: 'absent', body: valueBody(answer.value) } };
}

/** The target gave no answer that settles anything. */
export function inconclusive(reason: string, answer: { value?: unknown } = {}): NamedProbeAnswer {
  const words = excerpt(reason, REASON_CHARACTERS_MAX);
  return { [PROBE_ANSWER]: { kind: 'inconclusive', reason: words, body: valueBody(answer.value) } };
}

/** The answer behind whatever `run` returned. */
export function answerOf(returned: unknown): ToolAnswer {
  if (isMarked(returned, ANSWER)) return returned[ANSWER] as ToolAnswer;
  return { kind: 'succeeded', reference: null, body: bodyOfValue(returned) };
}

/** The answer behind what `probe` returned; anything that it did not name settles nothing. */
export function probeAnswerOf(returned: unknown): ProbeAnswer {
  if (isMarked(returned, PROBE_ANSWER)) return returned[PROBE_ANSWER] as ProbeAnswer;
  return { kind: 'inconclusive', reason: 'answer_malformed', body: bodyOfValue(returned) };
}

function isMarked(value: unknown, mark: symbol): value is Record<symbol, unknown> {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, mark);
}

function referenceOf(reference: string | null): string | null {
  return reference === null ? null : excerpt(reference, REFERENCE_CHARACTERS_MAX);
}

function laterOf(answer: { retryAfterMs?: number | null; value?: unknown }) {
  const ms = answer.retryAfterMs ?? null;
  const isWait = ms !== null && Number.isFinite(ms) && ms >= 0;
  return { retryAfterMs: isWait ? Math.round(ms) : null, body: valueBody(answer.value) };
}

function valueBody(value: unknown) {
  return value === undefined ? null : bodyOfValue(value);
}
