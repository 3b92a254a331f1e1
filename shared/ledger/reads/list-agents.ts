import type { AgentManifest } from '../../domain/agents.js';
import { isoTime } from './row-values.js';
import type { Db } from '../database.js';

/** An agent and the version that a new run would pin. */
export interface AgentRecord {
  readonly agent: string;
  readonly agent_version: string;
  readonly manifest: AgentManifest;
  readonly updated_at: string;
}

const LIST_AGENTS = {
  name: 'reads/agents',
  text: `
    select a.agent, a.agent_version, v.manifest, a.updated_at
      from holdfast.agents a
      join holdfast.agent_versions v using (agent, agent_version)
     where a.agent > $1
     order by a.agent
     limit $2`,
};

/**
 * The agents that runs can be started for, by name, at most `limit`, after the name `after` ('' for the
 * first).
 */
export async function listAgents(
  db: Db,
  page: { readonly after: string; readonly limit: number },
): Promise<AgentRecord[]> {
  const { rows } = await db.query<Omit<AgentRecord, 'updated_at'> & { updated_at: Date }>({
    ...LIST_AGENTS,
    values: [page.after, page.limit],
  });
  return rows.map((row) => ({ ...row, updated_at: isoTime(row.updated_at) }));
}
