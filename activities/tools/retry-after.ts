const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

// The three forms of RFC 9110 5.6.7. `Date.parse` is no help: it makes a date of "garbage 5".
const IMF_FIXDATE = /^[A-Z][a-z]{2}, (\d{2}) ([A-Z][a-z]{2}) (\d{4}) (\d{2}):(\d{2}):(\d{2}) GMT$/;
const RFC_850 = /^[A-Z][a-z]{5,8}, (\d{2})-([A-Z][a-z]{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2}) GMT$/;
const ASCTIME = /^[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d{2}):(\d{2}):(\d{2}) (\d{4})$/;

/**
 * Reads a Retry-After header in either form. Uncapped: the caller decides what is too long.
 *
 * A date counts from the response's own Date header, so the target's clock is compared with itself;
 * without one it counts from `nowMs`.
 *
 * @returns milliseconds to wait, 0 for a date in the past; null where there is no header or it is garbage
 */
export function parseRetryAfter(
  header: string | null | undefined,
  clock: { readonly responseDate: string | null | undefined; readonly nowMs: number },
): number | null {
  const text = header?.trim() ?? '';
  if (/^\d+$/.test(text)) return Math.min(Number(text) * 1000, Number.MAX_SAFE_INTEGER);
  const atMs = parseHttpDate(text);
  if (atMs === null) return null;
  const fromMs = parseHttpDate(clock.responseDate?.trim() ?? '') ?? clock.nowMs;
  return Math.max(0, atMs - fromMs);
}

function parseHttpDate(text: string): number | null {
  const fixed = IMF_FIXDATE.exec(text);
  if (fixed !== null) return utc(fixed[3], fixed[2], fixed[1], fixed.slice(4, 7));
  const old = RFC_850.exec(text);
  // Two digits of a year: RFC 9110 reads what would be over 50 years ahead as the past.
  if (old !== null) return utc(fullYear(Number(old[3])), old[2], old[1], old.slice(4, 7));
  const asctime = ASCTIME.exec(text);
  if (asctime !== null) return utc(asctime[6], asctime[1], asctime[2], asctime.slice(3, 6));
  return null;
}

function fullYear(twoDigits: number): string {
  return String(twoDigits >= 70 ? 1900 + twoDigits : 2000 + twoDigits);
}

function utc(
  year: string | undefined,
  month: string | undefined,
  day: string | undefined,
  time: readonly string[],
): number | null {
  const monthIndex = MONTHS.indexOf(month ?? '');
  const [hour = NaN, minute = NaN, second = NaN] = time.map(Number);
  const ms = Date.UTC(Number(year), monthIndex, Number(day), hour, minute, second);
  const read = new Date(ms);
  // Rejects the 31st of February and 25 o'clock, which Date.UTC would carry over. A leap second carries.
  const isReal = monthIndex >= 0 && read.getUTCDate() === Number(day) && read.getUTCHours() === hour;
  return isReal || second === 60 ? (monthIndex >= 0 && Number.isFinite(ms) ? ms : null) : null;
}
