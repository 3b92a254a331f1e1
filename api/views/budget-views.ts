import { z } from 'zod';
import { BUDGET_KINDS, LIMIT_CODES, ON_REACHED } from '../../shared/domain/budgets.js';
import { BUDGET_WINDOWS } from '../../shared/ledger/budgets.js';
import { Time } from './common.js';

const BudgetLineView = z
  .strictObject({
    kind: z.enum(BUDGET_KINDS),
    subject: z
      .string()
      .meta({ description: 'The tool of an effect quantity, the currency of a cost; else empty.' }),
    pointer: z
      .string()
      .meta({ description: 'Of a sum: where its number stands in the arguments; else empty.' }),
    limit: z.number().nullable().meta({ description: 'Null: counted, and not limited.' }),
    used: z.number(),
    reserved: z.number().meta({
      description: 'The worst case of what is in flight, and of what nobody knows the outcome of.',
    }),
  })
  .meta({ id: 'BudgetLine' });

/** What a run may spend, and has. */
export const RunBudgetView = z
  .strictObject({
    on_reached: z.enum(ON_REACHED),
    finishing: z.enum(LIMIT_CODES).nullable().meta({
      description: 'The limit after which nothing more is called but the model, once.',
    }),
    lines: z.array(BudgetLineView).readonly().meta({
      description: 'Steps, tool calls and wall clock (seconds) always; the rest as the contract limits it.',
    }),
  })
  .meta({ id: 'RunBudget' });

/** What all runs of a tenant together may spend, and have. */
export const TenantBudgetView = z
  .strictObject({
    window: z.enum(BUDGET_WINDOWS).meta({ description: '`day` counts each day by itself, in UTC.' }),
    lines: z.array(BudgetLineView).readonly(),
    changed_by: z.string().nullable(),
    changed_at: Time.nullable().meta({ description: 'Null: nobody has ever set one.' }),
  })
  .meta({ id: 'TenantBudget' });
