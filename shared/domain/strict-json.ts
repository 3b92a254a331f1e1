import canonicalize from 'canonicalize';
import type { JsonValue } from './json.js';
import type { JsonLimits, StrictJsonCode, StrictJsonResult } from './json-rules.js';
import {
  excerpt,
  FORBIDDEN_KEYS,
  isFaithfulNumber,
  isIllFormed,
  JSON_BYTES_MAX,
  JSON_DEPTH_MAX,
  jsonPointer,
  utf8Bytes,
} from './json-rules.js';

export { checkJsonValue } from './check-json-value.js';
export { JSON_DEPTH_MAX, STRICT_JSON_CODES } from './json-rules.js';
export type { JsonLimits, StrictJsonCode, StrictJsonResult } from './json-rules.js';

/**
 * Reads JSON and refuses all that cannot be stored and digested faithfully (SPEC 3.1.1).
 *
 * Where it accepts, it gives what `JSON.parse` gives, except that -0 is read as 0 (its canonical form).
 * Numbers: one is accepted when its double says the same decimal value again, so 1, 1.0 and 1e0 are one
 * number, 0.1 is itself, and 9007199254740993, 1e400, 1e-400 are refused. Text is never normalised: the
 * NFC and NFD forms of a word are two strings, as two keys and as two digests. Takes time linear in the
 * text, needs no stack for depth, and never throws.
 */
export function parseStrictJson(text: string, limits: JsonLimits = {}): StrictJsonResult {
  const bytesMax = limits.bytesMax ?? JSON_BYTES_MAX;
  // Text of n units has n to 3n bytes: most texts are judged without counting.
  if (text.length > bytesMax || (text.length * 3 > bytesMax && utf8Bytes(text) > bytesMax)) {
    return {
      ok: false,
      code: 'too_large',
      at: '',
      message: `The JSON text is larger than ${bytesMax} bytes; send less.`,
    };
  }
  try {
    return { ok: true, value: new StrictReader(text, limits.depthMax ?? JSON_DEPTH_MAX).read() };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { ok: false, code: error.code, at: error.at, message: error.message };
  }
}

/**
 * The one text of a value (RFC 8785), the form that is digested. Give it what `parseStrictJson` or
 * `checkJsonValue` accepted.
 *
 * @throws TypeError for a value that has no JSON form; that is a bug of the caller
 */
export function canonicalJson(value: JsonValue): string {
  const text = canonicalize(value);
  if (text === undefined) throw new TypeError('bug: canonicalJson was given a value without a JSON form');
  return text;
}

class Refusal extends Error {
  readonly code: StrictJsonCode;
  readonly at: string;

  constructor(code: StrictJsonCode, at: string, message: string) {
    super(message);
    this.code = code;
    this.at = at;
  }
}

type Frame =
  | { readonly kind: 'array'; readonly values: JsonValue[] }
  // The key is null while one is being read: a fault there is the object's.
  | { readonly kind: 'object'; readonly members: Record<string, JsonValue>; key: string | null };

const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const LITERALS = new Map<string, readonly [string, JsonValue]>([
  ['t', ['true', true]],
  ['f', ['false', false]],
  ['n', ['null', null]],
]);
const ESCAPES = new Map<string, string>([
  ['"', '"'],
  ['\\', '\\'],
  ['/', '/'],
  ['b', '\b'],
  ['f', '\f'],
  ['n', '\n'],
  ['r', '\r'],
  ['t', '\t'],
]);

/** One pass over the text, with a stack of its own instead of recursion. */
class StrictReader {
  private position = 0;
  private readonly stack: Frame[] = [];
  private readonly text: string;
  private readonly depthMax: number;

  constructor(text: string, depthMax: number) {
    this.text = text;
    this.depthMax = depthMax;
  }

  read(): JsonValue {
    for (;;) {
      const finished = this.readValueStart();
      if (finished === undefined) continue;
      const whole = this.settle(finished.value);
      if (whole !== undefined) return whole.value;
    }
  }

  /** A finished scalar or empty container; undefined when a container was opened and has content. */
  private readValueStart(): { value: JsonValue } | undefined {
    this.skipSpace();
    const character = this.text[this.position];
    if (character === '"') return { value: this.readString() };
    if (character === '[' || character === '{') return this.open(character);
    const literal = character === undefined ? undefined : LITERALS.get(character);
    if (literal === undefined) return { value: this.readNumber() };
    if (!this.text.startsWith(literal[0], this.position)) throw this.unexpected('a value');
    this.position += literal[0].length;
    return { value: literal[1] };
  }

  private open(bracket: '[' | '{'): { value: JsonValue } | undefined {
    if (this.stack.length >= this.depthMax) {
      const what = `Arrays and objects stand more than ${this.depthMax} deep in one another; flatten them.`;
      throw this.refusal('too_deep', what);
    }
    this.position += 1;
    this.skipSpace();
    if (bracket === '[') {
      if (this.take(']')) return { value: [] };
      this.stack.push({ kind: 'array', values: [] });
      return undefined;
    }
    if (this.take('}')) return { value: {} };
    const frame: Frame = { kind: 'object', members: {}, key: null };
    this.stack.push(frame);
    this.readKey(frame);
    return undefined;
  }

