import { randomUUID } from 'node:crypto';
import type { CommandKind } from '../../shared/domain/control-table.js';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { TrailEntry } from '../../shared/domain/protocol.js';
import type { ControlState, TransitionReason } from '../../shared/domain/run-machine.js';
import {
  decideApproval,
  type Decided,
  type NeededApproval,
  type NewDecision,
  openApproval,
} from '../../shared/ledger/approvals.js';
import { type NewCommand, submitCommand, type Submitted } from '../../shared/ledger/commands.js';
import { nextUndo } from '../../shared/ledger/compensation.js';
import { judgeJob } from '../../shared/ledger/jobs.js';
import { newId } from '../../shared/ledger/new-id.js';
import { recordRefusal } from '../../shared/ledger/refused-requests.js';
import { type NewSettlement, type Settled, settleByPerson } from '../../shared/ledger/settlement.js';
import type { LedgerCall } from './ledger-call.js';
import { callOf, type LedgerRun } from './ledger-run.js';
import type { CallOptions, LedgerWorld } from './ledger-world.js';

export interface CommandRow {
  readonly command_id: string;
  readonly kind: CommandKind;
  readonly fate: 'accepted' | 'applied' | 'rejected' | 'expired';
  readonly code: string | null;
  readonly state: string;
  readonly control: string;
  readonly decided_at: Date | null;
}
export interface InterruptRow {
  readonly interrupt_id: string;
  readonly state: string;
  readonly run_id: string;
  readonly effect_id: string;
  readonly requested_by: string;
  readonly scope: Record<string, unknown>;
  readonly scope_sha256: string;
  readonly quorum: number;
  readonly expires_at: Date;
  readonly decided_at: Date | null;
  readonly consumed_by: string | null;
}

/** Asks something of a run, as an operator under a key of its own unless told otherwise. */
export async function submit(
  run: LedgerRun,
  kind: CommandKind,
  changes: Partial<NewCommand> = {},
): Promise<Submitted> {
  return await submitCommand(run.world.db, {
    ...{ tenantId: 'default', runId: run.runId, kind, payload: payloadOf(kind) },
    ...{ actorId: 'user:olga', authority: 'operator', expectedStateVersion: null },
    ...{ endpoint: `POST /v1/runs/${run.runId}/commands`, idempotencyKey: randomUUID() },
    ...changes,
  });
}

/** What a command must carry to mean anything: an hour more, and no limit. */
function payloadOf(kind: CommandKind): NewCommand['payload'] {
  if (kind === 'change_deadline') return { deadline_at: new Date(Date.now() + 3_600_000).toISOString() };
  return kind === 'change_budget' ? { lines: [] } : {};
}

/** A run's commands in the order in which they were judged. */
export async function commandsOf({ world, runId }: LedgerRun): Promise<CommandRow[]> {
  return await world.rows<CommandRow>(
    'select * from holdfast.commands where run_id = $1 order by created_at, command_id',
    runId,
  );
}

/** Every command as `kind fate code`. */
export async function fates(run: LedgerRun): Promise<string[]> {
  return (await commandsOf(run)).map(({ kind, fate, code }) =>
    [kind, fate, ...(code === null ? [] : [code])].join(' '),
  );
}

export const control = (to: ControlState, reason: TransitionReason): TrailEntry => ({
  kind: 'control',
  to,
  reason,
});

/** What the workflow commits at a safe point when a pause was asked for. */
export async function drain(run: LedgerRun): Promise<void> {
  await run.commit(control('pausing', 'pause_requested'), control('paused', 'drained'));
}

/** A planned call that waits for an approval which is open. */
export interface Gate {
  readonly call: LedgerCall;
  readonly run: LedgerRun;
  readonly interruptId: string;
  readonly scopeSha256: string;
}

