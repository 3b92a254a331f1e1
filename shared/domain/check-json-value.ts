import type { JsonValue } from './json.js';
import type { JsonLimits, StrictJsonCode, StrictJsonResult } from './json-rules.js';
import {
  excerpt,
  FORBIDDEN_KEYS,
  isIllFormed,
  JSON_BYTES_MAX,
  JSON_DEPTH_MAX,
  jsonPointer,
  jsonStringBytes,
} from './json-rules.js';

/**
 * Tells whether a JavaScript value can be kept as JSON without loss, by the rules of `parseStrictJson`.
 *
 * Dates, BigInts, undefined, functions, symbols, NaN, infinities, class instances, cycles, sparse arrays
 * and arrays with further members are `not_json_value`; numbers past 2^53-1 are `unsafe_number`. The value
 * given back is a copy read once, so neither a getter nor a later change can alter what was checked; -0 is
 * 0 in it. `bytesMax` bounds its compact JSON form. Never throws: a getter that does is `not_json_value`.
 */
export function checkJsonValue(value: unknown, limits: JsonLimits = {}): StrictJsonResult {
  const check = new ValueCheck(limits.depthMax ?? JSON_DEPTH_MAX, limits.bytesMax ?? JSON_BYTES_MAX);
  try {
    return { ok: true, value: check.copy(value) };
  } catch (error) {
    // Whatever else is thrown comes from a getter or a proxy of the value itself.
    const known = error instanceof Refusal;
    const code = known ? error.code : 'not_json_value';
    const message = known ? error.message : 'Reading the value threw; give plain data.';
    return { ok: false, code, at: jsonPointer(check.path), message };
  }
}

class Refusal extends Error {
  readonly code: StrictJsonCode;

  constructor(code: StrictJsonCode, message: string) {
    super(message);
    this.code = code;
  }
}

class ValueCheck {
  readonly path: (string | number)[] = [];
  private readonly ancestors = new Set<object>();
  private readonly depthMax: number;
  private readonly bytesMax: number;
  private bytes = 0;

  constructor(depthMax: number, bytesMax: number) {
    this.depthMax = depthMax;
    this.bytesMax = bytesMax;
  }

  copy(value: unknown): JsonValue {
    if (value === null || typeof value === 'boolean') {
      this.count(String(value).length);
      return value;
    }
    if (typeof value === 'string') return this.copyString(value);
    if (typeof value === 'number') return this.copyNumber(value);
    if (typeof value !== 'object') throw notJson(`a value of type ${typeof value}`);
    if (this.ancestors.has(value)) throw notJson('a reference to something that holds it');
    if (this.ancestors.size >= this.depthMax) {
      const what = `Arrays and objects stand more than ${this.depthMax} deep in one another; flatten them.`;
      throw new Refusal('too_deep', what);
    }
    this.ancestors.add(value);
    const copied = Array.isArray(value) ? this.copyArray(value) : this.copyObject(value);
    this.ancestors.delete(value);
    return copied;
  }

  private copyString(value: string): string {
    if (isIllFormed(value)) {
      const what = 'A string holds a NUL character or half a surrogate pair; remove it.';
      throw new Refusal('ill_formed_text', what);
    }
    this.count(jsonStringBytes(value));
    return value;
  }

  private copyNumber(value: number): number {
    if (!Number.isFinite(value)) throw notJson(String(value));
    if (Math.abs(value) > Number.MAX_SAFE_INTEGER) {
      const what = `The number ${value} is past 2^53-1, where integers are no longer exact`;
      throw new Refusal('unsafe_number', `${what}; give it as a string.`);
    }
    this.count(String(value).length);
    return value + 0;
  }

  private copyArray(value: readonly unknown[]): JsonValue {
    const { length } = value;
    // Bounds the work before the members are listed: `new Array(2 ** 32 - 1)` costs its maker nothing.
    this.count(2 + Math.max(0, length - 1));
    if (Reflect.ownKeys(value).length !== length + 1) {
      throw notJson('an array with holes or with further members');
    }
    const copied: JsonValue[] = [];
    for (let index = 0; index < length; index += 1) {
      this.path.push(index);
      if (!Object.hasOwn(value, index)) throw notJson('an array with a hole');
      copied.push(this.copy(value[index]));
      this.path.pop();
    }
    return copied;
  }

  private copyObject(value: object): JsonValue {
    const prototype: unknown = Object.getPrototypeOf(value);
    // Plain objects of another realm (a workflow's sandbox, a vm) have another Object.prototype.
    if (prototype !== null && Object.getPrototypeOf(prototype) !== null) {
      throw notJson(`an instance of ${className(value)}`);
    }
    if (Object.getOwnPropertySymbols(value).length > 0) throw notJson('an object with a symbol as key');
    const keys = Object.keys(value);
    this.count(2 + Math.max(0, keys.length - 1) + keys.length);
    const copied: Record<string, JsonValue> = {};
    for (const key of keys) {
      this.path.push(key);
      if (FORBIDDEN_KEYS.has(key)) {
        throw new Refusal('forbidden_key', `The key "${key}" is not allowed; name the member otherwise.`);
      }
      this.copyString(key);
      copied[key] = this.copy((value as Record<string, unknown>)[key]);
      this.path.pop();
    }
    return copied;
  }

  private count(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes > this.bytesMax) {
      throw new Refusal('too_large', `The value is larger than ${this.bytesMax} bytes as JSON; give less.`);
    }
  }
}

function notJson(what: string): Refusal {
  return new Refusal('not_json_value', `JSON has no form for ${what}; give plain data.`);
}

function className(value: object): string {
  const { constructor } = value;
  return typeof constructor === 'function' && constructor.name !== ''
    ? excerpt(constructor.name, 60)
    : 'a class';
}
