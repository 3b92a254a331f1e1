import { z } from 'zod';
import type { JsonObject } from '../../shared/domain/json.js';
import { bodyOfError, notSentAnswer, unknownAnswer } from './answers.js';
import { openDeadline, withinDeadline } from './deadline.js';
import type { Deadline } from './deadline.js';
import { digestDeclaration, readDeclaration, shortProblems, ToolDeclarationError } from './declaration.js';
import type { DeclarationProblem } from './declaration.js';
import { effectPolicySchema, policyOf, policyProblems } from './effect-policy.js';
import { answerOf, probeAnswerOf } from './function-answers.js';
import type { NamedProbeAnswer } from './function-answers.js';
import { inputSchemaProblems, TOOL_NAME } from './input-schema.js';
import type { EffectPolicy, ProbeAnswer, Tool, ToolAnswer, ToolCall, ToolQuery } from './tool.js';

export {
  absent,
  found,
  inconclusive,
  inProgress,
  notSent,
  rejected,
  succeeded,
  throttled,
} from './function-answers.js';
export type { NamedAnswer, NamedProbeAnswer } from './function-answers.js';

// Registered globally, because a project's modules may load another copy of this file.
const FUNCTION_TOOL = Symbol.for('holdfast.function-tool');

/** What `run` and `probe` are told beside the arguments. */
export interface ToolContext {
  /** Send it to the target: the same on every attempt of one effect. */
  readonly idempotencyKey: string;
  readonly effectId: string;
  readonly runId: string;
  readonly tenantId: string;
  /** From 1; in a probe 0. */
  readonly attempt: number;
  /**
   * Aborts on time-out, cancel and shutdown: stop, and end what you started. The run waits until `run` has ended, for
   * the rest of its time and a moment; what comes back after that is kept as evidence.
   */
  readonly signal: AbortSignal;
  /** Tells those who watch the run how far the call is; the newest word is shown, at most one a second. */
  readonly progress: (progress: {
    readonly message?: string;
    readonly done?: number;
    readonly total?: number;
  }) => void;
  /** The platform's fetch, aborted with `signal`; follows no redirect unless told to, retries nothing. */
  readonly fetch: typeof fetch;
}

/** The arguments as `run` gets them: parsed by the zod schema, or as JSON for a JSON Schema. */
export type ArgumentsOf<Input> = Input extends z.ZodType ? z.output<Input> : JsonObject;

/** A tool written as a function. */
export interface ToolDefinition<Input extends z.ZodType | JsonObject> {
  /** 1 to 64 letters, digits, `_` or `-`. */
  readonly name: string;
  /** What the model reads to decide when to call it. */
  readonly description: string;
  /** A zod object or a JSON Schema of `type: object`. */
  readonly input: Input;
  /** `namespace` is the tool's name where none is given. */
  readonly effect: Omit<EffectPolicy, 'namespace'> & { readonly namespace?: string };
  /** May run beside other calls of the same step that say so too. Default: only a read may. */
  readonly parallel?: boolean;
  /** Ends within 10 seconds as a rule, so its calls take the fast lane. Default: no. */
  readonly short?: boolean;
  /** 1 to 3,600; default 30. */
  readonly timeoutSeconds?: number;
  /**
   * Does it. A returned value is `succeeded`; `succeeded(…)`, `rejected(…)`, `notSent(…)`, `throttled(…)`
   * and `inProgress(…)` say more. Throwing means that there is no definite answer: the outcome is
   * `unknown` and the effect's class decides what follows.
   */
  readonly run: (args: ArgumentsOf<Input>, context: ToolContext) => unknown;
  /** Asks what became of a key; answers `found(…)`, `absent(…)` or `inconclusive(…)`. Changes nothing. */
  readonly probe?: (
    args: ArgumentsOf<Input>,
    context: ToolContext,
  ) => NamedProbeAnswer | Promise<NamedProbeAnswer>;
}

/**
 * Makes a tool of a function.
 *
 * @throws ToolDeclarationError with every problem of the definition
 */
export function defineTool<const Input extends z.ZodType | JsonObject>(
  definition: ToolDefinition<Input>,
): Tool {
  const timeoutSeconds = definition.timeoutSeconds ?? 30;
  const policy = readDeclaration(effectPolicySchema, definition.effect);
  const schema = jsonSchemaOf(definition.input);
  const problems = [
    ...settingProblems(definition.name, definition.description, timeoutSeconds),
    ...shortProblems(definition.short ?? false, timeoutSeconds),
    ...(typeof schema === 'string' ? [{ path: ['input'], message: schema }] : []),
    ...(typeof schema === 'object' ? under('input', inputSchemaProblems(schema)) : []),
    ...(policy.ok ? [] : under('effect', policy.problems)),
    ...(policy.ok
      ? under('effect', policyProblems(policy.value, { hasProbe: definition.probe !== undefined }))
      : []),
  ];
  if (problems.length > 0 || typeof schema === 'string' || !policy.ok) {
    throw new ToolDeclarationError(definition.name, problems);
  }
  const shown = {
    name: definition.name,
    description: definition.description,
    inputSchema: schema,
    effect: policyOf(policy.value, definition.name),
    parallel: definition.parallel ?? policy.value.class === 'read',
    short: definition.short ?? false,
    timeoutSeconds,
  };
  const { probe } = definition;
  const tool: Tool = {
    ...shown,
    version: digestDeclaration(definition.name, { kind: 'function', probe: probe !== undefined, ...shown }),
    call: (call) => callFunction(definition, timeoutSeconds, call),
    ...(probe === undefined
      ? {}
      : { probe: (query) => probeFunction(definition, probe, timeoutSeconds, query) }),
  };
  return Object.defineProperty(tool, FUNCTION_TOOL, { value: true });
}

