import type { RunBudget } from '../domain/budgets.js';
import type { CheckpointFault, ForkDoubt, ForkMode, ForkPins } from '../domain/checkpoints.js';
import type { RunContract } from '../domain/contract.js';
import type { RequestFault } from '../domain/errors.js';
import type { JsonValue } from '../domain/json.js';
import type { Role } from '../domain/roles.js';
import { type AgentVersion, termsOf } from './admission.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';
import { refusalOf } from './refusals.js';

/** What is changed of the source's prompt, on purpose. */
export interface ForkEdits {
  /** New words for messages of the user or the model, by their place in the source's transcript. */
  readonly messages?: readonly { readonly step: number; readonly position: number; readonly text: string }[];
  /** Another result of one call. */
  readonly tool_result?: {
    readonly step: number;
    readonly slot: number;
    readonly text: string;
    readonly is_error: boolean;
  };
  /** A new message of the user, the last one. */
  readonly add_message?: string;
}

export interface NewFork {
  readonly tenantId: string;
  readonly sourceRunId: string;
  readonly checkpointId: string;
  readonly mode: ForkMode;
  readonly pins: ForkPins;
  /** `own`: the fork has a job of its own, with the objective of the source's. */
  readonly job: 'own' | 'same';
  readonly edits: ForkEdits;
  /** Laid over the contract's limits. */
  readonly limits: Partial<RunContract['limits']>;
  /** In place of the contract's budget; undefined keeps its limits, with nothing used. */
  readonly budget: RunBudget | undefined;
  readonly actorId: string;
  readonly authority: Role;
  readonly endpoint: string;
  readonly idempotencyKey: string;
  /** Temporal task queue of the workers that hold the agent. */
  readonly taskQueue: string;
}

export type Forked =
  | { readonly kind: 'forked' | 'replayed' | 'reused'; readonly runId: string }
  | { readonly kind: 'checkpoint_not_found' }
  /** The checkpoint does not validate, or what had left there is in doubt; nothing was written. */
  | {
      readonly kind: 'not_forkable';
      readonly reasons: readonly (CheckpointFault | ForkDoubt)[];
      /** Effects and child runs of the step at the checkpoint. */
      readonly in_doubt: readonly string[];
    }
  | { readonly kind: 'edit_invalid' | 'budget_unmet'; readonly fault: RequestFault }
  /** The job that the fork was to share is accepted or rejected. */
  | { readonly kind: 'job_decided'; readonly jobId: string };

// The contract as it was admitted: what a command changed of the source's limits is the source's.
const READ_SOURCE = {
  name: 'ledger/fork-source',
  text: `
    select r.contract,
           jsonb_build_object('agentVersion', v.agent_version, 'manifest', v.manifest) as keep,
           jsonb_build_object('agentVersion', c.agent_version, 'manifest', c.manifest) as current
      from holdfast.runs r join holdfast.agent_versions v using (agent, agent_version)
      join holdfast.agents a on a.agent = r.agent
      join holdfast.agent_versions c on c.agent = a.agent and c.agent_version = a.agent_version
     where r.run_id = $1 and r.tenant_id = $2`,
};

const FORK = {
  name: 'ledger/fork-run',
  text: 'select holdfast.fork_run($1, $2, $3, $4, $5, $6, $7) as answer',
};

/** How often a key can be found taken by a fork that then rolls back, before we call it a bug. */
const KEY_RACES_MAX = 5;

/**
 * Makes a run of a checkpoint of another (SPEC 4.2), in one transaction; a worker starts it like any run. The same key and
 * body answer with the same run for ever. Nothing of the source is changed.
 *
 * @returns null when this tenant has no such run
 */
export async function forkRun(db: Db, fork: NewFork): Promise<Forked | null> {
  const { checkpointId, mode, pins, job, edits, limits, budget } = fork;
  const { rows } = await db.query<
    { readonly contract: RunContract } & Readonly<Record<ForkPins, AgentVersion>>
  >({ ...READ_SOURCE, values: [fork.sourceRunId, fork.tenantId] });
  const source = rows[0];
  if (source === undefined) return null;
  const contract: RunContract = {
    ...source.contract,
    limits: { ...source.contract.limits, ...limits },
    ...(budget === undefined ? {} : { budget }),
  };
  const { fault, ...terms } = termsOf(contract, source[pins]);
  const values = [
    ...[fork.tenantId, fork.actorId, fork.authority, fork.endpoint, fork.idempotencyKey],
    digestOf({
      checkpointId,
      mode,
      pins,
      job,
      edits,
      limits,
      budget: budget ?? null,
    } as unknown as JsonValue),
    jsonb({
      ...{ run_id: newId('run'), source_run_id: fork.sourceRunId, checkpoint_id: checkpointId, mode, edits },
      ...{ job_id: job === 'own' ? newId('job') : null, pins_choice: pins, task_queue: fork.taskQueue },
      ...terms,
      budget_unmet: fault !== null,
    }),
  ];
  for (let race = 1; ; race += 1) {
    try {
      const answer = (await callFunction(db, FORK, values)) as unknown as ForkAnswer;
      switch (answer.kind) {
        case 'forked':
        case 'replayed':
        case 'reused':
          return { kind: answer.kind, runId: answer.run_id };
        case 'job_decided':
          return { kind: 'job_decided', jobId: answer.job_id };
        case 'budget_unmet':
          return {
            kind: 'budget_unmet',
            fault: fault ?? { at: 'body/budget', problem: 'cannot be counted' },
          };
        default:
          return answer;
      }
    } catch (error) {
      if (refusalOf(error) !== 'key_taken' || race >= KEY_RACES_MAX) throw error;
    }
  }
}

type ForkAnswer =
  | { readonly kind: 'forked' | 'replayed' | 'reused'; readonly run_id: string }
  | { readonly kind: 'job_decided'; readonly job_id: string }
  | { readonly kind: 'budget_unmet' }
  | Extract<Forked, { kind: 'checkpoint_not_found' | 'not_forkable' }>
  | { readonly kind: 'edit_invalid'; readonly fault: RequestFault };