/** A running run whose one call needs an approval; the wait for it is open. */
export async function newGate(
  world: LedgerWorld,
  options: CallOptions & {
    readonly effectClass?: EffectClass;
    readonly arguments?: string;
    readonly quorum?: number;
  } = {},
): Promise<Gate> {
  const { effectClass = 'opaque', policy, contract } = options;
  const planned = callOf(effectClass, { approval: 'required', ...policy });
  const own = options.arguments === undefined ? {} : { arguments: options.arguments };
  const run = await world.newStep([{ ...planned, ...own }], contract);
  return await openGate(run.call(0), options.quorum);
}

/** Opens the wait of a call that needs an approval and has none. */
export async function openGate(call: LedgerCall, quorum = 1): Promise<Gate> {
  const needed = await neededBy(call);
  await openApproval(call.run.world.db, call.run, { ...needed, quorum });
  const interrupt = await interruptOf(call);
  return {
    ...{ call, run: call.run },
    ...{ interruptId: interrupt.interrupt_id, scopeSha256: interrupt.scope_sha256 },
  };
}

/** What the ledger says that a person must see before the call may go. */
export async function neededBy(call: LedgerCall): Promise<NeededApproval> {
  const answer = await call.claim();
  if (answer.kind !== 'approval_required' || answer.needed === null) {
    throw new Error(`no approval is needed: ${JSON.stringify(answer)}`);
  }
  return answer.needed;
}

/** The newest wait of the call. */
export async function interruptOf(call: LedgerCall): Promise<InterruptRow> {
  const { effect_id } = await call.effect();
  const [row] = await call.run.world.rows<InterruptRow>(
    `select * from holdfast.interrupts where effect_id = $1 and kind = 'approval' order by created_at desc limit 1`,
    effect_id,
  );
  if (row === undefined) throw new Error('nobody is waited for');
  return row;
}

/** One person's word on a gate: an approval of `user:ben` under a key of its own unless told otherwise. */
export async function decide(gate: Gate, changes: Partial<NewDecision> = {}): Promise<Decided> {
  return await decideApproval(gate.run.world.db, {
    ...{ tenantId: 'default', interruptId: gate.interruptId, actorId: 'user:ben', authority: 'approver' },
    ...{ decision: 'approve', scopeSha256: gate.scopeSha256, note: '' },
    ...{ endpoint: `POST /v1/interrupts/${gate.interruptId}/resolve`, idempotencyKey: randomUUID() },
    ...changes,
  });
}

/** What became of a decision, in a word. */
export async function said(gate: Gate, changes: Partial<NewDecision> = {}): Promise<string> {
  const answer = await decide(gate, changes);
  return answer.kind === 'refused' ? answer.code : answer.kind;
}

/** Lets the time of a gate be over since so many milliseconds, or end in as many when negative. */
export async function expire(gate: Gate, agoMs = 1): Promise<void> {
  await gate.run.world.rows(
    `update holdfast.interrupts set expires_at = clock_timestamp() - $2 * interval '1 millisecond'
      where interrupt_id = $1`,
    gate.interruptId,
    agoMs,
  );
}

/** A run that rests on an effect of which nobody knows whether it happened. */
export async function newUnknown(
  world: LedgerWorld,
  effectClass: EffectClass = 'opaque',
  options: CallOptions = {},
): Promise<LedgerCall> {
  const call = await world.newCall(effectClass, options);
  await call.attempt('unknown');
  await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'outcome_unknown' });
  return call;
}

/** A run that undoes what it did, and rests on an effect that happened and that no tool undoes. */
export async function newUndo(
  world: LedgerWorld,
  effectClass: EffectClass = 'opaque',
  options: CallOptions = {},
): Promise<LedgerCall> {
  const call = await world.newCall(effectClass, options);
  await call.attempt('succeeded');
  await call.run.commit({ kind: 'move', to: 'compensating', reason: 'cancel_requested' });
  await nextUndo(world.db, call.run, call.run.trail());
  await call.run.commit({ kind: 'move', to: 'needs_reconciliation', reason: 'undo_needs_person' });
  return call;
}

