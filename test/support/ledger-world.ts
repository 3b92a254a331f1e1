import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { afterAll } from 'vitest';
import type { AgentManifest } from '../../shared/domain/agents.js';
import { RunContract } from '../../shared/domain/contract.js';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { ModelResponse } from '../../shared/domain/models.js';
import type { Trail, TrailEntry } from '../../shared/domain/protocol.js';
import type { RunState } from '../../shared/domain/run-machine.js';
import { type Admission, admitRun, registerAgent } from '../../shared/ledger/admission.js';
import { createLedgerPool } from '../../shared/ledger/database.js';
import { sha256 } from '../../shared/ledger/digest.js';
import {
  claimModelCall,
  type ClaimedModelCall,
  commitModelResponse,
  type PlannedCallRow,
} from '../../shared/ledger/model-calls.js';
import { newId } from '../../shared/ledger/new-id.js';
import { commitTrail, type Speaker, takeOver } from '../../shared/ledger/trail.js';
import { LedgerCall } from './ledger-call.js';
import { LedgerView } from './ledger-view.js';
import { createTestDatabase } from './servers.js';

/** An agent without tools: what a call is planned as is written into the ledger by the test. */
export const LEDGER_AGENT: AgentManifest = {
  name: 'ledger-agent',
  instructions: 'Do what is asked.',
  model: {
    ...{ name: 'desk', provider: 'scripted', model: 'desk.yaml', baseUrl: null, apiKeyEnv: null },
    ...{ maxOutputTokens: 1_024, timeoutSeconds: 60 },
  },
  tools: [],
  limits: { stepsMax: 50, toolCallsMax: 100, wallClockSecondsMax: 3_600 },
};

