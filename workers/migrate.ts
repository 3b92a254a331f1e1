import { LedgerSchemaError, migrate } from '../shared/ledger/migrate.js';
import { readConfig } from '../shared/process/config.js';
import { runMain, StartError } from '../shared/process/exit.js';
import { prepareGivenTemporal } from './stack/given-temporal.js';

const say = (line: string): void => void process.stdout.write(`${line}\n`);

// `npm run migrate`: prepares servers of yours, the ledger's schema and Temporal's search attributes, before
// workers of this version start. `npm start` does both by itself.
runMain('migrate', async () => {
  const { databaseUrl, temporal } = readConfig(process.env);
  if (!databaseUrl) {
    throw new StartError(
      'DATABASE_URL is not set. Set it to the Postgres to migrate; npm start migrates its own.',
    );
  }
  try {
    const { applied } = await migrate({ databaseUrl });
    for (const name of applied) say(`applied ${name}`);
    if (applied.length === 0) say('nothing to apply');
  } catch (error) {
    if (error instanceof LedgerSchemaError) throw new StartError(error.message, { cause: error });
    throw error;
  }
  if (temporal.connection) await prepareGivenTemporal(temporal.connection, temporal.namespace, say);
});
