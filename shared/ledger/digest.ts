import { createHash } from 'node:crypto';
import { canonicalJson } from '../domain/strict-json.js';
import type { JsonValue } from '../domain/json.js';

/** Lower-case hex SHA-256, 64 characters. Text is digested as UTF-8. */
export function sha256(data: string | Uint8Array): string {
  return createHash('sha256').update(data).digest('hex');
}

/** SHA-256 over the RFC 8785 form: key order does not matter, everything else does. */
export function digestOf(value: JsonValue): string {
  return sha256(canonicalJson(value));
}
