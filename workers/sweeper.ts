import { type Client, WorkflowNotFoundError } from '@temporalio/client';
import type { Pool } from 'pg';
import { NUDGE_SIGNAL } from '../shared/domain/protocol.js';
import type { TransitionReason } from '../shared/domain/run-machine.js';
import { runsToNudge } from '../shared/ledger/commands.js';
import { isLedgerUnavailable, sqlStateOf } from '../shared/ledger/refusals.js';
import {
  closeOrphan,
  escalateOverdue,
  markSwept,
  runsWithLateEvidence,
  sweepCandidates,
  type SweepCandidate,
  trimEvents,
} from '../shared/ledger/sweep.js';
import type { Logger } from '../shared/process/log.js';
import { TEMPORAL_CALL_MS } from './temporal-calls.js';

/** Runs that one round compares at most: the ones that were compared longest ago. */
const ROUND_MAX = 200;
/** Runs whose events one round lets go at most, so that none holds its rows for long. */
const TRIM_MAX = 20;
/** After this long without being taken up, a decision is told again. */
const NUDGE_AGAIN_SECONDS = 10;

export interface SweeperDeps {
  readonly db: Pool;
  readonly client: Client;
  /** A run that moved within this time is left alone, in seconds. */
  readonly quietSeconds: number;
  /** How long the events of an ended run are kept, in seconds; null keeps them for ever. */
  readonly keepEventsSeconds: number | null;
  readonly log: Logger;
}

type Standing = { readonly kind: 'open' } | { readonly kind: 'over'; readonly reason: TransitionReason };

/**
 * Compares Temporal with the ledger (SPEC 3.8). A run whose workflow was terminated, failed or vanished is brought to
 * rest truthfully, its open effects routed to reconciliation; a live one is left alone, however long it works.
 */
export function createSweeper({ db, client, quietSeconds, keepEventsSeconds, log }: SweeperDeps) {
  const standingOf = async ({ runId, ownerExecution }: SweepCandidate): Promise<Standing> => {
    if (ownerExecution === 'sweeper') return { kind: 'over', reason: 'person_settled' };
    try {
      // The newest execution of the id: one that continued as new or was reset is open although its owner is not.
      const { status } = await client.withDeadline(Date.now() + TEMPORAL_CALL_MS, () =>
        client.workflow.getHandle(runId).describe(),
      );
      switch (status.name) {
        case 'RUNNING':
        case 'PAUSED':
        case 'UNSPECIFIED':
        case 'UNKNOWN':
        case 'CONTINUED_AS_NEW':
          return { kind: 'open' };
        case 'TERMINATED':
          return { kind: 'over', reason: 'workflow_terminated' };
        case 'FAILED':
          return { kind: 'over', reason: 'workflow_failed' };
        case 'TIMED_OUT':
          return { kind: 'over', reason: 'workflow_timed_out' };
        case 'CANCELLED':
          return { kind: 'over', reason: 'workflow_cancelled' };
        case 'COMPLETED':
          return { kind: 'over', reason: 'workflow_completed_early' };
      }
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return { kind: 'over', reason: 'workflow_vanished' };
      throw error;
    }
  };

  const bringToRest = async (candidate: SweepCandidate): Promise<void> => {
    const standing = await standingOf(candidate);
    if (standing.kind === 'open') return;
    const state = await closeOrphan(db, candidate.runId, candidate.epoch, standing.reason);
    if (state === undefined) return;
    log.warn({ runId: candidate.runId, reason: standing.reason, state }, 'the workflow of a run is over');
  };

  return {
    async round(): Promise<void> {
      const candidates = await sweepCandidates(db, ROUND_MAX, quietSeconds);
      for (const candidate of candidates) {
        try {
          await bringToRest(candidate);
        } catch (error) {
          // What the ledger refuses for one run must not keep the others behind it from being looked at.
          if (sqlStateOf(error) === undefined || isLedgerUnavailable(error)) throw error;
          log.error({ err: error, runId: candidate.runId }, 'a run could not be brought to rest');
        }
      }
      if (candidates.length > 0) {
        await markSwept(
          db,
          candidates.map(({ runId }) => runId),
        );
      }
    },

    /** Tells runs that wait on an unknown effect that evidence has come. */
    async nudgeLateEvidence(): Promise<void> {
      for (const runId of await runsWithLateEvidence(db, ROUND_MAX)) await nudge(client, runId, log);
    },

    /** Tells whoever watches that an item of the desk is overdue. */
    async escalateOverdue(): Promise<void> {
      for (let told = 0; told < ROUND_MAX; told += 1) {
        const item = await escalateOverdue(db);
        if (item === undefined) return;
        log.warn(item, 'an item of the reconciliation desk is overdue');
      }
    },

    /** Lets go of the events of runs that ended long ago, where the operator wants that. */
    async trimEvents(): Promise<void> {
      if (keepEventsSeconds === null) return;
      const runs = await trimEvents(db, keepEventsSeconds, TRIM_MAX);
      if (runs > 0) log.info({ runs, keepEventsSeconds }, 'the events of ended runs were let go');
    },

    /** Tells runs again of what was decided for them and that they have not taken up: a message may be lost. */
    async nudgeUndecided(): Promise<void> {
      const waiting = await runsToNudge(db, ROUND_MAX, NUDGE_AGAIN_SECONDS);
      for (const runId of waiting) await nudge(client, runId, log);
    },
  };
}

/** Says to a run's workflow that the ledger holds something new; a workflow that is over needs no telling. */
export async function nudge(client: Client, runId: string, log: Logger): Promise<void> {
  try {
    await client.withDeadline(Date.now() + TEMPORAL_CALL_MS, () =>
      client.workflow.getHandle(runId).signal(NUDGE_SIGNAL),
    );
  } catch (error) {
    if (!(error instanceof WorkflowNotFoundError)) throw error;
    log.info({ runId }, 'no open workflow to nudge; the sweeper looks after the run');
  }
}