/** True for what `defineTool` made, whichever copy of this module it was. */
export function isFunctionTool(value: unknown): value is Tool {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, FUNCTION_TOOL);
}

async function callFunction<Input extends z.ZodType | JsonObject>(
  definition: ToolDefinition<Input>,
  timeoutSeconds: number,
  call: ToolCall,
): Promise<ToolAnswer> {
  const deadline = openDeadline(call, timeoutSeconds * 1000);
  try {
    if (deadline.cause() !== null) return notSentAnswer('aborted_before_send');
    const read = await readArguments(definition.input, call.arguments);
    if (!read.ok) return notSentAnswer('arguments_invalid');
    // Waited for past the deadline too: what still runs may still do it.
    const settled = await runFunction(() =>
      definition.run(read.value, contextOf(call, call.attempt, deadline, call.progress)),
    );
    // A tool that gave up because we told it to throws too: say why it was told.
    const cause = deadline.cause();
    const isEcho = cause !== null && settled.kind === 'unknown';
    return isEcho ? unknownAnswer(cause, settled.body) : settled;
  } finally {
    deadline.end();
  }
}

async function runFunction(run: () => unknown): Promise<ToolAnswer> {
  try {
    return answerOf(await run());
  } catch (error) {
    return unknownAnswer('tool_threw', bodyOfError(error));
  }
}

async function probeFunction<Input extends z.ZodType | JsonObject>(
  definition: ToolDefinition<Input>,
  probe: NonNullable<ToolDefinition<Input>['probe']>,
  timeoutSeconds: number,
  query: ToolQuery,
): Promise<ProbeAnswer> {
  const deadline = openDeadline(query, timeoutSeconds * 1000);
  const ask = async (): Promise<ProbeAnswer> => {
    try {
      const read = await readArguments(definition.input, query.arguments);
      if (!read.ok) return { kind: 'inconclusive', reason: 'arguments_invalid', body: null };
      return probeAnswerOf(
        await probe(
          read.value,
          contextOf(query, 0, deadline, () => undefined),
        ),
      );
    } catch (error) {
      return { kind: 'inconclusive', reason: 'tool_threw', body: bodyOfError(error) };
    }
  };
  try {
    if (deadline.cause() !== null) return { kind: 'inconclusive', reason: 'aborted', body: null };
    const settled = await withinDeadline(ask(), deadline);
    return typeof settled === 'string' ? { kind: 'inconclusive', reason: settled, body: null } : settled;
  } finally {
    deadline.end();
  }
}

async function readArguments<Input extends z.ZodType | JsonObject>(
  input: Input,
  args: JsonObject,
): Promise<{ ok: true; value: ArgumentsOf<Input> } | { ok: false }> {
  if (!isZod(input)) return { ok: true, value: args as ArgumentsOf<Input> };
  try {
    const parsed = await input.safeParseAsync(args);
    return parsed.success ? { ok: true, value: parsed.data as ArgumentsOf<Input> } : { ok: false };
  } catch {
    // A refinement or transform of the project's own threw: the arguments cannot be read, nothing was sent.
    return { ok: false };
  }
}

function contextOf(
  call: ToolQuery,
  attempt: number,
  deadline: Deadline,
  tell: ToolCall['progress'],
): ToolContext {
  const { signal } = deadline;
  const { idempotencyKey, effectId, runId, tenantId } = call;
  return {
    idempotencyKey,
    effectId,
    runId,
    tenantId,
    attempt,
    signal,
    progress: ({ message = null, done = null, total = null }) => tell({ message, done, total }),
    fetch: (input, init) => fetch(input, { redirect: 'manual', signal, ...init }),
  };
}

/** A JSON Schema of the arguments as the model writes them, or why there is none. */
function jsonSchemaOf(input: z.ZodType | JsonObject): JsonObject | string {
  if (!isZod(input)) return input;
  try {
    return z.toJSONSchema(input, { io: 'input', target: 'draft-2020-12' }) as JsonObject;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return `the zod schema has no JSON Schema (${why}) — use types that JSON has`;
  }
}

function isZod(input: z.ZodType | JsonObject): input is z.ZodType {
  return '_zod' in input;
}

function settingProblems(name: string, description: string, timeoutSeconds: number): DeclarationProblem[] {
  const problems: DeclarationProblem[] = [];
  if (!TOOL_NAME.test(name)) {
    problems.push({
      path: ['name'],
      message: `"${name}" is no tool name — use 1 to 64 letters, digits, _ or -`,
    });
  }
  if (description.trim() === '') {
    problems.push({
      path: ['description'],
      message: 'it is empty — say what the tool does and when to use it',
    });
  }
  if (!(timeoutSeconds >= 1 && timeoutSeconds <= 3600)) {
    problems.push({
      path: ['timeoutSeconds'],
      message: `${timeoutSeconds} is not between 1 and 3600 seconds`,
    });
  }
  return problems;
}

function under(member: string, problems: readonly DeclarationProblem[]): DeclarationProblem[] {
  return problems.map((problem) => ({ ...problem, path: [member, ...problem.path] }));
}
