import type { Response } from 'express';
import { RedactionRules, type RunFixture } from '../../shared/domain/fixture.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import { makeFixture } from '../../shared/ledger/fixtures/make-fixture.js';
import { RedactionError } from '../../shared/ledger/fixtures/redact.js';
import { FIXTURE_BYTES_MAX, FixtureError, fixtureText } from '../../shared/ledger/fixtures/seal.js';
import { exportRun } from '../../shared/ledger/reads/export-run.js';
import type { RunExport } from '../../shared/ledger/verify-export.js';
import type { ApiDeps } from '../deps.js';
import { whileExporting } from '../export-slot.js';
import { defineRawRoute } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { RunFixtureView } from '../views/export-views.js';

const ABOUT =
  'What the run was given, what the model and the tools answered, what people said and when, and the path it took: enough to ' +
  'replay it offline (docs/fixtures.md). `sha256` is over the RFC 8785 form of `document`. Times are durations. ';
const REPLIES = { 200: { description: 'The fixture.', body: RunFixtureView } } as const;

/** GET /v1/runs/{run_id}/fixture: a run as a regression fixture. */
export const readFixtureRoute = defineRawRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/fixture',
    operationId: 'readRunFixture',
    summary: 'Export a run as a regression fixture',
    description: `${ABOUT}The run must have ended.`,
    authenticated: true,
    replies: REPLIES,
    errors: ['run_not_found', 'fixture_impossible', 'rate_limited', 'ledger_unavailable'],
  },
  async (input, deps, _request, response) =>
    send(response, await fixtureOf(deps, input, { pointers: [], words: [] })),
);

/** POST /v1/runs/{run_id}/fixture: the same, without what must not leave. The rules stand in the body: a URL is logged. */
export const redactFixtureRoute = defineRawRoute(
  {
    method: 'post',
    path: '/v1/runs/{run_id}/fixture',
    operationId: 'redactRunFixture',
    summary: 'Export a run as a regression fixture, redacted',
    description:
      `${ABOUT}Each text that a rule names is replaced by one placeholder wherever it stands, so that digests still fit; ` +
      'where one would remain, nothing is made. Changes nothing.',
    authenticated: true,
    body: RedactionRules,
    replies: REPLIES,
    errors: [
      'unsupported_media_type',
      'payload_too_large',
      'invalid_json',
      'invalid_request',
      'run_not_found',
      'fixture_impossible',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async (input, deps, _request, response) => send(response, await fixtureOf(deps, input, input.body)),
);

/** In RFC 8785 form, so that the same run is the same bytes, named by their digest. */
function send(response: Response, fixture: RunFixture): void {
  response.status(200).setHeader('content-type', 'application/json; charset=utf-8');
  response.setHeader('cache-control', 'no-store');
  response.setHeader('content-disposition', `attachment; filename="${fixture.sha256}.json"`);
  response.end(fixtureText(fixture));
}

async function fixtureOf(
  deps: ApiDeps,
  input: Parameters<typeof runKeyOf>[0],
  rules: RedactionRules,
): Promise<RunFixture> {
  const key = runKeyOf(input);
  const exported = await whileExporting(deps, async () =>
    readWhole(foundOf(await exportRun(deps.pool, key), key), key.runId),
  );
  try {
    return makeFixture(exported, rules);
  } catch (error) {
    if (error instanceof FixtureError) throw new HoldfastError('fixture_impossible', error.message);
    if (error instanceof RedactionError) {
      throw new HoldfastError(
        'invalid_request',
        `A rule of the redaction cannot be followed: ${error.message}.`,
        {
          errors: [{ at: `body/${error.at.replace(/^\//, '')}`, problem: error.message }],
        },
      );
    }
    throw error;
  }
}

async function readWhole(pieces: AsyncGenerator<string>, runId: string): Promise<RunExport> {
  const read: string[] = [];
  let length = 0;
  for await (const piece of pieces) {
    read.push(piece);
    length += piece.length;
    if (length > FIXTURE_BYTES_MAX) {
      throw new HoldfastError(
        'fixture_impossible',
        `Run ${runId} cannot become a fixture: its record is larger than ${FIXTURE_BYTES_MAX} bytes. Export it whole instead.`,
      );
    }
  }
  return JSON.parse(read.join('')) as RunExport;
}
