import { createHash } from 'node:crypto';
import type { z } from 'zod';
import { SHORT_SECONDS_MAX } from '../../shared/domain/agents.js';
import { canonicalJson, checkJsonValue } from '../../shared/domain/strict-json.js';

/** One thing wrong with a declaration: where, and in words what and what to do. */
export interface DeclarationProblem {
  readonly path: readonly (string | number)[];
  readonly message: string;
}

/** A tool was declared in a way that cannot work. Carries every problem found, not only the first. */
export class ToolDeclarationError extends Error {
  readonly code = 'tool_declaration_invalid';
  readonly tool: string;
  readonly problems: readonly DeclarationProblem[];

  constructor(tool: string, problems: readonly DeclarationProblem[]) {
    const lines = problems.map((problem) => `${problem.path.join('.') || tool}: ${problem.message}`);
    super(`Tool ${tool} is not declared correctly:\n  ${lines.join('\n  ')}`);
    this.name = 'ToolDeclarationError';
    this.tool = tool;
    this.problems = problems;
  }
}

/** A declaration that fits its schema, or all that is wrong with it. */
export type ReadDeclaration<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly problems: readonly DeclarationProblem[] };

/** Reads a declaration by its schema, filling in defaults. */
export function readDeclaration<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
): ReadDeclaration<z.output<Schema>> {
  const parsed = schema.safeParse(value, { error: explain });
  if (parsed.success) return { ok: true, value: parsed.data };
  return { ok: false, problems: parsed.error.issues.flatMap((issue) => problemsOf(issue, [])) };
}

/** What calls itself short must end soon: the fast lane holds a place of the workflow's worker meanwhile. */
export function shortProblems(short: boolean, timeoutSeconds: number): DeclarationProblem[] {
  if (!short || timeoutSeconds <= SHORT_SECONDS_MAX) return [];
  const message = `what is short ends within ${SHORT_SECONDS_MAX} seconds — set timeoutSeconds to ${SHORT_SECONDS_MAX} or less, or remove \`short\``;
  return [{ path: ['short'], message }];
}

/** Unknown settings are named one by one, each in its place; of a union, the nearest form counts. */
function problemsOf(issue: z.core.$ZodIssue, under: readonly PropertyKey[]): DeclarationProblem[] {
  const path = [...under, ...issue.path];
  if (issue.code === 'invalid_union' && issue.errors.length > 0) {
    const depth = (issues: readonly z.core.$ZodIssue[]) =>
      Math.max(...issues.map((each) => each.path.length));
    const nearest = [...issue.errors].sort((a, b) => depth(b) - depth(a))[0] ?? [];
    return nearest.flatMap((each) => problemsOf(each, path));
  }
  const at = path.map((part) => (typeof part === 'symbol' ? String(part) : part));
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.map((key) => ({
      path: [...at, key],
      message: `there is no setting "${key}" here — remove it or correct its name`,
    }));
  }
  return [{ path: at, message: issue.message }];
}

/** Says in our words what is wrong and what to do; a schema's own words come before these. */
function explain(issue: z.core.$ZodRawIssue): string | undefined {
  const name = issue.path?.at(-1);
  const what = name === undefined ? 'it' : `"${String(name)}"`;
  if (issue.input === undefined && issue.code !== 'unrecognized_keys') return `${what} is missing — add it`;
  switch (issue.code) {
    case 'invalid_type':
      return `${what} must be of type ${issue.expected} — correct it`;
    case 'invalid_value':
      return `${what} must be ${issue.values.map(String).join(' or ')} — correct it`;
    case 'too_small':
      return `${what} is too small: at least ${issue.minimum} — correct it`;
    case 'too_big':
      return `${what} is too big: at most ${issue.maximum} — correct it`;
    case 'invalid_union':
      return discriminatorProblem(issue, what);
    case 'custom':
    case 'invalid_element':
    case 'invalid_format':
    case 'invalid_key':
    case 'not_multiple_of':
    case 'unrecognized_keys':
      return undefined;
  }
}

function discriminatorProblem(issue: z.core.$ZodRawIssue, what: string): string {
  const options = 'options' in issue && Array.isArray(issue.options) ? (issue.options as unknown[]) : [];
  if (options.length === 0) return `${what} has none of the forms it may have — see the format of the file`;
  const member = 'discriminator' in issue ? String(issue.discriminator) : '';
  const given = typeof issue.input === 'object' && issue.input !== null && Object.hasOwn(issue.input, member);
  const allowed = options.map(String).join(' or ');
  return given ? `${what} must be ${allowed} — correct it` : `${what} is missing — add it: ${allowed}`;
}

/**
 * Lower-case hex SHA-256 over the canonical JSON of a declaration. Members that are undefined do not count.
 *
 * @throws ToolDeclarationError when the declaration holds what JSON cannot say
 */
export function digestDeclaration(tool: string, declaration: object): string {
  const plain: unknown = JSON.parse(JSON.stringify(declaration));
  const checked = checkJsonValue(plain);
  if (!checked.ok) throw new ToolDeclarationError(tool, [{ path: [checked.at], message: checked.message }]);
  return sha256(canonicalJson(checked.value));
}

/** Lower-case hex SHA-256 of text in UTF-8. */
export function sha256(text: string): string {
  return createHash('sha256').update(text, 'utf8').digest('hex');
}
