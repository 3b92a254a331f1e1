import type { JsonObject, JsonValue } from '../../shared/domain/json.js';
import { parsePointer } from '../../shared/domain/json-pointer.js';
import { concerns, fitsGlob, type PolicyRule } from '../../shared/domain/policy.js';
import { digestDeclaration } from '../tools/declaration.js';
import type { LoadedTools } from './load-tools.js';
import type { PolicyRuleDeclaration } from './policy-format.js';
import type { ProjectSource } from './project-source.js';

/** The project's policy; rules that could never ask, for a slip of the pen, are noted as problems. */
export function loadPolicy(source: ProjectSource, tools: LoadedTools): PolicyRule[] {
  const seen = new Set<string>();
  return source.declared.policy.map((declared, index) => {
    const at = ['policy', index];
    if (seen.has(declared.name)) {
      source.problem([...at, 'name'], `two rules are named ${declared.name} — rename one of them`);
    }
    seen.add(declared.name);
    const rule = ruleOf(declared);
    checkTools(source, at, rule, tools);
    checkArguments(source, at, rule, tools);
    return rule;
  });
}

/** Members that were not written are left out, so that they do not count in the digest. */
function ruleOf(declared: PolicyRuleDeclaration): PolicyRule {
  const plain = JSON.parse(JSON.stringify(declared)) as Omit<PolicyRule, 'sha256'>;
  return { ...plain, sha256: digestDeclaration('policy', plain) };
}

function checkTools(
  source: ProjectSource,
  at: readonly (string | number)[],
  rule: PolicyRule,
  tools: LoadedTools,
): void {
  const names = [...tools.byName.keys(), ...tools.broken];
  for (const [index, glob] of (rule.when.tools ?? []).entries()) {
    if (names.some((name) => fitsGlob(glob, name))) continue;
    const message = `no tool of the project is named ${glob} — correct it, or the rule never asks`;
    source.problem([...at, 'when', 'tools', index], message);
  }
}

function checkArguments(
  source: ProjectSource,
  at: readonly (string | number)[],
  rule: PolicyRule,
  tools: LoadedTools,
): void {
  const concerned = [...tools.byName.values()]
    .map(({ tool }) => tool)
    .filter((tool) => concerns(rule, { name: tool.name, effectClass: tool.effect.class }));
  if (concerned.length === 0) return;
  for (const [index, test] of (rule.when.arguments ?? []).entries()) {
    const path = parsePointer(test.at) ?? [];
    if (concerned.some(({ inputSchema }) => mayHold(inputSchema, path))) continue;
    const message = `no tool of this rule takes an argument ${test.at} — correct the pointer`;
    source.problem([...at, 'when', 'arguments', index, 'at'], message);
  }
}

/** Whether arguments of a schema can have a value there, for all that can be read from it without doubt. */
function mayHold(schema: JsonValue | undefined, path: readonly string[]): boolean {
  const [token, ...rest] = path;
  if (token === undefined) return true;
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema)) return true;
  const node = schema as JsonObject;
  const { properties, items } = node;
  if (['$ref', 'allOf', 'anyOf', 'oneOf', 'if', 'patternProperties'].some((key) => key in node)) return true;
  if (isObject(properties) && Object.hasOwn(properties, token)) return mayHold(properties[token], rest);
  if (node['type'] === 'array') return /^[0-9]+$/.test(token) && mayHold(items, rest);
  if (node['additionalProperties'] !== undefined) return node['additionalProperties'] !== false;
  return properties === undefined;
}

function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
