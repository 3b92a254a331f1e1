import type { AgentManifest } from '../shared/domain/agents.js';
import type { LedgerActivities } from '../shared/domain/protocol.js';
import { readManifest } from '../shared/ledger/admission.js';
import {
  blockResume,
  claimResume,
  lookAtRun,
  readPinnedAgent,
  type ResumeFault,
} from '../shared/ledger/commands.js';
import type { ActivityDeps } from './deps.js';
import { missingModelKey } from './models/create-model-client.js';
import { inScope, orRefused } from './scope.js';

/**
 * Claims a resume that was asked for, after a look at what the run has pinned (SPEC 4): the agent version, its tools in
 * their versions (an MCP tool's holds the digest of its schema), and the secrets that its calls would need. Where
 * something is missing in this process nothing moves and nothing is dispatched: the ledger keeps what, by name.
 */
export function createClaimResume(deps: ActivityDeps): LedgerActivities['claimResume'] {
  return (input) =>
    inScope('claimResume', input.runId, deps, (scope) =>
      orRefused(async () => {
        const faults = await faultsOf(deps, input.runId);
        if (faults.length > 0) {
          await blockResume(deps.db, scope, input.trail, { worker: deps.workerName, faults });
          return { kind: 'blocked' };
        }
        await claimResume(deps.db, scope, input.trail);
        return { kind: 'committed', state: (await lookAtRun(deps.db, scope)).state };
      }),
    );
}

async function faultsOf(deps: ActivityDeps, runId: string): Promise<ResumeFault[]> {
  const pinned = await readPinnedAgent(deps.db, runId);
  if (pinned === null) return [];
  const manifest = await readManifest(deps.db, pinned.agent, pinned.agent_version);
  if (manifest === undefined) return [{ code: 'agent_unavailable', name: pinned.agent }];
  return resumeFaults(manifest, deps);
}

/** What of a manifest is not there in this process, each once, in order. */
export function resumeFaults(
  { model, tools }: Pick<AgentManifest, 'model' | 'tools'>,
  { catalogue, secrets }: Pick<ActivityDeps, 'catalogue' | 'secrets'>,
): ResumeFault[] {
  const names = new Set<string>();
  const key = missingModelKey(model, secrets);
  if (key !== null) names.add(key);
  const faults: ResumeFault[] = [];
  for (const { name, version } of tools) {
    const tool = catalogue.get(name);
    if (tool === undefined) faults.push({ code: 'tool_missing', name });
    else if (tool.version !== version) faults.push({ code: 'tool_changed', name });
    else for (const secret of tool.missingSecrets?.() ?? []) names.add(secret);
  }
  return [...faults, ...[...names].map((name) => ({ code: 'secret_missing' as const, name }))];
}
