import type { Reporter, TestCase, TestModule } from 'vitest/node';

/**
 * Names each test that passed only at its second try.
 *
 * CI lets a test that failed be tried once more (`HOLDFAST_TEST_RETRIES`), since a time-out on a machine that was busy with
 * something else says nothing about the product; but such a test is named, so that nobody takes the run for a clean one.
 */
export default class SecondTries implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const names = modules.flatMap((module) =>
      [...module.children.allTests()]
        .filter((test) => test.diagnostic()?.flaky === true)
        .map((test: TestCase) => `${module.relativeModuleId} > ${test.fullName}`),
    );
    for (const name of names) process.stdout.write(`PASSED ONLY AT A SECOND TRY: ${name}\n`);
  }
}
