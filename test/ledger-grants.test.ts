import { beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../shared/ledger/new-id.js';
import { giveStandingGrant } from '../shared/ledger/standing-grants.js';
import { escalateOverdue } from '../shared/ledger/sweep.js';
import { newFamily } from './support/children.js';
import { acceptJob, addRefusal, makeOverdue, newUndo, settle } from './support/desk.js';
import { addFork } from './support/forks.js';
import { bringRunTo, callOf } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: the application can write no table, and nobody can rewrite the past, whatever the code does (SPEC 3, FAULTS S15).

let ledger: LedgerWorld;
let runId: string;
beforeAll(async () => {
  ledger = await openLedger();
  // Something in every table that only grows.
  const run = await ledger.newStep([
    callOf('opaque'),
    callOf('queryable', { query: { settlingSeconds: 0, equalAnswers: 1 } }),
  ]);
  runId = run.runId;
  await run.call(0).bringTo('committed');
  await run.call(1).attempt('unknown');
  await run.call(1).query('absent');
  await giveStandingGrant(ledger.db, {
    ...{
      tenantId: 'default',
      grantedBy: 'user:ben',
      authority: 'approver',
      agent: null,
      tool: 'tool_opaque',
    },
    ...{
      toolVersion: 'a'.repeat(64),
      constraints: [{ at: '/slot', equals: 0 }],
      usesMax: 1,
      note: 'A test.',
    },
    ...{ expiresAt: new Date(Date.now() + 3_600_000).toISOString(), idempotencyKey: 'grant-1' },
  });
  const granted = await ledger.newCall('opaque', { policy: { approval: 'required' } });
  await granted.claimed();
  const row = { kind: 'retry', turn: 1, step: 1, reason: 'throttled', attempt: 1, attemptsMax: 5 } as const;
  await run.commit({ ...row, slot: 0, action: 'give_up' });
  const undo = await newUndo(ledger);
  await makeOverdue(undo);
  await escalateOverdue(ledger.db);
  await settle(undo, { decided: 'left', reference: null });
  const ended = await ledger.newRun();
  await bringRunTo(ended, 'failed');
  await acceptJob(ledger, ended);
  await addRefusal(ledger);
  await newFamily(ledger);
  await addFork(ledger);
});

const tablesOf = async (): Promise<string[]> =>
  (
    await ledger.rows<{ name: string }>(
      `select relname as name from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p')`,
    )
  ).map(({ name }) => name);

const asApp = (sql: string): Promise<unknown> =>
  ledger.db.query(sql).then(
    () => 'done',
    (error: unknown) => (error as { code?: string }).code,
  );
const DENIED = '42501';

describe('the application', () => {
  test('may insert, change, delete and empty no table, whichever', async () => {
    const tables = await tablesOf();
    expect(tables.length).toBeGreaterThanOrEqual(20);
    for (const table of tables) {
      const [column] = await ledger.rows<{ name: string }>(
        `select attname as name from pg_attribute where attrelid = ('holdfast.' || $1)::regclass and attnum = 1`,
        table,
      );
      for (const sql of [
        `insert into holdfast.${table} default values`,
        `update holdfast.${table} set ${column!.name} = ${column!.name}`,
        `delete from holdfast.${table}`,
        `truncate holdfast.${table}`,
        `do $$ begin lock table holdfast.${table} in exclusive mode; end $$`,
      ]) {
        expect([sql, await asApp(sql)]).toStrictEqual([sql, DENIED]);
      }
    }
  });

  test('may read every table', async () => {
    for (const table of await tablesOf())
      expect(await asApp(`select 1 from holdfast.${table} limit 1`)).toBe('done');
  });

  test.each([
    'create table holdfast.mine (a integer)',
    'create function holdfast.mine() returns integer language sql as $$ select 1 $$',
    'alter table holdfast.receipts disable trigger all',
    'drop trigger append_only on holdfast.receipts',
    'drop table holdfast.receipts',
    'set session_replication_role = replica',
    'create schema mine',
    `alter function holdfast.guard_run() owner to holdfast_app`,
  ])('may not: %s', async (sql) => {
    expect(await asApp(sql)).toBe(DENIED);
  });

  test('may call the doors of the ledger, and nothing behind them', async () => {
    const rows = await ledger.rows<{ name: string; may: boolean; definer: boolean; path: string[] | null }>(
      `select proname as name, has_function_privilege('holdfast_app', oid, 'execute') as may, prosecdef as definer,
              proconfig as path from pg_proc where pronamespace = 'holdfast'::regnamespace`,
    );
    expect(
      rows
        .filter(({ may }) => may)
        .map(({ name }) => name)
        .toSorted(),
    ).toStrictEqual([
      'admit_run',
      'announce',
      'answer_input',
      'append_chunks',
      'approve_edited',
      'archive_thread',
      'ask_backfill',
      'ask_question',
      'begin_edit',
      'begin_query',
      'block_resume',
      'change_schedule',
      'claim_effect',
      'claim_model_call',
      'claim_resume',
      'clear_cooldown',
      'close_effect',
      'close_orphan',
      'commit_model_response',
      'commit_trail',
      'confirm_backfill',
      'confirm_schedule',
      'confirm_starts',
      'counted_approvals',
      'create_thread',
      'create_webhook_endpoint',
      'decide_approval',
      'decide_occurrence',
      'disable_webhook_endpoint',
      'escalate_overdue',
      'examine_effect',
      'fail_model_attempt',
      'finish_webhook',
      'forget_schedule_sync',
      'fork_run',
      'give_standing_grant',
      'grant_role',
      'grant_start',
      'intend_undo',
      'judge_job',
      'lease_webhooks',
      'list_checkpoints',
      'look',
      'mark_swept',
      'newest_checkpoint',
      'next_undo',
      'open_approval',
      'post_message',
      'queued_occurrences',
      'read_checkpoint',
      'record_query',
      'record_refusal',
      'record_watch',
      'register_agent',
      'release_tenant_waits',
      'replay_webhook',
      'resume_point',
      'revoke_role',
      'revoke_standing_grant',
      'runs_to_nudge',
      'runs_with_late_evidence',
      'set_active_run_limit',
      'set_tenant_budget',
      'settle_by_person',
      'settle_effect',
      'start_child',
      'start_queued',
      'submit_command',
      'sweep_candidates',
      'take_over',
      'test_webhook_endpoint',
      'trim_events',
      'unstarted_runs',
    ]);
    // Each door runs as the owner, so none may be led astray by a path of the caller's.
    for (const { name, may, definer, path } of rows) {
      expect([name, definer]).toStrictEqual([name, may]);
      if (may) expect([name, path]).toStrictEqual([name, ['search_path=holdfast, pg_temp']]);
    }
  });

  test('cannot move a run by calling what the doors are made of', async () => {
    const move = `select holdfast.move_run(r, 'run', 'completed', 'answer_final', 'me') from holdfast.runs r where run_id = '${runId}'`;
    expect(await asApp(move)).toBe(DENIED);
    expect(await asApp(`select holdfast.save_run(r) from holdfast.runs r`)).toBe(DENIED);
    expect((await ledger.runRow(runId)).state).toBe('running');
  });

  test('is no superuser, owns nothing and cannot log in', async () => {
    const [role] = await ledger.rows(
      `select rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolbypassrls,
              (select count(*)::int from pg_class where relowner = r.oid) as owns
         from pg_roles r where rolname = 'holdfast_app'`,
    );
    expect(role).toStrictEqual({
      ...{
        rolsuper: false,
        rolcreaterole: false,
        rolcreatedb: false,
        rolcanlogin: false,
        rolbypassrls: false,
      },
      owns: 0,
    });
  });

  test('is not reachable by other roles of the server: nothing of the schema is public', async () => {
    const rows = await ledger.rows<{ name: string }>(
      `select proname as name from pg_proc where pronamespace = 'holdfast'::regnamespace
          and has_function_privilege('public', oid, 'execute')`,
    );
    expect(rows).toStrictEqual([]);
  });
});

describe('the superuser', () => {
  const GROWING = [
    ...['transitions', 'run_events', 'messages', 'retries', 'receipts', 'late_receipts', 'status_queries'],
    ...['reconciliations', 'run_executions', 'api_requests', 'agent_versions', 'standing_grant_uses'],
    ...['job_acceptances', 'refusals', 'child_runs', 'forks', 'inherited_effects'],
    // Of undos, those that a person has decided.
    ...['settlement_words', 'escalations', 'undos'],
  ];

  test.each(GROWING)('changes, deletes and empties nothing of %s', async (table) => {
    const before = await ledger.rows(`select * from holdfast.${table} t order by t::text`);
    expect(before.length).toBeGreaterThan(0);
    const [column] = await ledger.rows<{ name: string }>(
      `select attname as name from pg_attribute where attrelid = ('holdfast.' || $1)::regclass and attnum = 1`,
      table,
    );
    for (const sql of [
      `update holdfast.${table} set ${column!.name} = ${column!.name}`,
      `delete from holdfast.${table}`,
      `truncate holdfast.${table} cascade`,
    ]) {
      await expect(ledger.rows(sql)).rejects.toThrow(/^append_only/);
    }
    expect(await ledger.rows(`select * from holdfast.${table} t order by t::text`)).toStrictEqual(before);
  });

  test('removes no run, no effect and no attempt that something stands on', async () => {
    for (const table of ['runs', 'effects', 'attempts', 'model_calls', 'jobs']) {
      await expect(ledger.rows(`delete from holdfast.${table}`)).rejects.toThrow(
        /foreign key|effect_settled/,
      );
    }
  });

  test('adds what is new, so that the guards stop only the rewriting', async () => {
    const { rows } = await ledger.owner.query(
      `insert into holdfast.agent_versions (agent, agent_version, manifest) values ($1, $2, '{}') returning agent`,
      [newId('req'), 'c'.repeat(64)],
    );
    expect(rows).toHaveLength(1);
  });
});
