import { z } from 'zod';

/** What reaching a limit is: the run fails, answers once more without tools, or asks a person (SPEC 4.3). */
export const ON_REACHED = ['fail', 'finish', 'pause_and_ask'] as const;
export type OnReached = (typeof ON_REACHED)[number];

/** Every limit of a run by the code that reaching it has; also the reason of a run that fails over it. */
export const LIMIT_CODES = [
  'limit_steps',
  'limit_tool_calls',
  'limit_wall_clock',
  'limit_tokens',
  'limit_cost',
  'limit_effects',
] as const;
export type LimitCode = (typeof LIMIT_CODES)[number];

/** Kinds of budget lines. `wall_clock` is the run's deadline, and never a line of a tenant. */
export const BUDGET_KINDS = [
  'steps',
  'tool_calls',
  'wall_clock',
  'tokens',
  'cost',
  'effect_count',
  'effect_sum',
] as const;
export type BudgetKind = (typeof BUDGET_KINDS)[number];

/** The highest of each that anybody may set; `holdfast.limit_ceiling` has the same. */
export const LIMIT_CEILING = { steps: 10_000, toolCalls: 100_000, quantity: 1_000_000_000_000_000 } as const;

const quantity = z.number().min(0).max(LIMIT_CEILING.quantity);
const tokens = z.int().min(0).max(LIMIT_CEILING.quantity).meta({
  description: 'Of prompts and answers together, failed attempts included.',
});
const cost = z
  .strictObject({
    micro_units: z.int().min(0).max(LIMIT_CEILING.quantity),
    currency: z.string().regex(/^[A-Z]{3}$/, { error: 'must be three capital letters' }),
  })
  .meta({
    description: 'Of model calls, in millionths of the currency; the model must declare prices in it.',
  });
const effects = z
  .array(
    z
      .strictObject({
        tool: z.string().min(1).max(64),
        count: z.int().min(0).max(LIMIT_CEILING.quantity).optional(),
        sum: z
          .strictObject({
            pointer: z
              .string()
              .max(200)
              .regex(/^(\/([^~/]|~[01])*)+$/, { error: 'must be an RFC 6901 pointer into the arguments' }),
            max: quantity,
          })
          .optional(),
      })
      .refine(({ count, sum }) => count !== undefined || sum !== undefined, {
        error: 'must limit the count, a sum, or both',
      }),
  )
  .max(50)
  .meta({
    description: 'By tool: how many calls may happen, and what a number of their arguments may sum to.',
  });

/** What a run may spend beside its `limits`, as its contract says. */
export const RunBudget = z.strictObject({
  tokens: tokens.optional(),
  cost: cost.optional(),
  effects: effects.default([]),
  /** What reaching any limit of the run is, those of `limits` and of its tenant too. */
  on_reached: z.enum(ON_REACHED).default('fail'),
});
export type RunBudget = z.output<typeof RunBudget>;

/** Limits as a command or a tenant's budget names them: what is left out is not spoken of. */
export const BudgetLimits = z.strictObject({
  steps: z.int().min(0).max(LIMIT_CEILING.steps).optional(),
  tool_calls: z.int().min(0).max(LIMIT_CEILING.toolCalls).optional(),
  tokens: tokens.optional(),
  cost: cost.optional(),
  effects: effects.optional(),
});
export type BudgetLimits = z.output<typeof BudgetLimits>;

/** One limit as the ledger keeps it. */
export interface BudgetLine {
  readonly kind: Exclude<BudgetKind, 'wall_clock'>;
  /** The tool of an effect quantity, the currency of a cost; else ''. */
  readonly subject: string;
  /** Of a sum: where its number stands in the arguments; else ''. */
  readonly pointer: string;
  readonly limit: number;
}

/** The lines of these limits, in order. Of two for the same thing the lower one counts. Pure. */
export function budgetLines(limits: BudgetLimits): BudgetLine[] {
  const lines = new Map<string, BudgetLine>();
  const add = (kind: BudgetLine['kind'], limit: number | undefined, subject = '', pointer = ''): void => {
    if (limit === undefined) return;
    const name = JSON.stringify([kind, subject, pointer]);
    const known = lines.get(name)?.limit ?? Infinity;
    lines.set(name, { kind, subject, pointer, limit: Math.min(known, limit) });
  };
  add('steps', limits.steps);
  add('tool_calls', limits.tool_calls);
  add('tokens', limits.tokens);
  add('cost', limits.cost?.micro_units, limits.cost?.currency);
  for (const { tool, count, sum } of limits.effects ?? []) {
    add('effect_count', count, tool);
    add('effect_sum', sum?.max, tool, sum?.pointer);
  }
  return [...lines.values()];
}
