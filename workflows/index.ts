/** The one file the worker bundles: exports every workflow and nothing else. */
export { agentRun } from './agent-run.js';
export { scheduleTick } from './schedule-tick.js';
