import { type ResumePoint, type Trail } from '../domain/protocol.js';
import type { ControlState, RunState } from '../domain/run-machine.js';
import { callFunction, type Db, jsonb } from './database.js';

/** Who commits: the run and the Temporal execution that speaks for it. */
export interface Speaker {
  readonly runId: string;
  /** Temporal's run id of the workflow execution, from the activity's own context. */
  readonly execution: string;
}

const COMMIT_TRAIL = {
  name: 'ledger/commit-trail',
  text: 'select holdfast.commit_trail($1, $2, $3, $4) as answer',
};

/**
 * Makes the workflow's past durable. Safe to repeat: entries that are durable already are skipped by position.
 *
 * @throws a refusal (`refusalOf`): `run_ended`, `unknown_execution`, `lost_ownership`, `out_of_step`, `illegal_move`
 */
export async function commitTrail(
  db: Db,
  { runId, execution }: Speaker,
  trail: Trail,
): Promise<{ state: RunState }> {
  const answer = await callFunction(db, COMMIT_TRAIL, [runId, execution, trail.from, jsonb(trail.entries)]);
  return { state: answer['state'] as RunState };
}

const RESUME_POINT = {
  name: 'ledger/resume-point',
  text: 'select holdfast.resume_point($1, $2) as answer',
};

export interface LedgerResumePoint extends ResumePoint {
  readonly epoch: number;
  readonly owner: string | null;
  /** Whether the asking execution ever owned the run. */
  readonly known: boolean;
}

/** Where the ledger stands with a run, for a workflow that is out of step with it. Reads only. */
export async function readResumePoint(db: Db, { runId, execution }: Speaker): Promise<LedgerResumePoint> {
  const a = await callFunction(db, RESUME_POINT, [runId, execution]);
  return {
    kind: 'resume',
    state: a['state'] as RunState,
    control: a['control'] as ControlState,
    turn: a['turn'] as number,
    step: a['step'] as number,
    trailPosition: a['trail_position'] as number,
    unknown: a['unknown'] as ResumePoint['unknown'],
    retryMsLeft: a['retry_ms_left'] as number,
    undoes: a['undoes'] as boolean,
    epoch: a['epoch'] as number,
    owner: a['owner'] as string | null,
    known: a['known'] as boolean,
  };
}

const TAKE_OVER = {
  name: 'ledger/take-over',
  text: 'select holdfast.take_over($1, $2, $3, $4) as answer',
};

/**
 * Makes `execution` the owner under the next epoch. Only for an execution that Temporal says is the run's open one.
 * Effects in flight become unknown: their attempts can no longer settle them.
 *
 * @throws a refusal: `run_ended`, `lost_ownership` (it owned the run before), `lost_takeover` (another came first)
 */
export async function takeOver(
  db: Db,
  { runId, execution }: Speaker,
  expectedEpoch: number,
  reason: 'continued' | 'reset',
): Promise<void> {
  await callFunction(db, TAKE_OVER, [runId, execution, expectedEpoch, reason]);
}
