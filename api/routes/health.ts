import { z } from 'zod';
import { Readiness } from '../readiness.js';
import { defineRoute, reply } from '../route.js';

/**
 * GET /healthz: the process answers. Asks nobody, so it stays true while Postgres and Temporal are down.
 */
export const healthRoute = defineRoute(
  {
    method: 'get',
    path: '/healthz',
    operationId: 'readHealth',
    summary: 'Whether the process lives',
    authenticated: false,
    replies: { 200: { description: 'It does.', body: z.strictObject({ status: z.literal('alive') }) } },
    errors: [],
  },
  () => Promise.resolve(reply(200, { status: 'alive' as const })),
);

/** GET /readyz: whether the process can do its work, with the evidence. */
export const readinessRoute = defineRoute(
  {
    method: 'get',
    path: '/readyz',
    operationId: 'readReadiness',
    summary: 'Whether the process can do its work, with the evidence',
    authenticated: false,
    replies: {
      200: { description: 'Every required check holds.', body: Readiness },
      503: { description: 'A required check does not hold; the evidence says which.', body: Readiness },
    },
    errors: [],
  },
  async (_input, deps) => {
    const readiness = await deps.readiness();
    return reply(readiness.ready ? 200 : 503, readiness);
  },
);
