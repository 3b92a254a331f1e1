import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { eventsPage } from '../shared/domain/run-events.js';

// Part of `npm run docs:write`: test/docs.test.ts fails while the file differs from what this writes.
await writeFile(fileURLToPath(new URL('../docs/events.md', import.meta.url)), eventsPage());
process.stdout.write('wrote docs/events.md\n');
