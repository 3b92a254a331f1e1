import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { buildOpenApi } from './openapi.js';
import { ROUTES } from './routes/index.js';

const FILE = fileURLToPath(new URL('../docs/openapi.json', import.meta.url));

// `npm run docs:write`: test/docs.test.ts fails while the file differs from what this writes.
await writeFile(FILE, `${JSON.stringify(buildOpenApi(ROUTES), null, 2)}\n`);
process.stdout.write('wrote docs/openapi.json\n');
