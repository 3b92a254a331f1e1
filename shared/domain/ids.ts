import { z } from 'zod';

/**
 * What the prefix of an id says it names (SPEC 1). An id is a prefix, `_`, and 32 lower-case hex digits of
 * a UUIDv7, so ids of one kind sort by their time. Opaque to everyone else: only the prefix may be read.
 */
export const ID_PREFIXES = {
  req: 'request',
  job: 'job',
  thr: 'thread',
  msg: 'message',
  run: 'run',
  eff: 'effect',
  att: 'attempt',
  int: 'interrupt',
  cmd: 'command',
  ckp: 'checkpoint',
  wsp: 'workspace',
  rgr: 'role grant',
  sgr: 'standing grant',
  mdl: 'model call',
  sch: 'schedule',
  occ: 'occurrence of a schedule',
  whe: 'webhook endpoint',
  whd: 'webhook delivery',
  cdn: 'cool-down',
} as const satisfies Record<string, string>;

export type IdPrefix = keyof typeof ID_PREFIXES;

const UUID_HEX = '[0-9a-f]{32}';

/** The text that an id of this kind matches, for schemas and for CHECK constraints. */
export function idPattern(prefix: IdPrefix): RegExp {
  return new RegExp(`^${prefix}_${UUID_HEX}$`);
}

const PATTERNS = new Map(
  Object.keys(ID_PREFIXES).map((prefix) => [prefix, idPattern(prefix as IdPrefix)] as const),
);

/** Whether `text` is an id of this kind. */
export function isId(prefix: IdPrefix, text: string): boolean {
  return PATTERNS.get(prefix)?.test(text) ?? false;
}

/**
 * The id that names the same thing as `uuid`, given with or without dashes.
 *
 * @throws TypeError when `uuid` is none; that is a bug of the caller
 */
export function idOfUuid(prefix: IdPrefix, uuid: string): string {
  const id = `${prefix}_${uuid.replaceAll('-', '').toLowerCase()}`;
  if (!isId(prefix, id)) throw new TypeError(`bug: "${uuid}" is no UUID, so it makes no ${prefix}_ id`);
  return id;
}

/** The schema of an id of this kind, with an error that says what one looks like. */
export function idSchema(prefix: IdPrefix): z.ZodString {
  const what = `must be the id of a ${ID_PREFIXES[prefix]}: ${prefix}_ and 32 lower-case hex digits`;
  return z.string().regex(idPattern(prefix), { error: what });
}
