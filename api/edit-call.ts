import type { Pool } from 'pg';
import { HoldfastError } from '../shared/domain/errors.js';
import type { EffectClass } from '../shared/domain/effect-classes.js';
import type { JsonObject } from '../shared/domain/json.js';
import { approvalPolicy, type Asked, askedOf, type PolicyRule, stricter } from '../shared/domain/policy.js';
import type { Role } from '../shared/domain/roles.js';
import { readToolCalls } from '../shared/domain/tool-calls.js';
import { readManifest } from '../shared/ledger/admission.js';
import type { ChangedCall, EditableCall } from '../shared/ledger/edit-approval.js';
import { createArgumentsValidator } from '../shared/schema/compile-schema.js';

/**
 * What a call comes to with other arguments: checked against the schema that its run has pinned and canonicalised as a
 * call of the model is, and asking for no less than the call as it stands.
 *
 * @throws HoldfastError `arguments_invalid` for what the tool does not take
 */
export async function changedCall(pool: Pool, call: EditableCall, args: JsonObject): Promise<ChangedCall> {
  const manifest = await readManifest(pool, call.agent, call.agent_version);
  const pinned = manifest?.tools.filter(
    ({ name, version }) => name === call.tool && version === call.tool_version,
  );
  const tools = new Map((pinned ?? []).map((tool) => [tool.name, tool]));
  const raw = { type: 'raw_tool_call', providerCallId: '', toolName: call.tool } as const;
  const [read] = readToolCalls([{ ...raw, argumentsText: JSON.stringify(args) }], {
    ...{ tools, validate: createArgumentsValidator(tools), callIdPrefix: 'edit', usedCallIds: new Set() },
    callsMax: 1,
  });
  if (read?.kind !== 'planned') throw argumentsInvalid(call, read?.message ?? 'they cannot be read');
  return { arguments: read.canonicalArguments, ...termsOf(call, read.arguments, manifest?.policy ?? []) };
}

/** What the policy asks of the new arguments, and no less than was asked of the old. */
function termsOf(
  call: EditableCall,
  args: JsonObject,
  policy: readonly PolicyRule[],
): Omit<ChangedCall, 'arguments'> {
  const { expiresSeconds } = (call.policy['asked'] ?? {}) as Partial<Asked>;
  const before: Asked = {
    ...{ rules: call.rules, role: call.role as Role, quorum: call.quorum },
    ...(expiresSeconds === undefined ? {} : { expiresSeconds }),
  };
  const now = askedOf(policy, {
    ...{ tenantId: call.tenant_id, tool: call.tool, arguments: args },
    effectClass: call.effect_class as EffectClass,
  });
  const asked = now === null ? before : stricter(now, before);
  return {
    policy: { ...call.policy, ...approvalPolicy('required', asked) },
    ...{ role: asked.role ?? call.role, quorum: asked.quorum, rules: asked.rules },
    expires_at: earlier(call.expires_at, call.asked_at, now?.expiresSeconds),
  };
}

/** An edit never makes a wait longer, and what its arguments ask for may make it shorter. */
function earlier(expiresAt: string, askedAt: string, seconds: number | undefined): string {
  if (seconds === undefined) return expiresAt;
  const until = Date.parse(askedAt) + seconds * 1_000;
  return until < Date.parse(expiresAt) ? new Date(until).toISOString() : expiresAt;
}

function argumentsInvalid({ tool }: EditableCall, problem: string): HoldfastError {
  return new HoldfastError(
    'arguments_invalid',
    `The arguments sent are none that ${tool} takes. Nothing was decided; the call waits as it was. ${problem}`,
    { errors: [{ at: 'body/arguments', problem }], extensions: { tool } },
  );
}
