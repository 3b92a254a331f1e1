import { z } from 'zod';
import { RunFixture } from '../../shared/domain/fixture.js';
import { EXPORT_SCHEMA } from '../../shared/ledger/reads/export-run.js';
import { AnyJson, Sha256 } from './common.js';

/** A run as it is taken out of the ledger. */
export const RunExportView = z
  .strictObject({
    document: z.strictObject({
      run_id: z.string(),
      schema: z.literal(EXPORT_SCHEMA),
      tables: z.record(z.string(), z.array(z.record(z.string(), AnyJson))).meta({
        description: 'Rows by table of the ledger, in the order of their keys.',
      }),
    }),
    sha256: Sha256.meta({ description: 'Over the RFC 8785 form of `document`.' }),
  })
  .meta({ id: 'RunExport' });

/** A run as a regression fixture. */
export const RunFixtureView = RunFixture.meta({ id: 'RunFixture' });
