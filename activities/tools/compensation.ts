import { z } from 'zod';
import {
  type CompensationManifest,
  placeholdersOfRule,
  REFERENCE_PLACEHOLDER,
  UNDONE_KEY_PLACEHOLDER,
} from '../../shared/domain/compensation.js';
import type { JsonObject, JsonValue } from '../../shared/domain/json.js';
import type { DeclarationProblem } from './declaration.js';
import type { DeclaredCompensation, Tool } from './tool.js';

/**
 * The tool that undoes this one, by name, or with the rule that makes its arguments: texts may hold `{argument}` of
 * the call that is undone, `{$reference}` from its receipt and `{$key}`, its idempotency key. Without a rule it takes
 * the same arguments.
 */
export const compensationSchema = z.union([
  z.string().min(1),
  z.strictObject({
    tool: z.string().min(1),
    arguments: z.record(z.string(), z.json()) as z.ZodType<JsonObject>,
  }),
]);

/** The name of the compensating tool. */
export function compensatorOf(declared: DeclaredCompensation): string {
  return typeof declared === 'string' ? declared : declared.tool;
}

/** What is wrong with the compensation that a tool declares, among the tools of its project. */
export function compensationProblems(tool: Tool, tools: ReadonlyMap<string, Tool>): DeclarationProblem[] {
  const declared = tool.effect.compensation;
  if (declared === undefined) return [];
  const name = compensatorOf(declared);
  const other = tools.get(name);
  const refused = (message: string): DeclarationProblem[] => [{ path: ['compensation'], message }];
  if (other === undefined)
    return refused(`its compensation ${name} is no tool of the project — add it or correct the name`);
  if (other === tool) return refused('it names itself as its compensation — name the tool that undoes it');
  if (other.effect.class === 'read') return refused(`its compensation ${name} is a read and undoes nothing`);
  return typeof declared === 'string'
    ? sameArgumentsProblems(tool, other)
    : ruleProblems(tool, other, declared.arguments);
}

/** Without a rule, what the compensation must be given has to be what the tool must be given. */
function sameArgumentsProblems(tool: Tool, other: Tool): DeclarationProblem[] {
  const own = requiredOf(tool.inputSchema);
  const missing = requiredOf(other.inputSchema).filter((name) => !own.includes(name));
  return missing.map((name) => ({
    path: ['compensation'],
    message: `its compensation ${other.name} needs "${name}", which ${tool.name} need not be given — say under \`arguments\` where it comes from`,
  }));
}

function ruleProblems(tool: Tool, other: Tool, rule: JsonObject): DeclarationProblem[] {
  const offered = propertiesOf(tool.inputSchema);
  const taken = propertiesOf(other.inputSchema);
  const isClosed = other.inputSchema['additionalProperties'] === false;
  const always = new Set([REFERENCE_PLACEHOLDER, UNDONE_KEY_PLACEHOLDER]);
  const required = requiredOf(tool.inputSchema);
  const given = Object.entries(rule).flatMap(([name, part]) => {
    const at = ['compensation', 'arguments', name];
    const used = placeholdersOfRule(part);
    const unknown = used.filter((each) => !always.has(each) && !offered.has(each));
    const maybe = requiredOf(other.inputSchema).includes(name)
      ? used.filter((each) => offered.has(each) && !required.includes(each))
      : [];
    return [
      ...(isClosed && !taken.has(name)
        ? [{ path: at, message: `${other.name} takes no argument "${name}" — remove it or correct its name` }]
        : []),
      ...unknown.map((each) => ({
        path: at,
        message: `{${each}} is no argument of ${tool.name} — use one of its own, {$reference} or {$key}`,
      })),
      ...maybe.map((each) => ({
        path: at,
        message: `${other.name} needs "${name}", and ${tool.name} may be called without "${each}" — make it required`,
      })),
    ];
  });
  const missing = requiredOf(other.inputSchema).filter((name) => !Object.hasOwn(rule, name));
  return [
    ...given,
    ...missing.map((name) => ({
      path: ['compensation', 'arguments'],
      message: `${other.name} needs "${name}" — say where it comes from`,
    })),
  ];
}

function requiredOf(schema: JsonObject): readonly string[] {
  const required = schema['required'];
  if (!Array.isArray(required)) return [];
  return (required as readonly JsonValue[]).filter((name): name is string => typeof name === 'string');
}

function propertiesOf(schema: JsonObject): ReadonlySet<string> {
  const properties = schema['properties'];
  const isObject = typeof properties === 'object' && properties !== null && !Array.isArray(properties);
  return new Set(isObject ? Object.keys(properties) : []);
}

/** A tool's compensation as an agent version pins it: the compensating tool need not be one that the model is shown. */
export function compensationManifestOf(
  tool: Tool,
  tools: { get(name: string): Tool | undefined },
): CompensationManifest | null {
  const declared = tool.effect.compensation;
  if (declared === undefined) return null;
  const other = tools.get(compensatorOf(declared));
  if (other === undefined) throw new Error(`bug: the compensation of ${tool.name} is no tool`);
  return {
    tool: other.name,
    toolVersion: other.version,
    effectClass: other.effect.class,
    namespace: other.effect.namespace,
    timeoutSeconds: other.timeoutSeconds,
    keyed: other.effect.keyed === undefined ? null : { ...other.effect.keyed },
    query: other.effect.query === undefined ? null : { ...other.effect.query },
    arguments: typeof declared === 'string' ? null : declared.arguments,
  };
}
