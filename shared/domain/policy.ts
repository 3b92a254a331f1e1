import type { EffectClass } from './effect-classes.js';
import type { JsonObject, JsonValue } from './json.js';
import { parsePointer, valueAt } from './json-pointer.js';
import type { Role } from './roles.js';
import { canonicalJson } from './strict-json.js';

/** A test of one value of the arguments, at a JSON pointer. */
export type ArgumentTest = { readonly at: string } & (
  | { readonly equals: JsonValue }
  | { readonly oneOf: readonly JsonValue[] }
  | { readonly noneOf: readonly JsonValue[] }
  | { readonly above: number }
  | { readonly atLeast: number }
  | { readonly below: number }
  | { readonly atMost: number }
);

/** When a person must approve a call, whatever else says that nobody need. What `when` leaves out may be anything. */
export interface PolicyRule {
  readonly name: string;
  /** Digest of everything else that the rule says; an approval's scope names it. */
  readonly sha256: string;
  readonly when: {
    /** Names of tools; `*` stands for any characters. */
    readonly tools?: readonly string[];
    readonly classes?: readonly EffectClass[];
    /** Names of tenants; `*` stands for any characters. */
    readonly tenants?: readonly string[];
    /** All of them hold. */
    readonly arguments?: readonly ArgumentTest[];
  };
  readonly approval: 'required';
  readonly role?: Role;
  readonly quorum: number;
  readonly expiresSeconds?: number;
}

/** What the rules that ask come to together. */
export interface Asked {
  /** In the order of the policy. */
  readonly rules: readonly { readonly name: string; readonly sha256: string }[];
  readonly role?: Role;
  readonly quorum: number;
  readonly expiresSeconds?: number;
}

/** A call as a policy sees it. */
export interface JudgedCall {
  readonly tenantId: string;
  readonly tool: string;
  readonly effectClass: EffectClass;
  readonly arguments: JsonValue;
}

/**
 * What the rules of a policy ask of a call, or null when none does. A policy only adds care: the largest quorum and the
 * shortest expiry hold, and the first rule that names a role says which.
 */
export function askedOf(policy: readonly PolicyRule[], call: JudgedCall): Asked | null {
  return policy
    .filter((rule) => matches(rule, call))
    .map(({ name, sha256, role, quorum, expiresSeconds }): Asked => ({
      ...{ rules: [{ name, sha256 }], quorum },
      ...(role === undefined ? {} : { role }),
      ...(expiresSeconds === undefined ? {} : { expiresSeconds }),
    }))
    .reduce<Asked | null>((so, next) => (so === null ? next : stricter(so, next)), null);
}

/** Both together: neither asks for less than it did alone. */
export function stricter(first: Asked, second: Asked): Asked {
  const known = new Set(first.rules.map(({ sha256 }) => sha256));
  const role = first.role ?? second.role;
  const seconds = [first, second].flatMap(({ expiresSeconds }) => expiresSeconds ?? []);
  return {
    rules: [...first.rules, ...second.rules.filter(({ sha256 }) => !known.has(sha256))],
    quorum: Math.max(first.quorum, second.quorum),
    ...(role === undefined ? {} : { role }),
    ...(seconds.length === 0 ? {} : { expiresSeconds: Math.min(...seconds) }),
  };
}

/** What an effect keeps of who must approve it, beside its tool's declaration. */
export function approvalPolicy(approval: 'required' | 'not_required', asked: Asked | null): JsonObject {
  if (asked === null) return { approval };
  return { approval: 'required', asked: asked as unknown as JsonObject };
}

/** Whether a rule may ask about calls of a tool, for some tenant and some arguments. */
export function concerns(
  rule: Pick<PolicyRule, 'when'>,
  tool: { readonly name: string; readonly effectClass: EffectClass },
): boolean {
  const { tools, classes } = rule.when;
  return (
    (tools === undefined || tools.some((glob) => fitsGlob(glob, tool.name))) &&
    (classes === undefined || classes.includes(tool.effectClass))
  );
}

function matches(rule: PolicyRule, call: JudgedCall): boolean {
  const { tenants, arguments: tests } = rule.when;
  return (
    concerns(rule, { name: call.tool, effectClass: call.effectClass }) &&
    (tenants === undefined || tenants.some((glob) => fitsGlob(glob, call.tenantId))) &&
    (tests === undefined || tests.every((test) => holds(test, call.arguments)))
  );
}

/** Whether `text` is what the glob says; `*` stands for any characters, and for none. */
export function fitsGlob(glob: string, text: string): boolean {
  const parts = glob.split('*').map((part) => part.replace(/[\\^$.|?+()[\]{}]/g, '\\$&'));
  return new RegExp(`^${parts.join('.*')}$`, 's').test(text);
}

/**
 * A number is compared with a number. What is not there, or is none, cannot be shown to be small enough, so it asks: a
 * call does not get by a rule by writing its amount as text.
 */
function holds(test: ArgumentTest, args: JsonValue): boolean {
  const value = valueAt(args, parsePointer(test.at) ?? []);
  const isOneOf = (values: readonly JsonValue[]): boolean =>
    value !== undefined && values.some((each) => canonicalJson(each) === canonicalJson(value));
  if ('equals' in test) return isOneOf([test.equals]);
  if ('oneOf' in test) return isOneOf(test.oneOf);
  if ('noneOf' in test) return !isOneOf(test.noneOf);
  if (typeof value !== 'number') return true;
  if ('above' in test) return value > test.above;
  if ('atLeast' in test) return value >= test.atLeast;
  return 'below' in test ? value < test.below : value <= test.atMost;
}
