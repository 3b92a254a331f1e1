import type { JsonValue } from '../../shared/domain/json.js';
import type { ToolResultPart } from '../../shared/domain/models.js';

/** What templates of a script can name. */
export interface TemplateValues {
  /** The input's text. */
  readonly input: string;
  /** Named groups of the scenario's `inputMatches`. */
  readonly captures: Readonly<Record<string, string>>;
  /** Tool results that the request holds, oldest first. */
  readonly results: readonly ToolResultPart[];
}

/** A template names something that is not there; the message says which. */
export class TemplateError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'TemplateError';
  }
}

const TEMPLATE = /\{\{([^{}]*)\}\}/g;
const WHOLE = /^\{\{([^{}]*)\}\}$/;

/**
 * Fills in `{{…}}`: `input`, `input.<path>` (a named group of `inputMatches`, else a member of an input
 * that is JSON), `results.<n>.text|toolName|isError|json.<path>` (n from 0; below 0 from the newest),
 * `lastResult.…` (the newest). `| number` makes a number of it. Only names: nothing is computed.
 *
 * @throws TemplateError
 */
export function fillText(text: string, values: TemplateValues): string {
  return text.replace(TEMPLATE, (_match, expression: string) => shown(evaluate(expression, values)));
}

/**
 * Fills in every string of a value. A string that is one template alone becomes the value it names, whatever
 * its type.
 *
 * @throws TemplateError
 */
export function fillValue(value: JsonValue, values: TemplateValues): JsonValue {
  if (typeof value === 'string') {
    const whole = WHOLE.exec(value)?.[1];
    return whole === undefined ? fillText(value, values) : evaluate(whole, values);
  }
  if (Array.isArray(value)) return value.map((item: JsonValue) => fillValue(item, values));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, fillValue(member, values)]));
}

function evaluate(expression: string, values: TemplateValues): JsonValue {
  const [path = '', filter, ...more] = expression.split('|').map((piece) => piece.trim());
  const value = look(path, values);
  if (filter === undefined) return value;
  if (filter !== 'number' || more.length > 0)
    throw new TemplateError(`{{${expression}}}: the only filter is number`);
  const number = typeof value === 'string' && value.trim() !== '' ? Number(value) : value;
  if (typeof number !== 'number' || !Number.isFinite(number)) {
    throw new TemplateError(`{{${expression}}}: ${JSON.stringify(value)} is not a number`);
  }
  return number;
}

function look(path: string, values: TemplateValues): JsonValue {
  const [root, ...rest] = path.split('.');
  if (root === 'input') {
    const [name] = rest;
    if (name === undefined) return values.input;
    if (rest.length === 1 && Object.hasOwn(values.captures, name)) return values.captures[name] ?? '';
    return walk(readJson(values.input, path, 'the input'), rest, path);
  }
  if (root === 'lastResult') return lookResult(values.results.at(-1), rest, path);
  if (root === 'results') {
    const [index = '', ...inside] = rest;
    if (!/^-?\d+$/.test(index))
      throw new TemplateError(`{{${path}}}: results needs a number, such as results.0.text`);
    return lookResult(values.results.at(Number(index)), inside, path);
  }
  throw new TemplateError(`{{${path}}}: unknown name; use input, results or lastResult`);
}

function lookResult(result: ToolResultPart | undefined, rest: readonly string[], path: string): JsonValue {
  if (!result) throw new TemplateError(`{{${path}}}: the request holds no such tool result`);
  const [field, ...inside] = rest;
  if (field === 'json') return walk(readJson(result.text, path, 'the result'), inside, path);
  if (inside.length === 0 && (field === 'text' || field === 'toolName' || field === 'isError'))
    return result[field];
  throw new TemplateError(`{{${path}}}: a result has text, toolName, isError and json`);
}

function readJson(text: string, path: string, what: string): JsonValue {
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    throw new TemplateError(`{{${path}}}: ${what} is not JSON`);
  }
}

/** Own members only: a path never reaches what every object inherits. */
function walk(start: JsonValue, path: readonly string[], shownPath: string): JsonValue {
  let value: JsonValue = start;
  for (const key of path) {
    const next: JsonValue | undefined =
      typeof value === 'object' && value !== null && Object.hasOwn(value, key)
        ? (value as Readonly<Record<string, JsonValue>>)[key]
        : undefined;
    if (next === undefined) throw new TemplateError(`{{${shownPath}}}: there is no ${key}`);
    value = next;
  }
  return value;
}

function shown(value: JsonValue): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}