/** Lets the deadline of an item of the desk be over since so many milliseconds. */
export async function makeOverdue(call: LedgerCall, agoMs = 1_000): Promise<void> {
  const { effect_id } = await call.effect();
  const past = `clock_timestamp() - $2 * interval '1 millisecond'`;
  await call.run.world.tamper(async (change) => {
    await change(
      `update holdfast.effects set reconciliation_deadline_at = ${past} where effect_id = $1 and state = 'unknown'`,
      effect_id,
      agoMs,
    );
    await change(`update holdfast.undos set deadline_at = ${past} where effect_id = $1`, effect_id, agoMs);
    await change(
      `update holdfast.interrupts set expires_at = ${past} where effect_id = $1 and kind = 'reconciliation'`,
      effect_id,
      agoMs,
    );
  });
}

/** A person's word on an unknown effect, under a key of its own unless told otherwise. */
export async function settle(call: LedgerCall, changes: Partial<NewSettlement> = {}): Promise<Settled> {
  return await settleByPerson(call.run.world.db, {
    ...{ tenantId: 'default', effectId: (await call.effect()).effect_id },
    ...{ actorId: 'user:olga', authority: 'operator', idempotencyKey: randomUUID() },
    ...{ decided: 'committed', reference: 'pay_77', note: 'Seen in the statement.' },
    ...changes,
  });
}

/** Writes `count` open approvals of one run straight into the ledger; every tenth has other arguments. */
export async function addManyGates(run: LedgerRun, count: number, tenantId = 'default'): Promise<void> {
  const ids = Array.from({ length: count }, () => [newId('eff'), newId('int')] as const);
  await run.world.rows(
    `with made as (
       insert into holdfast.effects (effect_id, tenant_id, run_id, turn, step, slot, call_id, tool, tool_version,
         effect_class, namespace, idempotency_key, arguments, arguments_sha256, policy, requested_by, attempts_max,
         series_deadline_at)
       select t.eff, $4, $3, 1, (t.n / 1000 + 1)::int, (t.n % 1000)::int, 'call_' || t.n, 'pay', repeat('a', 64), 'opaque', 'pay',
              $3 || ':many:' || t.n, '{"amount":' || t.n % 10 || '}', encode(sha256(convert_to(
                '{"amount":' || t.n % 10 || '}', 'UTF8')), 'hex'), '{"approval":"required"}', 'user:ada', 5,
              now() + interval '1 hour'
         from unnest($1::text[], $2::text[]) with ordinality as t (eff, int, n)
       returning effect_id, step, slot, arguments_sha256)
     insert into holdfast.interrupts (interrupt_id, kind, tenant_id, run_id, turn, step, slot, effect_id, requested_by,
       scope, scope_sha256, answer_schema, required_role, expires_at, on_expiry)
     select t.int, 'approval', $4, $3, 1, made.step, made.slot, t.eff, 'user:ada', '{}', repeat('b', 64), '{}', 'approver',
            now() + interval '1 hour', 'deny'
       from unnest($1::text[], $2::text[]) as t (eff, int) join made on made.effect_id = t.eff`,
    ids.map(([effect]) => effect),
    ids.map(([, interrupt]) => interrupt),
    run.runId,
    tenantId,
  );
}

/** The word of `desk`, whom the usual contract names, on the job of a run that has ended. */
export async function acceptJob(world: LedgerWorld, { runId }: LedgerRun): Promise<void> {
  const [row] = await world.rows<{ job_id: string }>(
    'select job_id from holdfast.runs where run_id = $1',
    runId,
  );
  const judged = await judgeJob(world.db, {
    ...{ tenantId: 'default', jobId: row!.job_id, actorId: 'desk', roles: [], decision: 'accepted' },
    ...{ evidence: [{ name: 'refund', reference: 'pay_77' }], note: '', idempotencyKey: randomUUID() },
  });
  if (judged.kind !== 'decided') throw new Error(`the job was not accepted: ${judged.kind}`);
}

/** A request that was refused. */
export async function addRefusal(world: LedgerWorld): Promise<void> {
  await recordRefusal(world.db, {
    ...{ tenantId: 'default', actorId: 'user:eve', roles: ['requester'], route: 'POST /v1/runs', params: {} },
    ...{ code: 'invalid_request', httpStatus: 400, requestId: newId('req') },
  });
}
