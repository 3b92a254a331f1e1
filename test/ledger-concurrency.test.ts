import pg from 'pg';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { claimEffect } from '../shared/ledger/effects.js';
import { appendChunks } from '../shared/ledger/model-calls.js';
import { newId } from '../shared/ledger/new-id.js';
import { isLedgerUnavailable, sqlStateOf } from '../shared/ledger/refusals.js';
import { commitTrail } from '../shared/ledger/trail.js';
import { verifyTransitions } from '../shared/ledger/verify-transitions.js';
import { callOf, type LedgerRun } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';
import { until } from './support/until.js';

// Goal: whoever writes beside whom, each run's transitions and events are numbered without a hole, in the order in which
// they became visible, and a conflict costs a repetition of the transaction and nothing else (FAULTS C07, C12, C17).

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const clients: pg.Client[] = [];
afterEach(async () => {
  for (const client of clients.splice(0)) await client.end();
});

/** A connection of its own, as the application, with these settings. */
async function connect(settings: Readonly<Record<string, string>> = {}): Promise<pg.Client> {
  const flags = Object.entries({ ...settings, role: settings['role'] ?? 'holdfast_app' }).map(
    ([name, value]) => `-c ${name}=${value}`,
  );
  const client = new pg.Client({ connectionString: ledger.url, options: flags.join(' ') });
  client.on('error', () => undefined);
  await client.connect();
  clients.push(client);
  return client;
}

const upTo = (last: number): number[] => Array.from({ length: last }, (_, index) => index + 1);
const seqsOf = async (run: LedgerRun): Promise<number[]> =>
  (await ledger.events(run.runId)).map(({ seq }) => seq);

describe('twenty writers of one run', () => {
  test('leave every number once, and a reader never sees a hole, at any moment', async () => {
    const run = await ledger.newStep(Array.from({ length: 16 }, () => callOf('keyed')));
    const claim = await run.claimThink();
    if (claim.kind !== 'claimed') throw new Error(claim.kind);
    let isOver = false;
    const seen: number[] = [];
    const reader = (async () => {
      while (!isOver) {
        const { rows } = await ledger.db.query<{ seq: string }>(
          'select seq from holdfast.run_events where run_id = $1 and seq > $2 order by seq',
          [run.runId, seen.at(-1) ?? 0],
        );
        seen.push(...rows.map(({ seq }) => Number(seq)));
        if (seen.at(-1) !== undefined) expect(seen).toStrictEqual(upTo(seen.at(-1)!));
      }
    })();
    const chunks = [{ type: 'text', text: 'piece' }] as const;
    await Promise.all([
      ...upTo(16).map(async (slot) => {
        const call = run.call(slot - 1);
        for (const outcome of ['not_sent', 'unknown', 'succeeded'] as const) await call.attempt(outcome);
      }),
      ...upTo(4).map(async () => {
        for (let time = 0; time < 5; time += 1) {
          await appendChunks(ledger.db, run, { turn: 1, step: 2 }, claim.attempt, chunks);
        }
      }),
    ]);
    isOver = true;
    await reader;
    const seqs = await seqsOf(run);
    expect(seqs).toStrictEqual(upTo(seqs.length));
    expect(seqs.length).toBe(
      Number(
        (
          await ledger.rows<{ n: string }>(
            'select event_seq as n from holdfast.runs where run_id = $1',
            run.runId,
          )
        )[0]!.n,
      ),
    );
    expect((await ledger.receipts(run.runId)).length).toBe(16);
  });

  test('that all want to move it: one does, its transitions stay a chain', async () => {
    const run = await ledger.newRun();
    await run.start();
    const entries = [
      { kind: 'move', to: 'retry_wait', reason: 'limit_stop' },
      { kind: 'move', to: 'running', reason: 'retry_due' },
    ] as const;
    for (let from = 2; from < 20; from += 2) {
      await Promise.all(upTo(20).map(() => commitTrail(ledger.db, run, { from, entries })));
    }
    expect((await ledger.transitions(run.runId)).map(({ seq }) => seq)).toStrictEqual(upTo(20));
    expect(await verifyTransitions(ledger.db, { runId: run.runId })).toMatchObject({
      transitions: 20,
      broken: [],
    });
  });
});

