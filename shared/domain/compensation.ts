import { checkJsonValue } from './check-json-value.js';
import type { EffectClass } from './effect-classes.js';
import type { JsonObject, JsonValue } from './json.js';

/**
 * How an effect is undone (SPEC 3.7), as an agent version pins it: the compensating tool as it was then, and the rule
 * that makes its arguments. Null for `arguments`: the same arguments as the effect had.
 */
export interface CompensationManifest {
  readonly tool: string;
  readonly toolVersion: string;
  readonly effectClass: EffectClass;
  readonly namespace: string;
  readonly timeoutSeconds: number;
  readonly keyed: JsonObject | null;
  readonly query: JsonObject | null;
  readonly arguments: JsonObject | null;
}

/** Stands in a rule for the outside name of what is to be undone, from its receipt. */
export const REFERENCE_PLACEHOLDER = '$reference';
/** Stands in a rule for the idempotency key of what is to be undone. */
export const UNDONE_KEY_PLACEHOLDER = '$key';

const PLACEHOLDER = /\{(\$reference|\$key|[A-Za-z_][A-Za-z0-9_-]*)\}/g;
const WHOLE_PLACEHOLDER = /^\{(\$reference|\$key|[A-Za-z_][A-Za-z0-9_-]*)\}$/;

/** What is known of the effect that is to be undone. */
export interface Undone {
  readonly arguments: JsonObject;
  readonly reference: string | null;
  readonly idempotencyKey: string;
}

/** The names between braces in all texts of a rule, in order. */
export function placeholdersOfRule(rule: JsonValue): string[] {
  if (typeof rule === 'string') return [...rule.matchAll(PLACEHOLDER)].map((match) => match[1] ?? '');
  if (rule === null || typeof rule !== 'object') return [];
  return Object.values(rule).flatMap((part: JsonValue) => placeholdersOfRule(part));
}

/**
 * The arguments of the compensation of one effect. A text that is one placeholder becomes the value itself, whatever
 * its type; inside a longer text scalars are written out. A member whose optional argument was not given is left out.
 * The same effect gives the same arguments for ever. Pure.
 *
 * @returns undefined where the rule needs what the effect does not have: a person must undo it
 */
export function compensationArguments(rule: JsonObject | null, undone: Undone): JsonObject | undefined {
  if (rule === null) return undone.arguments;
  const made: Record<string, JsonValue> = {};
  for (const [name, part] of Object.entries(rule)) {
    const value = fill(part, undone);
    if (value === MISSING) return undefined;
    if (value !== undefined) made[name] = value;
  }
  return checkJsonValue(made).ok ? made : undefined;
}

const MISSING = Symbol('missing');
type Filled = JsonValue | undefined | typeof MISSING;

function fill(part: JsonValue, undone: Undone): Filled {
  if (typeof part === 'string') return fillText(part, undone);
  if (part === null || typeof part !== 'object') return part;
  if (Array.isArray(part)) {
    const items = (part as readonly JsonValue[]).map((item) => fill(item, undone));
    if (items.includes(MISSING)) return MISSING;
    return items.filter((item): item is JsonValue => item !== undefined && item !== MISSING);
  }
  const members: Record<string, JsonValue> = {};
  for (const [name, inner] of Object.entries(part as JsonObject)) {
    const value = fill(inner, undone);
    if (value === MISSING) return MISSING;
    if (value !== undefined) members[name] = value;
  }
  return members;
}

function fillText(text: string, undone: Undone): Filled {
  const whole = WHOLE_PLACEHOLDER.exec(text)?.[1];
  if (whole !== undefined) return valueOf(whole, undone);
  let isWhole = true;
  const filled = text.replace(PLACEHOLDER, (_, name: string) => {
    const value = valueOf(name, undone);
    if (typeof value === 'string') return value;
    if (typeof value === 'number' || typeof value === 'boolean') return String(value);
    isWhole = false;
    return '';
  });
  return isWhole ? filled : MISSING;
}

function valueOf(name: string, undone: Undone): Filled {
  if (name === REFERENCE_PLACEHOLDER) return undone.reference ?? MISSING;
  if (name === UNDONE_KEY_PLACEHOLDER) return undone.idempotencyKey;
  return Object.hasOwn(undone.arguments, name) ? undone.arguments[name] : undefined;
}
