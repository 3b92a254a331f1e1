import type { JsonValue } from './json.js';

/** The tokens of a JSON pointer (RFC 6901), or null for a text that is none. */
export function parsePointer(text: string): string[] | null {
  if (text === '') return [];
  if (!/^(\/([^~/]|~[01])*)+$/.test(text)) return null;
  return text
    .slice(1)
    .split('/')
    .map((token) => token.replaceAll('~1', '/').replaceAll('~0', '~'));
}

/** The value that the tokens lead to, or undefined where there is none. `holdfast.value_at` is the same in the ledger. */
export function valueAt(value: JsonValue, path: readonly string[]): JsonValue | undefined {
  let found: JsonValue | undefined = value;
  for (const token of path) {
    if (Array.isArray(found)) {
      found = /^(0|[1-9][0-9]{0,8})$/.test(token)
        ? (found as readonly JsonValue[])[Number(token)]
        : undefined;
    } else if (typeof found === 'object' && found !== null && Object.hasOwn(found, token)) {
      found = (found as { readonly [key: string]: JsonValue })[token];
    } else {
      return undefined;
    }
  }
  return found;
}
