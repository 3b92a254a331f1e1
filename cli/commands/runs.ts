import { type CommandGroup, group } from '../command.js';
import { cancelRun, pauseRun, resumeRun } from './run-control.js';
import { exportRun } from './run-export.js';
import { listEffects, listRuns, readStory, showRun } from './run-reads.js';
import { startRun } from './run-start.js';
import { watchRun } from './run-watch.js';

/** `holdfast runs`. */
export const runsGroup: CommandGroup = (cli) =>
  group(cli, 'runs', 'Start, follow, steer and read runs', [
    startRun,
    listRuns,
    showRun,
    watchRun,
    pauseRun,
    resumeRun,
    cancelRun,
    listEffects,
    readStory,
    exportRun,
  ]);
