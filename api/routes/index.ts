import type { Route } from '../route.js';
import { listAgentsRoute } from './agents.js';
import { healthRoute, readinessRoute } from './health.js';
import { streamRunRoute } from './run-stream.js';
import { listEffectsRoute, listEventsRoute, listTransitionsRoute, readTranscriptRoute } from './run-trail.js';
import { listRunsRoute, readRunRoute } from './runs.js';
import { startRun } from './start-run.js';

/** Every route that the OpenAPI document tells of, in its order. */
export const ROUTES: readonly Route[] = [
  startRun,
  listRunsRoute,
  readRunRoute,
  listTransitionsRoute,
  listEffectsRoute,
  listEventsRoute,
  streamRunRoute,
  readTranscriptRoute,
  listAgentsRoute,
  healthRoute,
  readinessRoute,
];