/** What one answer of the model cost in every test of the ledger. */
export const USAGE = { inputTokens: 100, outputTokens: 20, cachedInputTokens: 0, reasoningTokens: 0 };

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

  /** An admitted run, spoken for by an execution that the ledger does not know yet. */
  async newRun(contract: ContractChanges = {}, changes: Partial<Admission> = {}): Promise<LedgerRun> {
    const admitted = await admitRun(this.db, this.admission(changes, contract));
    if (admitted.kind !== 'admitted') throw new Error(`not admitted: ${admitted.kind}`);
    return new LedgerRun(this, admitted.runId, `exec-${randomUUID()}`);
  }

  /** A running run whose first model answer planned these calls. */
  async newStep(
    calls: readonly Partial<PlannedCallRow>[],
    contract: ContractChanges = {},
  ): Promise<LedgerRun> {
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

/** One run as its workflow sees it: what it commits keeps its position by itself. */
export class LedgerRun implements Speaker {
  readonly world: LedgerWorld;
  readonly runId: string;
  readonly execution: string;
  step = 0;
  #trail = 0;

  constructor(world: LedgerWorld, runId: string, execution: string, trail = 0, step = 0) {
    this.world = world;
    this.runId = runId;
    this.execution = execution;
    this.#trail = trail;
    this.step = step;
  }

  get position(): number {
    return this.#trail;
  }

  /** The trail that rides along next; counted as committed at once. */
  trail(...entries: readonly TrailEntry[]): Trail {
    const from = this.#trail + 1;
    this.#trail += entries.length;
    return { from, entries };
  }

  async commit(...entries: readonly TrailEntry[]): Promise<void> {
    await commitTrail(this.world.db, this, this.trail(...entries));
  }

  async start(): Promise<void> {
    await this.commit({ kind: 'move', to: 'running', reason: 'run_started' });
  }

  /** Claims the next model call, or this one again under another attempt. */
  async claimThink(
    options: { readonly step?: number; readonly attemptId?: string; readonly knownStep?: number } = {},
  ): ReturnType<typeof claimModelCall> {
    return await claimModelCall(
      this.world.db,
      this,
      { turn: 1, step: options.step ?? this.step + 1 },
      {
        trail: this.trail(),
        attemptId: options.attemptId ?? newId('att'),
        worker: 'test:1',
        knownStep: options.knownStep ?? 0,
      },
    );
  }

  /** One whole model call that plans these calls; the run's step is then this one. */
  async plan(calls: readonly Partial<PlannedCallRow>[]): Promise<void> {
    const attemptId = newId('att');
    const claim = await this.claimThink({ attemptId });
    if (claim.kind !== 'claimed') throw new Error(`the model call was not claimed: ${claim.kind}`);
    this.step += 1;
    const answer = await this.answerThink(claim, attemptId, {
      calls,
      stopReason: calls.length > 0 ? 'tool_calls' : 'stop',
    });
    if (answer.kind !== 'answered') throw new Error(`the answer was not kept: ${answer.kind}`);
  }

  /** Commits an answer of the model at the current step, for an attempt that may have lost its right to. */
  async answerThink(
    claim: Pick<ClaimedModelCall, 'attempt'>,
    attemptId: string,
    options: {
      readonly calls?: readonly Partial<PlannedCallRow>[];
      readonly stopReason?: ModelResponse['stopReason'];
      readonly text?: string;
      readonly step?: number;
      readonly execution?: string;
      readonly complete?: boolean;
    } = {},
  ): ReturnType<typeof commitModelResponse> {
    const text = options.text ?? 'Done.';
    const plan = (options.calls ?? []).map((call, slot) => plannedCall(slot, call));
    return await commitModelResponse(
      this.world.db,
      { runId: this.runId, execution: options.execution ?? this.execution },
      { turn: 1, step: options.step ?? this.step },
      {
        attempt: claim.attempt,
        attemptId,
        response: {
          parts: [{ type: 'text', text }],
          stopReason: options.stopReason ?? 'stop',
          ...{ usage: USAGE, requestId: `req-${attemptId}`, modelId: 'scripted', warnings: [] },
        },
        plan,
        assistant: { parts: [{ type: 'text', text }] },
        refused: [],
        chunks: [],
        complete: options.complete ?? false,
      },
    );
  }

  /** The call of a slot of the current step. */
  call(slot: number, step = this.step): LedgerCall {
    return new LedgerCall(this, { turn: 1, step, slot });
  }

  /** The same run in the hands of another execution, which takes it over. */
  async takenOver(): Promise<LedgerRun> {
    const next = new LedgerRun(
      this.world,
      this.runId,
      `exec-${randomUUID()}`,
      (
        await this.world.rows<{ at: number }>(
          'select trail_position::int as at from holdfast.runs where run_id = $1',
          this.runId,
        )
      )[0]!.at,
      this.step,
    );
    const { epoch } = await this.world.runRow(this.runId);
    await takeOver(this.world.db, next, epoch, 'reset');
    return next;
  }
}

/** A planned call of the test tool of a class, with the usual policy of that class. */
export function callOf(
  effectClass: EffectClass,
  policy: Readonly<Record<string, unknown>> = {},
): Partial<PlannedCallRow> {
  const over = (usual: object, own: unknown): object | null =>
    own === null ? null : { ...usual, ...(own as object | undefined) };
  const { keyed, query, ...rest } = policy;
  return {
    toolName: `tool_${effectClass}`,
    effectClass,
    namespace: `tool_${effectClass}`,
    policy: {
      approval: 'not_required',
      timeoutSeconds: 30,
      keyed:
        effectClass === 'keyed'
          ? over(
              { windowSeconds: 3_600, resendsMax: 2, comparesBodies: false, keepsServerErrors: false },
              keyed,
            )
          : null,
      query:
        effectClass === 'queryable' || query !== undefined
          ? over({ settlingSeconds: 60, equalAnswers: 2, intervalSeconds: 1, queriesMax: 4 }, query)
          : null,
      compensation: null,
      ...rest,
    } as PlannedCallRow['policy'],
  };
}

function plannedCall(slot: number, call: Partial<PlannedCallRow>): PlannedCallRow {
  const text = call.arguments ?? `{"slot":${slot}}`;
  return {
    kind: 'planned',
    slot,
    callId: `call_${slot}`,
    toolName: 'tool_opaque',
    toolVersion: 'a'.repeat(64),
    effectClass: 'opaque',
    namespace: 'tool_opaque',
    parallel: false,
    argumentsSha256: sha256(text),
    policy: {},
    ...call,
    arguments: text,
  };
}

/** A ledger with the test agent registered; its connections end with the test file. */
export async function openLedger(): Promise<LedgerWorld> {
  const { url } = await createTestDatabase();
  const db = createLedgerPool({
    ...{ databaseUrl: url, max: 20, applicationName: 'ledger-test', onIdleError: () => undefined },
  });
  const owner = new pg.Pool({ connectionString: url, max: 5 });
  owner.on('error', () => undefined);
  open.push(db, owner);
  await registerAgent(db, LEDGER_AGENT);
  return new LedgerWorld(url, db, owner);
}

const open: pg.Pool[] = [];

afterAll(async () => {
  for (const pool of open.splice(0)) await pool.end();
});

/** The moves that bring a fresh run to each state, from `running` on. */
const WAY_TO: Readonly<Record<Exclude<RunState, 'admitted'>, readonly RunState[]>> = {
  running: [],
  waiting_for_input: ['waiting_for_input'],
  awaiting_approval: ['awaiting_approval'],
  retry_wait: ['retry_wait'],
  compensating: ['compensating'],
  cancelling: ['cancelling'],
  needs_reconciliation: ['needs_reconciliation'],
  reconciling: ['needs_reconciliation', 'reconciling'],
  completed: ['completed'],
  compensated: ['compensating', 'compensated'],
  failed: ['failed'],
  cancelled: ['cancelling', 'cancelled'],
};

/** Brings a run that is `admitted` or `running` to a state by lawful moves. */
export async function bringRunTo(run: LedgerRun, state: RunState): Promise<void> {
  if (state === 'admitted') return;
  const { state: from } = await run.world.runRow(run.runId);
  const way: readonly RunState[] = from === 'admitted' ? ['running', ...WAY_TO[state]] : WAY_TO[state];
  await run.commit(...way.map((to) => ({ kind: 'move', to, reason: 'internal_error' }) as const));
}
