import { randomUUID } from 'node:crypto';
import type { AgentManifest, ToolManifest } from '../../shared/domain/agents.js';
import type { BudgetLimits } from '../../shared/domain/budgets.js';
import { budgetLines } from '../../shared/domain/budgets.js';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { JsonObject, JsonValue } from '../../shared/domain/json.js';
import { registerAgent } from '../../shared/ledger/admission.js';
import { type SetTenantBudget, setTenantBudget } from '../../shared/ledger/budgets.js';
import { answerInput } from '../../shared/ledger/questions.js';
import { commandsOf, type InterruptRow, submit } from './desk.js';
import { callOf, type LedgerRun, type PlannedPart } from './ledger-run.js';
import { type ContractChanges, LEDGER_AGENT, type LedgerWorld } from './ledger-world.js';

/** An agent with a tool of each class and a model that has its price: 3 and 15 millionths of a dollar a token. */
export const BUDGET_AGENT: AgentManifest = {
  ...LEDGER_AGENT,
  name: 'budget-agent',
  model: {
    ...LEDGER_AGENT.model,
    price: { currency: 'USD', inputPerMillion: 3_000_000, outputPerMillion: 15_000_000 },
  },
  tools: (['keyed', 'queryable', 'opaque', 'read'] as const).map(toolOf),
};

function toolOf(effectClass: EffectClass): ToolManifest {
  return {
    ...{ name: `tool_${effectClass}`, version: 'a'.repeat(64), description: 'Acts.', inputSchema: {} },
    ...{ effectClass, namespace: `tool_${effectClass}`, keyed: null, query: null, compensation: null },
    ...{ parallel: false, short: false, timeoutSeconds: 30, approval: 'not_required' },
  };
}

/** Makes the agent known. Before the first run of a test file. */
export async function registerBudgetAgent(world: LedgerWorld): Promise<void> {
  await registerAgent(world.db, BUDGET_AGENT);
}

/** A running run of the agent under this budget. */
export async function newSpender(
  world: LedgerWorld,
  budget: Readonly<Record<string, unknown>> = {},
  options: { readonly contract?: ContractChanges; readonly tenantId?: string } = {},
): Promise<LedgerRun> {
  const run = await world.newRun(
    { budget, ...options.contract },
    { agent: BUDGET_AGENT.name, tenantId: options.tenantId ?? 'default' },
  );
  await run.start();
  return run;
}

/** The same with one step behind it that planned these calls. */
export async function newStepOf(
  world: LedgerWorld,
  calls: readonly PlannedPart[],
  budget: Readonly<Record<string, unknown>> = {},
  options: { readonly contract?: ContractChanges; readonly tenantId?: string } = {},
): Promise<LedgerRun> {
  const run = await newSpender(world, budget, options);
  await run.plan(calls);
  return run;
}

/** A refund of so many cents, as a planned call. */
export function refund(cents: JsonValue, effectClass: EffectClass = 'opaque'): PlannedPart {
  return { ...callOf(effectClass), arguments: JSON.stringify({ amount: cents }) };
}

/** At most so many refunds, of so many cents in all. */
export function refunds(
  count: number,
  cents: number,
  tool = 'tool_opaque',
): Readonly<Record<string, unknown>> {
  return { effects: [{ tool, count, sum: { pointer: '/amount', max: cents } }] };
}

export interface LineRow {
  readonly kind: string;
  readonly subject: string;
  readonly limit_value: number | null;
  readonly used: number;
  readonly reserved: number;
  readonly over: number;
}

/** Lines as `kind: used+reserved/limit`, of a run, or of a tenant. */
export async function linesOf(world: LedgerWorld, owner: LedgerRun | string): Promise<string[]> {
  const rows = await world.rows<LineRow>(
    `select kind, subject, limit_value::float8, used::float8, reserved::float8, over::float8
       from holdfast.budgets where owner = $1 order by budget_id`,
    typeof owner === 'string' ? `tenant:${owner}` : owner.runId,
  );
  return rows.map(
    ({ kind, used, reserved, limit_value: limit }) => `${kind}: ${used}+${reserved}/${limit ?? 'none'}`,
  );
}

/** A budget of a tenant as its admin sets it. */
export async function setTenant(
  world: LedgerWorld,
  tenantId: string,
  limits: BudgetLimits,
  changes: Partial<SetTenantBudget> = {},
): Promise<string> {
  return await setTenantBudget(world.db, {
    ...{ tenantId, actorId: 'user:root', authority: 'admin', window: 'total', limits },
    ...{ endpoint: 'PUT /v1/budgets/tenant', idempotencyKey: randomUUID() },
    ...changes,
  });
}

/** `change_budget` or `change_deadline` of `user:olga`. @returns its fate, with the code */
export async function change(run: LedgerRun, to: BudgetLimits | Date): Promise<string> {
  const payload: JsonObject =
    to instanceof Date
      ? { deadline_at: to.toISOString() }
      : { lines: budgetLines(to).map((line): JsonObject => ({ ...line })) };
  await submit(run, to instanceof Date ? 'change_deadline' : 'change_budget', { payload });
  const { fate, code } = (await commandsOf(run)).at(-1)!;
  return code === null ? fate : `${fate} ${code}`;
}

/** The run's waits over a budget, oldest first. */
export async function budgetWaits({
  world,
  runId,
}: LedgerRun): Promise<
  (InterruptRow & { readonly answer_schema: JsonObject; readonly required_role: string })[]
> {
  return await world.rows(
    `select * from holdfast.interrupts where run_id = $1 and kind = 'budget' order by created_at`,
    runId,
  );
}

/** A person's answer to the newest of them. @returns what became of it, in a word */
export async function answerBudget(
  run: LedgerRun,
  value: JsonValue,
  changes: { readonly authority?: string; readonly fits?: boolean; readonly tenantId?: string } = {},
): Promise<string> {
  const wait = (await budgetWaits(run)).at(-1);
  if (wait === undefined) throw new Error('nobody is waited for');
  const said = await answerInput(run.world.db, {
    ...{ tenantId: 'default', interruptId: wait.interrupt_id, actorId: 'user:olga', authority: 'operator' },
    ...{ answer: value, fits: true, note: '' },
    ...{ endpoint: `POST /v1/interrupts/${wait.interrupt_id}/resolve`, idempotencyKey: randomUUID() },
    ...changes,
  });
  return said.kind === 'refused' ? said.code : said.kind;
}
