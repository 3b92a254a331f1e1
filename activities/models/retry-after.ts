/** Reads one header by its lower-case name. */
export type ReadHeader = (name: string) => string | null | undefined;

const MILLISECONDS = /^\d+(\.\d+)?$/;
const HTTP_DATE = /^(mon|tue|wed|thu|fri|sat|sun)[a-z]*,? [ \w:-]+$/i;

/**
 * What a provider asks callers to wait, in milliseconds from `nowMs`: `retry-after-ms`, else
 * `retry-after` in seconds or as an HTTP date (RFC 9110). Uncapped, since a cap is the run's decision; a
 * date in the past is 0. Undefined where there is none or it is neither form.
 */
export function parseRetryAfter(header: ReadHeader, nowMs: number): number | undefined {
  const milliseconds = header('retry-after-ms')?.trim() ?? '';
  if (MILLISECONDS.test(milliseconds)) return whole(Number(milliseconds));
  const text = header('retry-after')?.trim() ?? '';
  if (MILLISECONDS.test(text)) return whole(Number(text) * 1000);
  if (!HTTP_DATE.test(text)) return undefined;
  // The oldest of the three date forms names no zone; all three mean GMT.
  const dateMs = Date.parse(/gmt$/i.test(text) ? text : `${text} GMT`);
  return Number.isNaN(dateMs) ? undefined : whole(dateMs - nowMs);
}

function whole(milliseconds: number): number {
  return Math.min(Math.max(0, Math.ceil(milliseconds)), Number.MAX_SAFE_INTEGER);
}
