import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { afterAll } from 'vitest';
import type { AgentManifest } from '../../shared/domain/agents.js';
import { RunContract } from '../../shared/domain/contract.js';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import { type Admission, admitRun, registerAgent } from '../../shared/ledger/admission.js';
import { createLedgerPool } from '../../shared/ledger/database.js';
import type { LedgerCall } from './ledger-call.js';
import { callOf, LedgerRun, type PlannedPart } from './ledger-run.js';
import { LedgerView } from './ledger-view.js';
import { createTestDatabase } from './servers.js';

/** An agent without tools: what a call is planned as is written into the ledger by the test. */
export const LEDGER_AGENT: AgentManifest = {
  name: 'ledger-agent',
  instructions: 'Do what is asked.',
  model: {
    ...{ name: 'desk', provider: 'scripted', model: 'desk.yaml', baseUrl: null, apiKeyEnv: null },
    ...{ maxOutputTokens: 1_024, timeoutSeconds: 60, short: false },
  },
  tools: [],
  limits: { stepsMax: 50, toolCallsMax: 200, wallClockSecondsMax: 3_600 },
};

export type ContractChanges = Readonly<Record<string, unknown>>;

/** A ledger of a test file's own, spoken to through the product's functions alone and read by plain statements. */
export class LedgerWorld extends LedgerView {
  readonly url: string;
  /** As the application: reads tables, calls functions. */
  readonly db: pg.Pool;
  /** As the superuser, who may do what the application never can. */
  readonly owner: pg.Pool;

  constructor(url: string, db: pg.Pool, owner: pg.Pool) {
    super(owner);
    this.url = url;
    this.db = db;
    this.owner = owner;
  }

  /** Changes rows as only somebody can who holds the whole server: past every trigger. */
  async tamper(
    work: (change: (sql: string, ...values: readonly unknown[]) => Promise<unknown>) => Promise<void>,
  ): Promise<void> {
    const client = await this.owner.connect();
    try {
      await client.query('begin');
      await client.query('set local session_replication_role = replica');
      await work((sql, ...values) => client.query(sql, [...values]));
      await client.query('commit');
      client.release();
    } catch (error) {
      client.release(true);
      throw error;
    }
  }

  /** Everything the ledger holds of a run but the time of its last save: what is refused must change nothing of it. */
  async footprint(runId: string): Promise<Record<string, unknown[]>> {
    const tables = ['effects', 'attempts', 'receipts', 'late_receipts', 'status_queries', 'reconciliations'];
    const trail = ['transitions', 'run_events', 'messages', 'retries', 'model_calls', 'model_attempts'];
    const rows = await Promise.all([
      this.rows(`select to_jsonb(r) - 'updated_at' as run from holdfast.runs r where run_id = $1`, runId),
      ...[...tables, ...trail].map((table) =>
        this.rows(`select * from holdfast.${table} t where run_id = $1 order by t::text`, runId),
      ),
    ]);
    return Object.fromEntries(['runs', ...tables, ...trail].map((table, index) => [table, rows[index]!]));
  }

  /** What `admitRun` takes, complete. */
  admission(changes: Partial<Admission> = {}, contract: ContractChanges = {}): Admission {
    return {
      tenantId: 'default',
      actorId: 'user:ada',
      endpoint: 'POST /v1/runs',
      idempotencyKey: randomUUID(),
      agent: LEDGER_AGENT.name,
      input: 'Refund order ORD-1',
      contract: RunContract.parse({
        objective: 'The customer has the money back.',
        acceptance: { rule: 'One refund of the right amount.', accepted_by: 'desk' },
        owner: 'desk',
        ...contract,
      }),
      taskQueue: 'nobody-listens',
      ...changes,
    };
  }

  /** Registers the usual agent under another name. */
  async registerAs(name: string): Promise<void> {
    await registerAgent(this.db, { ...LEDGER_AGENT, name });
  }

  /** An admitted run, spoken for by an execution that the ledger does not know yet. */
  async newRun(contract: ContractChanges = {}, changes: Partial<Admission> = {}): Promise<LedgerRun> {
    const admitted = await admitRun(this.db, this.admission(changes, contract));
    if (admitted.kind !== 'admitted') throw new Error(`not admitted: ${admitted.kind}`);
    return new LedgerRun(this, admitted.runId, `exec-${randomUUID()}`);
  }

  /** A running run whose first model answer planned these calls. */
  async newStep(calls: readonly PlannedPart[], contract: ContractChanges = {}): Promise<LedgerRun> {
    const run = await this.newRun(contract);
    await run.start();
    await run.plan(calls);
    return run;
  }

  /** A running run with one planned call of this class. */
  async newCall(effectClass: EffectClass, options: CallOptions = {}): Promise<LedgerCall> {
    const run = await this.newStep([callOf(effectClass, options.policy)], options.contract);
    return run.call(0);
  }
}

export interface CallOptions {
  /** Laid over the usual policy, member by member; `keyed` and `query` over their usual members. */
  readonly policy?: Readonly<Record<string, unknown>>;
  readonly contract?: ContractChanges;
}

/** A ledger with the test agent registered; its connections end with the test file. */
export async function openLedger(): Promise<LedgerWorld> {
  const { url, name } = await createTestDatabase();
  const db = createLedgerPool({
    ...{ databaseUrl: url, max: 20, applicationName: 'ledger-test', onIdleError: () => undefined },
  });
  const owner = new pg.Pool({ connectionString: url, max: 5 });
  owner.on('error', () => undefined);
  open.push(db, owner);
  // No test of the ledger's own functions stops Postgres, so none has to wait for its disk.
  await owner.query(`alter database ${name} set synchronous_commit = off`);
  await registerAgent(db, LEDGER_AGENT);
  return new LedgerWorld(url, db, owner);
}

const open: pg.Pool[] = [];

afterAll(async () => {
  for (const pool of open.splice(0)) await pool.end();
});
