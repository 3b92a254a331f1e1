import { isIllFormed } from '../../shared/domain/json-rules.js';
import type { JsonObject, JsonValue } from '../../shared/domain/json.js';

/** What a template is filled with. */
export interface TemplateValues {
  readonly arguments: JsonObject;
  readonly idempotencyKey: string;
}

/** A rendered text, or what stands in its way. */
export type Rendered<T> =
  { readonly ok: true; readonly value: T } | { readonly ok: false; readonly message: string };

/** Stands for the effect's idempotency key in every template. No argument can have this name. */
export const KEY_PLACEHOLDER = '$key';

const PLACEHOLDER = /\{(\$key|[A-Za-z_][A-Za-z0-9_-]*)\}/g;
const WHOLE_PLACEHOLDER = /^\{(\$key|[A-Za-z_][A-Za-z0-9_-]*)\}$/;

/** The names between braces in a text, in order. */
export function placeholdersOf(text: string): string[] {
  return [...text.matchAll(PLACEHOLDER)].map((match) => match[1] ?? '');
}

/** The names between braces in all texts of a body template. */
export function placeholdersInBody(template: JsonValue): string[] {
  if (typeof template === 'string') return placeholdersOf(template);
  if (template === null || typeof template !== 'object') return [];
  return Object.values(template).flatMap((part: JsonValue) => placeholdersInBody(part));
}

/** True for a URL that an argument gives whole; its host is judged by the tool's `allow` list alone. */
export function isWholeUrlTemplate(template: string): boolean {
  return WHOLE_PLACEHOLDER.test(template);
}

