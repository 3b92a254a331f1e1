import { randomUUID } from 'node:crypto';
import { expect } from 'vitest';
import type { CommandKind } from '../../shared/domain/control-table.js';
import type { JsonValue } from '../../shared/domain/json.js';
import { decideApproval, type NewDecision } from '../../shared/ledger/approvals.js';
import { submitCommand } from '../../shared/ledger/commands.js';
import { type NewSettlement, settleByPerson } from '../../shared/ledger/settlement.js';
import { nudge } from '../../workers/sweeper.js';
import type { InterruptRow } from './desk.js';
import { modelRequests } from './run-checks.js';
import { until, type World } from './world.js';

/** A wait as the tests of workflows read it. */
export interface Wait extends InterruptRow {
  readonly slot: number;
  readonly tool: string;
}

/** Tells the run's workflow to look, as the worker's listener does on the ledger's notification. */
export async function tell(world: World, runId: string): Promise<void> {
  await nudge(world.client, runId, world.log);
}

/** Asks something of a run and tells its workflow. @returns the command's fate at once, with its code */
export async function command(
  world: World,
  runId: string,
  kind: CommandKind,
  payload: Readonly<Record<string, JsonValue>> = {},
): Promise<string> {
  const submitted = await submitCommand(world.db, {
    ...{ tenantId: 'default', runId, kind, payload },
    ...{ actorId: 'user:olga', authority: 'operator', expectedStateVersion: null },
    ...{ endpoint: `POST /v1/runs/${runId}/commands`, idempotencyKey: randomUUID() },
  });
  if (submitted.kind !== 'stored') throw new Error(`the command was not stored: ${submitted.kind}`);
  const [row] = await world.rows<{ fate: string; code: string | null }>(
    'select fate, code from holdfast.commands where command_id = $1',
    submitted.commandId,
  );
  await tell(world, runId);
  return [row?.fate, row?.code].filter((word) => typeof word === 'string').join(' ');
}

/** Every command of a run as `kind fate code`, in order. */
export async function fates(world: World, runId: string): Promise<string[]> {
  const rows = await world.rows<{ kind: string; fate: string; code: string | null }>(
    'select kind, fate, code from holdfast.commands where run_id = $1 order by created_at',
    runId,
  );
  return rows.map(({ kind, fate, code }) => [kind, fate, ...(code === null ? [] : [code])].join(' '));
}

/** The run's waits for approvals, in call order, the oldest first. */
export async function waits(world: World, runId: string): Promise<Wait[]> {
  return await world.rows<Wait>(
    `select i.*, e.tool from holdfast.interrupts i join holdfast.effects e using (effect_id)
      where i.run_id = $1 and i.kind = 'approval' order by i.step, i.slot, i.created_at`,
    runId,
  );
}

/** Waits until so many approvals of the run are open, and it rests on them. */
export async function untilGated(world: World, runId: string, count = 1): Promise<Wait[]> {
  await world.waitFor(runId, async ({ state }) => state === 'awaiting_approval');
  const open = (await waits(world, runId)).filter(({ state }) => state === 'open');
  expect(open).toHaveLength(count);
  return open;
}

/** One person's word on a wait: an approval of `user:ben` unless told otherwise. @returns what became of it, in a word */
export async function decide(
  world: World,
  wait: Wait | undefined,
  changes: Partial<NewDecision> = {},
): Promise<string> {
  if (wait === undefined) throw new Error('nobody is waited for');
  const decided = await decideApproval(world.db, {
    ...{ tenantId: 'default', interruptId: wait.interrupt_id, actorId: 'user:ben', authority: 'approver' },
    ...{ decision: 'approve', scopeSha256: wait.scope_sha256, note: '' },
    ...{ endpoint: `POST /v1/interrupts/${wait.interrupt_id}/resolve`, idempotencyKey: randomUUID() },
    ...changes,
  });
  await tell(world, wait.run_id);
  return decided.kind === 'refused' ? decided.code : decided.kind;
}

/** A person's word on the run's newest unknown effect. @returns what became of it, in a word */
export async function settle(
  world: World,
  runId: string,
  changes: Partial<NewSettlement> = {},
): Promise<string> {
  const effectId = changes.effectId ?? (await unknownOf(world, runId));
  const settled = await settleByPerson(world.db, {
    ...{ tenantId: 'default', effectId },
    ...{ actorId: 'user:olga', authority: 'operator', idempotencyKey: randomUUID() },
    ...{ decided: 'committed', reference: 'pay_77', note: 'Seen in the statement.' },
    ...changes,
  });
  await tell(world, runId);
  return settled.kind;
}

async function unknownOf(world: World, runId: string): Promise<string> {
  const unknown = (await world.effects(runId)).findLast(({ state }) => state === 'unknown');
  if (unknown === undefined) throw new Error(`nothing is unknown: ${await world.describe(runId)}`);
  return unknown.effect_id;
}

