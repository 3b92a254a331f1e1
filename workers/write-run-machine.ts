import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { runMachineJson, runMachinePage } from '../shared/domain/run-machine-page.js';

// Part of `npm run docs:write`: test/run-machine.test.ts fails while a file differs from what this writes.
for (const [name, text] of [
  ['docs/run-machine.json', runMachineJson()],
  ['docs/run-machine.md', runMachinePage()],
] as const) {
  await writeFile(fileURLToPath(new URL(`../${name}`, import.meta.url)), text);
  process.stdout.write(`wrote ${name}\n`);
}
