import { z } from 'zod';
import { createDocument } from 'zod-openapi';
import type { ZodOpenApiOperationObject, ZodOpenApiResponsesObject } from 'zod-openapi';
import { ERRORS } from '../shared/domain/errors.js';
import type { ErrorCode } from '../shared/domain/errors.js';
import { JSON_DEPTH_MAX } from '../shared/domain/strict-json.js';
import { PROBLEM_TYPE } from './problems.js';
import type { ReplySpec, Route, RouteSpec } from './route.js';
import { ProblemView } from './views/common.js';

/**
 * The OpenAPI 3.1 document of `routes`. Made from the same values that route and parse, so it cannot drift.
 */
export function buildOpenApi(routes: readonly Route[]): object {
  const paths: Record<string, Record<string, ZodOpenApiOperationObject>> = {};
  for (const { spec } of routes) {
    paths[spec.path] = { ...paths[spec.path], [spec.method]: operationOf(spec) };
  }
  return createDocument({
    openapi: '3.1.0',
    info: {
      title: 'Holdfast',
      version: '1',
      description:
        'A durable runtime for AI agents: every effect is accounted for. Errors are RFC 9457 problems ' +
        'whose `code` is in docs/errors.md. Bodies are JSON in UTF-8, read strictly: no key twice, no ' +
        `number that a double would change, no NUL or half surrogate pair, at most ${JSON_DEPTH_MAX} ` +
        'levels, no unknown member. Text is never normalised. Every answer carries X-Request-Id.',
    },
    paths,
  });
}

function operationOf(spec: RouteSpec): ZodOpenApiOperationObject {
  const headers = headerSchemaOf(spec);
  const path = pathSchemaOf(spec.path);
  return {
    operationId: spec.operationId,
    summary: spec.summary,
    ...(spec.description === undefined ? {} : { description: spec.description }),
    requestParams: {
      ...(path === undefined ? {} : { path }),
      ...(spec.query === undefined ? {} : { query: spec.query }),
      ...(headers === undefined ? {} : { header: headers }),
    },
    ...(spec.body === undefined
      ? {}
      : { requestBody: { required: true, content: { 'application/json': { schema: spec.body } } } }),
    responses: { ...repliesOf(spec.replies), ...problemsOf(codesOf(spec)) },
  };
}

/** Who does not say properly who they are is told so on every route that asks. */
function codesOf(spec: RouteSpec): ErrorCode[] {
  const always: ErrorCode[] = spec.authenticated ? ['invalid_request', 'internal'] : ['internal'];
  return [...new Set([...spec.errors, ...always])];
}

function pathSchemaOf(path: string): z.ZodObject | undefined {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name);
  if (names.length === 0) return undefined;
  return z.object(Object.fromEntries(names.map((name) => [name, z.string()])));
}

function headerSchemaOf(spec: RouteSpec): z.ZodObject | undefined {
  const shape: Record<string, z.ZodType> = {};
  if (spec.idempotent === true) {
    shape['Idempotency-Key'] = z
      .string()
      .regex(/^[!-~]{1,255}$/)
      .meta({
        description: 'Names this request for ever, for this tenant and this route. Send it again with it.',
      });
  }
  if (spec.authenticated) {
    shape['Holdfast-Actor'] = z.string().optional().meta({
      description:
        'Who asks, in development: 1 to 200 printable ASCII characters, compared trimmed and in lower case.',
    });
  }
  for (const [name, description] of Object.entries(spec.headers ?? {})) {
    shape[name] = z.string().optional().meta({ description });
  }
  return Object.keys(shape).length === 0 ? undefined : z.object(shape);
}

function repliesOf(replies: RouteSpec['replies']): ZodOpenApiResponsesObject {
  return Object.fromEntries(
    Object.entries(replies).map(([status, { description, body, mediaType, headers }]) => [
      status,
      {
        description,
        ...(headers === undefined ? {} : { headers: z.object(headerTexts(headers)) }),
        ...contentOf({ body, mediaType }),
      },
    ]),
  ) as ZodOpenApiResponsesObject;
}

function headerTexts(headers: Readonly<Record<string, string>>): Record<string, z.ZodType> {
  return Object.fromEntries(
    Object.entries(headers).map(([name, description]) => [name, z.string().meta({ description })]),
  );
}

function contentOf({
  body,
  mediaType,
}: {
  readonly body: ReplySpec['body'] | undefined;
  readonly mediaType: string | undefined;
}): object {
  if (body !== undefined) return { content: { [mediaType ?? 'application/json']: { schema: body } } };
  return mediaType === undefined ? {} : { content: { [mediaType]: { schema: z.string() } } };
}

/** One response a status; its description lists the codes that come with it. */
function problemsOf(codes: readonly ErrorCode[]): ZodOpenApiResponsesObject {
  const byStatus = new Map<number, ErrorCode[]>();
  for (const code of codes) {
    const { http } = ERRORS[code];
    byStatus.set(http, [...(byStatus.get(http) ?? []), code]);
  }
  return Object.fromEntries(
    [...byStatus].map(([status, listed]) => [
      String(status),
      {
        description: listed.map((code) => `\`${code}\`: ${ERRORS[code].title}.`).join(' '),
        content: { [PROBLEM_TYPE]: { schema: ProblemView } },
      },
    ]),
  ) as ZodOpenApiResponsesObject;
}
