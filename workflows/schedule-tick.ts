import { defineSearchAttributeKey } from '@temporalio/common';
import { ApplicationFailure, proxyLocalActivities, workflowInfo } from '@temporalio/workflow';
import {
  PLANNED_TIME_ATTRIBUTE,
  TICK_INPUT_VERSION,
  type TickActivities,
  type TickInput,
  type TickResult,
} from '../shared/domain/protocol.js';

const PLANNED_TIME = defineSearchAttributeKey(PLANNED_TIME_ATTRIBUTE, 'DATETIME');

/** It waits for Postgres as long as it takes: a time that came is not lost because the ledger was away (SPEC 3.8). */
const { decideOccurrence } = proxyLocalActivities<TickActivities>({
  startToCloseTimeout: '20 seconds',
  retry: { initialInterval: '250 milliseconds', maximumInterval: '10 seconds', backoffCoefficient: 2 },
  localRetryThreshold: '30 seconds',
});

/** One planned time of a schedule (SPEC 10): tells the ledger, which judges what becomes of it. */
export async function scheduleTick(input: TickInput): Promise<TickResult> {
  const planned = workflowInfo().typedSearchAttributes.get(PLANNED_TIME);
  if (input.version !== TICK_INPUT_VERSION || planned === undefined) {
    throw ApplicationFailure.nonRetryable(
      'This tick is of another version, or of no schedule.',
      'snapshot_incompatible',
    );
  }
  return await decideOccurrence({ scheduleId: input.scheduleId, plannedAt: planned.toISOString() });
}
