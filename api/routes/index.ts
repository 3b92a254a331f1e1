import type { Route } from '../route.js';
import { listActiveRunLimitsRoute, putActiveRunLimitRoute } from './active-run-limits.js';
import { listAgentsRoute } from './agents.js';
import { putTenantBudgetRoute, readTenantBudgetRoute } from './budgets.js';
import { listCheckpointsRoute, readCheckpointRoute } from './checkpoints.js';
import { listCommandsRoute, readCommandRoute, submitCommandRoute } from './commands.js';
import { clearCooldownRoute, listCooldownsRoute } from './cooldowns.js';
import { forkRunRoute } from './forks.js';
import { healthRoute, readinessRoute } from './health.js';
import { listInterruptsRoute, readInterruptRoute } from './interrupts.js';
import { listReconciliationsRoute, readReconciliationRoute, settleEffectRoute } from './reconciliations.js';
import { judgeJobRoute, readJobRoute } from './jobs.js';
import { listRefusalsRoute } from './refusals.js';
import { grantRoleRoute, listRoleGrantsRoute, revokeRoleRoute } from './role-grants.js';
import { listRetriesRoute, listRunRetriesRoute } from './retries.js';
import { resolveInterruptRoute } from './resolve-interrupt.js';
import { exportRunRoute } from './run-export.js';
import { readFixtureRoute, redactFixtureRoute } from './run-fixture.js';
import { readStoryRoute } from './run-story.js';
import { streamRunRoute } from './run-stream.js';
import { listEffectsRoute, listEventsRoute, listTransitionsRoute, readTranscriptRoute } from './run-trail.js';
import { listRunsRoute, readRunRoute } from './runs.js';
import {
  giveStandingGrantRoute,
  listStandingGrantsRoute,
  revokeStandingGrantRoute,
} from './standing-grants.js';
import { backfillScheduleRoute, listOccurrencesRoute, runScheduleNowRoute } from './schedule-occurrences.js';
import {
  changeScheduleRoute,
  createScheduleRoute,
  deleteScheduleRoute,
  listSchedulesRoute,
  pauseScheduleRoute,
  readScheduleRoute,
  resumeScheduleRoute,
} from './schedules.js';
import { listSleepTriggersRoute, putSleepTriggerRoute } from './sleep-triggers.js';
import { startRun } from './start-run.js';
import { readMemoryRoute } from './thread-memory.js';
import { listMessagesRoute, postMessageRoute, readMessageRoute } from './thread-messages.js';
import {
  archiveThreadRoute,
  createThreadRoute,
  listThreadsRoute,
  readThreadRoute,
  unarchiveThreadRoute,
} from './threads.js';
import {
  listWebhookDeliveriesRoute,
  replayWebhookRoute,
  testWebhookEndpointRoute,
} from './webhook-deliveries.js';
import { streamTenantRoute } from './tenant-stream.js';
import {
  createWebhookEndpointRoute,
  disableWebhookEndpointRoute,
  listWebhookEndpointsRoute,
  readWebhookEndpointRoute,
} from './webhook-endpoints.js';

/** Every route that the OpenAPI document tells of, in its order. */
export const ROUTES: readonly Route[] = [
  startRun,
  listRunsRoute,
  readRunRoute,
  listTransitionsRoute,
  listEffectsRoute,
  listRunRetriesRoute,
  listEventsRoute,
  streamRunRoute,
  streamTenantRoute,
  readTranscriptRoute,
  readStoryRoute,
  exportRunRoute,
  readFixtureRoute,
  redactFixtureRoute,
  createThreadRoute,
  listThreadsRoute,
  readThreadRoute,
  archiveThreadRoute,
  unarchiveThreadRoute,
  postMessageRoute,
  listMessagesRoute,
  readMessageRoute,
  readMemoryRoute,
  putSleepTriggerRoute,
  listSleepTriggersRoute,
  listCheckpointsRoute,
  readCheckpointRoute,
  forkRunRoute,
  submitCommandRoute,
  listCommandsRoute,
  readCommandRoute,
  listInterruptsRoute,
  readInterruptRoute,
  resolveInterruptRoute,
  listStandingGrantsRoute,
  giveStandingGrantRoute,
  revokeStandingGrantRoute,
  listRoleGrantsRoute,
  grantRoleRoute,
  revokeRoleRoute,
  listReconciliationsRoute,
  readReconciliationRoute,
  settleEffectRoute,
  readJobRoute,
  judgeJobRoute,
  createWebhookEndpointRoute,
  listWebhookEndpointsRoute,
  readWebhookEndpointRoute,
  disableWebhookEndpointRoute,
  testWebhookEndpointRoute,
  listWebhookDeliveriesRoute,
  replayWebhookRoute,
  listRefusalsRoute,
  putTenantBudgetRoute,
  putActiveRunLimitRoute,
  listActiveRunLimitsRoute,
  createScheduleRoute,
  listSchedulesRoute,
  readScheduleRoute,
  changeScheduleRoute,
  pauseScheduleRoute,
  resumeScheduleRoute,
  deleteScheduleRoute,
  listOccurrencesRoute,
  runScheduleNowRoute,
  backfillScheduleRoute,
  readTenantBudgetRoute,
  listRetriesRoute,
  listCooldownsRoute,
  clearCooldownRoute,
  listAgentsRoute,
  healthRoute,
  readinessRoute,
];
