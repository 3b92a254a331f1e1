import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { cliPage } from './docs-page.js';

// Part of `npm run docs:write`: test/cli.test.ts fails while the file differs from what this writes.
await writeFile(fileURLToPath(new URL('../docs/cli.md', import.meta.url)), cliPage());
process.stdout.write('wrote docs/cli.md\n');
