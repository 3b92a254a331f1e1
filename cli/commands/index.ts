import type { CommandGroup } from '../command.js';
import { approvalsGroup } from './approvals.js';
import { completionGroup } from './completion.js';
import { fixtureGroup } from './fixture.js';
import { interruptsGroup } from './interrupts.js';
import { jobsGroup } from './jobs.js';
import { reconcileGroup } from './reconcile.js';
import { runsGroup } from './runs.js';

/** Every group of commands, in the order in which help and docs/cli.md list them. A new one is a file here and a line. */
export const GROUPS: readonly CommandGroup[] = [
  runsGroup,
  approvalsGroup,
  interruptsGroup,
  reconcileGroup,
  jobsGroup,
  fixtureGroup,
  completionGroup,
];
