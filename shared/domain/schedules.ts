import { z } from 'zod';

/**
 * What a tick does while a run of the schedule is still under way, a wait for somebody included: Temporal's own names. The
 * ledger judges it, since only the ledger knows whether a run is under way.
 */
export const OVERLAP_RULES = ['skip', 'buffer_one', 'buffer_all', 'allow_all', 'cancel_other'] as const;
export type OverlapRule = (typeof OVERLAP_RULES)[number];

/**
 * What became of a planned time. `queued` waits for the run before it; `missed` is a time that nothing was seen of until its
 * catch-up window was over; `refused` could not become a run.
 */
export const OCCURRENCE_STATES = ['started', 'queued', 'skipped', 'missed', 'refused'] as const;
export type OccurrenceState = (typeof OCCURRENCE_STATES)[number];

/** Why an occurrence did not become a run. */
export const OCCURRENCE_REASONS = [
  'overlap',
  'buffer_full',
  'schedule_paused',
  'schedule_deleted',
  'superseded',
  'window_passed',
  'agent_not_found',
  'budget_unmet',
  'thread_archived',
  'thread_full',
  'thread_unusable',
] as const;
export type OccurrenceReason = (typeof OCCURRENCE_REASONS)[number];

const MINUTE = 60;
const DAY = 24 * 3_600;

/** Values of one field of a cron line, from which to which. */
const CRON_FIELDS = [
  { name: 'minute', from: 0, to: 59, words: [] },
  { name: 'hour', from: 0, to: 23, words: [] },
  { name: 'day of the month', from: 1, to: 31, words: [] },
  {
    name: 'month',
    from: 1,
    to: 12,
    words: ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC'],
  },
  { name: 'day of the week', from: 0, to: 7, words: ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT'] },
] as const;

/**
 * What is wrong with a cron line of five fields, or null. Temporal reads it in the end; checked here, since nobody asks
 * Temporal when a schedule is made.
 */
export function cronFault(line: string): string | null {
  const parts = line.split(' ').filter((part) => part !== '');
  if (parts.length !== CRON_FIELDS.length) return `must have ${CRON_FIELDS.length} fields`;
  const at = CRON_FIELDS.findIndex((field, index) => !isCronField(parts[index] ?? '', field));
  return at < 0 ? null : `its ${CRON_FIELDS[at]?.name} is not one`;
}

function isCronField(text: string, { from, to, words }: (typeof CRON_FIELDS)[number]): boolean {
  const valueOf = (word: string): number => {
    const named = (words as readonly string[]).indexOf(word.toUpperCase());
    if (named >= 0) return named + from;
    return /^[0-9]{1,2}$/.test(word) ? Number(word) : Number.NaN;
  };
  return text.split(',').every((range) => {
    const match = /^(\*|(\w+)(?:-(\w+))?)(?:\/([0-9]{1,2}))?$/.exec(range);
    if (match === null) return false;
    if (match[4] !== undefined && Number(match[4]) < 1) return false;
    if (match[1] === '*') return true;
    const first = valueOf(match[2] ?? '');
    const last = match[3] === undefined ? first : valueOf(match[3]);
    return first >= from && last <= to && first <= last;
  });
}

function isTimeZone(name: string): boolean {
  try {
    return new Intl.DateTimeFormat('en', { timeZone: name }).resolvedOptions().timeZone !== '';
  } catch (error) {
    if (error instanceof RangeError) return false;
    throw error;
  }
}

/** When a schedule is due: by cron lines in a time zone, or every so many seconds. Both are Temporal's to compute. */
export const ScheduleTiming = z.union([
  z.strictObject({
    cron: z
      .array(
        z
          .string()
          .max(200)
          .superRefine((line, context) => {
            const fault = cronFault(line);
            if (fault !== null) context.addIssue({ code: 'custom', message: fault });
          }),
      )
      .min(1)
      .max(20),
    /** A time that the clocks skip does not come; one that they repeat comes once, in the one hour or in the other. */
    time_zone: z
      .string()
      .min(1)
      .max(64)
      .refine(isTimeZone, { error: 'is no time zone: give an IANA name, such as Europe/Berlin' })
      .default('UTC'),
  }),
  z
    .strictObject({
      every_seconds: z
        .int()
        .min(10)
        .max(366 * DAY),
      /** Counted from midnight UTC, 1 January 1970. */
      offset_seconds: z
        .int()
        .min(0)
        .max(366 * DAY)
        .default(0),
    })
    .refine((timing) => timing.offset_seconds < timing.every_seconds, {
      error: 'must be less than every_seconds',
      path: ['offset_seconds'],
    }),
]);
export type ScheduleTiming = z.output<typeof ScheduleTiming>;

/** What everybody may set of a schedule; the numbers that are left out take these defaults. */
export const SCHEDULE_RULES = {
  timing: ScheduleTiming,
  overlap: z.enum(OVERLAP_RULES).default('skip'),
  /** A time that comes to light later than this after it was due is `missed`. */
  catch_up_seconds: z
    .int()
    .min(10)
    .max(30 * DAY)
    .default(10 * MINUTE),
} as const;
