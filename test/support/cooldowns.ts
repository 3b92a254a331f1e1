import { registerAgent } from '../../shared/ledger/admission.js';
import { clearCooldown } from '../../shared/ledger/cooldowns.js';
import { failModelAttempt } from '../../shared/ledger/model-calls.js';
import { newId } from '../../shared/ledger/new-id.js';
import type { LedgerRun } from './ledger-run.js';
import { type ContractChanges, LEDGER_AGENT, type LedgerWorld } from './ledger-world.js';

/** Agents whose models are of a provider: what one of its runs meets concerns the others. */
export async function registerCooledAgents(world: LedgerWorld, ...models: readonly string[]): Promise<void> {
  for (const model of models) {
    const profile = { ...LEDGER_AGENT.model, provider: 'openai' as const, model, apiKeyEnv: 'KEY' };
    await registerAgent(world.db, { ...LEDGER_AGENT, name: model, model: profile });
  }
}

/** A running run of one of them. */
export async function cooledRun(
  world: LedgerWorld,
  model: string,
  contract: ContractChanges = {},
): Promise<LedgerRun> {
  const run = await world.newRun(contract, { agent: model });
  await run.start();
  return run;
}

/** Opens the next attempt at the run's next model call, which must be granted. */
export async function begun(
  run: LedgerRun,
): Promise<{ readonly attempt: number; readonly attemptId: string }> {
  const attemptId = newId('att');
  const claim = await run.claimThink({ attemptId });
  if (claim.kind !== 'claimed') throw new Error(`not claimed: ${claim.kind}`);
  return { attemptId, attempt: claim.attempt };
}

/** Ends an attempt with a stop. @returns where the series stands */
export async function stop(
  run: LedgerRun,
  begin: Awaited<ReturnType<typeof begun>>,
  retryAfterMs?: number,
): ReturnType<typeof failModelAttempt> {
  return await failModelAttempt(
    run.world.db,
    run,
    { turn: 1, step: run.step + 1 },
    {
      ...{ ...begin, reason: 'rate_limited', detail: 'Too many.', requestId: null },
      ...{ usage: { inputTokens: 0, outputTokens: 0 }, retryAfterMs },
    },
  );
}

/** Asks for the run's next model call. @returns `claimed`, after the answer was committed, or what stood in its way */
export async function askModel(run: LedgerRun): Promise<string> {
  const attemptId = newId('att');
  const claim = await run.claimThink({ attemptId });
  if (claim.kind !== 'claimed') return claim.kind;
  run.step += 1;
  await run.answerThink(claim, attemptId);
  return claim.kind;
}

export interface CooldownRow {
  readonly cooldown_id: string;
  readonly stops: number;
  readonly said_ms: string | null;
  /** Seconds from the newest stop's point of view: from now to the end. */
  readonly seconds: number;
  readonly ended_by: string | null;
}

/** The newest cool-down of a target. */
export async function cooldownOf(world: LedgerWorld, target: string): Promise<CooldownRow | undefined> {
  const rows = await world.rows<CooldownRow>(
    `select *, extract(epoch from until_at - clock_timestamp())::float as seconds from holdfast.cooldowns
      where target = $1 order by since desc limit 1`,
    target,
  );
  return rows[0];
}

/** Makes a cool-down and its turns longer ago. */
export async function ageCooldown(world: LedgerWorld, id: string, seconds: number): Promise<void> {
  await world.tamper(async (change) => {
    for (const sql of [
      `update holdfast.cooldowns set since = since - $2 * interval '1 second', until_at = until_at - $2 * interval '1 second',
              last_slot_at = last_slot_at - $2 * interval '1 second' where cooldown_id = $1`,
      `update holdfast.runs set cooldown_slot_at = cooldown_slot_at - $2 * interval '1 second' where cooldown_id = $1`,
    ]) {
      await change(sql, id, seconds);
    }
  });
}

/** A cool-down that stands, one that a person cleared, and one that is over. */
export async function addCooldowns(world: LedgerWorld): Promise<void> {
  await registerCooledAgents(world, 'busy', 'cleared', 'well');
  for (const model of ['busy', 'cleared', 'well']) {
    const run = await cooledRun(world, model);
    await stop(run, await begun(run), model === 'well' ? 0 : 60_000);
    const { cooldown_id: id } = (await cooldownOf(world, `openai ${model}`))!;
    const by = { tenantId: 'default', actorId: 'user:olga', authority: 'operator' };
    if (model === 'cleared') await clearCooldown(world.db, by, id);
    if (model !== 'well') continue;
    await ageCooldown(world, id, 1);
    await askModel(run);
  }
}
