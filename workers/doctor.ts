import { readConfig } from '../shared/process/config.js';
import { runMain } from '../shared/process/exit.js';
import { runChecks } from './stack/checks.js';
import type { Check } from './stack/checks.js';

// `npm run doctor`: what this machine has of what a start needs. Exit code 1 when something needed is
// missing.
runMain('doctor', async () => {
  const checks = await runChecks(readConfig(process.env));
  for (const line of table(checks)) process.stdout.write(`${line}\n`);
  const count = checks.filter(({ state }) => state === 'missing').length;
  process.stdout.write(count === 0 ? '\nNothing is missing.\n' : `\n${count} missing.\n`);
  // Loaded native packages may hold threads; there is nothing left to do for them.
  process.exit(count === 0 ? 0 : 1);
});

function table(checks: readonly Check[]): string[] {
  const width = Math.max(...checks.map(({ name }) => name.length));
  return checks.flatMap(({ name, state, found, todo }) => {
    const line = `${state.padEnd(8)} ${name.padEnd(width)}  ${found}`;
    return todo ? [line, `${' '.repeat(9 + width)}  -> ${todo}`] : [line];
  });
}
