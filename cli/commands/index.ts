import type { CommandGroup } from '../command.js';
import { approvalsGroup } from './approvals.js';
import { completionGroup } from './completion.js';
import { fixtureGroup } from './fixture.js';
import { interruptsGroup } from './interrupts.js';
import { jobsGroup } from './jobs.js';
import { reconcileGroup } from './reconcile.js';
import { checkpointsGroup } from './checkpoints.js';
import { cooldownsGroup } from './cooldowns.js';
import { limitsGroup } from './limits.js';
import { retriesGroup } from './retries.js';
import { runsGroup } from './runs.js';
import { schedulesGroup } from './schedules.js';
import { threadsGroup } from './threads.js';

/** Every group of commands, in the order in which help and docs/cli.md list them. A new one is a file here and a line. */
export const GROUPS: readonly CommandGroup[] = [
  runsGroup,
  approvalsGroup,
  interruptsGroup,
  reconcileGroup,
  jobsGroup,
  threadsGroup,
  schedulesGroup,
  checkpointsGroup,
  retriesGroup,
  cooldownsGroup,
  limitsGroup,
  fixtureGroup,
  completionGroup,
];
