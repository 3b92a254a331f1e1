import { isIllFormed } from '../../domain/json-rules.js';

/** Names one run as one tenant may see it: a run of another tenant is not there. */
export interface RunKey {
  readonly tenantId: string;
  readonly runId: string;
}

/** ISO 8601 in UTC with milliseconds, as every time leaves the ledger. */
export function isoTime(time: Date): string {
  return time.toISOString();
}

/** `isoTime` for what may not have happened yet. */
export function isoTimeOrNull(time: Date | null): string | null {
  return time === null ? null : time.toISOString();
}

/** How much of what a target sent is shown, in bytes. */
export const BODY_START_BYTES = 4096;

/** The first bytes of a body where they are well-formed text; null where they are not. */
export function textStart(bytes: Buffer): string | null {
  try {
    // `stream` leaves out the half character that the cut may have left at the end.
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes, { stream: true });
    return isIllFormed(text) ? null : text;
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}

/** Postgres writes times inside jsonb with its own offset and microseconds. */
export function jsonTime(text: string): string {
  return isoTime(new Date(text));
}

/** `jsonTime` for what may not have happened yet. */
export function jsonTimeOrNull(text: string | null): string | null {
  return text === null ? null : jsonTime(text);
}
