import { z } from 'zod';
import { EFFECT_CLASSES } from '../../shared/domain/effect-classes.js';
import { compensationSchema } from './compensation.js';
import type { DeclarationProblem } from './declaration.js';
import type { EffectPolicy } from './tool.js';

const DAY_SECONDS = 86_400;

/** How a target keeps our key; see `EffectPolicy.keyed`. */
const keyedSchema = z.strictObject({
  windowSeconds: z
    .int()
    .min(1)
    .max(3650 * DAY_SECONDS),
  resendsMax: z.int().min(1).max(100),
  comparesBodies: z.boolean().default(false),
  keepsServerErrors: z.boolean().default(false),
});

/** How a target is asked what became of a key; see `EffectPolicy.query`. */
const querySchema = z.strictObject({
  settlingSeconds: z
    .number()
    .min(0)
    .max(30 * DAY_SECONDS),
  equalAnswers: z.int().min(1).max(20),
  intervalSeconds: z.number().min(0.05).max(DAY_SECONDS),
  queriesMax: z.int().min(1).max(1000),
});

/** The settings of an effect as a declaration file writes them, beside the tool's other settings. */
export const effectFields = {
  class: z.enum(EFFECT_CLASSES),
  namespace: z
    .string()
    .regex(/^[a-zA-Z0-9._-]{1,64}$/, 'a namespace has 1 to 64 letters, digits, dots, - or _')
    .optional(),
  keyed: keyedSchema.optional(),
  query: querySchema.optional(),
  compensation: compensationSchema.optional(),
};

/** An effect's policy as `defineTool` takes it. */
export const effectPolicySchema = z.strictObject(effectFields);

/** A policy as declared, before its namespace is known. */
export type DeclaredPolicy = z.infer<typeof effectPolicySchema>;

/** The policy with its namespace, which is the tool's own name where none was declared. */
export function policyOf(declared: DeclaredPolicy, namespace: string): EffectPolicy {
  return {
    class: declared.class,
    namespace: declared.namespace ?? namespace,
    ...(declared.keyed === undefined ? {} : { keyed: declared.keyed }),
    ...(declared.query === undefined ? {} : { query: declared.query }),
    ...(declared.compensation === undefined ? {} : { compensation: declared.compensation }),
  };
}

/** Says where a policy contradicts its class or what the tool can do. */
export function policyProblems(policy: DeclaredPolicy, tool: { hasProbe: boolean }): DeclarationProblem[] {
  const problems: DeclarationProblem[] = [];
  const add = (at: string, message: string) => problems.push({ path: [at], message });
  const kind = policy.class;
  if (kind === 'keyed' && policy.keyed === undefined) {
    add('class', 'class keyed needs `keyed` — say for how long and how often the same key may be sent again');
  }
  if (kind !== 'keyed' && policy.keyed !== undefined) {
    add('keyed', `\`keyed\` belongs to class keyed, not ${kind} — remove it or change the class`);
  }
  if (kind === 'queryable' && policy.query === undefined) {
    add('class', 'class queryable needs `query` — say how long and how often to ask what became of a key');
  }
  if ((kind === 'read' || kind === 'opaque') && policy.query !== undefined) {
    add(
      'query',
      `\`query\` belongs to class queryable or keyed, not ${kind} — remove it or change the class`,
    );
  }
  if (policy.query !== undefined && !tool.hasProbe) {
    add('query', '`query` needs a probe — declare how the target is asked about a key');
  }
  if (policy.query === undefined && tool.hasProbe) {
    add('probe', 'a probe needs `query` — say when and how often it may ask');
  }
  if (kind === 'read' && policy.compensation !== undefined) {
    add('compensation', 'a read changes nothing, so nothing can undo it — remove `compensation`');
  }
  return problems;
}
