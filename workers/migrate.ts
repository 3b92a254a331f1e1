import { LedgerSchemaError, migrate } from '../shared/ledger/migrate.js';
import { readConfig } from '../shared/process/config.js';
import { runMain, StartError } from '../shared/process/exit.js';

// `npm run migrate`: for a Postgres of yours. `npm start` migrates its own by itself.
runMain('migrate', async () => {
  const { databaseUrl } = readConfig(process.env);
  if (!databaseUrl) {
    throw new StartError(
      'DATABASE_URL is not set. Set it to the Postgres to migrate; npm start migrates its own.',
    );
  }
  try {
    const { applied } = await migrate({ databaseUrl });
    for (const name of applied) process.stdout.write(`applied ${name}\n`);
    if (applied.length === 0) process.stdout.write('nothing to apply\n');
  } catch (error) {
    if (error instanceof LedgerSchemaError) throw new StartError(error.message, { cause: error });
    throw error;
  }
});