/** Resets the run's open execution to its first workflow task, as from the Web UI. @returns the new execution */
export async function resetRun(world: World, runId: string): Promise<string> {
  const handle = world.client.workflow.getHandle(runId);
  const { events } = await handle.fetchHistory();
  const task = events?.find(({ workflowTaskCompletedEventAttributes: done }) => done != null);
  const { runId: after } = await world.client.workflowService.resetWorkflowExecution({
    namespace: world.namespace,
    workflowExecution: { workflowId: runId, runId: (await handle.describe()).runId },
    reason: 'a test',
    requestId: randomUUID(),
    ...(task?.eventId == null ? {} : { workflowTaskFinishEventId: task.eventId }),
  });
  return after;
}

/** Waits until the newest execution has done with the last thing that it was told. */
export async function heard(world: World, runId: string): Promise<void> {
  await until('the nudge is heard', async () => {
    const { events } = await world.client.workflow.getHandle(runId).fetchHistory();
    const told = (events ?? []).findLastIndex((e) => e.workflowExecutionSignaledEventAttributes != null);
    return (events ?? []).slice(told).some((e) => e.workflowTaskCompletedEventAttributes != null);
  });
}

/** The text of each result that the model was told with its newest request, in call order. */
export function toldResults(world: World, runId: string): string[] {
  const message = modelRequests(world, runId).at(-1)?.messages.at(-1);
  return message?.role === 'tool' ? message.results.map(({ text }) => text) : [];
}

/** What no run may show (I14, I16, I17): a line for each row that does. */
export async function brokenControl(world: World): Promise<string[]> {
  const broken: string[] = [];
  for (const [name, sql] of Object.entries(CONTROL_CHECKS)) {
    broken.push(...(await world.rows(sql)).map((row) => `${name}: ${JSON.stringify(row)}`));
  }
  return broken;
}

const CONTROL_CHECKS: Readonly<Record<string, string>> = {
  'I14 no dispatch after a cancel': `
    select a.attempt_id from holdfast.attempts a join holdfast.commands c using (run_id)
      join holdfast.effects e using (effect_id)
     where c.kind = 'cancel' and c.fate in ('accepted', 'applied') and a.started_at > c.created_at
       and e.compensates is null`,
  'no model request after a cancel': `
    select a.attempt_id from holdfast.model_attempts a join holdfast.commands c using (run_id)
     where c.kind = 'cancel' and c.fate in ('accepted', 'applied') and a.started_at > c.created_at`,
  'no dispatch while paused': `
    select a.attempt_id from holdfast.attempts a
      join lateral (select to_state from holdfast.transitions t where t.run_id = a.run_id and t.region = 'control'
                     and t.created_at < a.started_at order by seq desc limit 1) t on true
     where t.to_state <> 'active'`,
  'no model request while paused': `
    select a.attempt_id from holdfast.model_attempts a
      join lateral (select to_state from holdfast.transitions t where t.run_id = a.run_id and t.region = 'control'
                     and t.created_at < a.started_at order by seq desc limit 1) t on true
     where t.to_state <> 'active'`,
  'I16 a gated dispatch has its consumed approval, or a use of a standing grant': `
    select e.effect_id from holdfast.effects e where e.policy ->> 'approval' = 'required' and e.attempts > 0
       and not exists (select from holdfast.standing_grant_uses u join holdfast.standing_grants g using (standing_grant_id)
         where u.effect_id = e.effect_id and u.arguments_sha256 = e.arguments_sha256 and g.tool = e.tool
           and g.tool_version = e.tool_version and g.tenant_id = e.tenant_id and g.granted_by <> e.requested_by
           and u.used_at < g.expires_at and (g.revoked_at is null or u.used_at <= g.revoked_at))
       and not exists (select from holdfast.interrupts i where i.consumed_by = e.effect_id
         and i.scope ->> 'arguments_sha256' = e.arguments_sha256 and i.decided_at <= i.expires_at
         and i.consumed_at < i.expires_at)`,
  'I17 nobody approves what they asked for': `
    select d.interrupt_id from holdfast.decisions d join holdfast.interrupts i using (interrupt_id)
     where lower(d.actor_id) = lower(i.requested_by)`,
  'a question is answered in time by one who may': `
    select i.interrupt_id from holdfast.interrupts i join holdfast.decisions d using (interrupt_id)
     where i.kind = 'input' and (i.state <> 'answered' or i.decided_at > i.expires_at or d.authority <> i.required_role)`,
  'a standing grant is used as often as it says, at most': `
    select g.standing_grant_id from holdfast.standing_grants g
     where g.uses > g.uses_max or g.uses <> (select count(*) from holdfast.standing_grant_uses u
                                              where u.standing_grant_id = g.standing_grant_id)`,
  'no end over an open wait': `
    select r.run_id from holdfast.runs r join holdfast.interrupts i using (run_id)
     where r.ended_at is not null and i.state in ('open', 'approved')`,
};
