import type { BudgetKind, LimitCode, OnReached } from '../../domain/budgets.js';
import type { BudgetWindow } from '../budgets.js';
import type { Db } from '../database.js';
import { isoTimeOrNull } from './row-values.js';

/** One limit with what counts against it. */
export interface BudgetLineRecord {
  readonly kind: BudgetKind;
  readonly subject: string;
  readonly pointer: string;
  readonly limit: number | null;
  readonly used: number;
  readonly reserved: number;
}

/** What a run may spend, and has. */
export interface RunBudgetRecord {
  readonly on_reached: OnReached;
  readonly finishing: LimitCode | null;
  readonly lines: readonly BudgetLineRecord[];
}

const LINE = `jsonb_build_object('kind', b.kind, 'subject', b.subject, 'pointer', b.pointer, 'limit', b.limit_value,
                                 'used', b.used, 'reserved', b.reserved)`;

/** The column `budget` of the run read, for a row `r` of holdfast.runs. */
export const RUN_BUDGET_COLUMN = `
           jsonb_build_object(
             'on_reached', coalesce(r.contract #>> '{budget,on_reached}', 'fail'), 'finishing', r.finishing,
             'lines', jsonb_build_array(
               jsonb_build_object('kind', 'steps', 'subject', '', 'pointer', '', 'limit', r.steps_max,
                                  'used', r.step, 'reserved', 0),
               jsonb_build_object('kind', 'tool_calls', 'subject', '', 'pointer', '', 'limit', r.tool_calls_max,
                                  'used', r.tool_calls, 'reserved', 0),
               jsonb_build_object('kind', 'wall_clock', 'subject', '', 'pointer', '',
                 'limit', ceil(extract(epoch from r.deadline_at - r.admitted_at)),
                 'used', floor(extract(epoch from coalesce(r.ended_at, clock_timestamp()) - r.admitted_at)),
                 'reserved', 0))
             || coalesce((select jsonb_agg(${LINE} order by b.budget_id) from holdfast.budgets b
                           where b.owner = r.root_run_id), '[]'::jsonb)) as budget`;

/** The budget of a tenant as it stands now. */
export interface TenantBudgetRecord {
  readonly window: BudgetWindow;
  readonly lines: readonly BudgetLineRecord[];
  readonly changed_by: string | null;
  readonly changed_at: string | null;
}

const READ_TENANT = {
  name: 'reads/tenant-budget',
  text: `
    select c.period as "window", c.actor_id as changed_by, c.changed_at,
           (select coalesce(jsonb_agg(${LINE.replaceAll(
             'b.used',
             'case when old then 0 else b.used end',
           ).replaceAll(
             'b.reserved',
             'case when old then 0 else b.reserved end',
           )} order by b.budget_id), '[]')
              from (select *, period = 'day' and day < (clock_timestamp() at time zone 'UTC')::date as old
                      from holdfast.budgets where owner = 'tenant:' || $1) b) as lines
      from (select 1) one
      left join lateral (select * from holdfast.tenant_budget_changes where tenant_id = $1
                          order by changed_at desc limit 1) c on true`,
};

/** What all runs of the tenant together may spend and have. A day that is over counts nothing any more. */
export async function readTenantBudget(db: Db, tenantId: string): Promise<TenantBudgetRecord> {
  const { rows } = await db.query<
    Omit<TenantBudgetRecord, 'window' | 'changed_at'> & {
      readonly window: BudgetWindow | null;
      readonly changed_at: Date | null;
    }
  >({ ...READ_TENANT, values: [tenantId] });
  const row = rows[0];
  if (row === undefined) throw new Error('bug: a row that is always there is not');
  return { ...row, window: row.window ?? 'total', changed_at: isoTimeOrNull(row.changed_at) };
}
