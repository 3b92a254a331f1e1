import { beforeAll, describe, expect, test } from 'vitest';
import { CONTROL_STATES, RUN_STATES, type RunState } from '../shared/domain/run-machine.js';
import { type TransitionRecord, transitionDigest } from '../shared/ledger/transition-digest.js';
import { type ChainProblem, verifyTransitions } from '../shared/ledger/verify-transitions.js';
import { bringRunTo, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: who changes, removes or adds a row of a run's history, by whatever power, is found, and the first row that does
// not hold is named.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

/** A run with eight transitions in both regions: 1 admitted, 2 running, 3 retry_wait, 4 running, 5 to 8 control. */
async function longRun(): Promise<LedgerRun> {
  const run = await ledger.newRun({}, { actorId: 'user:a|b' });
  const moves = (['running', 'retry_wait', 'running'] as const).map(
    (to) => ({ kind: 'move', to, reason: 'retry_due' }) as const,
  );
  const controls = (['pause_requested', 'pausing', 'paused', 'resume_requested'] as const).map(
    (to) => ({ kind: 'control', to, reason: 'cancel_requested' }) as const,
  );
  await run.commit(...moves, ...controls);
  return run;
}

const verdictOf = (run: LedgerRun) => verifyTransitions(ledger.db, { runId: run.runId });

describe('a chain that nobody touched', () => {
  test.each(RUN_STATES)('of a run that is %s holds', async (state) => {
    const run = await ledger.newRun();
    await bringRunTo(run, state);
    expect((await verdictOf(run)).broken).toStrictEqual([]);
  });

  test('holds through every control state, takeovers and an actor with the separator in its name', async () => {
    const run = await longRun();
    const next = await run.takenOver();
    await next.commit(
      ...(['claiming', 'active', 'cancel_requested'] as const).map(
        (to) => ({ kind: 'control', to, reason: 'cancel_requested' }) as const,
      ),
    );
    expect(await verdictOf(run)).toStrictEqual({ runs: 1, transitions: 11, broken: [] });
    expect(CONTROL_STATES).toHaveLength(7);
  });

  test('of more runs than one page holds, each counted once', async () => {
    const fresh = await openLedger();
    await Promise.all(Array.from({ length: 120 }, () => fresh.newRun()));
    expect(await verifyTransitions(fresh.db)).toStrictEqual({ runs: 120, transitions: 120, broken: [] });
  });

  test('of a run that does not exist is no chain at all', async () => {
    expect(await verifyTransitions(ledger.db, { runId: `run_${'0'.repeat(32)}` })).toStrictEqual({
      ...{ runs: 0, transitions: 0, broken: [] },
    });
  });
});

describe('the digest', () => {
  test('is the same in Postgres and here, for every field', async () => {
    const run = await longRun();
    const rows = await ledger.rows<TransitionRecord & { sql: string }>(
      `select seq, region, from_state as "from", to_state as "to", reason, actor_id as "actorId", epoch,
              prev_digest as "prevDigest", digest,
              to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at,
              holdfast.transition_digest(prev_digest, run_id, seq, region, from_state, to_state, reason, actor_id, epoch, created_at) as sql
         from holdfast.transitions where run_id = $1 order by seq`,
      run.runId,
    );
    for (const row of rows) {
      expect([transitionDigest(run.runId, row), row.sql]).toStrictEqual([row.digest, row.digest]);
      const changes: Partial<TransitionRecord>[] = [
        { seq: 9 },
        { region: 'control' },
        { from: 'failed' },
        { to: 'failed' },
        { reason: 'other' },
        { actorId: 'user:eve' },
        { epoch: 9 },
        { at: '2026-01-01T00:00:00.000000Z' },
        { prevDigest: 'f'.repeat(64) },
      ].filter((change) =>
        Object.entries(change).every(([name, value]) => row[name as keyof TransitionRecord] !== value),
      ) as Partial<TransitionRecord>[];
      for (const change of changes)
        expect(transitionDigest(run.runId, { ...row, ...change })).not.toBe(row.digest);
      expect(transitionDigest(`run_${'0'.repeat(32)}`, row)).not.toBe(row.digest);
    }
  });
});

describe('a chain that somebody touched', () => {
  const WHERE = 'where run_id = $1 and seq =';
  // prettier-ignore
  test.each<[what: string, sql: string, seq: number, problem: ChainProblem]>([
    ['the actor of a row',       `update holdfast.transitions set actor_id = 'user:eve' ${WHERE} 3`,         3, 'content_changed'],
    ['the actor of the first',   `update holdfast.transitions set actor_id = 'user:eve' ${WHERE} 1`,         1, 'content_changed'],
    ['the actor of the last',    `update holdfast.transitions set actor_id = 'user:eve' ${WHERE} 8`,         8, 'content_changed'],
    ['the reason of a row',      `update holdfast.transitions set reason = 'limit_stop' ${WHERE} 4`,         4, 'content_changed'],
    ['the time, by a microsecond', `update holdfast.transitions set created_at = created_at + interval '1 microsecond' ${WHERE} 5`, 5, 'content_changed'],
    ['the epoch of a row',       `update holdfast.transitions set epoch = 7 ${WHERE} 2`,                     2, 'content_changed'],
    ['where a row leads',        `update holdfast.transitions set to_state = 'cancelling' ${WHERE} 3`,       3, 'content_changed'],
    ['where a row starts',       `update holdfast.transitions set from_state = 'admitted' ${WHERE} 3`,       3, 'content_changed'],
    ['the tenant of a row',      `update holdfast.transitions set tenant_id = 'other' ${WHERE} 6`,           6, 'other_tenant'],
    ['the link of a row',        `update holdfast.transitions set prev_digest = repeat('e', 64) ${WHERE} 6`, 6, 'broken_link'],
    ['the digest of a row',      `update holdfast.transitions set digest = repeat('e', 64) ${WHERE} 6`,      6, 'content_changed'],
    ['a row away',               `delete from holdfast.transitions ${WHERE} 5`,                              5, 'gap'],
    ['the first row away',       `delete from holdfast.transitions ${WHERE} 1`,                              1, 'gap'],
    ['the last row away',        `delete from holdfast.transitions ${WHERE} 8`,                              8, 'run_differs'],
    ['all rows away',            `delete from holdfast.transitions where run_id = $1`,                       1, 'run_differs'],
    ['the state of the run',     `update holdfast.runs set state = 'retry_wait' where run_id = $1`,          9, 'run_differs'],
    ['the control of the run',   `update holdfast.runs set control = 'active' where run_id = $1`,            9, 'run_differs'],
    ['the version of the run',   `update holdfast.runs set state_version = 99 where run_id = $1`,            9, 'run_differs'],
  ])('%s: the run and row are named', async (_, sql, seq, problem) => {
    const run = await longRun();
    const other = await longRun();
    await ledger.tamper(async (change) => void (await change(sql, run.runId)));
    expect((await verdictOf(run)).broken).toStrictEqual([{ runId: run.runId, seq, problem }]);
    expect((await verdictOf(other)).broken).toStrictEqual([]);
    expect((await verifyTransitions(ledger.db)).broken).toContainEqual({ runId: run.runId, seq, problem });
  });

  /** Writes a row whose digest is right, as a forger who knows the rule would, and moves the run's row along. */
  async function forge(run: LedgerRun, row: { from: RunState; to: RunState; epoch: number }): Promise<void> {
    await ledger.tamper(async (change) => {
      await change(
        `insert into holdfast.transitions select run_id, 9, tenant_id, 'run', $2, $3, reason, actor_id, $4, created_at, digest,
           holdfast.transition_digest(digest, run_id, 9, 'run', $2, $3, reason, actor_id, $4, created_at)
           from holdfast.transitions where run_id = $1 and seq = 8`,
        ...[run.runId, row.from, row.to, row.epoch],
      );
      await change(
        `update holdfast.runs set state = 'running', state_version = 9,
                last_digest = (select digest from holdfast.transitions t where t.run_id = $1 and seq = 9) where run_id = $1`,
        run.runId,
      );
    });
  }

  test.each([
    ['starts elsewhere', { from: 'retry_wait', to: 'running', epoch: 1 }, 'wrong_start'],
    ['leads where nothing leads', { from: 'running', to: 'compensated', epoch: 1 }, 'illegal_move'],
    ['is of an epoch that is over', { from: 'running', to: 'retry_wait', epoch: 0 }, 'epoch_fell'],
    ['is not where the run stands', { from: 'running', to: 'retry_wait', epoch: 1 }, 'run_differs'],
  ] as const)('by a row with a right digest that %s: it is named', async (_, row, problem) => {
    const run = await longRun();
    await forge(run, row);
    const seq = problem === 'run_differs' ? 10 : 9;
    expect((await verdictOf(run)).broken).toStrictEqual([{ runId: run.runId, seq, problem }]);
  });
});
