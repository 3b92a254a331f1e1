import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/global-setup.ts'],
    // Processes, not threads: tests load Temporal's native core and send signals.
    pool: 'forks',
    fileParallelism: true,
    // More than there are cores: most of a test's time is waiting for Temporal.
    maxWorkers: 4,
    // Off, but in CI; what needed it is named at the end (test/support/second-try.ts).
    retry: Number(process.env['HOLDFAST_TEST_RETRIES'] ?? 0),
    // A workflow against the dev server takes 50 ms a task; a test that waits on purpose says so itself.
    testTimeout: 30_000,
    hookTimeout: 60_000,
    teardownTimeout: 30_000,
  },
});
