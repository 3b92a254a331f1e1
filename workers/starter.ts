import type { Client } from '@temporalio/client';
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
import { confirmStarts, type UnstartedRun, unstartedRuns } from '../shared/ledger/admission.js';
import type { Logger } from '../shared/process/log.js';

/** The message of an admission on the channel `holdfast_admitted`. */
export const ADMITTED_CHANNEL = 'holdfast_admitted';

const AdmittedMessage = z.object({
  run_id: z.string(),
  tenant_id: z.string(),
  agent: z.string(),
  job_id: z.string(),
  task_queue: z.string(),
});

/** Runs that one round asks for at most. */
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
  const start = async (run: UnstartedRun): Promise<'started' | 'there'> => {
    const input: RunInput = { version: RUN_INPUT_VERSION, runId: run.run_id, continued: 0, settings };
    try {
      await client.workflow.start(WORKFLOW_TYPE, {
        workflowId: run.run_id,
        taskQueue: run.task_queue,
        args: [input],
        // A closed run's id never starts again, whatever the default policy says.
        workflowIdReusePolicy: 'REJECT_DUPLICATE',
        typedSearchAttributes: new TypedSearchAttributes([
          { key: attributeOf(SEARCH_ATTRIBUTES.state), value: 'admitted' },
          { key: attributeOf(SEARCH_ATTRIBUTES.tenant), value: run.tenant_id },
          { key: attributeOf(SEARCH_ATTRIBUTES.agent), value: run.agent },
          { key: attributeOf(SEARCH_ATTRIBUTES.job), value: run.job_id },
        ]),
        staticSummary: `agent ${run.agent}`,
      });
      return 'started';
    } catch (error) {
      if (error instanceof WorkflowExecutionAlreadyStartedError) return 'there';
      throw error;
    }
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
      await start(parsed.data);
    },

    /**
     * Starts what nobody has started yet: admissions made while Temporal or every worker was away, or whose
     * notification was lost. Confirms them all, so that a waiting run is asked for once and not every round.
     */
    async round(): Promise<void> {
      for (;;) {
        const runs = await unstartedRuns(db, ROUND_MAX);
        if (runs.length === 0) return;
        for (const run of runs) await start(run);
        await confirmStarts(
          db,
          runs.map((run) => run.run_id),
        );
        if (runs.length < ROUND_MAX) return;
      }
    },
  };
}
