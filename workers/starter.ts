import type { Client, WorkflowStartOptions } from '@temporalio/client';
import { WorkflowExecutionAlreadyStartedError } from '@temporalio/client';
import { defineSearchAttributeKey, TypedSearchAttributes } from '@temporalio/common';
import type { Pool } from 'pg';
import { z } from 'zod';
import {
  RUN_INPUT_VERSION,
  type RunInput,
  SEARCH_ATTRIBUTES,
  WORKFLOW_TYPE,
} from '../shared/domain/protocol.js';
import {
  confirmStarts,
  grantStart,
  type OwedStart,
  type UnstartedRun,
  unstartedRuns,
} from '../shared/ledger/admission.js';
import { digestOf } from '../shared/ledger/digest.js';
import type { Logger } from '../shared/process/log.js';
import { isRefusedByTemporal, TEMPORAL_CALL_MS } from './temporal-calls.js';

/** The message of an admission on the channel `holdfast_admitted`. */
export const ADMITTED_CHANNEL = 'holdfast_admitted';

const AdmittedMessage = z.object({
  run_id: z.string(),
  tenant_id: z.string(),
  agent: z.string(),
  job_id: z.string(),
  task_queue: z.string(),
});

/** Runs that one round asks for at a time. */
const ROUND_MAX = 100;

export interface StarterDeps {
  readonly db: Pool;
  readonly client: Client;
  readonly settings: RunInput['settings'];
  readonly log: Logger;
}

const KEYWORD = 'KEYWORD';
const attributeOf = (name: string) => defineSearchAttributeKey(name, KEYWORD);

/**
 * Starts the workflows of admitted runs, each exactly once (SPEC 3.8): the row is the queue, the workflow id is the
 * run id, and an id that Temporal knows already is a start that came through.
 */
export function createStarter({ db, client, settings, log }: StarterDeps) {
  const start = async (run: UnstartedRun, { modelIsShort, priority }: OwedStart): Promise<void> => {
    const input: RunInput = {
      version: RUN_INPUT_VERSION,
      runId: run.run_id,
      continued: 0,
      modelIsShort,
      settings,
    };
    try {
      const options: WorkflowStartOptions = {
        workflowId: run.run_id,
        taskQueue: run.task_queue,
        args: [input],
        // A closed run's id never starts again, whatever the default policy says.
        workflowIdReusePolicy: 'REJECT_DUPLICATE',
        typedSearchAttributes: new TypedSearchAttributes([
          // What the workflow decides first: to correct it at once would be one more write of Temporal's index a run.
          { key: attributeOf(SEARCH_ATTRIBUTES.state), value: 'running' },
          { key: attributeOf(SEARCH_ATTRIBUTES.tenant), value: run.tenant_id },
          { key: attributeOf(SEARCH_ATTRIBUTES.agent), value: run.agent },
          { key: attributeOf(SEARCH_ATTRIBUTES.job), value: run.job_id },
        ]),
        staticSummary: `agent ${run.agent}`,
        // Temporal hands out the tasks of many tenants in turn, and the urgent ones first (where its fairness is on).
        priority: { priorityKey: priority, fairnessKey: fairnessKeyOf(run.tenant_id) },
      };
      await client.withDeadline(Date.now() + TEMPORAL_CALL_MS, () =>
        client.workflow.start(WORKFLOW_TYPE, options),
      );
    } catch (error) {
      if (error instanceof WorkflowExecutionAlreadyStartedError) return;
      throw error;
    }
  };

  // The ledger decides, right before the call: an id that Temporal has forgotten would start a second time.
  const startIfOwed = async (run: UnstartedRun): Promise<boolean> => {
    const owed = await grantStart(db, run.run_id);
    if (owed === undefined) return false;
    await start(run, owed);
    return true;
  };
  return {
    /** Starts the run that a notification names: the quick way. What fails here is found by the next round. */
    async startNotified(payload: string): Promise<void> {
      const parsed = AdmittedMessage.safeParse(JSON.parse(payload));
      if (!parsed.success) {
        log.warn(
          { payload: payload.slice(0, 200) },
          'unreadable admission message; the next round finds the run',
        );
        return;
      }
      await startIfOwed(parsed.data);
    },

    /**
     * Starts what nobody has started yet: admissions made while Temporal or every worker was away, or whose
     * notification was lost. Confirms them all, so that a waiting run is asked for once and not every round. A run
     * whose start Temporal refuses holds up no other; it is tried again in the next round.
     */
    async round(): Promise<void> {
      const passed = new Set<string>();
      for (;;) {
        const listed = await unstartedRuns(db, ROUND_MAX + passed.size);
        const runs = listed.filter(({ run_id }) => !passed.has(run_id));
        const started: string[] = [];
        try {
          for (const run of runs) {
            try {
              if (await startIfOwed(run)) started.push(run.run_id);
              // Another starter was quicker, or took the last place under a limit.
              else passed.add(run.run_id);
            } catch (error) {
              if (!isRefusedByTemporal(error)) throw error;
              passed.add(run.run_id);
              log.error({ err: error, runId: run.run_id }, 'Temporal refuses to start this run');
            }
          }
        } finally {
          if (started.length > 0) await confirmStarts(db, started);
        }
        if (runs.length < ROUND_MAX) return;
      }
    },
  };
}

/** Temporal's limit on a fairness key, in bytes. */
const FAIRNESS_KEY_MAX = 64;

/** The tenant, or the digest of a name that is too long for Temporal. */
function fairnessKeyOf(tenantId: string): string {
  return Buffer.byteLength(tenantId) <= FAIRNESS_KEY_MAX ? tenantId : digestOf(tenantId);
}
