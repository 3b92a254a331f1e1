import { beforeAll, describe, expect, test } from 'vitest';
import { setActiveRunLimit } from '../shared/ledger/active-run-limits.js';
import { blockResume } from '../shared/ledger/commands.js';
import { grantRole, revokeRole } from '../shared/ledger/role-grants.js';
import { giveStandingGrant, revokeStandingGrant } from '../shared/ledger/standing-grants.js';
import { closeOrphan, escalateOverdue, trimEvents } from '../shared/ledger/sweep.js';
import { addCooldowns } from './support/cooldowns.js';
import { delegating, newFamily, start } from './support/children.js';
import {
  acceptJob,
  addRefusal,
  decide,
  drain,
  makeOverdue,
  newGate,
  newUndo,
  newUnknown,
  settle,
  submit,
} from './support/desk.js';
import { newStepOf, refund, refunds, registerBudgetAgent, setTenant } from './support/budget.js';
import { addFork } from './support/forks.js';
import { answer, newWait } from './support/input.js';
import { intended, UNDOABLE } from './support/ledger-undo.js';
import { bringRunTo, callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { addSchedule } from './support/schedules.js';
import { addThread } from './support/threads.js';
import { addWebhooks } from './support/webhook-world.js';

// Goal: a row that must never be cannot be written, whoever writes it. Method: take rows that the ledger made, and as
// the superuser, with every trigger off, try to make each of them impossible.

let ledger: LedgerWorld;
/** Has effects in every open state, a redo, a receipt of each source, an answered and an open model call, and so on. */
let run: LedgerRun;
let admitted: LedgerRun;
let failed: LedgerRun;

beforeAll(async () => {
  ledger = await openLedger();
  // One whose events were let go, before any other has ended.
  await bringRunTo(await ledger.newRun(), 'failed');
  await trimEvents(ledger.db, 0, 1);
  admitted = await ledger.newRun();
  failed = await ledger.newRun();
  await bringRunTo(failed, 'failed');
  run = await ledger.newStep(
    [...Array<'opaque'>(8).fill('opaque'), 'read' as const, 'queryable' as const].map((effectClass) =>
      callOf(
        effectClass,
        effectClass === 'queryable' ? { query: { settlingSeconds: 0, equalAnswers: 1 } } : {},
      ),
    ),
  );
  const states = [
    'intended',
    'dispatching',
    'unknown',
    'succeeded',
    'rejected',
    'committed',
    'not_committed',
  ] as const;
  for (const [slot, state] of states.entries()) await run.call(slot).bringTo(state);
  await run.call(6).claimed({ redo: 1 });
  const needsApproval = await ledger.newCall('opaque', { policy: { approval: 'required' } });
  await needsApproval.ask();
  await run.call(8).attempt('unknown');
  await run.call(8).close('withdrawn', 'lost_read');
  await run.call(9).attempt('unknown');
  await run.call(9).query('absent');
  await run.claimThink();
  const row = { kind: 'retry', turn: 1, step: 1, reason: 'throttled', attempt: 1, attemptsMax: 5 } as const;
  await run.commit({ ...row, slot: 0, action: 'retry', waitMs: 1 }, { ...row, slot: 0, action: 'give_up' });
  // A wait that is open, one that was approved and one that was used; a command of each fate that is decided at once.
  const open = await newGate(ledger);
  await decide(await newGate(ledger));
  const used = await newGate(ledger);
  await decide(used);
  await used.call.claim();
  // A question that is open and one that was answered.
  await newWait(ledger);
  await answer(await newWait(ledger));
  // Roles and standing grants: in force, and revoked.
  const by = { tenantId: 'default', grantedBy: 'user:olga', authority: 'admin' };
  for (const actorId of ['user:ben', 'user:cyd']) {
    const grant = { ...by, actorId, role: 'auditor', idempotencyKey: actorId } as const;
    const granted = await grantRole(ledger.db, grant);
    if (actorId === 'user:cyd' && granted.kind === 'granted') {
      await revokeRole(ledger.db, { ...by, actorId: 'user:olga' }, granted.role_grant_id);
    }
  }
  for (const tool of ['tool_keyed', 'tool_revoked']) {
    const given = await giveStandingGrant(ledger.db, {
      ...{
        ...by,
        grantedBy: 'user:ben',
        authority: 'approver',
        agent: null,
        tool,
        toolVersion: 'a'.repeat(64),
      },
      ...{ constraints: [{ at: '/slot', equals: 0 }], usesMax: 1, note: 'A test.', idempotencyKey: tool },
      expiresAt: new Date(Date.now() + 3_600_000).toISOString(),
    });
    if (tool === 'tool_revoked' && given.kind === 'given') {
      const revoking = { tenantId: 'default', actorId: 'user:ben', authority: 'approver' };
      await revokeStandingGrant(ledger.db, revoking, given.standing_grant_id);
    }
  }
  await (await ledger.newCall('keyed', { policy: { approval: 'required' } })).claimed();
  // An effect that waits to be undone by a person, one that was, one that was left, and one that a tool undoes.
  const waiting = await newUndo(ledger);
  await makeOverdue(waiting);
  await escalateOverdue(ledger.db);
  await settle(await newUndo(ledger), { decided: 'compensated' });
  await settle(await newUndo(ledger), { decided: 'left', reference: null });
  await settle(await newUnknown(ledger));
  await intended(await ledger.newCall('opaque', { policy: UNDOABLE }));
  // A budget of each scope, with something used and something held.
  await registerBudgetAgent(ledger);
  await setTenant(ledger, 'spender', { tokens: 900_000 }, { window: 'day' });
  await setActiveRunLimit(ledger.db, {
    ...{ tenantId: 'spender', agent: null, activeMax: 9, actorId: 'user:olga', authority: 'admin' },
    ...{ endpoint: 'PUT /v1/active-run-limits', idempotencyKey: 'limit' },
  });
  const spender = await newStepOf(
    ledger,
    [refund(1), refund(1)],
    { ...refunds(5, 5), cost: { micro_units: 900_000, currency: 'USD' } },
    { tenantId: 'spender' },
  );
  await spender.call(0).attempt('succeeded');
  await spender.call(1).claimed();
  await submit(open.run, 'pause');
  await submit(open.run, 'pause');
  await submit(open.run, 'resume');
  await addWebhooks(ledger);
  await acceptJob(ledger, failed);
  await addRefusal(ledger);
  await addThread(ledger);
  await addSchedule(ledger.db);
  await addCooldowns(ledger);
  const held = await ledger.newRun();
  await held.start();
  await submit(held, 'pause');
  await drain(held);
  await submit(held, 'resume');
  const faults = [{ code: 'tool_missing', name: 'pay' }] as const;
  await blockResume(ledger.db, held, held.trail(), { worker: 'test:1', faults });
  const { child } = await newFamily(ledger);
  await child.start();
  await child.plan([delegating()]);
  await start(child);
  await addFork(ledger);
});

/** Which row to spoil, as a condition; `:run`, `:admitted` and `:failed` name the runs. */
async function spoil(table: string, where: string, set: string): Promise<string> {
  const condition = where
    .replaceAll(':run', `run_id = '${run.runId}'`)
    .replaceAll(':admitted', `run_id = '${admitted.runId}'`)
    .replaceAll(':failed', `run_id = '${failed.runId}'`);
  const found = await ledger.rows(`select 1 from holdfast.${table} where ${condition}`);
  expect([where, found.length > 0]).toStrictEqual([where, true]);
  try {
    await ledger.tamper(async (change) => {
      await change(`update holdfast.${table} set ${set} where ${condition}`);
      throw new Error('written');
    });
    return 'unreachable';
  } catch (error) {
    return (error as { constraint?: string }).constraint ?? (error as Error).message;
  }
}

const DIGEST = 'a'.repeat(64);

// prettier-ignore
const IMPOSSIBLE: readonly (readonly [table: string, where: string, set: string, constraint: string])[] = [
  // An end implies its time, and the time implies an end.
  ['runs', ':run',      `ended_at = now()`,                        'ended_at_iff_terminal'],
  ['runs', ':failed',   `ended_at = null`,                         'ended_at_iff_terminal'],
  ['runs', ':run',      `state = 'completed'`,                     'ended_at_iff_terminal'],
  ['runs', ':failed',   `state = 'running'`,                       'ended_at_iff_terminal'],
  ['runs', ':admitted', `epoch = 1`,                               'owner_iff_epoch'],
  ['runs', ':admitted', `owner_execution = 'exec'`,                'owner_iff_epoch'],
  ['runs', ':run',      `epoch = 0`,                               'owner_iff_epoch'],
  ['runs', ':failed',   `owner_execution = null`,                  'owner_iff_epoch'],
  ['runs', ':run',      `state = 'paused'`,                        'run_state_check'],
  ['runs', ':run',      `control = 'running'`,                     'control_state_check'],
  ['runs', ':run',      `last_digest = 'x'`,                       'chain_digest_check'],
  ['runs', ':run',      `contract_sha256 = upper(contract_sha256)`, 'sha256_check'],
  ['runs', ':run',      `run_id = 'run_1'`,                        'run_id_check'],
  ['runs', ':run',      `actor_id = ''`,                           'actor_check'],
  ['runs', ':run',      `tenant_id = repeat('t', 65)`,             'name_check'],
  ['jobs', 'true',      `job_id = 'job_1'`,                        'job_id_check'],
  // A trail begins with its admission, and only there.
  ['transitions', ':run and seq = 1', `from_state = 'running'`,    'first_is_the_admission'],
  ['transitions', ':run and seq = 1', `to_state = 'running'`,      'first_is_the_admission'],
  ['transitions', ':run and seq = 1', `region = 'control'`,        'first_is_the_admission'],
  ['transitions', ':run and seq = 2', `from_state = null`,         'first_is_the_admission'],
  ['transitions', ':run and seq = 2', `to_state = 'admitted'`,     'first_is_the_admission'],
  ['transitions', ':run and seq = 1', `prev_digest = '${DIGEST}'`, 'chain_starts_once'],
  ['transitions', ':run and seq = 2', `prev_digest = ''`,          'chain_starts_once'],
  ['transitions', ':run and seq = 2', `digest = ''`,               'sha256_check'],
  ['transitions', ':run and seq = 2', `reason = ''`,               'name_check'],
  ['transitions', ':run and seq = 2', `region = 'effect'`,         'region_check'],
  ['transitions', ':run and seq = 2', `seq = -2`,                  'transitions_seq_check'],
  ['run_events', ':run and seq = 1',  `seq = 0`,                   'run_events_seq_check'],
  ['run_events', ':run and seq = 1',  `type = ''`,                 'name_check'],
  ['run_events', ':run and seq = 2',  `seq = 1`,                   'run_events_pkey'],
  ['run_events', ':run and seq = 2',  `feed_xid = 0`,              'run_events_feed_xid_check'],
  // Events go with the end of their run, and all of them.
  ['runs', ':run',      `events_from = 2`,                         'trimmed_iff_events_gone'],
  ['runs', ':failed',   `events_trimmed_at = now()`,               'trimmed_iff_events_gone'],
  ['runs', ':run',      `events_from = 2, events_trimmed_at = now()`, 'trimmed_after_its_end'],
  ['runs', ':failed',   `events_from = event_seq + 2, events_trimmed_at = now()`, 'events_from_its_own'],
  ['runs', ':failed',   `events_from = 0`,                         'events_from_its_own'],
  ['feed_floors', 'true', `feed_xid = 0`,                          'feed_floors_feed_xid_check'],
  ['feed_floors', 'true', `tenant_id = ''`,                        'name_check'],
  ['messages', ':run and position = 0', `role = 'system'`,         'message_role_check'],
  ['retries', `:run and action = 'retry'`, `eligible_at = null`,   'eligible_iff_again'],
  ['retries', `:run and action = 'give_up'`, `eligible_at = now()`, 'eligible_iff_again'],
  ['retries', `:run and action = 'give_up'`, `action = 'later'`,     'retries_action_check'],
  ['run_executions', ':run', `reason = 'stolen'`,                  'run_executions_reason_check'],
  ['api_requests', ':run', `idempotency_key = ''`,                 'request_key_check'],
  ['api_requests', ':run', `request_sha256 = 'x'`,                 'sha256_check'],
  ['api_requests', ':run', `run_id = null`,                        'made_one_thing'],
  ['api_requests', 'message_id is not null', `run_id = (select min(run_id) from holdfast.runs)`, 'made_one_thing'],
  // A thread and its messages: one fate each, and what goes with it.
  ['runs', ':run', `thread_place = 1`,                             'place_iff_thread'],
  ['runs', 'thread_id is not null', `thread_place = null`,         'place_iff_thread'],
  ['runs', 'thread_id is not null', `thread_place = 0`,            'runs_thread_place_check'],
  ['runs', 'thread_id is not null', `thread_id = 'thr_1'`,         'thread_id_check'],
  ['runs', ':run', `rolled_back_by = (select min(message_id) from holdfast.thread_messages)`, 'rolled_back_on_a_thread'],
  ['threads', 'true', `archived_at = now()`,                       'archived_by_somebody'],
  ['threads', 'true', `archived_by = 'user:ada'`,                  'archived_by_somebody'],
  ['threads', 'true', `policy = 'ignore'`,                         'double_texting_check'],
  ['thread_messages', `state = 'delivered'`, `run_id = null, step = null`, 'run_iff_delivered'],
  ['thread_messages', `state = 'queued'`, `run_id = met_run_id`,   'run_iff_delivered'],
  ['thread_messages', `state = 'delivered'`, `decided_at = null`,  'decided_iff_not_queued'],
  ['thread_messages', `state = 'queued'`, `decided_at = now()`,    'decided_iff_not_queued'],
  ['thread_messages', `state = 'superseded'`, `code = null`,       'code_iff_unread'],
  ['thread_messages', `state = 'queued'`, `code = 'lost'`,         'code_iff_unread'],
  ['thread_messages', `state = 'queued'`, `met_run_id = null`,     'met_iff_not_first'],
  ['thread_messages', `verdict = 'starts'`, `met_run_id = run_id`, 'met_iff_not_first'],
  ['thread_messages', `verdict = 'starts'`, `step = 2`,            'joined_what_it_met'],
  ['thread_messages', `verdict = 'joins'`, `met_run_id = replace(met_run_id, right(met_run_id, 4), '0000')`, 'joined_what_it_met'],
  ['thread_messages', `verdict = 'joins'`, `step = 1`,             'thread_messages_step_check'],
  ['thread_messages', `state = 'queued'`, `state = 'read', decided_at = now()`, 'thread_messages_state_check'],
  ['thread_messages', `state = 'queued'`, `verdict = 'thread_busy'`, 'thread_messages_verdict_check'],
  ['thread_messages', `state = 'queued'`, `seq = 0`,               'thread_messages_seq_check'],
  ['thread_messages', `state = 'queued'`, `message_id = 'msg_1'`,  'message_id_check'],
  // An answer implies everything of it, and each part implies the answer.
  ['model_calls', `:run and state = 'answered'`, `response = null`, 'answered_iff_response'],
  ['model_calls', `:run and state = 'answered'`, `plan = null`,     'answered_iff_response'],
  ['model_calls', `:run and state = 'calling'`, `response = '{}'`,  'answered_iff_response'],
  ['model_calls', `:run and state = 'calling'`, `plan = '[]'`,      'answered_iff_response'],
  ['model_calls', `:run and state = 'answered'`, `answered_at = null`, 'answered_iff_time'],
  ['model_calls', `:run and state = 'calling'`, `answered_at = now()`, 'answered_iff_time'],
  ['model_calls', `:run and state = 'calling'`, `state = 'failed'`, 'model_call_state_check'],
  ['model_attempts', `:run and outcome is null`, `ended_at = now()`, 'ended_iff_outcome'],
  ['model_attempts', `:run and outcome is not null`, `ended_at = null`, 'ended_iff_outcome'],
  ['model_attempts', `:run and outcome is null`, `outcome = 'lost'`, 'ended_iff_outcome'],
  ['model_attempts', `:run and outcome is not null`, `outcome = 'maybe'`, 'model_outcome_check'],
  // An effect: settled, doubtful, dispatched and redone each have their marks, both ways.
  ['effects', `:run and state = 'succeeded'`, `settled_at = null`, 'settled_at_iff_settled'],
  ['effects', `:run and state = 'intended'`, `settled_at = now()`, 'settled_at_iff_settled'],
  ['effects', `:run and state = 'unknown'`, `settled_at = now()`,  'settled_at_iff_settled'],
  ['effects', `:run and state = 'dispatching'`, `state = 'succeeded'`, 'settled_at_iff_settled'],
  ['effects', `:run and state = 'unknown'`, `unknown_at = null`,   'unknown_has_an_owner'],
  ['effects', `:run and state = 'unknown'`, `reconciliation_owner = null`, 'unknown_has_an_owner'],
  ['effects', `:run and state = 'unknown'`, `reconciliation_deadline_at = null`, 'unknown_has_an_owner'],
  ['effects', `:run and state = 'dispatching'`, `unknown_at = now()`, 'unknown_has_an_owner'],
  ['effects', `:run and state = 'succeeded'`, `reconciliation_owner = 'desk'`, 'unknown_has_an_owner'],
  ['effects', `:run and state = 'intended'`, `reconciliation_deadline_at = now()`, 'unknown_has_an_owner'],
  ['effects', `:run and state = 'dispatching'`, `first_dispatched_at = null`, 'dispatched_iff_attempted'],
  ['effects', `attempts = 0`, `first_dispatched_at = now()`,       'dispatched_iff_attempted'],
  ['effects', `attempts = 0`, `state = 'dispatching'`,             'outcome_needs_dispatch'],
  ['effects', `attempts = 0`, `state = 'rejected', settled_at = now()`, 'outcome_needs_dispatch'],
  ['effects', `:run and redo = 1`, `supersedes = null`,            'redo_iff_supersedes'],
  ['effects', `:run and redo = 0`, `supersedes = effect_id`,       'redo_iff_supersedes'],
  ['effects', `:run and state = 'intended'`, `state = 'failed'`,   'effect_state_check'],
  ['effects', `:run and state = 'intended'`, `effect_class = 'safe'`, 'effect_class_check'],
  ['effects', `:run and state = 'intended'`, `idempotency_key = 'short'`, 'effect_key_check'],
  ['effects', `:run and state = 'intended'`, `idempotency_key = repeat('ä', 20)`, 'effect_key_check'],
  ['effects', `:run and state = 'intended'`, `arguments_sha256 = 'x'`, 'sha256_check'],
  ['effects', `:run and slot = 1`, `slot = 0`,                     'effects_run_id_turn_step_slot_redo_key'],
  ['effects', `:run and slot = 1`, `idempotency_key = replace(idempotency_key, ':c1', ':c0')`, 'effects_namespace_idempotency_key_key'],
  ['attempts', `:run and outcome is null`, `ended_at = now()`,     'ended_iff_outcome'],
  ['attempts', `:run and outcome is not null`, `ended_at = null`,  'ended_iff_outcome'],
  ['attempts', `:run and outcome is not null`, `outcome = 'failed'`, 'effect_outcome_check'],
  ['attempts', `:run and outcome is not null`, `attempt_id = 'att_1'`, 'attempt_id_check'],
  // A receipt: what an attempt said in time settles by itself, everything else was reconciled.
  ['receipts', `:run and status = 'succeeded'`, `status = 'committed'`, 'status_iff_source'],
  ['receipts', `:run and status = 'committed'`, `status = 'rejected'`,  'status_iff_source'],
  ['receipts', `:run and status = 'succeeded'`, `source = 'late_receipt'`, 'status_iff_source'],
  ['receipts', `:run and source = 'response'`, `attempt_id = null`,     'response_has_its_attempt'],
  ['receipts', `:run and source = 'late_receipt'`, `attempt_id = null`, 'response_has_its_attempt'],
  ['receipts', `:run and source = 'probe'`, `attempt_id = (select min(attempt_id) from holdfast.attempts)`, 'response_has_its_attempt'],
  ['receipts', `:run and status = 'succeeded'`, `status = 'failed'`,    'receipt_status_check'],
  ['receipts', `:run and status = 'succeeded'`, `body_sha256 = 'x'`,    'sha256_check'],
  ['status_queries', ':run', `answer = 'maybe'`,                   'status_queries_answer_check'],
  ['reconciliations', ':run', `note = ''`,                         'reconciliations_note_check'],
  ['reconciliations', ':run', `decided = 'succeeded'`,             'reconciliations_decided_check'],
  ['reconciliations', ':run', `source = 'guess'`,                  'reconciliations_source_check'],
  // A budget: nothing goes past its limit, and each line is of what its kind says.
  ['runs', ':run',       `last_step = 3`,                          'last_step_needs_a_limit'],
  ['runs', ':run',       `finishing = 'limit_luck'`,               'limit_code_check'],
  ['budgets', `kind = 'effect_count'`, `used = 5`,                 'never_overshot'],
  ['budgets', `kind = 'effect_count'`, `reserved = 5`,             'never_overshot'],
  ['budgets', `kind = 'effect_count'`, `limit_value = 1`,          'never_overshot'],
  ['budgets', `kind = 'effect_count'`, `used = -1`,                'quantity_check'],
  ['budgets', `kind = 'effect_count'`, `reserved = 'NaN'`,         'quantity_check'],
  ['budgets', `kind = 'effect_count'`, `limit_value = 'Infinity'`, 'quantity_check'],
  ['budgets', `kind = 'effect_count'`, `kind = 'luck'`,            'budget_kind_check'],
  ['budgets', `kind = 'effect_count'`, `subject = ''`,             'subject_by_kind'],
  ['budgets', `kind = 'tokens'`, `subject = 'USD'`,                'subject_by_kind'],
  ['budgets', `kind = 'effect_sum'`, `pointer = ''`,               'pointer_by_kind'],
  ['budgets', `kind = 'effect_count'`, `pointer = '/amount'`,      'pointer_by_kind'],
  ['budgets', `kind = 'effect_count'`, `owner = 'tenant:spender'`, 'owner_is_its_scope'],
  ['budgets', `kind = 'tokens'`, `owner = 'tenant:other'`,         'owner_is_its_scope'],
  ['budgets', `kind = 'tokens'`, `day = null`,                     'day_iff_daily'],
  ['budgets', `kind = 'effect_count'`, `day = now()`,              'day_iff_daily'],
  ['budgets', `kind = 'effect_count'`, `period = 'day', day = now()`, 'no_days_in_a_run'],
  ['budgets', `kind = 'tokens'`, `period = 'week', day = null`,    'budgets_period_check'],
  ['budget_reservations', `settled_at is null`, `used = 1`,        'used_when_settled'],
  ['budget_reservations', `settled_at is null`, `amount = -1`,     'quantity_check'],
  ['tenant_budget_changes', `true`, `period = 'week'`,             'tenant_budget_changes_period_check'],
  ['runs', `:run`, `priority = 0`, 'runs_priority_check'],
  ['runs', `:run`, `priority = 6`, 'runs_priority_check'],
  ['active_run_limits', `true`, `active_max = -1`, 'active_run_limits_active_max_check'],
  // A schedule and what became of its times: a run or a reason, and who asked.
  ['schedules', 'true', `schedule_id = 'sch_1'`, 'schedule_id_check'],
  ['schedules', 'true', `overlap = 'pile_up'`, 'schedules_overlap_check'],
  ['schedules', 'true', `catch_up_seconds = 9`, 'schedules_catch_up_seconds_check'],
  ['schedule_changes', 'true', `kind = 'lost'`, 'schedule_changes_kind_check'],
  ['schedule_backfills', 'true', `to_at = from_at`, 'schedule_backfills_check'],
  ['schedule_occurrences', `state = 'queued'`, `occurrence_id = 'occ_1'`, 'occurrence_id_check'],
  ['schedule_occurrences', `state = 'skipped'`, `state = 'lost', reason = null`, 'schedule_occurrences_state_check'],
  ['schedule_occurrences', `source = 'tick'`, `source = 'cron'`, 'schedule_occurrences_source_check'],
  ['schedule_occurrences', `state = 'started'`, `run_id = null`, 'started_iff_made'],
  ['schedule_occurrences', `state = 'skipped'`, `run_id = (select min(run_id) from holdfast.runs)`, 'started_iff_made'],
  ['schedule_occurrences', `state = 'started'`, `message_id = 'x'`, 'made_once'],
  ['schedule_occurrences', `state = 'skipped'`, `reason = null`, 'reason_unless_started'],
  ['schedule_occurrences', `state = 'started'`, `reason = 'overlap'`, 'reason_unless_started'],
  ['schedule_occurrences', `state = 'started'`, `decided_at = null`, 'decided_iff_not_queued'],
  ['schedule_occurrences', `state = 'queued'`, `decided_at = now()`, 'decided_iff_not_queued'],
  ['schedule_occurrences', `source = 'tick'`, `asked_by = 'user:ada'`, 'asked_iff_run_now'],
  ['schedule_occurrences', `source = 'run_now'`, `idempotency_key = null`, 'asked_iff_run_now'],
  ['schedule_occurrences', `state = 'skipped'`, `open = true`, 'open_while_started'],
  // A command: its fate implies its time and its reason, and each of them implies the fate.
  ['commands', `fate = 'accepted'`, `code = 'run_ended'`, 'code_iff_rejected'],
  ['commands', `fate = 'applied'`, `code = 'run_ended'`, 'code_iff_rejected'],
  ['commands', `fate = 'rejected'`, `code = null`, 'code_iff_rejected'],
  ['commands', `fate = 'applied'`, `fate = 'rejected'`, 'code_iff_rejected'],
  ['commands', `fate = 'applied'`, `fate = 'expired'`, 'code_iff_rejected'],
  ['commands', `fate = 'rejected'`, `fate = 'applied'`, 'code_iff_rejected'],
  ['commands', `fate = 'accepted'`, `decided_at = now()`, 'decided_iff_not_accepted'],
  ['commands', `fate = 'applied'`, `decided_at = null`, 'decided_iff_not_accepted'],
  ['commands', `fate = 'rejected'`, `decided_at = null`, 'decided_iff_not_accepted'],
  ['commands', `fate = 'accepted'`, `fate = 'applied'`, 'decided_iff_not_accepted'],
  ['commands', `fate = 'applied'`, `fate = 'accepted'`, 'decided_iff_not_accepted'],
  ['commands', `fate = 'applied'`, `fate = 'lost'`, 'commands_fate_check'],
  ['commands', `fate = 'accepted'`, `kind = 'stop'`, 'commands_kind_check'],
  ['commands', `fate = 'accepted'`, `command_id = 'cmd_1'`, 'command_id_check'],
  ['commands', `fate = 'accepted'`, `actor_id = ''`, 'actor_check'],
  ['commands', `fate = 'accepted'`, `actor_id = repeat('a', 201)`, 'actor_check'],
  ['commands', `fate = 'accepted'`, `authority = ''`, 'name_check'],
  ['commands', `fate = 'accepted'`, `authority = repeat('a', 65)`, 'name_check'],
  ['commands', `fate = 'accepted'`, `idempotency_key = ''`, 'request_key_check'],
  ['commands', `fate = 'accepted'`, `idempotency_key = repeat('k', 256)`, 'request_key_check'],
  ['commands', `fate = 'accepted'`, `request_sha256 = 'x'`, 'sha256_check'],
  // A wait: decided and used each have their marks, both ways, and only its own effect uses it.
  ['interrupts', `state = 'open'`, `decided_at = now()`, 'decided_iff_not_open'],
  ['interrupts', `state = 'approved'`, `decided_at = null`, 'decided_iff_not_open'],
  ['interrupts', `state = 'consumed'`, `decided_at = null`, 'decided_iff_not_open'],
  ['interrupts', `state = 'open'`, `state = 'approved'`, 'decided_iff_not_open'],
  ['interrupts', `state = 'approved'`, `state = 'open'`, 'decided_iff_not_open'],
  ['interrupts', `state = 'consumed'`, `consumed_by = null`, 'consumed_iff_by'],
  ['interrupts', `state = 'consumed'`, `consumed_at = null`, 'consumed_iff_by'],
  ['interrupts', `state = 'consumed'`, `state = 'approved'`, 'consumed_iff_by'],
  ['interrupts', `state = 'approved'`, `consumed_by = effect_id`, 'consumed_iff_by'],
  ['interrupts', `state = 'approved'`, `consumed_at = now()`, 'consumed_iff_by'],
  ['interrupts', `state = 'approved'`, `state = 'consumed'`, 'consumed_iff_by'],
  ['interrupts', `state = 'approved'`, `state = 'consumed', consumed_at = now()`, 'consumed_iff_by'],
  ['interrupts', `state = 'approved'`, `state = 'consumed', consumed_by = effect_id`, 'consumed_iff_by'],
  ['interrupts', `state = 'consumed'`, `consumed_by = (select min(e.effect_id) from holdfast.effects e where e.effect_id <> interrupts.effect_id)`, 'consumed_by_its_own'],
  ['interrupts', `state = 'approved'`, `state = 'closed'`, 'interrupts_state_check'],
  ['interrupts', `state = 'open'`, `kind = 'question'`, 'interrupts_kind_check'],
  ['interrupts', `state = 'open'`, `interrupt_id = 'int_1'`, 'interrupt_id_check'],
  ['interrupts', `state = 'open'`, `scope_sha256 = 'x'`, 'sha256_check'],
  ['interrupts', `state = 'open'`, `required_role = ''`, 'name_check'],
  ['interrupts', `state = 'open'`, `required_role = repeat('r', 65)`, 'name_check'],
  ['interrupts', `state = 'open'`, `quorum = 0`, 'interrupts_quorum_check'],
  ['interrupts', `state = 'open'`, `quorum = 11`, 'interrupts_quorum_check'],
  ['interrupts', `state = 'open'`, `on_expiry = 'approve'`, 'interrupts_on_expiry_check'],
  // An approval is of its effect; a question has none, and what ends it is its own.
  ['interrupts', `kind = 'approval'`, `effect_id = null`, 'effect_by_kind'],
  ['interrupts', `kind = 'input'`, `effect_id = (select min(effect_id) from holdfast.effects)`, 'effect_by_kind'],
  ['interrupts', `kind = 'approval'`, `slot = null`, 'slot_unless_input'],
  ['interrupts', `kind = 'input' and state = 'answered'`, `state = 'approved'`, 'input_states'],
  ['interrupts', `kind = 'input' and state = 'answered'`, `state = 'denied'`, 'input_states'],
  ['interrupts', `kind = 'input'`, `on_expiry = 'deny'`, 'input_expiry'],
  ['interrupts', `kind = 'reconciliation'`, `effect_id = null`, 'effect_by_kind'],
  ['interrupts', `kind = 'reconciliation' and state = 'answered'`, `state = 'superseded'`, 'reconciliation_states'],
  ['interrupts', `kind = 'reconciliation'`, `on_expiry = 'deny'`, 'escalates_iff_reconciliation'],
  ['interrupts', `kind = 'approval'`, `on_expiry = 'escalate'`, 'escalates_iff_reconciliation'],
  ['interrupts', `kind = 'reconciliation'`, `owner = null`, 'owner_iff_reconciliation'],
  ['interrupts', `kind = 'approval'`, `owner = 'desk'`, 'owner_iff_reconciliation'],
  ['decisions', `decision = 'answer'`, `answer = null`, 'answer_iff_answered'],
  ['decisions', `decision = 'answer'`, `decision = 'approve'`, 'answer_iff_answered'],
  ['decisions', `decision = 'approve'`, `answer = '{}'`, 'answer_iff_answered'],
  ['decisions', `decision = 'answer'`, `answer = ''`, 'answer_text_check'],
  ['decisions', `decision = 'answer'`, `answer = repeat('a', 65537)`, 'answer_text_check'],
  ['decisions', `decision = 'approve'`, `actor_id = ''`, 'actor_check'],
  ['decisions', `decision = 'approve'`, `actor_id = repeat('a', 201)`, 'actor_check'],
  ['decisions', `decision = 'approve'`, `decision = 'maybe'`, 'decisions_decision_check'],
  ['decisions', `decision = 'approve'`, `note = repeat('n', 4001)`, 'decisions_note_check'],
  ['decisions', `decision = 'approve'`, `request_sha256 = 'x'`, 'sha256_check'],
  // A right: one spelling of each person, and a revocation has its author, both ways.
  ['role_grants', `revoked_at is null`, `actor_id = 'USER:ben'`, 'grantee_is_canonical'],
  ['role_grants', `revoked_at is null`, `role = 'boss'`, 'role_check'],
  ['role_grants', `revoked_at is null`, `role_grant_id = 'rgr_1'`, 'role_grant_id_check'],
  ['role_grants', `revoked_at is null`, `revoked_at = now()`, 'role_revoked_iff_by'],
  ['role_grants', `revoked_at is not null`, `revoked_by = null`, 'role_revoked_iff_by'],
  // A standing grant has bounds of every kind, and is never used past them.
  ['standing_grants', `revoked_at is null`, `standing_grant_id = 'sgr_1'`, 'standing_grant_id_check'],
  ['standing_grants', `revoked_at is null`, `constraints = '[]'`, 'grant_is_bounded'],
  ['standing_grants', `revoked_at is null`, `constraints = '{}'`, 'grant_is_bounded'],
  ['standing_grants', `uses = 1`, `uses = 2`, 'used_within_count'],
  ['standing_grants', `uses = 1`, `uses = -1`, 'used_within_count'],
  ['standing_grants', `uses = 0`, `uses_max = 0`, 'standing_grants_uses_max_check'],
  ['standing_grants', `uses = 1`, `uses_max = 10001`, 'standing_grants_uses_max_check'],
  ['standing_grants', `revoked_at is null`, `expires_at = created_at`, 'grant_ends_in_a_year'],
  ['standing_grants', `revoked_at is null`, `expires_at = created_at + interval '367 days'`, 'grant_ends_in_a_year'],
  ['standing_grants', `revoked_at is null`, `revoked_by = 'x'`, 'grant_revoked_iff_by'],
  ['standing_grants', `revoked_at is not null`, `revoked_by = null`, 'grant_revoked_iff_by'],
  ['standing_grants', `revoked_at is null`, `note = ''`, 'standing_grants_note_check'],
  ['standing_grant_uses', `use = 1`, `use = 0`, 'standing_grant_uses_use_check'],
  // What undoes an effect has a place of its own, and only it has; a person's part has its marks, both ways.
  ['effects', `compensates is not null`, `slot = 1`, 'compensation_has_its_slot'],
  ['effects', `:run and slot = 1`, `slot = 1001`, 'compensation_has_its_slot'],
  ['effects', `compensates is not null`, `compensates = null`, 'compensation_has_its_slot'],
  ['undos', `state = 'waiting'`, `decided_at = now()`, 'decided_by_somebody'],
  ['undos', `state = 'waiting'`, `actor_id = 'user:olga'`, 'decided_by_somebody'],
  ['undos', `state = 'waiting'`, `authority = 'operator'`, 'decided_by_somebody'],
  ['undos', `state = 'waiting'`, `note = 'Done.'`, 'decided_by_somebody'],
  ['undos', `state = 'waiting'`, `state = 'left'`, 'decided_by_somebody'],
  ['undos', `state = 'left'`, `state = 'waiting'`, 'decided_by_somebody'],
  ['undos', `state = 'left'`, `decided_at = null`, 'decided_by_somebody'],
  ['undos', `state = 'left'`, `actor_id = null`, 'decided_by_somebody'],
  ['undos', `state = 'left'`, `authority = null`, 'decided_by_somebody'],
  ['undos', `state = 'left'`, `note = null`, 'decided_by_somebody'],
  ['undos', `state = 'left'`, `reference = 'r'`, 'compensated_iff_reference'],
  ['undos', `state = 'left'`, `state = 'compensated'`, 'compensated_iff_reference'],
  ['undos', `state = 'compensated'`, `reference = null`, 'compensated_iff_reference'],
  ['undos', `state = 'left'`, `note = ''`, 'undos_note_check'],
  ['undos', `state = 'left'`, `state = 'undone'`, 'undos_state_check'],
  ['undos', `state = 'left'`, `why = 'later'`, 'undos_why_check'],
  ['undos', `state = 'left'`, `owner = ''`, 'actor_check'],
  ['settlement_words', `about = 'outcome'`, `decided = 'left'`, 'word_answers_its_question'],
  ['settlement_words', `about = 'undo'`, `decided = 'committed'`, 'word_answers_its_question'],
  ['settlement_words', `decided = 'committed'`, `about = 'undo'`, 'word_answers_its_question'],
  ['settlement_words', `decided = 'left'`, `about = 'outcome'`, 'word_answers_its_question'],
  ['settlement_words', `about = 'undo'`, `about = 'both'`, 'settlement_words_about_check'],
  ['settlement_words', `about = 'outcome'`, `decided = 'maybe'`, 'settlement_words_decided_check'],
  ['settlement_words', `about = 'outcome'`, `note = ''`, 'settlement_words_note_check'],
  ['settlement_words', `about = 'outcome'`, `idempotency_key = ''`, 'request_key_check'],
  ['job_acceptances', `decision = 'accepted'`, `evidence = '[]'`, 'accepted_on_evidence'],
  ['job_acceptances', `decision = 'accepted'`, `evidence = '{}'`, 'job_acceptances_evidence_check'],
  ['job_acceptances', `decision = 'accepted'`, `decision = 'perhaps', evidence = '[1]'`, 'job_acceptances_decision_check'],
  ['job_acceptances', `decision = 'accepted'`, `note = repeat('n', 4001)`, 'job_acceptances_note_check'],
  ['refusals', 'true', `http_status = 500`, 'refusals_http_status_check'],
  ['runs', `cooldown_slot_at is not null`, `cooldown_id = null`, 'slot_is_of_a_cooldown'],
  ['resume_blocks', 'true', `faults = '[]'`, 'resume_blocks_faults_check'],
  ['resume_blocks', 'true', `faults = '{}'`, 'resume_blocks_faults_check'],
  ['resume_blocks', 'true', `checks = 0`, 'resume_blocks_checks_check'],
  ['cooldowns', 'true', `cooldown_id = 'cdn_1'`, 'cooldown_id_check'],
  ['cooldowns', 'true', `kind = 'thread'`, 'cooldowns_kind_check'],
  ['cooldowns', 'true', `target = ''`, 'cooldowns_target_check'],
  ['cooldowns', 'true', `reason = 'billing'`, 'cooldowns_reason_check'],
  ['cooldowns', 'true', `said_ms = -1`, 'cooldowns_said_ms_check'],
  ['cooldowns', 'true', `stops = 0`, 'cooldowns_stops_check'],
  ['cooldowns', 'ended_at is not null', `ended_by = 'age'`, 'cooldowns_ended_by_check'],
  ['cooldowns', 'ended_at is not null', `ended_by = null`, 'ended_iff_by'],
  ['cooldowns', 'ended_at is null', `ended_by = 'stop'`, 'ended_iff_by'],
  ['cooldowns', 'cleared_at is not null', `cleared_by = null`, 'cleared_iff_by'],
  ['cooldowns', 'cleared_at is null', `cleared_at = now()`, 'cleared_iff_by'],
  ['cooldowns', `target = 'openai cleared'`, `target = 'openai busy'`, 'cooldowns_open'],
  // A webhook: disabled, waiting and settled each have their marks, both ways.
  ['webhook_endpoints', `state = 'active'`, `disabled_at = now()`, 'disabled_has_its_marks'],
  ['webhook_endpoints', `state = 'active'`, `disabled_by = 'person'`, 'disabled_has_its_marks'],
  ['webhook_endpoints', `state = 'active'`, `state = 'disabled'`, 'disabled_has_its_marks'],
  ['webhook_endpoints', `state = 'disabled'`, `state = 'active'`, 'disabled_has_its_marks'],
  ['webhook_endpoints', `state = 'disabled'`, `disabled_at = null`, 'disabled_has_its_marks'],
  ['webhook_endpoints', `state = 'disabled'`, `disabled_by = null`, 'disabled_has_its_marks'],
  ['webhook_endpoints', `state = 'disabled'`, `disabled_by = 'chance'`, 'webhook_endpoints_disabled_by_check'],
  ['webhook_endpoints', `state = 'active'`, `state = 'paused'`, 'webhook_endpoints_state_check'],
  ['webhook_endpoints', `state = 'active'`, `url = ''`, 'webhook_endpoints_url_check'],
  ['webhook_endpoints', `state = 'active'`, `url = repeat('u', 2001)`, 'webhook_endpoints_url_check'],
  ['webhook_endpoints', `state = 'active'`, `kinds = '{}'`, 'webhook_endpoints_kinds_check'],
  ['webhook_endpoints', `state = 'active'`, `secret_key_id = 'x'`, 'webhook_endpoints_secret_key_id_check'],
  ['webhook_endpoints', `state = 'active'`, `endpoint_id = 'whe_1'`, 'webhook_endpoint_id_check'],
  ['webhook_deliveries', `state = 'pending'`, `next_attempt_at = null`, 'next_iff_pending'],
  ['webhook_deliveries', `state = 'delivered'`, `next_attempt_at = now()`, 'next_iff_pending'],
  ['webhook_deliveries', `state = 'delivered'`, `settled_at = null`, 'settled_iff_not_pending'],
  ['webhook_deliveries', `state = 'pending'`, `settled_at = now()`, 'settled_iff_not_pending'],
  ['webhook_deliveries', `state = 'delivered'`, `lease_until = now()`, 'lease_only_while_pending'],
  ['webhook_deliveries', `run_id is not null`, `event_seq = null`, 'event_iff_run'],
  ['webhook_deliveries', `run_id is null`, `event_seq = 1`, 'event_iff_run'],
  ['webhook_deliveries', `state = 'delivered'`, `state = 'lost'`, 'webhook_deliveries_state_check'],
  ['webhook_deliveries', `state = 'pending'`, `delivery_id = 'whd_1'`, 'webhook_delivery_id_check'],
  ['webhook_attempts', `outcome is null`, `ended_at = now()`, 'ended_iff_outcome'],
  ['webhook_attempts', `outcome is not null`, `ended_at = null`, 'ended_iff_outcome'],
  ['webhook_attempts', `outcome is not null`, `outcome = 'refused'`, 'webhook_attempts_outcome_check'],
  ['webhook_attempts', `outcome is not null`, `http_status = 99`, 'webhook_attempts_http_status_check'],
  // A child: one for its call, below its parent and its root, with something to work with.
  ['child_runs', 'depth = 1', `depth = 0`, 'child_runs_depth_check'],
  ['child_runs', 'depth = 2', `depth = 6`, 'child_runs_depth_check'],
  ['child_runs', 'depth = 1', `depth = 2`, 'root_is_the_first_parent'],
  ['child_runs', 'depth = 2', `root_run_id = parent_run_id`, 'root_is_the_first_parent'],
  ['child_runs', 'depth = 2', `root_run_id = child_run_id`, 'no_own_parent'],
  ['child_runs', 'depth = 2', `parent_run_id = child_run_id`, 'no_own_parent'],
  ['child_runs', 'depth = 1', `on_cancel = 'pause'`, 'child_runs_on_cancel_check'],
  ['child_runs', 'depth = 1', `steps_granted = 0`, 'child_runs_steps_granted_check'],
  ['child_runs', 'depth = 1', `tool_calls_granted = -1`, 'child_runs_tool_calls_granted_check'],
  ['child_runs', 'depth = 1', `tool = ''`, 'name_check'],
  ['child_runs', 'depth = 1', `root_run_id = 'run_1'`, 'run_id_check'],
  ['child_runs', 'depth = 2', `(parent_run_id, root_run_id, depth, step, slot) = (select c.parent_run_id, c.root_run_id, c.depth, c.step, c.slot from holdfast.child_runs c where c.depth = 1)`, 'one_child_a_call'],
  // A fork: of another run, with nothing sent of what it reuses or simulates.
  ['runs', ':run', `fork_mode = 'dream'`, 'fork_mode_check'],
  ['forks', 'true', `checkpoint_id = 'ckp_1'`, 'checkpoint_id_check'],
  ['forks', 'true', `source_run_id = run_id`, 'no_fork_of_itself'],
  ['forks', 'true', `cut_step = -1`, 'forks_cut_step_check'],
  ['forks', 'true', `pins = 'mine'`, 'forks_pins_check'],
  ['inherited_effects', 'true', `step = 0`, 'inherited_effects_step_check'],
  ['effects', `reuses is not null`, `state = 'denied'`, 'reused_is_never_sent'],
  ['effects', `reuses is not null`, `attempts = 1, first_dispatched_at = now()`, 'reused_is_never_sent'],
  ['effects', `:run and state = 'succeeded'`, `reuses = effect_id`, 'reused_is_never_sent'],
  ['effects', `:run and state = 'succeeded'`, `simulated = true`, 'simulated_is_never_sent'],
  ['effects', `simulated and reuses is null`, `attempts = 1, first_dispatched_at = now()`, 'simulated_is_never_sent'],
];

describe('an impossible row', () => {
  test.each(IMPOSSIBLE)('%s (%s) with %s is refused by %s', async (table, where, set, constraint) => {
    expect(await spoil(table, where, set)).toBe(constraint);
  });

  test('of every CHECK and both ends of it: no constraint of the schema goes untried', async () => {
    const all = await ledger.rows<{ name: string }>(
      `select distinct conname as name from pg_constraint c join pg_namespace n on n.oid = c.connamespace
        where n.nspname = 'holdfast' and c.contype = 'c'`,
    );
    const tried = new Set(IMPOSSIBLE.map(([, , , constraint]) => constraint));
    // Plain lengths, formats of ids and the seed's own regions are alike everywhere; one of each kind is tried.
    const alike =
      /_(attempt_id|effect_id|reason|source|200|1000|2000)_check$|^(effect_id|receipt_source)_check$/;
    expect(all.map(({ name }) => name).filter((name) => !tried.has(name) && !alike.test(name))).toStrictEqual(
      [],
    );
  });

  test.each([
    [
      'an illegal move',
      `insert into holdfast.transitions select run_id, 99, tenant_id, region, 'completed', 'running', reason, actor_id,
        epoch, created_at, digest, digest from holdfast.transitions where seq = 2 limit 1`,
      'transitions_region_from_state_to_state_fkey',
    ],
    [
      'a second transition of one number',
      `insert into holdfast.transitions select * from holdfast.transitions where seq = 2 limit 1`,
      'transitions_pkey',
    ],
    [
      'a second receipt',
      `insert into holdfast.receipts select * from holdfast.receipts limit 1`,
      'receipts_pkey',
    ],
    [
      'a receipt without its effect',
      `insert into holdfast.receipts (effect_id, tenant_id, run_id, epoch, status, source, body, body_sha256, truncated)
        values ('eff_0', 't', 'r', 1, 'committed', 'probe', '', '${DIGEST}', false)`,
      'receipts_effect_id_fkey',
    ],
    [
      'a second late receipt of one attempt',
      `insert into holdfast.late_receipts select * from holdfast.late_receipts limit 1`,
      'late_receipts_pkey',
    ],
    [
      'a second settlement',
      `insert into holdfast.reconciliations select * from holdfast.reconciliations limit 1`,
      'reconciliations_pkey',
    ],
    [
      'a second compensation beside one that is not over',
      `insert into holdfast.effects select (jsonb_populate_record(e, jsonb_build_object('effect_id',
        'eff_${'0'.repeat(32)}', 'redo', 1, 'supersedes', e.effect_id, 'idempotency_key', e.idempotency_key || ':r1'))).*
        from holdfast.effects e where compensates is not null limit 1`,
      'effects_compensation',
    ],
    [
      'a second telling of one deadline',
      `insert into holdfast.escalations select * from holdfast.escalations limit 1`,
      'escalations_pkey',
    ],
    [
      'an attempt without its effect',
      `insert into holdfast.attempts (attempt_id, effect_id, attempt, fencing_token, tenant_id, run_id, epoch, execution, worker, lease_until)
        values ('att_${'0'.repeat(32)}', 'eff_0', 1, 1, 't', 'r', 1, 'e', 'w', now())`,
      'attempts_effect_id_fkey',
    ],
    [
      'a second owner of one epoch',
      `insert into holdfast.run_executions select run_id, 'other', epoch, reason from holdfast.run_executions limit 1`,
      'run_executions_pkey',
    ],
    [
      'an execution that owns a run twice',
      `insert into holdfast.run_executions select run_id, execution, 99, reason from holdfast.run_executions limit 1`,
      'run_executions_once',
    ],
    [
      'a second use of one start key',
      `insert into holdfast.api_requests select * from holdfast.api_requests limit 1`,
      'api_requests_pkey',
    ],
    [
      'a second active run of one thread',
      `update holdfast.runs set thread_id = (select thread_id from holdfast.runs where thread_id is not null limit 1),
         thread_place = 99 where run_id = (select min(run_id) from holdfast.runs where ended_at is null and thread_id is null)`,
      'runs_one_active_a_thread',
    ],
    [
      'a second message in one place',
      `insert into holdfast.messages select * from holdfast.messages limit 1`,
      'messages_pkey',
    ],
    [
      'a second open wait of one call',
      `insert into holdfast.interrupts (interrupt_id, kind, tenant_id, run_id, turn, step, slot, requested_by, scope,
         scope_sha256, answer_schema, required_role, expires_at, on_expiry)
       select 'int_${'1'.repeat(32)}', kind, tenant_id, run_id, turn, step, slot, requested_by, scope, scope_sha256,
              answer_schema, required_role, expires_at, on_expiry
         from holdfast.interrupts where kind = 'input' and state = 'open' limit 1`,
      'interrupts_one_open',
    ],
  ])('%s is refused', async (_, sql, constraint) => {
    await expect(ledger.rows(sql)).rejects.toMatchObject({ constraint });
  });
});

describe('the end of a run', () => {
  test.each(
    (['completed', 'compensated', 'failed', 'cancelled'] as const).flatMap((end) =>
      (['intended', 'dispatching', 'unknown'] as const).map((state) => [end, state] as const),
    ),
  )('as %s is refused by the database while an effect is %s', async (end, state) => {
    const call = await ledger.newCall('opaque');
    await call.bringTo(state);
    const write = ledger.rows(
      `update holdfast.runs set state = $2, ended_at = now() where run_id = $1`,
      call.run.runId,
      end,
    );
    await expect(write).rejects.toThrow(/^unresolved_effects/);
  });

  test.each([
    `state = 'running', ended_at = null`,
    `state = 'completed'`,
    `ended_at = now()`,
    `state_version = 99`,
  ])('absorbs: %s is refused', async (set) => {
    await expect(
      ledger.rows(`update holdfast.runs set ${set} where run_id = $1`, failed.runId),
    ).rejects.toThrow(/^run_ended/);
  });

  test.each(['succeeded', 'rejected', 'committed', 'not_committed'])(
    'leaves what was settled as %s: it is never rewritten',
    async (state) => {
      const call = await ledger.newCall('opaque');
      await call.bringTo(state as 'succeeded');
      for (const sql of [
        `update holdfast.effects set state = 'intended', settled_at = null where run_id = $1`,
        `update holdfast.effects set arguments = '{}' where run_id = $1`,
      ]) {
        await expect(ledger.rows(sql, call.run.runId)).rejects.toThrow(/^effect_settled/);
      }
      const { epoch } = await ledger.runRow(call.run.runId);
      await closeOrphan(ledger.db, call.run.runId, epoch, 'workflow_failed');
      expect(await call.state()).toBe(state);
    },
  );
});
