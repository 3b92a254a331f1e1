import type { Rendered } from './http-template.js';

/** Looks up a variable or a secret by name. */
export type LookUp = (name: string) => string | undefined;

const ENV = /\$\{env:(?<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?<fallback>[^}]*))?\}/g;
const SECRET = /\$\{secret:(?<name>[A-Za-z_][A-Za-z0-9_]*)\}/g;

/** Fills `${env:NAME}` and `${env:NAME:-default}`; a variable that is empty counts as not set. */
export function expandEnv(text: string, env: LookUp): Rendered<string> {
  return expand(text, ENV, env, 'The variable');
}

/** Fills `${secret:NAME}`. Done at dispatch, so that a secret is nowhere but in the request. */
export function expandSecrets(text: string, secrets: LookUp): Rendered<string> {
  return expand(text, SECRET, secrets, 'The secret');
}

/** The names of secrets that these texts use and that are not set. */
export function missingSecrets(texts: Readonly<Record<string, string>>, secrets: LookUp): string[] {
  const names = Object.values(texts).flatMap((text) =>
    [...text.matchAll(SECRET)].map(({ groups }) => groups?.['name'] ?? ''),
  );
  return [...new Set(names)].filter((name) => (secrets(name) ?? '') === '');
}

function expand(text: string, pattern: RegExp, lookUp: LookUp, what: string): Rendered<string> {
  const missing: string[] = [];
  // By group name: by position, a pattern without a default would hand over the match's offset as one.
  const filled = text.replace(pattern, (...match) => {
    const { name = '', fallback } = match.at(-1) as { name?: string; fallback?: string };
    const set = lookUp(name);
    const value = set === undefined || set === '' ? fallback : set;
    if (value === undefined) missing.push(name);
    return value ?? '';
  });
  if (missing.length === 0) return { ok: true, value: filled };
  return { ok: false, message: `${what} ${missing.join(', ')} is not set — set it` };
}