/** What is wrong with a URL template, or null. Only the path and the query may hold arguments. */
export function urlTemplateProblem(template: string): string | null {
  if (isWholeUrlTemplate(template)) return null;
  const authority = /^https?:\/\/([^/?#]*)/.exec(template)?.[1];
  if (authority === undefined) return 'a URL starts with http:// or https://';
  if (placeholdersOf(authority).length > 0) {
    return 'the host of a URL cannot come from an argument — write it out, or give all of it as "{argument}"';
  }
  if (authority.includes('@'))
    return 'a URL holds no user name or password — use a header with ${secret:NAME}';
  const sample = template.replace(PLACEHOLDER, 'x');
  if (!URL.canParse(sample)) return `"${template}" is no URL — correct it`;
  const url = new URL(sample);
  if (url.hash !== '' || sample.includes('#'))
    return 'a URL of a request has no fragment — remove what follows #';
  if (!keepsPath(sample, url))
    return 'the path holds "." or ".." segments or characters to be encoded — write it out';
  return null;
}

/**
 * Fills a URL. Values are percent-encoded, and one that would move the path elsewhere (`..`, an empty
 * segment, a slash that a lenient server would decode into one) is refused.
 */
export function renderUrl(
  template: string,
  query: Readonly<Record<string, string>>,
  values: TemplateValues,
): Rendered<URL> {
  const whole = WHOLE_PLACEHOLDER.exec(template)?.[1];
  const rendered = whole === undefined ? fillUrl(template, values) : wholeUrl(whole, values);
  if (!rendered.ok) return rendered;
  const url = rendered.value;
  for (const [name, part] of Object.entries(query)) {
    const filled = fillQuery(part, values);
    if (!filled.ok) return filled;
    for (const value of filled.value) url.searchParams.append(name, value);
  }
  return { ok: true, value: url };
}

/**
 * Fills a body template: a text that is one placeholder becomes the argument itself, whatever its type,
 * and a member whose argument was not given is left out; inside a longer text, scalars are written out.
 */
export function renderBody(template: JsonValue, values: TemplateValues): Rendered<JsonValue | undefined> {
  if (typeof template === 'string') return renderText(template, values);
  if (template === null || typeof template !== 'object') return { ok: true, value: template };
  if (Array.isArray(template)) {
    const items: JsonValue[] = [];
    for (const part of template as readonly JsonValue[]) {
      const rendered = renderBody(part, values);
      if (!rendered.ok) return rendered;
      if (rendered.value !== undefined) items.push(rendered.value);
    }
    return { ok: true, value: items };
  }
  const members: Record<string, JsonValue> = {};
  for (const [name, part] of Object.entries(template as JsonObject)) {
    const rendered = renderBody(part, values);
    if (!rendered.ok) return rendered;
    if (rendered.value !== undefined) members[name] = rendered.value;
  }
  return { ok: true, value: members };
}

function renderText(template: string, values: TemplateValues): Rendered<JsonValue | undefined> {
  const whole = WHOLE_PLACEHOLDER.exec(template)?.[1];
  if (whole !== undefined) return { ok: true, value: valueOf(whole, values) };
  return fill(template, values, (text) => ({ ok: true, value: text }));
}

function fillUrl(template: string, values: TemplateValues): Rendered<URL> {
  const path = template.split('?', 1)[0] ?? '';
  const inPath = placeholdersOf(path);
  for (const name of inPath) {
    const value = scalarText(name, values);
    if (!value.ok) return value;
    if (value.value.split(/[/\\]/).some((segment) => segment === '' || segment === '.' || segment === '..')) {
      return refused(name, 'is empty or would lead out of its place in the path');
    }
  }
  const text = fill(template, values, (value) => ({ ok: true, value: encodeURIComponent(value) }));
  if (!text.ok) return text;
  const url = new URL(text.value);
  // The parser resolves dots and rewrites backslashes; a path it had to change is not the declared one.
  if (!keepsPath(text.value, url))
    return { ok: false, message: 'The arguments would change the path of the URL.' };
  return { ok: true, value: url };
}

function wholeUrl(name: string, values: TemplateValues): Rendered<URL> {
  const text = scalarText(name, values);
  if (!text.ok) return text;
  if (!URL.canParse(text.value)) return refused(name, 'is no URL');
  const url = new URL(text.value);
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return refused(name, 'is no http or https URL');
  if (url.username !== '' || url.password !== '') return refused(name, 'holds a user name or password');
  url.hash = '';
  return { ok: true, value: url };
}

function fillQuery(template: string, values: TemplateValues): Rendered<string[]> {
  const whole = WHOLE_PLACEHOLDER.exec(template)?.[1];
  if (whole === undefined) {
    const text = fill(template, values, (value) => ({ ok: true, value }));
    return text.ok ? { ok: true, value: [text.value] } : text;
  }
  const value = valueOf(whole, values);
  if (value === undefined || value === null) return { ok: true, value: [] };
  const items: readonly JsonValue[] = Array.isArray(value) ? (value as readonly JsonValue[]) : [value];
  const texts: string[] = [];
  for (const item of items) {
    if (typeof item === 'object') return refused(whole, 'is not text, a number, a boolean or a list of them');
    if (isIllFormed(String(item))) return refused(whole, 'holds characters that cannot be sent');
    texts.push(String(item));
  }
  return { ok: true, value: texts };
}

function fill(
  template: string,
  values: TemplateValues,
  encode: (value: string) => Rendered<string>,
): Rendered<string> {
  let failure: Rendered<string> | null = null;
  const text = template.replace(PLACEHOLDER, (_match, name: string) => {
    const value = scalarText(name, values);
    const encoded = value.ok ? encode(value.value) : value;
    if (encoded.ok) return encoded.value;
    failure ??= encoded;
    return '';
  });
  return failure ?? { ok: true, value: text };
}

function scalarText(name: string, values: TemplateValues): Rendered<string> {
  const value = valueOf(name, values);
  if (value === undefined || value === null) return refused(name, 'is missing');
  if (typeof value === 'object') return refused(name, 'is not text, a number or a boolean');
  if (isIllFormed(String(value))) return refused(name, 'holds characters that cannot be sent');
  return { ok: true, value: String(value) };
}

function valueOf(name: string, values: TemplateValues): JsonValue | undefined {
  if (name === KEY_PLACEHOLDER) return values.idempotencyKey;
  return Object.hasOwn(values.arguments, name) ? values.arguments[name] : undefined;
}

function refused(name: string, why: string): { ok: false; message: string } {
  return { ok: false, message: `The argument "${name}" ${why}.` };
}

function keepsPath(text: string, url: URL): boolean {
  const written = /^https?:\/\/[^/?#]*([^?#]*)/.exec(text)?.[1] ?? '';
  return url.pathname === (written === '' ? '/' : written);
}
