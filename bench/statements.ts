import type pg from 'pg';

/** What was asked of the ledger's database, by name. Exact at any moment, unlike pg_stat_database's counters. */
export type StatementCounts = ReadonlyMap<string, StatementCost>;
export interface StatementCost {
  readonly calls: number;
  /** In the server, waits for the disk at commit not included. */
  readonly ms: number;
  readonly walBytes: number;
}

/** Statements of a model call's or an effect's own path: its claim, its receipt, its streamed pieces. */
const OF_STEPS = new Set([
  'claim_model_call',
  'commit_model_response',
  'fail_model_attempt',
  'append_chunks',
  'claim_effect',
  'settle_effect',
]);

export function isOfStep(name: string): boolean {
  return OF_STEPS.has(name);
}

/** Looking leaves a few bytes of WAL now and then, where it tidies a page up. */
export function wrote({ calls, walBytes }: StatementCost): boolean {
  return walBytes / calls > 100;
}

const NOTHING: StatementCost = { calls: 0, ms: 0, walBytes: 0 };

export async function statementCounts(admin: pg.Client): Promise<StatementCounts> {
  const { rows } = await admin.query<{ query: string; calls: string; ms: number; wal: string }>(`
    select s.query, s.calls, s.total_exec_time as ms, s.wal_bytes as wal
      from pg_stat_statements s join pg_database d on d.oid = s.dbid
     where d.datname = 'holdfast'`);
  const counts = new Map<string, StatementCost>();
  for (const { query, calls, ms, wal } of rows) {
    const name = nameOf(query);
    const known = counts.get(name) ?? NOTHING;
    counts.set(name, {
      calls: known.calls + Number(calls),
      ms: known.ms + ms,
      walBytes: known.walBytes + Number(wal),
    });
  }
  return counts;
}

/** The ledger's function or table that a statement is about. */
function nameOf(query: string): string {
  return /holdfast\.(\w+)/.exec(query)?.[1] ?? query.trim().split(/\s+/).slice(0, 3).join(' ').toLowerCase();
}

export function subtract(after: StatementCounts, before: StatementCounts): StatementCounts {
  return combine(after, before, -1);
}

/** `a + factor × b`, name by name; names without a call are left out. */
export function combine(a: StatementCounts, b: StatementCounts, factor: number): StatementCounts {
  const names = [...new Set([...a.keys(), ...b.keys()])];
  const rows = names.map((name): [string, StatementCost] => {
    const [one, other] = [a.get(name) ?? NOTHING, b.get(name) ?? NOTHING];
    return [
      name,
      {
        calls: one.calls + factor * other.calls,
        ms: one.ms + factor * other.ms,
        walBytes: one.walBytes + factor * other.walBytes,
      },
    ];
  });
  return new Map(rows.filter(([, cost]) => cost.calls !== 0));
}

/** All of them together; at least one must be given. */
export function sum(counts: readonly StatementCounts[]): StatementCounts {
  return counts.reduce((all, one) => combine(all, one, 1));
}
