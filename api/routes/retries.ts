import { z } from 'zod';
import { idSchema } from '../../shared/domain/ids.js';
import {
  listRetries,
  listRunRetries,
  type RetrySeries,
  SERIES_STATES,
  type SeriesFilters,
} from '../../shared/ledger/reads/list-retries.js';
import { readRunHead } from '../../shared/ledger/reads/read-events.js';
import { readPage } from '../cursor.js';
import { defineRoute, reply } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { PageQuery } from '../views/common.js';
import { RetrySeriesListView } from '../views/retry-views.js';

const Place = z.int().min(0);
const Name = z.string().regex(/^[ -~]{1,64}$/, { error: 'must be 1 to 64 printable ASCII characters' });
const shown = ({ place: _place, ...series }: RetrySeries & { readonly place: number }): RetrySeries => series;

/** GET /v1/runs/{run_id}/retries: what stopped in a run, what is done about it and when. */
export const listRunRetriesRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/retries',
    operationId: 'listRunRetries',
    summary: "List a run's retry series in the order of their newest stops",
    authenticated: true,
    query: z.strictObject(PageQuery),
    replies: { 200: { description: 'One page.', body: RetrySeriesListView } },
    errors: ['invalid_request', 'run_not_found', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async (input, { pool }) => {
    const key = runKeyOf(input);
    const scope = { list: 'run-retries', tenant: key.tenantId, run: key.runId };
    const places = { schema: Place, of: ({ place }: { readonly place: number }) => place };
    const { rows, next } = await readPage(scope, input.query, places, async (after) => {
      foundOf(await readRunHead(pool, key), key);
      return await listRunRetries(pool, key, { after: after ?? 0, limit: input.query.limit });
    });
    return reply(200, { retries: rows.map(shown), next_cursor: next });
  },
);

/** GET /v1/retries: what stopped in all runs of the tenant. */
export const listRetriesRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/retries',
    operationId: 'listRetries',
    summary: 'List retry series, those of the newest runs first',
    authenticated: true,
    query: z.strictObject({
      state: z.enum([...SERIES_STATES, 'any']).default('waiting'),
      reason: Name.optional(),
      agent: Name.optional(),
      ...PageQuery,
    }),
    replies: { 200: { description: 'One page.', body: RetrySeriesListView } },
    errors: ['invalid_request', 'cursor_invalid', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, { pool }) => {
    const filters: SeriesFilters = {
      state: query.state === 'any' ? null : query.state,
      ...{ reason: query.reason ?? null, agent: query.agent ?? null },
    };
    const scope = { list: 'retries', tenant: identity.tenantId, ...filters };
    const places = {
      schema: z.tuple([idSchema('run'), Place]),
      of: ({ run_id, place }: { readonly run_id: string; readonly place: number }): [string, number] => [
        run_id,
        place,
      ],
    };
    const { rows, next } = await readPage(scope, query, places, (after) =>
      listRetries(pool, identity.tenantId, filters, { after, limit: query.limit }),
    );
    return reply(200, { retries: rows.map(shown), next_cursor: next });
  },
);
