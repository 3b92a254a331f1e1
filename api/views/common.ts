import { z } from 'zod';
import { canonicalActor } from '../../shared/domain/actors.js';
import { ERRORS } from '../../shared/domain/errors.js';
import type { ErrorCode } from '../../shared/domain/errors.js';

/** ISO 8601 in UTC with milliseconds. */
export const Time = z.iso.datetime().meta({ id: 'Time', description: 'ISO 8601 in UTC.' });

/** Times that somebody may mean; whether one has passed is for the ledger's clock to say. */
const MEANT = { from: Date.UTC(2000, 0), to: Date.UTC(2100, 0) } as const;

/** A time that a request gives, with its offset. */
export const Instant = z.iso.datetime({ offset: true }).refine(
  (text) => {
    const time = Date.parse(text);
    return Number.isNaN(time) || (time >= MEANT.from && time < MEANT.to);
  },
  { error: 'must be a time of this century' },
);

/** Lower-case hex SHA-256. */
export const Sha256 = z.string().meta({ description: 'Lower-case hex SHA-256.' });

/** Whatever JSON a caller, a model or a tool gave. */
export const AnyJson = z.unknown();

/** Where the next page begins; null at the end of what there is now. */
export const NextCursor = z.string().nullable().meta({
  description: 'Send it as `cursor` for what follows; null when there is nothing after this page now.',
});

/** The query of every paged list. */
export const PageQuery = {
  limit: z
    .string()
    .regex(/^[1-9][0-9]{0,2}$/, { error: 'must be a whole number from 1 to 100' })
    .transform(Number)
    .pipe(z.int().min(1).max(100, { error: 'must be a whole number from 1 to 100' }))
    .default(50)
    .meta({
      override: ({ jsonSchema }) => {
        delete jsonSchema.pattern;
        Object.assign(jsonSchema, { type: 'integer', minimum: 1, maximum: 100 });
      },
    }),
  cursor: z.string().max(4096).optional().meta({ description: 'The `next_cursor` of the page before.' }),
};

/** Somebody, in the one form in which actors are compared. */
export const Actor = z
  .string()
  .max(200)
  .transform((text, context) => {
    const actor = canonicalActor(text);
    if (actor !== null) return actor;
    context.addIssue({
      code: 'custom',
      message: 'must name somebody in 1 to 200 printable ASCII characters',
    });
    return z.NEVER;
  })
  .meta({ override: { type: 'string', minLength: 1, maxLength: 200 } });

/** RFC 9457 problem details, the body of every answer from 400 up. */
export const ProblemView = z
  .looseObject({
    type: z.string().meta({ description: '`urn:holdfast:problem:` and the code.' }),
    title: z.string(),
    status: z.int(),
    detail: z.string().meta({ description: 'What happened, to which thing, and what to do.' }),
    code: z.enum(Object.keys(ERRORS) as [ErrorCode, ...ErrorCode[]]),
    retry: z.enum(['never', 'later']).meta({
      description:
        '`later`: the same request may be sent again after Retry-After. `never`: it must change first.',
    }),
    instance: z.string().meta({ description: 'Names this occurrence: the X-Request-Id as a URN.' }),
    errors: z.array(z.strictObject({ at: z.string(), problem: z.string() })).optional(),
  })
  .meta({ id: 'Problem' });
