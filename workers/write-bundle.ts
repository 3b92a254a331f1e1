import { writeBundle } from './bundle-workflows.js';

// node --import tsx workers/write-bundle.ts <path>: makes the workflow bundle for a worker, and ends.
const path = process.argv[2];
if (path === undefined) throw new Error('Give the path of the bundle to write.');
await writeBundle(path);