  /** Puts a finished value where it belongs and closes what ends after it; the whole value at the end. */
  private settle(finished: JsonValue): { value: JsonValue } | undefined {
    let value = finished;
    for (;;) {
      const frame = this.stack.at(-1);
      this.skipSpace();
      if (frame === undefined) {
        if (this.position < this.text.length) throw this.unexpected('the end of the text');
        return { value };
      }
      if (frame.kind === 'array') {
        frame.values.push(value);
        if (this.take(',')) return undefined;
        if (!this.take(']')) throw this.unexpected('`,` or `]`');
        value = frame.values;
      } else {
        if (frame.key !== null) frame.members[frame.key] = value;
        if (this.take(',')) {
          this.readKey(frame);
          return undefined;
        }
        if (!this.take('}')) throw this.unexpected('`,` or `}`');
        value = frame.members;
      }
      this.stack.pop();
    }
  }

  private readKey(frame: Extract<Frame, { kind: 'object' }>): void {
    frame.key = null;
    this.skipSpace();
    if (this.text[this.position] !== '"') throw this.unexpected('a key in double quotes');
    const key = this.readString();
    frame.key = key;
    if (FORBIDDEN_KEYS.has(key)) {
      throw this.refusal('forbidden_key', `The key "${key}" is not allowed; name the member otherwise.`);
    }
    if (Object.hasOwn(frame.members, key)) {
      const what = `The key "${excerpt(key, 60)}" stands twice in one object; keep one of them.`;
      throw this.refusal('duplicate_key', what);
    }
    this.skipSpace();
    if (!this.take(':')) throw this.unexpected('`:`');
  }

  private readString(): string {
    const { text } = this;
    let value = '';
    let suspect = false;
    this.position += 1;
    let start = this.position;
    for (;;) {
      const code = text.charCodeAt(this.position);
      if (code === 0x22) break;
      if (code === 0x5c) {
        value += text.slice(start, this.position);
        suspect ||= text[this.position + 1] === 'u';
        value += this.readEscape();
        start = this.position;
        continue;
      }
      if (code === 0) throw this.refusal('ill_formed_text', 'A string holds a NUL character; remove it.');
      if (Number.isNaN(code) || code < 0x20) throw this.unexpected('the rest of a string');
      suspect ||= code >= 0xd800 && code <= 0xdfff;
      this.position += 1;
    }
    value += text.slice(start, this.position);
    this.position += 1;
    if (suspect && isIllFormed(value)) {
      const what = 'A string holds a NUL character or half a surrogate pair; remove it.';
      throw this.refusal('ill_formed_text', what);
    }
    return value;
  }

  private readEscape(): string {
    const letter = this.text[this.position + 1] ?? '';
    const simple = ESCAPES.get(letter);
    if (simple !== undefined) {
      this.position += 2;
      return simple;
    }
    const hex = this.text.slice(this.position + 2, this.position + 6);
    if (letter !== 'u' || !/^[0-9a-fA-F]{4}$/.test(hex)) throw this.unexpected('a known escape');
    this.position += 6;
    return String.fromCharCode(Number.parseInt(hex, 16));
  }

  private readNumber(): number {
    NUMBER.lastIndex = this.position;
    const literal = NUMBER.exec(this.text)?.[0];
    if (literal === undefined) throw this.unexpected('a value');
    if (!isFaithfulNumber(literal)) {
      const what = `The number ${excerpt(literal, 60)} would change its value when it is kept`;
      throw this.refusal('unsafe_number', `${what}; send it as a string.`);
    }
    this.position += literal.length;
    // Adding 0 turns -0, which has no canonical form of its own, into 0.
    return Number(literal) + 0;
  }

  private skipSpace(): void {
    for (;;) {
      const code = this.text.charCodeAt(this.position);
      if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return;
      this.position += 1;
    }
  }

  private take(character: string): boolean {
    if (this.text[this.position] !== character) return false;
    this.position += 1;
    return true;
  }

  private unexpected(wanted: string): Refusal {
    const found = this.text.slice(this.position, this.position + 2);
    const what = found === '' ? 'the text ends' : `"${excerpt(found, 1).slice(0, 1)}" stands`;
    return this.refusal('not_json', `At character ${this.position} ${what} where ${wanted} should be.`);
  }

  private refusal(code: StrictJsonCode, message: string): Refusal {
    const path: (string | number)[] = [];
    for (const frame of this.stack) {
      if (frame.kind === 'array') path.push(frame.values.length);
      else if (frame.key !== null) path.push(frame.key);
    }
    return new Refusal(code, jsonPointer(path), message);
  }
}
