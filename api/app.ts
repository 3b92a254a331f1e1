import { setMaxListeners } from 'node:events';
import express from 'express';
import type { Express, RequestHandler, Response } from 'express';
import { rateLimit } from 'express-rate-limit';
import helmet from 'helmet';
import { pinoHttp } from 'pino-http';
import { HoldfastError } from '../shared/domain/errors.js';
import { newId } from '../shared/ledger/new-id.js';
import type { ApiDeps } from './deps.js';
import { mountDocuments } from './documents.js';
import { buildOpenApi } from './openapi.js';
import { answerErrors, requestIdOf, sendProblem } from './problems.js';
import { expressPath } from './route.js';
import type { Route } from './route.js';
import { ROUTES } from './routes/index.js';

/**
 * Builds the API over `deps`. Opens no port and no connection: api/server.ts listens, tests call it
 * in-process.
 */
export function createApp(deps: ApiDeps): Express {
  // Every open stream listens for the stop.
  setMaxListeners(0, deps.stopping);
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.use(nameRequests(), logRequests(deps), securityHeaders());
  if (deps.limits.requestsPerMinute > 0) app.use('/v1', limitRate(deps));
  for (const route of ROUTES) route.mount(app, deps);
  mountDocuments(app, buildOpenApi(ROUTES));
  refuseOtherMethods(app, ROUTES);
  app.use((request) => {
    throw new HoldfastError(
      'route_not_found',
      `There is nothing at ${request.path.slice(0, 200)}. GET /openapi.json lists the routes.`,
    );
  });
  app.use(answerErrors(deps.log));
  return app;
}

/** An id of ours, never the sender's: it is what our log is searched for. */
function nameRequests(): RequestHandler {
  return (_request, response, next) => {
    response.setHeader('x-request-id', newId('req'));
    next();
  };
}

/** One line a request, without headers, bodies or query texts: those may hold secrets and prompts. */
function logRequests(deps: ApiDeps): RequestHandler {
  return pinoHttp({
    logger: deps.log,
    genReqId: (_request, response) => requestIdOf(response as Response),
    customLogLevel: (_request, response, error) => {
      if (error !== undefined || response.statusCode >= 500) return 'error';
      return response.statusCode >= 400 ? 'info' : 'debug';
    },
    // The stack that pino-http makes up for a 5xx says nothing: answerErrors has logged the cause.
    customErrorObject: (_request, _response, _error, line: { err?: unknown }) => ({
      ...line,
      err: undefined,
    }),
    serializers: {
      req: (request: { id: string; method: string; url: string }) => ({
        id: request.id,
        method: request.method,
        path: request.url.split('?', 1)[0],
      }),
      res: (response: { statusCode: number }) => ({ status: response.statusCode }),
    },
  });
}

function securityHeaders(): RequestHandler {
  return helmet({
    // This server speaks plain HTTP behind whoever ends TLS; upgrading would break /docs on other
    // addresses.
    contentSecurityPolicy: { directives: { 'upgrade-insecure-requests': null } },
    strictTransportSecurity: false,
  });
}

const MINUTE_MS = 60_000;

function limitRate(deps: ApiDeps): RequestHandler {
  return rateLimit({
    windowMs: MINUTE_MS,
    limit: deps.limits.requestsPerMinute,
    standardHeaders: 'draft-8',
    legacyHeaders: false,
    // By who asks, not by where from: a tenant behind one address must not slow another.
    keyGenerator: async (request) => {
      const { tenantId, actorId } = await deps.authenticate(request);
      return JSON.stringify([tenantId, actorId]);
    },
    handler: (_request, response) => {
      const { requestsPerMinute } = deps.limits;
      const detail = `More than ${requestsPerMinute} requests came within a minute. Wait, then retry.`;
      const seconds = Number(response.getHeader('retry-after') ?? 1);
      const error = new HoldfastError('rate_limited', detail, { retryAfterSeconds: seconds });
      sendProblem(response, error, requestIdOf(response));
    },
  });
}

/** A path that is there, asked with a method that is not: 405 with the methods that are. */
function refuseOtherMethods(app: Express, routes: readonly Route[]): void {
  const methods = new Map<string, string[]>([
    ['/openapi.json', ['GET', 'HEAD']],
    ['/docs', ['GET', 'HEAD']],
  ]);
  for (const { spec } of routes) {
    const known = methods.get(spec.path) ?? [];
    methods.set(spec.path, [
      ...known,
      ...(spec.method === 'get' ? ['GET', 'HEAD'] : [spec.method.toUpperCase()]),
    ]);
  }
  for (const [path, allowed] of methods) {
    app.all(expressPath(path), (request, response) => {
      response.setHeader('allow', allowed.join(', '));
      const what = `${path} does not take ${request.method}`;
      throw new HoldfastError('method_not_allowed', `${what}. Use ${allowed.join(' or ')}.`);
    });
  }
}
