import { z } from 'zod';
import { idSchema } from '../../shared/domain/ids.js';
import { RUN_STATES } from '../../shared/domain/run-machine.js';
import { listRuns } from '../../shared/ledger/reads/list-runs.js';
import { readRun } from '../../shared/ledger/reads/read-run.js';
import { byId, readPage } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { PageQuery } from '../views/common.js';
import { RunListView, RunView } from '../views/run-views.js';

// In UTC and with a year that Postgres has: it knows neither year 0 nor offsets of 16 hours and more.
const Instant = z.iso
  .datetime({ offset: true, error: 'must be ISO 8601 with a time zone' })
  .transform((text) => new Date(text).toISOString())
  .refine((text) => /^(?!0000)\d{4}-/.test(text), { error: 'must be of the years 1 to 9999' });

/** GET /v1/runs: the tenant's runs, newest first. */
export const listRunsRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs',
    operationId: 'listRuns',
    summary: 'List runs, newest first',
    authenticated: true,
    query: z.strictObject({
      state: z.enum(RUN_STATES).optional(),
      agent: z
        .string()
        .regex(/^[ -~]{1,64}$/, { error: 'must be 1 to 64 printable ASCII characters' })
        .optional(),
      job_id: idSchema('job').optional(),
      parent: idSchema('run').optional().meta({ description: 'Children of this run.' }),
      thread: idSchema('thr').optional().meta({ description: 'Runs of this thread.' }),
      created_after: Instant.optional().meta({ description: 'Admitted after this instant.' }),
      created_before: Instant.optional().meta({ description: 'Admitted before this instant.' }),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: RunListView } },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    const filters = {
      state: query.state ?? null,
      agent: query.agent ?? null,
      jobId: query.job_id ?? null,
      parentRunId: query.parent ?? null,
      threadId: query.thread ?? null,
      createdAfter: query.created_after ?? null,
      createdBefore: query.created_before ?? null,
    };
    const scope = { list: 'runs', tenant: identity.tenantId, ...filters };
    const { rows, next } = await readPage(scope, query, byId('run', 'run_id'), (before) =>
      listRuns(pool, identity.tenantId, filters, { before, limit: query.limit }),
    );
    return reply(200, { runs: rows, next_cursor: next });
  },
);

/** GET /v1/runs/{run_id}: the run as the ledger knows it now. */
export const readRunRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}',
    operationId: 'readRun',
    summary: 'Read a run',
    description:
      'Reads the ledger alone and starts nothing. `freshness` says as of which event and instant. What ' +
      'it says of the outside world (a payment, a mail) refers to receipts; it never replaces the other' +
      ' side’s own record.',
    authenticated: true,
    replies: { 200: { description: 'The run.', body: RunView } },
    errors: ['run_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    return reply(200, foundOf(await readRun(pool, key), key));
  },
);
