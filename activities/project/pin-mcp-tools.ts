import { McpConnection } from '../tools/mcp-connection.js';
import { readMcpPins, writeMcpPins } from '../tools/mcp-pins.js';
import type { McpPin, McpPins } from '../tools/mcp-pins.js';
import { mcpServersOf } from './load-tools.js';
import { ProjectError } from './project-error.js';
import { readProjectSource } from './project-source.js';
import type { Environment, ProjectSource } from './project-source.js';

/** What pinning did with one tool. */
export interface PinnedTool {
  readonly server: string;
  readonly tool: string;
  readonly digest: string;
  readonly change: 'added' | 'changed' | 'same';
}

/**
 * Asks every MCP server of a project what it offers, and writes the tools that the project uses into the
 * lock file. Run it after looking at a server's new version: from then on workers run that and no other.
 *
 * @throws ProjectError when the project file is wrong or a server does not offer a declared tool; nothing
 *   is written then
 * @throws McpConnectError when a server cannot be reached; nothing is written then
 */
export async function pinMcpTools(projectPath: string, env: Environment): Promise<PinnedTool[]> {
  const source = await readProjectSource(projectPath, env);
  const servers = mcpServersOf(source);
  if (source.problems.length > 0) throw new ProjectError(source.problems);
  const pins: Record<string, Record<string, McpPin>> = {};
  for (const [name, server] of servers) {
    const connection = new McpConnection({ name, server, secrets: source.env, dir: source.dir });
    try {
      const offered = await (await connection.session()).offered();
      pins[name] = usedTools(source, name, Object.keys(server.tools), offered);
    } finally {
      await connection.close();
    }
  }
  if (source.problems.length > 0) throw new ProjectError(source.problems);
  const before = await readMcpPins(source.dir).catch((): McpPins => ({ version: 1, servers: {} }));
  await writeMcpPins(source.dir, { version: 1, servers: pins });
  return Object.entries(pins).flatMap(([server, tools]) =>
    Object.entries(tools).map(([tool, { digest }]) => {
      const earlier = before.servers[server]?.[tool]?.digest;
      const change = earlier === undefined ? 'added' : earlier === digest ? 'same' : 'changed';
      return { server, tool, digest, change } as const;
    }),
  );
}

function usedTools(
  source: ProjectSource,
  server: string,
  names: readonly string[],
  offered: ReadonlyMap<string, McpPin>,
): Record<string, McpPin> {
  const used: Record<string, McpPin> = {};
  for (const name of names) {
    const pin = offered.get(name);
    if (pin !== undefined) used[name] = pin;
    else {
      const offers = [...offered.keys()].join(', ');
      source.problem(
        ['tools', 'mcp', server, 'tools', name],
        `${server} offers no ${name} — it offers ${offers}`,
      );
    }
  }
  return used;
}
