import type { JsonValue } from './json.js';

/**
 * Why a text or a value was refused.
 * `not_json`: breaks RFC 8259. `duplicate_key`: one object names a member twice. `forbidden_key`:
 * `__proto__`, `constructor` or `prototype`. `ill_formed_text`: NUL or a lone surrogate, escaped or not.
 * `unsafe_number`: a double would change its value. `too_deep`, `too_large`: past a limit.
 * `not_json_value`: a JavaScript value that JSON has no form for.
 */
export const STRICT_JSON_CODES = [
  'not_json',
  'duplicate_key',
  'forbidden_key',
  'ill_formed_text',
  'unsafe_number',
  'too_deep',
  'too_large',
  'not_json_value',
] as const;
export type StrictJsonCode = (typeof STRICT_JSON_CODES)[number];

/** A value that can be stored and digested faithfully, or where and why there is none. */
export type StrictJsonResult =
  | { readonly ok: true; readonly value: JsonValue }
  | {
      readonly ok: false;
      readonly code: StrictJsonCode;
      /** JSON pointer (RFC 6901) to the value or member at fault; empty for the whole text. */
      readonly at: string;
      /** What is wrong and what to do, in one sentence; quotes at most 60 characters of the text. */
      readonly message: string;
    };

/** Bounds of what is read; both have defaults, neither has a value for "none". */
export interface JsonLimits {
  /** Arrays and objects inside one another; a scalar has depth 0, `[]` has 1. Default 64. */
  readonly depthMax?: number;
  /** Size in UTF-8 bytes. Default 16 MiB. */
  readonly bytesMax?: number;
}

/** Default of `JsonLimits.depthMax`. */
export const JSON_DEPTH_MAX = 64;
/** Default of `JsonLimits.bytesMax`, in bytes. */
export const JSON_BYTES_MAX = 16 * 1024 * 1024;

/** Keys that JavaScript reads as something else than a member; a naive digest loses them. */
export const FORBIDDEN_KEYS: ReadonlySet<string> = new Set(['__proto__', 'constructor', 'prototype']);

/** Longest number text that is looked at, in characters; no value worth keeping needs more. */
export const NUMBER_CHARACTERS_MAX = 512;

// With the `u` flag a surrogate matches only where it stands alone.
const ILL_FORMED = /\p{Cs}|\0/u;

/** True for text that Postgres cannot store or that has no UTF-8 form: NUL and lone surrogates. */
export function isIllFormed(text: string): boolean {
  return ILL_FORMED.test(text);
}

/**
 * True when the double that `literal` (a JSON number) becomes says the very same decimal value again.
 * 0.1 and 1.10 are; 9007199254740993, 1e400, 1e-400 and 0.1000000000000000055 are not. Integers past
 * 2^53-1 never are, even where a double happens to hold them: their neighbours do not.
 */
export function isFaithfulNumber(literal: string): boolean {
  if (literal.length <= 15 && !literal.includes('e') && !literal.includes('E')) return true;
  if (literal.length > NUMBER_CHARACTERS_MAX) return false;
  const value = Number(literal);
  if (!Number.isFinite(value) || Math.abs(value) > Number.MAX_SAFE_INTEGER) return false;
  const written = decimalOf(literal);
  const kept = decimalOf(String(value));
  return written.digits === kept.digits && (written.digits === '' || written.exponent === kept.exponent);
}

/** The value of a number's text as significant digits times a power of ten; no digits for zero. */
function decimalOf(literal: string): { digits: string; exponent: number } {
  const [mantissa = '', power = '0'] = literal.replace(/^-/, '').toLowerCase().split('e');
  const [whole = '', fraction = ''] = mantissa.split('.');
  const digits = (whole + fraction).replace(/^0+/, '');
  const trimmed = digits.replace(/0+$/, '');
  return { digits: trimmed, exponent: Number(power) - fraction.length + digits.length - trimmed.length };
}

/** Bytes that `text` takes in UTF-8 as a JSON string, quotes and escapes included. */
export function jsonStringBytes(text: string): number {
  let bytes = 2;
  for (let index = 0; index < text.length; index += 1) {
    const code = text.charCodeAt(index);
    if (code < 0x20) bytes += '\b\t\n\f\r'.includes(text.charAt(index)) ? 2 : 6;
    else if (code === 0x22 || code === 0x5c) bytes += 2;
    else bytes += utf8BytesOf(code);
  }
  return bytes;
}

/** Bytes that `text` takes in UTF-8. */
export function utf8Bytes(text: string): number {
  let bytes = 0;
  for (let index = 0; index < text.length; index += 1) bytes += utf8BytesOf(text.charCodeAt(index));
  return bytes;
}

/** One UTF-16 unit's share: each half of a pair stands for two of its four bytes. */
function utf8BytesOf(code: number): number {
  if (code < 0x80) return 1;
  if (code < 0x800) return 2;
  return code >= 0xd800 && code <= 0xdfff ? 2 : 3;
}

const POINTER_CHARACTERS_MAX = 300;

/** RFC 6901 pointer, fit to be shown: a long one is cut and ends with `…`. */
export function jsonPointer(path: readonly (string | number)[]): string {
  let pointer = '';
  for (const part of path) {
    pointer += `/${String(part).replaceAll('~', '~0').replaceAll('/', '~1')}`;
    if (pointer.length > POINTER_CHARACTERS_MAX) break;
  }
  return excerpt(pointer, POINTER_CHARACTERS_MAX);
}

/** At most `charactersMax` characters of `text`, never half a surrogate pair, control characters shown. */
export function excerpt(text: string, charactersMax: number): string {
  const cut = text.length > charactersMax;
  const kept = [...text.slice(0, charactersMax)].map((character) =>
    /[\p{Cs}\u0000-\u001f\u007f]/u.test(character) ? '\ufffd' : character,
  );
  return kept.join('') + (cut ? '…' : '');
}
