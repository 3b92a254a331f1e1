import type { Express, Request, Response } from 'express';
import { type z } from 'zod';
import { ERRORS, HoldfastError } from '../shared/domain/errors.js';
import type { ErrorCode, RequestFault } from '../shared/domain/errors.js';
import { excerpt, jsonPointer } from '../shared/domain/json-rules.js';
import { recordRefusal } from '../shared/ledger/refused-requests.js';
import { rolesOf } from '../shared/ledger/role-grants.js';
import { readJsonBody } from './body.js';
import type { ApiDeps, Identity } from './deps.js';
import { requestIdOf } from './problems.js';

/** One successful answer of a route. */
export interface ReplySpec<Body extends z.ZodType = z.ZodType> {
  readonly description: string;
  /** Absent where the answer has no JSON body. */
  readonly body?: Body;
  /** Media type where it is not application/json. */
  readonly mediaType?: string;
  /** Header names and what each says. */
  readonly headers?: Readonly<Record<string, string>>;
}

/** What every route with an Idempotency-Key and a body can answer before its own work, in the order of docs/errors.md. */
export const WRITE_ERRORS = [
  'idempotency_key_missing',
  'idempotency_key_invalid',
  'unsupported_media_type',
  'payload_too_large',
  'invalid_json',
  'invalid_request',
] as const satisfies readonly ErrorCode[];

/** A route as data: routing, parsing and the OpenAPI document are all made from it. */
export interface RouteSpec {
  readonly method: 'get' | 'post' | 'put' | 'delete';
  /** With parameters in braces: `/v1/runs/{run_id}`. */
  readonly path: string;
  readonly operationId: string;
  readonly summary: string;
  readonly description?: string;
  /** False for what anybody may ask (health, documents). */
  readonly authenticated: boolean;
  readonly query?: z.ZodObject;
  readonly body?: z.ZodType;
  /**
   * The code for a fault in the body at this place (`body/contract/owner`); `invalid_request` unless given.
   */
  readonly faultCode?: (at: string) => ErrorCode;
  /** The Idempotency-Key header is required. */
  readonly idempotent?: boolean;
  /** Further request headers and what each says. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly replies: Readonly<Record<number, ReplySpec>>;
  /** What this route can answer besides `internal`; the order is docs/errors.md's. */
  readonly errors: readonly ErrorCode[];
}

type ParamsOf<Path extends string> = Path extends `${string}{${infer Name}}${infer Rest}`
  ? { readonly [Key in Name]: string } & ParamsOf<Rest>
  : unknown;
type OutputOf<Schema> = Schema extends z.ZodType ? z.output<Schema> : undefined;
type BodyOf<Spec> = Spec extends { readonly body: infer Body } ? OutputOf<Body> : undefined;
type QueryOf<Spec> = Spec extends { readonly query: infer Query } ? OutputOf<Query> : undefined;

/** What a handler is given: parsed and typed, by what its spec says. */
export interface RouteInput<Spec extends RouteSpec> {
  readonly params: ParamsOf<Spec['path']>;
  readonly query: QueryOf<Spec>;
  readonly body: BodyOf<Spec>;
  /** '' unless the spec says `idempotent`. */
  readonly idempotencyKey: string;
  readonly identity: Identity;
  readonly requestId: string;
}

/** An answer that the spec lists, with a body of its schema. */
export type RouteReply<Replies extends RouteSpec['replies']> = {
  [Status in keyof Replies]: {
    readonly status: Status;
    readonly body: BodyOf<Replies[Status]>;
    readonly headers?: Readonly<Record<string, string>>;
  };
}[keyof Replies];

/** One answer; `status` must be one that the spec lists, and `body` of its schema. */
export const reply = <const Status extends number, Body>(
  status: Status,
  body: Body,
  headers: Readonly<Record<string, string>> = {},
) => ({ status, body, headers }) as const;

/** A route that can be mounted. */
export interface Route {
  readonly spec: RouteSpec;
  /** Adds the route to the app; opens nothing. */
  mount(app: Express, deps: ApiDeps): void;
}

/** A route that answers with JSON. A status or a body that its spec does not list does not compile. */
export function defineRoute<const Spec extends RouteSpec>(
  spec: Spec,
  handle: (input: RouteInput<Spec>, deps: ApiDeps) => Promise<RouteReply<Spec['replies']>>,
): Route {
  return defineRawRoute(spec, async (input, deps, _request, response) => {
    const reply = await handle(input, deps);
    for (const [name, value] of Object.entries(reply.headers ?? {})) response.setHeader(name, value);
    response.setHeader('cache-control', 'no-store');
    response.status(Number(reply.status)).json(reply.body);
  });
}

