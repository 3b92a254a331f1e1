import { z } from 'zod';
import { EFFECT_CLASSES } from '../../shared/domain/effect-classes.js';
import { parsePointer } from '../../shared/domain/json-pointer.js';
import type { JsonValue } from '../../shared/domain/json.js';

const DAY_SECONDS = 86_400;
const OPERATORS = ['equals', 'oneOf', 'noneOf', 'above', 'atLeast', 'below', 'atMost'] as const;

const anyJson = z.custom<JsonValue>((value) => value !== undefined);
const values = z.array(anyJson).min(1).max(100);

/** One test of a value: `at` a JSON pointer, and one comparison. */
const argumentTestSchema = z
  .strictObject({
    at: z
      .string()
      .refine(
        (text) => parsePointer(text) !== null,
        'that is no JSON pointer — write /name, or /list/0/name',
      ),
    equals: anyJson.optional(),
    oneOf: values.optional(),
    noneOf: values.optional(),
    above: z.number().optional(),
    atLeast: z.number().optional(),
    below: z.number().optional(),
    atMost: z.number().optional(),
  })
  .refine(
    (test) => OPERATORS.filter((operator) => test[operator] !== undefined).length === 1,
    `a test compares once — write one of ${OPERATORS.join(', ')}`,
  );

/** A rule of the policy: when a person must approve, whatever the agent's file says. */
export const policyRuleSchema = z.strictObject({
  name: z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, 'a name has 1 to 64 letters, digits, _ or -'),
  when: z
    .strictObject({
      tools: z
        .array(z.string().regex(/^[a-zA-Z0-9_*-]{1,64}$/, 'write a tool’s name, with * for any characters'))
        .min(1)
        .optional(),
      classes: z.array(z.enum(EFFECT_CLASSES)).min(1).optional(),
      tenants: z
        .array(z.string().regex(/^[ -~]{1,64}$/, 'write a tenant’s name, with * for any characters'))
        .min(1)
        .optional(),
      arguments: z.array(argumentTestSchema).min(1).max(20).optional(),
    })
    .prefault({}),
  approval: z.literal('required'),
  /** Who approves; `approver` unless given. */
  role: z.enum(['approver', 'operator', 'releaser', 'admin']).optional(),
  quorum: z.int().min(1).max(10).default(1),
  expiresSeconds: z
    .int()
    .min(1)
    .max(90 * DAY_SECONDS)
    .optional(),
});

/** A rule as a project file writes it, with its defaults filled in. */
export type PolicyRuleDeclaration = z.output<typeof policyRuleSchema>;
