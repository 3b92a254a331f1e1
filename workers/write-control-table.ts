import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { controlTableJson, controlTablePage } from '../shared/domain/control-table-page.js';

// Part of `npm run docs:write`: test/control-table.test.ts fails while a file differs from what this writes.
for (const [name, text] of [
  ['docs/control-table.json', controlTableJson()],
  ['docs/control-table.md', controlTablePage()],
] as const) {
  await writeFile(fileURLToPath(new URL(`../${name}`, import.meta.url)), text);
  process.stdout.write(`wrote ${name}\n`);
}
