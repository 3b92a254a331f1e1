import { TestWorkflowEnvironment } from '@temporalio/testing';
import { runMain } from '../../shared/process/exit.js';

// A process of its own, because the SDK can only download by starting the server, and that loads its
// native core, which the supervisor would keep in memory for good. Arguments: program, folder.
runMain('sdk-download', async () => {
  const [program, downloadDir] = process.argv.slice(2);
  if (!downloadDir) throw new Error('bug: sdk-download needs a program and a folder');
  const server = { executable: { type: 'cached-download' as const, downloadDir } };
  const environment =
    program === 'cli'
      ? await TestWorkflowEnvironment.createLocal({ server })
      : await TestWorkflowEnvironment.createTimeSkipping({ server });
  await environment.teardown();
});
