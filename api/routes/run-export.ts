import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { Request, Response } from 'express';
import { exportRun } from '../../shared/ledger/reads/export-run.js';
import type { ApiDeps } from '../deps.js';
import { whileExporting } from '../export-slot.js';
import { defineRawRoute } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { RunExportView } from '../views/export-views.js';

/** GET /v1/runs/{run_id}/export: everything that the ledger holds of a run, to be kept elsewhere. */
export const exportRunRoute = defineRawRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/export',
    operationId: 'exportRun',
    summary: 'Export a run whole',
    description:
      'One snapshot of every row, written in RFC 8785 form as it is read. `sha256` is over that form of `document` and ' +
      'comes last: an answer without it was cut off. Times are UTC in microseconds, bytes base64. What it says can be ' +
      'verified with no ledger at hand.',
    authenticated: true,
    replies: { 200: { description: 'The run.', body: RunExportView } },
    errors: ['run_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async (input, deps, request, response) => {
    const key = runKeyOf(input);
    await whileExporting(deps, async () => {
      const pieces = foundOf(await exportRun(deps.pool, key), key);
      await send(pieces, deps, request, response, key.runId);
    });
  },
);

async function send(
  pieces: AsyncGenerator<string>,
  deps: ApiDeps,
  request: Request,
  response: Response,
  runId: string,
): Promise<void> {
  response.status(200).setHeader('content-type', 'application/json; charset=utf-8');
  response.setHeader('cache-control', 'no-store');
  response.setHeader('content-disposition', `attachment; filename="${runId}.json"`);
  if (request.method === 'HEAD') {
    await pieces.return(undefined);
    response.end();
    return;
  }
  try {
    await pipeline(Readable.from(pieces), response);
  } catch (error) {
    // The status is out: whoever reads sees an answer that breaks off, without its digest.
    deps.log.warn({ err: error, runId }, 'an export was not read to its end');
    response.destroy();
  }
}
