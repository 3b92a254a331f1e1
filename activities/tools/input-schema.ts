import type { JsonObject, JsonValue } from '../../shared/domain/json.js';
import { compileSchema } from '../../shared/schema/validate-arguments.js';
import type { DeclarationProblem } from './declaration.js';

/** Tells whether a JSON value fits a schema. */
export type Fits = (value: JsonValue) => boolean;

/** Names of tools, the same for every provider of models. */
export const TOOL_NAME = /^[a-zA-Z0-9_-]{1,64}$/;

/** What is wrong with a schema of a tool's arguments: it must compile and describe an object. */
export function inputSchemaProblems(schema: JsonObject): DeclarationProblem[] {
  if (schema['type'] !== 'object') {
    return [{ path: [], message: 'the schema of the arguments must be of `type: object`' }];
  }
  const fits = fitsOf(schema);
  return typeof fits === 'string' ? [{ path: [], message: fits }] : [];
}

/** Compiles a schema, as the arguments of calls are checked; a text says why it cannot be compiled. */
export function fitsOf(schema: JsonObject): Fits | string {
  try {
    const check = compileSchema(schema);
    return (value) => check(value).length === 0;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return `the schema does not compile (${why}) — correct it`;
  }
}
