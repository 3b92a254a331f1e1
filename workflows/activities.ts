import { ActivityCancellationType, proxyActivities, proxyLocalActivities } from '@temporalio/workflow';
import type { LedgerActivities, RunActivities } from '../shared/domain/protocol.js';

/**
 * Longest an activity may take. The tool's and the contract's own time-outs end a call far earlier, and heartbeats
 * find a dead worker within seconds; this only bounds what both fail to see.
 */
const START_TO_CLOSE = '65 minutes';

/** Never retried by Temporal: after a silence the workflow asks the ledger, and the ledger decides (SPEC 3.5). */
export function effectActivities(heartbeatSeconds: number) {
  return proxyActivities<Pick<RunActivities, 'act'>>({
    startToCloseTimeout: START_TO_CLOSE,
    heartbeatTimeout: heartbeatSeconds * 1_000,
    retry: { maximumAttempts: 1 },
    // A cancel waits for the attempt's own word: what an aborted call came to is what the run must know.
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
  });
}

/**
 * Model calls and status queries change nothing outside, and the ledger counts their attempts: a redelivery after a
 * lost worker is safe. What a provider answers comes back as a value, so only infrastructure is retried here.
 */
export function readActivities(heartbeatSeconds: number) {
  return proxyActivities<Pick<RunActivities, 'think' | 'queryEffect'>>({
    startToCloseTimeout: START_TO_CLOSE,
    heartbeatTimeout: heartbeatSeconds * 1_000,
    retry: { initialInterval: '500 milliseconds', maximumInterval: '10 seconds', backoffCoefficient: 2 },
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
  });
}

/**
 * The fast lane: steps declared short run as local activities, many of them in one workflow task, so they cost no round
 * trip through Temporal (docs/decisions/0007). After a crash they run again, and the ledger answers with what exists.
 * Signals wait for the task's end; the claims look at control requests all the same.
 */
export const fastLane = {
  act: proxyLocalActivities<Pick<RunActivities, 'act'>>({
    startToCloseTimeout: START_TO_CLOSE,
    retry: { maximumAttempts: 1 },
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
  }).act,
  think: proxyLocalActivities<Pick<RunActivities, 'think'>>({
    startToCloseTimeout: START_TO_CLOSE,
    retry: { initialInterval: '500 milliseconds', maximumInterval: '10 seconds', backoffCoefficient: 2 },
    localRetryThreshold: '30 seconds',
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
  }).think,
};

/**
 * Ledger commits without an outside call: local activities, since one costs no round trip to Temporal and every one
 * may be repeated. They wait for Postgres as long as it takes (SPEC 3.8).
 */
export const ledger = proxyLocalActivities<LedgerActivities>({
  startToCloseTimeout: '20 seconds',
  retry: { initialInterval: '250 milliseconds', maximumInterval: '10 seconds', backoffCoefficient: 2 },
  localRetryThreshold: '30 seconds',
});
