import { fileURLToPath } from 'node:url';
import { startVitest } from 'vitest/node';

/**
 * `node --import tsx test/histories/record.ts` runs every scenario of recording.ts on real servers and writes its
 * histories beside it. Do it for a release, under new names: the recorded ones stay, since runs in flight have them.
 */
const root = fileURLToPath(new URL('../..', import.meta.url));
const vitest = await startVitest('test', [], {
  root,
  watch: false,
  include: ['test/histories/recording.ts'],
});
await vitest.close();
