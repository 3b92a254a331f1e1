import { createHash } from 'node:crypto';
import { z } from 'zod';
import { HoldfastError } from '../shared/domain/errors.js';
import { type IdPrefix, idSchema } from '../shared/domain/ids.js';
import type { JsonValue } from '../shared/domain/json.js';
import { canonicalJson, parseStrictJson } from '../shared/domain/strict-json.js';

/**
 * Where a page ended, as an opaque text that is good only for the list it came from: `scope` holds the
 * list's name, the tenant and every filter. It is no secret and grants nothing; a forged one names a place
 * in one's own list.
 */
export function encodeCursor(scope: JsonValue, place: JsonValue): string {
  return Buffer.from(canonicalJson([scopeDigest(scope), place]), 'utf8').toString('base64url');
}

/**
 * The place that `cursor` names.
 *
 * @throws HoldfastError `cursor_invalid` for a text that this list never gave
 */
export function decodeCursor<Place>(scope: JsonValue, cursor: string, placeSchema: z.ZodType<Place>): Place {
  const text = Buffer.from(cursor, 'base64url').toString('utf8');
  const read = parseStrictJson(text, { bytesMax: 4096 });
  const parsed = z.tuple([z.literal(scopeDigest(scope)), placeSchema]).safeParse(read.ok ? read.value : null);
  if (parsed.success) return parsed.data[1];
  throw cursorInvalid();
}

/** How the rows of a list are placed: what a cursor holds, and where it is found in a row. */
export interface Places<Row, Place> {
  readonly schema: z.ZodType<Place>;
  readonly of: (row: Row) => Place;
}

/** The places of a list in the order of ids of one kind, which stand under `key` in its rows. */
export function byId<Key extends string>(
  prefix: IdPrefix,
  key: Key,
): Places<Readonly<Record<Key, string>>, string> {
  return { schema: idSchema(prefix), of: (row) => row[key] };
}

/**
 * One page of a list: the rows that `read` finds after a place (null: from the start), and the cursor of what follows them,
 * null when there is nothing more now.
 *
 * @throws HoldfastError `cursor_invalid` for a cursor that this list never gave
 */
export async function readPage<Row, Place extends JsonValue>(
  scope: JsonValue,
  { cursor, limit }: { readonly cursor?: string | undefined; readonly limit: number },
  places: Places<Row, Place>,
  read: (after: Place | null) => Promise<readonly Row[]>,
): Promise<{ readonly rows: readonly Row[]; readonly next: string | null }> {
  const rows = await read(cursor === undefined ? null : decodeCursor(scope, cursor, places.schema));
  const last = rows.length < limit ? undefined : rows.at(-1);
  return { rows, next: last === undefined ? null : encodeCursor(scope, places.of(last)) };
}

/** The answer to a cursor of another list, of other filters, or of nobody. */
export function cursorInvalid(): HoldfastError {
  return new HoldfastError(
    'cursor_invalid',
    'The cursor is not one that this list gave for these filters. Leave it out to begin at the start.',
    { errors: [{ at: 'query/cursor', problem: 'not a cursor of this list' }] },
  );
}

/** A cursor of a list that is numbered from 1 is the number itself, the same that the stream uses as id. */
export function decodeSequence(cursor: string | undefined, last: number): number {
  if (cursor === undefined) return 0;
  if (!/^(?:0|[1-9][0-9]{0,15})$/.test(cursor) || Number(cursor) > last) throw cursorInvalid();
  return Number(cursor);
}

function scopeDigest(scope: JsonValue): string {
  return createHash('sha256').update(canonicalJson(scope)).digest('hex').slice(0, 16);
}