describe('a writer that commits late', () => {
  const warn = (db: pg.Client, run: LedgerRun, from: number) =>
    commitTrail(db, run, { from, entries: [{ kind: 'warning', code: `w${from}` }] });

  test('is waited for: no later number is visible before its own (C17)', async () => {
    const run = await ledger.newStep([callOf('keyed')]);
    const claim = await run.call(0).claimed();
    const slow = await connect();
    await slow.query('begin');
    await warn(slow, run, run.position + 1);
    const before = await seqsOf(run);
    const settled = run.call(0).settle(claim, 'succeeded');
    await until(
      'the second writer waits for the first',
      async () => {
        const [found] = await ledger.rows<{ n: number }>(
          `select count(*)::int as n from pg_stat_activity where datname = current_database()
            and wait_event_type = 'Lock' and query like '%settle_effect%'`,
        );
        return found!.n > 0;
      },
      20_000,
    );
    expect(await seqsOf(run)).toStrictEqual(before);
    await slow.query('commit');
    await settled;
    const types = (await ledger.events(run.runId)).slice(-2).map(({ type }) => type);
    expect(types).toStrictEqual(['run.warning', 'effect.settled']);
    const seqs = await seqsOf(run);
    expect(seqs).toStrictEqual(upTo(seqs.length));
  });

  test('and then rolls back leaves its number to the next', async () => {
    const run = await ledger.newRun();
    await run.start();
    const slow = await connect();
    await slow.query('begin');
    await warn(slow, run, 2);
    const next = run.commit({ kind: 'warning', code: 'second' });
    await slow.query('rollback');
    await next;
    const seqs = await seqsOf(run);
    expect(seqs).toStrictEqual(upTo(seqs.length));
    expect((await ledger.events(run.runId)).at(-1)).toMatchObject({ data: { code: 'second' } });
  });
});

describe('a conflict', () => {
  const claimBy = (db: pg.Client, run: LedgerRun, attemptId: string) =>
    claimEffect(
      db,
      run,
      { turn: 1, step: 1, slot: 0 },
      {
        ...{
          trail: { from: run.position + 1, entries: [] },
          redo: 0,
          attemptId,
          worker: 'w',
          leaseMarginMs: 0,
        },
      },
    );

  /** Repeats the transaction, and that alone, while the ledger says that it may do later. @returns with the conflicts met */
  async function untilAnswered<A>(call: () => Promise<A>): Promise<{ answer: A; met: string[] }> {
    const met: string[] = [];
    for (;;) {
      try {
        return { answer: await call(), met };
      } catch (error) {
        expect([sqlStateOf(error), isLedgerUnavailable(error)]).toStrictEqual([sqlStateOf(error), true]);
        met.push(sqlStateOf(error) ?? '');
      }
    }
  }

  test('of serializable transactions is told as passing, and the repetition claims once', async () => {
    const settings = { default_transaction_isolation: 'serializable' };
    const writers = await Promise.all(upTo(6).map(() => connect(settings)));
    const run = await ledger.newStep([callOf('opaque')]);
    const answers = await Promise.all(
      writers.map((writer) => {
        const attemptId = newId('att');
        return untilAnswered(() => claimBy(writer, run, attemptId));
      }),
    );
    expect(answers.filter(({ answer }) => answer.kind === 'claimed')).toHaveLength(1);
    expect(new Set(answers.flatMap(({ met }) => met))).toStrictEqual(new Set(['40001']));
    expect(await ledger.attempts(run.runId)).toHaveLength(1);
  });

  test('of crossed locks ends one of the two, and the repetition claims once', async () => {
    const run = await ledger.newStep([callOf('opaque')]);
    await run.call(0).attempt('not_sent');
    const crossing = await connect({ role: 'none' });
    await crossing.query('begin');
    await crossing.query('select from holdfast.effects where run_id = $1 for update', [run.runId]);
    const writer = await connect({ deadlock_timeout: '50ms' });
    const attemptId = newId('att');
    const claim = untilAnswered(() => claimBy(writer, run, attemptId));
    await until(
      'the claim holds the run and waits for the effect',
      async () => {
        const [found] = await ledger.rows<{ n: number }>(
          `select count(*)::int as n from pg_stat_activity where datname = current_database()
            and wait_event_type = 'Lock' and query like '%claim_effect%'`,
        );
        return found!.n > 0;
      },
      20_000,
    );
    // Closes the circle; whichever Postgres ends, the claim is made once.
    await crossing
      .query('select from holdfast.runs where run_id = $1 for update', [run.runId])
      .catch(() => undefined);
    await crossing.query('rollback');
    const { answer, met } = await claim;
    expect(answer.kind).toBe('claimed');
    for (const state of met) expect(state).toBe('40P01');
    expect(await ledger.attempts(run.runId)).toHaveLength(2);
  });

  test('with somebody who holds the row is told as passing after the lock time-out, and nothing is written', async () => {
    const run = await ledger.newStep([callOf('opaque')]);
    const holder = await connect({ role: 'none' });
    await holder.query('begin');
    await holder.query('select from holdfast.runs where run_id = $1 for update', [run.runId]);
    const writer = await connect({ lock_timeout: '50ms' });
    const attemptId = newId('att');
    const error = await claimBy(writer, run, attemptId).catch((reason: unknown) => reason);
    expect([sqlStateOf(error), isLedgerUnavailable(error)]).toStrictEqual(['55P03', true]);
    await holder.query('rollback');
    expect(await ledger.effects(run.runId)).toStrictEqual([]);
    expect((await claimBy(writer, run, attemptId)).kind).toBe('claimed');
  });
});
