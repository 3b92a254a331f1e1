import type { RunState, TransitionReason } from '../domain/run-machine.js';
import { callFunction, type Db } from './database.js';

export interface SweepCandidate {
  readonly runId: string;
  /** The execution that owns the run; null while nobody took it over. */
  readonly ownerExecution: string | null;
  readonly epoch: number;
  readonly state: RunState;
}

/** Open runs that were compared with Temporal longest ago and have been quiet for `quietSeconds`. Reads only. */
export async function sweepCandidates(
  db: Db,
  limit: number,
  quietSeconds: number,
): Promise<SweepCandidate[]> {
  const { rows } = await db.query<SweepCandidate>({
    name: 'ledger/sweep-candidates',
    text: `select run_id as "runId", owner_execution as "ownerExecution", epoch, state
             from holdfast.sweep_candidates($1, $2)`,
    values: [limit, quietSeconds],
  });
  return rows;
}

/** Notes that these runs were compared, so that the next sweep takes others first. */
export async function markSwept(db: Db, runIds: readonly string[]): Promise<void> {
  await db.query({ name: 'ledger/mark-swept', text: 'select holdfast.mark_swept($1)', values: [runIds] });
}

/** Open runs with late evidence on an effect that is still unknown. Reads only. */
export async function runsWithLateEvidence(db: Db, limit: number): Promise<string[]> {
  const { rows } = await db.query<{ run_id: string }>({
    name: 'ledger/runs-with-late-evidence',
    text: 'select run_id from holdfast.runs_with_late_evidence($1)',
    values: [limit],
  });
  return rows.map((row) => row.run_id);
}

const ESCALATE = { name: 'ledger/escalate-overdue', text: 'select holdfast.escalate_overdue() as answer' };

export interface Escalated {
  readonly runId: string;
  readonly effectId: string;
  readonly owner: string;
}

/**
 * Says of one item of the desk that its deadline has passed, in the feed of its run: once for each deadline, whoever
 * sweeps. It settles nothing.
 *
 * @returns undefined when there is none left to tell about
 */
export async function escalateOverdue(db: Db): Promise<Escalated | undefined> {
  const a = await callFunction(db, ESCALATE, []);
  if (a['kind'] !== 'escalated') return undefined;
  return { runId: a['run_id'] as string, effectId: a['effect_id'] as string, owner: a['owner'] as string };
}

const CLOSE_ORPHAN = {
  name: 'ledger/close-orphan',
  text: 'select holdfast.close_orphan($1, $2, $3) as answer',
};

/**
 * Takes a run from an execution that Temporal says is over and brings it to rest by lawful moves: to
 * `needs_reconciliation` when an effect is unresolved, else to its end.
 *
 * @returns the state it rests in, or undefined when the run ended or was taken over meanwhile: nothing was written
 */
export async function closeOrphan(
  db: Db,
  runId: string,
  expectedEpoch: number,
  reason: TransitionReason,
): Promise<RunState | undefined> {
  const answer = await callFunction(db, CLOSE_ORPHAN, [runId, expectedEpoch, reason]);
  return answer['kind'] === 'closed' ? (answer['state'] as RunState) : undefined;
}

/**
 * Lets go of the events of at most `limit` runs that ended longer than `keepSeconds` ago. What they did stays.
 *
 * @returns of how many runs
 */
export async function trimEvents(db: Db, keepSeconds: number, limit: number): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    name: 'ledger/trim-events',
    text: 'select holdfast.trim_events($1, $2) as count',
    values: [keepSeconds, limit],
  });
  return rows[0]?.count ?? 0;
}
