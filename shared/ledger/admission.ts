import type { AgentManifest } from '../domain/agents.js';
import { budgetLines, type BudgetLimits } from '../domain/budgets.js';
import type { RunContract } from '../domain/contract.js';
import type { RequestFault } from '../domain/errors.js';
import type { JsonObject, JsonValue } from '../domain/json.js';
import { canonicalJson } from '../domain/strict-json.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';
import { refusalOf } from './refusals.js';

/** Versions of what a run pins besides its agent; raised when their meaning changes. */
export const PIN_VERSIONS = { workflow_version: 1, ledger_version: 1 } as const;

const CURRENT_AGENT = {
  name: 'ledger/current-agent',
  text: `
    select v.agent_version as "agentVersion", v.manifest
      from holdfast.agents a join holdfast.agent_versions v using (agent, agent_version)
     where a.agent = $1`,
};

const REGISTER_AGENT = {
  name: 'ledger/register-agent',
  text: 'select holdfast.register_agent($1, $2, $3)',
};

/** Makes an agent's manifest known under its digest and points new runs at it. @returns the digest */
export async function registerAgent(db: Db, manifest: AgentManifest): Promise<string> {
  const agentVersion = digestOf(manifest as unknown as JsonValue);
  await db.query({ ...REGISTER_AGENT, values: [manifest.name, agentVersion, jsonb(manifest)] });
  return agentVersion;
}

const READ_MANIFEST = {
  name: 'ledger/read-manifest',
  text: 'select manifest from holdfast.agent_versions where agent = $1 and agent_version = $2',
};

/** The immutable manifest of an agent version, or undefined when no worker ever registered it. */
export async function readManifest(
  db: Db,
  agent: string,
  agentVersion: string,
): Promise<AgentManifest | undefined> {
  const { rows } = await db.query<{ manifest: AgentManifest }>({
    ...READ_MANIFEST,
    values: [agent, agentVersion],
  });
  return rows[0]?.manifest;
}

export interface Admission {
  readonly tenantId: string;
  /** The initiating identity, canonical. */
  readonly actorId: string;
  /** Which route the key belongs to, for example `POST /v1/runs`; keys of different endpoints are independent. */
  readonly endpoint: string;
  readonly idempotencyKey: string;
  readonly agent: string;
  readonly input: JsonValue;
  readonly contract: RunContract;
  /** Temporal task queue of the workers that hold the agent. */
  readonly taskQueue: string;
  /** For a replay, in a ledger of its own: the id that the run had. A new one unless given. */
  readonly runId?: string;
}

export type Admitted =
  | { readonly kind: 'admitted' | 'replayed'; readonly runId: string }
  /** The key admitted `runId`, or posted that message, with another body. Nothing was written. */
  | { readonly kind: 'reused'; readonly runId: string }
  /** No worker has registered an agent of this name. Nothing was written. */
  | { readonly kind: 'agent_not_found' }
  /** The contract's budget limits what the agent does not have. Nothing was written. */
  | { readonly kind: 'budget_unmet'; readonly fault: RequestFault };

/** What a run is admitted with, wherever it is admitted. */
export type RunRequest = Pick<Admission, 'agent' | 'input' | 'contract' | 'taskQueue' | 'runId'>;

/** A run ready to be written: its ids and content, checked as far as they can be without the ledger's lock. */
export interface PreparedRun {
  /** What the ledger's functions take. */
  readonly run: JsonObject;
  /** Why its budget cannot be met; null where it can. */
  readonly fault: RequestFault | null;
}

/** Resolves the agent's pointer, fills the contract and mints the ids of a run. Writes nothing. */
export async function prepareRun(db: Db, request: RunRequest): Promise<PreparedRun> {
  const { agent, input, contract } = request;
  const { rows } = await db.query<AgentVersion>({
    ...CURRENT_AGENT,
    values: [agent],
  });
  // A replay is answered even when the agent is gone: the key decides before anything else.
  const { fault, ...terms } = termsOf(contract, rows[0]);
  const run = {
    run_id: request.runId ?? newId('run'),
    job_id: newId('job'),
    agent,
    ...terms,
    budget_unmet: fault !== null,
    input,
    input_text: typeof input === 'string' ? input : canonicalJson(input),
    task_queue: request.taskQueue,
  };
  return { run: run as unknown as JsonObject, fault };
}

const ADMIT = {
  name: 'ledger/admit-run',
  text: 'select holdfast.admit_run($1, $2, $3, $4, $5, $6) as answer',
};

/**
 * Admits a run: job, run, first transition, input and start key in one transaction. The row is the queue; a worker
 * starts the workflow (SPEC 3.8). The same key and body answer with the same run for ever.
 */
export async function admitRun(db: Db, admission: Admission): Promise<Admitted> {
  const { agent, input, contract } = admission;
  const requestSha256 = digestOf({ agent, input, contract: contract as unknown as JsonValue });
  const { run, fault } = await prepareRun(db, admission);
  const answer = await underOneKey(() =>
    callFunction(db, ADMIT, [
      admission.tenantId,
      admission.actorId,
      admission.endpoint,
      admission.idempotencyKey,
      requestSha256,
      jsonb(run),
    ]),
  );
  if (answer['kind'] === 'agent_not_found') return { kind: 'agent_not_found' };
  if (answer['kind'] === 'budget_unmet' && fault !== null) return { kind: 'budget_unmet', fault };
  return {
    kind: answer['kind'] as 'admitted' | 'replayed' | 'reused',
    runId: answer['run_id'] as string,
  };
}

