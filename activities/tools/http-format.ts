import { z } from 'zod';
import type { JsonObject, JsonValue } from '../../shared/domain/json.js';
import { effectFields } from './effect-policy.js';

const jsonValue: z.ZodType<JsonValue> = z.json();
const jsonObject: z.ZodType<JsonObject> = z.record(z.string(), z.json());

const pointer = z
  .string()
  .regex(/^(\/([^~/]|~[01])*)*$/, 'a JSON pointer starts with / or is empty, for example /refund/id');

/** One status, a class of them (`4xx`), or a range (`200-299`). */
const statusPattern = z.union([
  z.int().min(200).max(599),
  z.string().regex(/^([2-5]xx|[2-5]\d\d|[2-5]\d\d-[2-5]\d\d)$/, 'write a status as 404, 4xx or 200-299'),
]);

/** One row of an answer table; the first row that fits decides. */
const answerRule = <const T extends readonly [string, ...string[]]>(outcomes: T) =>
  z.strictObject({
    status: z.union([statusPattern, z.array(statusPattern).min(1)]),
    /** Looks at one place of the JSON body too. */
    at: pointer.optional(),
    equals: jsonValue.optional(),
    outcome: z.enum(outcomes),
  });

const callRule = answerRule(['succeeded', 'rejected', 'throttled', 'in_progress', 'unknown']);
const probeRule = answerRule(['found', 'absent', 'inconclusive']);

const headers = z.record(
  z.string().regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/, 'that is no name of a header'),
  z.string().max(4096),
);

const requestFields = {
  /** `https://host/path/{argument}`; only path and query may hold arguments. `{$key}` is the key. */
  url: z.string().min(1),
  /** Of the URL's query; one whose argument was not given is left out, a list is repeated. */
  parameters: z.record(z.string(), z.string()).default({}),
  /** Values may hold `${secret:NAME}` and `{$key}`. */
  headers: headers.default({}),
  /** `json`: a 2xx without readable JSON is no answer. `any`: the status alone decides. */
  expects: z.enum(['json', 'any']).default('json'),
  /** Where in the JSON body the outside name of the effect stands. */
  reference: pointer.optional(),
  /** Where in the JSON body the target repeats our key; another value there is somebody else's answer. */
  keyEcho: pointer.optional(),
};

/** How the target is asked what became of a key. */
const probeSchema = z.strictObject({
  ...requestFields,
  answers: z.array(probeRule).min(1),
});

/** An HTTP tool as a project file declares it. */
export const httpToolSchema = z.strictObject({
  description: z.string().trim().min(1, 'it is empty — say what the tool does and when to use it'),
  input: jsonObject,
  /** JSON Schema that a 2xx body must fit to count as an answer. */
  output: jsonObject.optional(),
  ...effectFields,
  parallel: z.boolean().optional(),
  /** Ends within 10 seconds as a rule, so its calls take the fast lane: no round trip through Temporal for each. */
  short: z.boolean().default(false),
  timeoutSeconds: z.number().min(1).max(3600).default(30),
  connectTimeoutSeconds: z.number().min(0.1).max(120).default(5),
  method: z.enum(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']).default('POST'),
  ...requestFields,
  /** Names the header that carries the idempotency key. */
  keyHeader: headers.keyType.optional(),
  /** `arguments`: the whole arguments as JSON. A mapping: JSON with `{argument}` in its texts. */
  body: z.union([z.literal('arguments'), jsonObject]).optional(),
  /** The first row that fits decides; without one, the status does. */
  answers: z.array(callRule).default([]),
  /** The target's word that its 429 and 503 come before it does anything. */
  limiterRunsBeforeExecution: z.boolean().default(false),
  /** Further `host:port` the tool may reach, and the private addresses it may; see `parseAllowEntry`. */
  allow: z.array(z.string()).default([]),
  probe: probeSchema.optional(),
});

/** A file of HTTP tools; each is read by itself, so that one mistake hides no other. */
export const httpFileSchema = z.strictObject({
  version: z.literal(1),
  tools: z.record(z.string(), z.unknown()),
});

/** An HTTP tool's declaration with its defaults filled in. */
export type HttpToolDeclaration = z.output<typeof httpToolSchema>;
/** A probe's declaration with its defaults filled in. */
export type HttpProbeDeclaration = z.output<typeof probeSchema>;
/** One row of a tool's or a probe's answer table. */
export type AnswerRule<Outcome extends string> = {
  readonly status: StatusPattern | readonly StatusPattern[];
  readonly at?: string | undefined;
  readonly equals?: JsonValue | undefined;
  readonly outcome: Outcome;
};
type StatusPattern = z.output<typeof statusPattern>;