/** A route that writes its answer itself: a stream, a page. Its input is parsed like any other's. */
export function defineRawRoute<const Spec extends RouteSpec>(
  spec: Spec,
  respond: (
    input: RouteInput<Spec>,
    deps: ApiDeps,
    request: Request,
    response: Response,
  ) => Promise<void> | void,
): Route {
  return {
    spec,
    mount(app, deps) {
      // Express passes a rejection on to the error handler.
      app[spec.method](expressPath(spec.path), async (request: Request, response: Response) => {
        try {
          const input = await parseInput(spec, deps, request, response);
          await respond(input, deps, request, response);
        } catch (error) {
          await keepRefusal(spec, deps, request, requestIdOf(response), error);
          throw error;
        }
      });
    },
  };
}

/**
 * Keeps that somebody asked for a change and was refused (SPEC 11). What is refused for its identity names nobody; what
 * failed for a reason of ours, or may be sent again as it is, is no refusal.
 */
async function keepRefusal(
  spec: RouteSpec,
  deps: ApiDeps,
  request: Request,
  requestId: string,
  error: unknown,
): Promise<void> {
  if (spec.method === 'get' || !spec.authenticated || !(error instanceof HoldfastError)) return;
  const { http: httpStatus, retry } = ERRORS[error.code];
  if (httpStatus < 400 || httpStatus >= 500 || retry === 'later') return;
  try {
    const { tenantId, actorId, roles } = await deps.authenticate(request);
    const params = Object.entries(request.params).map(([name, value]) => [name, excerpt(String(value), 200)]);
    await recordRefusal(deps.pool, {
      ...{ tenantId, actorId, roles, httpStatus, requestId, code: error.code },
      route: `${spec.method.toUpperCase()} ${spec.path}`,
      params: Object.fromEntries(params) as Record<string, string>,
    });
  } catch (cause) {
    // The answer is decided and stands, whether or not it could be kept; the log has it by the same id.
    deps.log.warn({ err: cause, requestId, code: error.code }, 'a refusal could not be kept');
  }
}

/** `/v1/runs/{run_id}` as Express writes it. */
export function expressPath(path: string): string {
  return path.replaceAll('{', ':').replaceAll('}', '');
}

/** The order of these checks is written down in docs/errors.md and pinned by a test. */
async function parseInput<Spec extends RouteSpec>(
  spec: Spec,
  deps: ApiDeps,
  request: Request,
  response: Response,
): Promise<RouteInput<Spec>> {
  const identity = spec.authenticated
    ? await deps.authenticate(request)
    : { tenantId: '', actorId: 'anonymous', roles: [] };
  const query: unknown = spec.query === undefined ? undefined : parse('query', spec.query, request.query);
  const idempotencyKey = spec.idempotent === true ? readIdempotencyKey(request) : '';
  const body: unknown =
    spec.body === undefined
      ? undefined
      : parse('body', spec.body, await readJsonBody(request, deps.limits.bodyBytesMax), spec.faultCode);
  return {
    // Parameters are texts, so what a handler makes of them is checked by the handler: an id that names
    // nothing of this tenant is one answer, whatever it looks like.
    params: request.params as RouteInput<Spec>['params'],
    query: query as RouteInput<Spec>['query'],
    body: body as RouteInput<Spec>['body'],
    idempotencyKey,
    identity: spec.errors.includes('role_required') ? await withLedgerRoles(identity, deps) : identity,
    requestId: requestIdOf(response),
  };
}

/** What an identity claims of roles counts only where the tenant's ledger does not say who has them. */
async function withLedgerRoles(identity: Identity, { pool }: ApiDeps): Promise<Identity> {
  const { tenantId, actorId, roles } = identity;
  return { ...identity, roles: await rolesOf(pool, tenantId, actorId, roles) };
}

function parse(
  where: 'query' | 'body',
  schema: z.ZodType,
  value: unknown,
  codeOf: (at: string) => ErrorCode = () => 'invalid_request',
): unknown {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const errors = parsed.error.issues.map((issue) => faultOf(where, issue));
  const first = errors[0];
  const more = errors.length > 1 ? ` (and ${errors.length - 1} more)` : '';
  const codes = new Set(errors.map(({ at }) => codeOf(at)));
  const [only = 'invalid_request'] = codes;
  throw new HoldfastError(
    codes.size === 1 ? only : 'invalid_request',
    `The ${where} is not valid. ${first?.at ?? where}: ${first?.problem ?? 'refused'}${more}.`,
    { errors },
  );
}

function faultOf(where: string, issue: z.core.$ZodIssue): RequestFault {
  return {
    at: where + jsonPointer(issue.path.map(String)),
    problem: excerpt(issue.message, 300),
  };
}

const KEY = /^[!-~]{1,255}$/;

function readIdempotencyKey(request: Request): string {
  const key = request.headers['idempotency-key'];
  if (key === undefined) {
    const what = 'The Idempotency-Key header is missing. Send one that names this request';
    throw new HoldfastError('idempotency_key_missing', `${what}, and the same one when it is sent again.`);
  }
  if (typeof key === 'string' && KEY.test(key)) return key;
  throw new HoldfastError(
    'idempotency_key_invalid',
    'The Idempotency-Key header must be one value of 1 to 255 printable ASCII characters without spaces.',
    { errors: [{ at: 'header/idempotency-key', problem: 'not 1 to 255 printable ASCII characters' }] },
  );
}