/** How often a key can be found taken by a request that then rolls back, before we call it a bug. */
const KEY_RACES_MAX = 5;

/** Makes a call that claims a key; where another request took it meanwhile, the call comes again and finds what that made. */
export async function underOneKey<A>(call: () => Promise<A>): Promise<A> {
  for (let race = 1; ; race += 1) {
    try {
      return await call();
    } catch (error) {
      if (refusalOf(error) !== 'key_taken' || race >= KEY_RACES_MAX) throw error;
    }
  }
}

/** An agent version with its manifest. */
export interface AgentVersion {
  readonly agentVersion: string;
  readonly manifest: AgentManifest;
}

/** What a run is bound to under a version of its agent, in the words of the ledger's functions. */
export function termsOf(contract: RunContract, agent: AgentVersion | undefined) {
  const manifest = agent?.manifest;
  const filled = manifest === undefined ? contract : withAgentLimits(contract, manifest);
  return {
    agent_version: agent?.agentVersion ?? null,
    pins: {
      agent_version: agent?.agentVersion ?? null,
      model: manifest?.model.model ?? null,
      // What it may call and what it may ask, by name.
      tools: Object.fromEntries(
        [...(manifest?.tools ?? []), ...(manifest?.questions ?? [])].map(({ name, version }) => [
          name,
          version,
        ]),
      ),
      ...PIN_VERSIONS,
    },
    contract: filled,
    contract_sha256: digestOf(filled as unknown as JsonValue),
    budget_lines: budgetLines(budgetOf(filled)),
    /** A budget that this agent has nothing of. */
    fault: manifest === undefined ? null : budgetFault(contract, manifest),
  };
}

/** The contract with every number in force: the agent's limits where the request left one out, or asked for more. */
function withAgentLimits(contract: RunContract, { limits }: AgentManifest): RunContract {
  const asked = contract.limits;
  return {
    ...contract,
    limits: {
      steps_max: Math.min(asked.steps_max ?? limits.stepsMax, limits.stepsMax),
      tool_calls_max: Math.min(asked.tool_calls_max ?? limits.toolCallsMax, limits.toolCallsMax),
      wall_clock_seconds: Math.min(
        asked.wall_clock_seconds ?? limits.wallClockSecondsMax,
        limits.wallClockSecondsMax,
      ),
    },
  };
}

/** The limits of the contract's budget, without what reaching them is. */
function budgetOf({ budget: { on_reached: _, ...limits } }: RunContract): BudgetLimits {
  return limits;
}

/** A limit that would limit nothing is a mistake, and no safety: what is named must be there to be counted. */
function budgetFault({ budget }: RunContract, { model, tools }: AgentManifest): RequestFault | null {
  const stranger = budget.effects.findIndex(({ tool }) => !tools.some(({ name }) => name === tool));
  if (stranger >= 0) {
    return { at: `body/contract/budget/effects/${stranger}/tool`, problem: 'is no tool of the agent' };
  }
  if (budget.cost === undefined || budget.cost.currency === model.price?.currency) return null;
  const priced = model.price === undefined ? 'declares no price' : `is priced in ${model.price.currency}`;
  return { at: 'body/contract/budget/cost', problem: `cannot be counted: the model of the agent ${priced}` };
}

/** What a start needs; the same as the message that an admission sends on `holdfast_admitted`. */
export interface UnstartedRun {
  readonly run_id: string;
  readonly tenant_id: string;
  readonly agent: string;
  readonly job_id: string;
  readonly task_queue: string;
}

/**
 * Admitted runs whose start Temporal has not confirmed and no limit holds back: by priority, then the tenants in turn, then
 * by age.
 */
export async function unstartedRuns(db: Db, limit: number): Promise<UnstartedRun[]> {
  const { rows } = await db.query<UnstartedRun>({
    name: 'ledger/unstarted-runs',
    text: 'select run_id, tenant_id, agent, job_id, task_queue from holdfast.unstarted_runs($1)',
    values: [limit],
  });
  return rows;
}

/** What a start needs to know of a run whose start is owed still. */
export interface OwedStart {
  /** The run's pinned model is declared short. */
  readonly modelIsShort: boolean;
  /** 1 is served first, 5 last. */
  readonly priority: number;
}

/**
 * What the run's start needs, while it is owed and may be: of a run that began, ended or was confirmed it is not, whatever
 * Temporal knows, nor of one that a limit on active runs holds back, and the answer is undefined. Where a limit applies, the
 * answer is a grant, which counts from now on.
 */
export async function grantStart(db: Db, runId: string): Promise<OwedStart | undefined> {
  const { rows } = await db.query<OwedStart>({
    name: 'ledger/grant-start',
    text: `
      select coalesce((v.manifest #>> '{model,short}')::boolean, false) as "modelIsShort", r.priority
        from holdfast.runs r join holdfast.agent_versions v using (agent, agent_version)
       where r.run_id = $1 and r.state = 'admitted' and r.start_confirmed_at is null
         and holdfast.grant_start(r.run_id)`,
    values: [runId],
  });
  return rows[0];
}

/** Notes that Temporal has these runs, so that the starter stops asking. */
export async function confirmStarts(db: Db, runIds: readonly string[]): Promise<void> {
  await db.query({
    name: 'ledger/confirm-starts',
    text: 'select holdfast.confirm_starts($1)',
    values: [runIds],
  });
}
