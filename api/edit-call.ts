import type { Pool } from 'pg';
import { HoldfastError } from '../shared/domain/errors.js';
import type { JsonObject } from '../shared/domain/json.js';
import { readToolCalls } from '../shared/domain/tool-calls.js';
import { readManifest } from '../shared/ledger/admission.js';
import type { ChangedCall, EditableCall } from '../shared/ledger/edit-approval.js';
import { createArgumentsValidator } from '../shared/schema/validate-arguments.js';

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
  return {
    ...{ arguments: read.canonicalArguments, policy: call.policy, rules: call.rules },
    ...{ role: call.role, quorum: call.quorum },
  };
}

function argumentsInvalid({ tool }: EditableCall, problem: string): HoldfastError {
  return new HoldfastError(
    'arguments_invalid',
    `The arguments sent are none that ${tool} takes. Nothing was decided; the call waits as it was. ${problem}`,
    { errors: [{ at: 'body/arguments', problem }], extensions: { tool } },
  );
}
