import { checkJsonValue } from '../../shared/domain/strict-json.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import type { JsonValue } from '../../shared/domain/json.js';
import type { NotSentReason, UnknownReason } from './reasons.js';
import { RESULT_BYTES_MAX } from './tool.js';
import type { ToolAnswer, ToolBody } from './tool.js';

/** Content type of the document that stands for a value which JSON cannot say faithfully. */
export const UNSTORABLE_CONTENT_TYPE = 'application/vnd.holdfast.unstorable+json';
/** Content type of the document that keeps what a tool threw. */
export const TOOL_ERROR_CONTENT_TYPE = 'application/vnd.holdfast.tool-error+json';

const ERROR_MESSAGE_CHARACTERS_MAX = 500;

/** An answer that proves that nothing left this process. */
export function notSentAnswer(reason: NotSentReason): ToolAnswer {
  return { kind: 'not_sent', reason };
}

/** An answer that leaves open what happened. */
export function unknownAnswer(reason: UnknownReason, body: ToolBody | null = null): ToolAnswer {
  return { kind: 'unknown', reason, body };
}

/** A body of at most `RESULT_BYTES_MAX` bytes; what is over is cut and marked. */
export function bodyOfBytes(bytes: Uint8Array, contentType: string | null, truncated = false): ToolBody {
  const cut = bytes.byteLength > RESULT_BYTES_MAX;
  return {
    // A copy: a view would keep the whole buffer alive.
    bytes: cut ? Uint8Array.prototype.slice.call(bytes, 0, RESULT_BYTES_MAX) : bytes,
    contentType,
    truncated: truncated || cut,
  };
}

/** A JSON body of a value that is known to be JSON. */
export function bodyOfJson(value: JsonValue, contentType = 'application/json'): ToolBody {
  return bodyOfBytes(new TextEncoder().encode(JSON.stringify(value)), contentType);
}

/**
 * A JSON body of whatever a tool returned. A value that cannot be kept faithfully becomes a document
 * that names the member and why, under `UNSTORABLE_CONTENT_TYPE`: the tool has done its work by now,
 * so its receipt must be writable and nothing may make it run again. `undefined` is null.
 */
export function bodyOfValue(value: unknown): ToolBody {
  const checked = checkJsonValue(value ?? null);
  if (checked.ok) return bodyOfJson(checked.value);
  return bodyOfJson(
    {
      error: 'unstorable_result',
      code: checked.code,
      at: checked.at,
      message: `The tool ran, but its result cannot be stored: ${placeOf(checked.at)}: ${checked.message}`,
    },
    UNSTORABLE_CONTENT_TYPE,
  );
}

/** What a tool threw, kept as evidence for a person; never more than its name, code and first words. */
export function bodyOfError(error: unknown): ToolBody {
  const isError = error instanceof Error;
  const code = isError && 'code' in error && typeof error.code === 'string' ? error.code : null;
  return bodyOfJson(
    {
      error: 'tool_threw',
      name: excerpt(isError ? error.name : typeof error, 100),
      code: code === null ? null : excerpt(code, 100),
      message: excerpt(isError ? error.message : describe(error), ERROR_MESSAGE_CHARACTERS_MAX),
    },
    TOOL_ERROR_CONTENT_TYPE,
  );
}

function placeOf(pointer: string): string {
  return pointer === '' ? 'the whole value' : pointer;
}

function describe(thrown: unknown): string {
  return typeof thrown === 'string' ? thrown : `a thrown ${typeof thrown}`;
}
