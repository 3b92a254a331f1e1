import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { threadTableJson, threadTablePage } from '../shared/domain/thread-table-page.js';

// Part of `npm run docs:write`: test/thread-table.test.ts fails while a file differs from what this writes.
for (const [name, text] of [
  ['docs/thread-table.json', threadTableJson()],
  ['docs/thread-table.md', threadTablePage()],
] as const) {
  await writeFile(fileURLToPath(new URL(`../${name}`, import.meta.url)), text);
  process.stdout.write(`wrote ${name}\n`);
}
