import { Script, createContext } from 'node:vm';
import { Ajv } from 'ajv';
import type { ErrorObject, ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormatsModule from 'ajv-formats';
import { excerpt } from '../domain/json-rules.js';
import type { JsonObject, JsonValue } from '../domain/json.js';

/** Largest schema that is compiled, in characters of its JSON text. */
export const SCHEMA_CHARACTERS_MAX = 262_144;
/** Time that compiling one schema may take, in milliseconds. */
export const SCHEMA_COMPILE_MS_MAX = 2_000;
/** Time that checking one value may take, in milliseconds. */
export const SCHEMA_CHECK_MS_MAX = 250;

const FAULTS_SHOWN_MAX = 8;
const FAULT_CHARACTERS_MAX = 200;

/** Checks values against one schema; gives what is wrong, one short sentence each, or nothing. */
export type CheckValue = (value: JsonValue) => string[];

/**
 * Compiles a tool's JSON Schema: draft-07 where it says so, else 2020-12 (and draft-07 where it is only
 * valid as that). Compiled once per schema text.
 *
 * Schemas come from tool servers and are not trusted: a size limit, no fetching of `$ref`s, no async
 * schemas, and a time limit on compiling and on every check that can take long, which ends even a runaway regular
 * expression.
 *
 * @throws Error that says why the schema cannot be used
 */
export function compileSchema(schema: JsonObject): CheckValue {
  const text = JSON.stringify(schema);
  let result = compiled.get(text);
  if (!result) {
    result = tryCompile(text, schema);
    if (compiled.size >= COMPILED_SCHEMAS_MAX) compiled.clear();
    compiled.set(text, result);
  }
  if (result instanceof Error) throw result;
  return result;
}

/**
 * The `validate` of `readToolCalls` over a run's tools. A tool whose schema cannot be used refuses every
 * call with that reason: nothing is dispatched that was not checked.
 */
export function createArgumentsValidator(
  tools: ReadonlyMap<string, { readonly inputSchema: JsonObject }>,
): (toolName: string, value: JsonObject) => string[] {
  return (toolName, value) => {
    const tool = tools.get(toolName);
    if (!tool) return [`there is no tool named ${excerpt(toolName, 64)}`];
    let check: CheckValue;
    try {
      check = compileSchema(tool.inputSchema);
    } catch (error) {
      return [`the schema of the tool itself cannot be used (${messageOf(error)}); use another tool`];
    }
    return check(value);
  };
}

const COMPILED_SCHEMAS_MAX = 1_000;
// Failures are kept too: a schema that takes seconds to fail must not take them at every call.
const compiled = new Map<string, CheckValue | Error>();

function tryCompile(text: string, schema: JsonObject): CheckValue | Error {
  try {
    return compileText(text, schema);
  } catch (error) {
    return error instanceof Error ? error : new Error(messageOf(error));
  }
}

function compileText(text: string, schema: JsonObject): CheckValue {
  if (text.length > SCHEMA_CHARACTERS_MAX) {
    throw new Error(`the schema has ${text.length} characters; at most ${SCHEMA_CHARACTERS_MAX} are read`);
  }
  // An async validator answers with a promise, which would count as "fits".
  if (schema['$async'] !== undefined) throw new Error('$async schemas are not supported; remove $async');
  const { $schema: dialect, ...body } = schema;
  const drafts = typeof dialect === 'string' && /draft-0[67]/.test(dialect) ? ['07'] : ['2020-12', '07'];
  const failures: unknown[] = [];
  for (const draft of drafts) {
    try {
      const validate = withinTime(SCHEMA_COMPILE_MS_MAX, () => newAjv(draft).compile(body));
      return checkWith(validate, MAY_RUN_AWAY.test(text) ? withinTime : atOnce);
    } catch (error) {
      failures.push(error);
      if (isTimeOut(error)) break;
    }
  }
  throw new Error(excerpt(messageOf(failures[0]), FAULT_CHARACTERS_MAX), { cause: failures[0] });
}

// A compiler of its own for each schema: names that two schemas share (`$id`) never meet, and one that was
// stopped in the middle leaves nothing behind.
function newAjv(draft: string): Ajv {
  // `strict` off: tool servers add keywords of their own. `logger` off: they would be printed.
  const options = { allErrors: true, strict: false, logger: false, validateFormats: true } as const;
  const ajv = draft === '07' ? new Ajv(options) : new Ajv2020(options);
  // The package is CommonJS with a default export; its types give the function, Node gives the module.
  addFormatsModule.default(ajv);
  return ajv;
}

// Keywords whose check can take much longer than the value is long: expressions, references to themselves, and pairs.
// To watch a check costs more than most checks.
const MAY_RUN_AWAY = /"(?:pattern|patternProperties|format|uniqueItems|\$ref|\$dynamicRef|\$recursiveRef)":/;

const atOnce: typeof withinTime = (_milliseconds, run) => run();

function checkWith(validate: ValidateFunction, within: typeof withinTime): CheckValue {
  return (value) => {
    let errors: readonly ErrorObject[];
    try {
      errors = within(SCHEMA_CHECK_MS_MAX, () => (validate(value) === true ? [] : (validate.errors ?? [])));
    } catch (error) {
      if (isTimeOut(error))
        return [`checking them took longer than ${SCHEMA_CHECK_MS_MAX} ms; make them simpler`];
      // For example a `$ref` that leads to itself for ever.
      return [
        `the schema of the tool cannot be applied (${excerpt(messageOf(error), FAULT_CHARACTERS_MAX)})`,
      ];
    }
    const faults = [...new Set(errors.map(faultText))];
    if (faults.length <= FAULTS_SHOWN_MAX) return faults;
    return [...faults.slice(0, FAULTS_SHOWN_MAX), `and ${faults.length - FAULTS_SHOWN_MAX} more faults`];
  };
}

function faultText(error: ErrorObject): string {
  const where = error.instancePath === '' ? 'the arguments' : error.instancePath;
  const params = error.params as Record<string, unknown>;
  const named = params['additionalProperty'] ?? params['unevaluatedProperty'] ?? params['propertyName'];
  const allowed = params['allowedValues'] ?? params['allowedValue'];
  const detail =
    named !== undefined
      ? `: ${JSON.stringify(named)}`
      : allowed !== undefined
        ? `: ${JSON.stringify(allowed)}`
        : '';
  return excerpt(`${where} ${error.message ?? error.keyword}${detail}`, FAULT_CHARACTERS_MAX);
}

// Node's only way to stop running JavaScript, regular expressions included, from the same thread. The
// context holds nothing but the one function; the work itself runs with our own objects.
const watch = createContext(Object.create(null) as Record<string, unknown>);
const runWatched = new Script('run()');

function withinTime<Result>(milliseconds: number, run: () => Result): Result {
  watch['run'] = run;
  try {
    return runWatched.runInContext(watch, { timeout: milliseconds }) as Result;
  } finally {
    watch['run'] = undefined;
  }
}

function isTimeOut(error: unknown): boolean {
  return (
    typeof error === 'object' &&
    error !== null &&
    'code' in error &&
    error.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT'
  );
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
