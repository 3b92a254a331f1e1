import type { ToolManifest } from '../../shared/domain/agents.js';
import { compensationManifestOf, compensationProblems } from './compensation.js';
import { digestDeclaration } from './declaration.js';
import { TOOL_NAME } from './input-schema.js';
import type { Tool } from './tool.js';

/** Tools that cannot stand in one catalogue. Lists every conflict. */
export class CatalogueError extends Error {
  readonly code = 'catalogue_invalid';
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(`The tools cannot stand in one catalogue:\n  ${problems.join('\n  ')}`);
    this.name = 'CatalogueError';
    this.problems = problems;
  }
}

/**
 * The tools of a project by name: what the model sees, what runs and what policy knows are one object.
 * Two tools of one name are an error, whatever their order.
 */
export class ToolCatalogue {
  /** Lower-case hex SHA-256 over the names and versions of all tools. */
  readonly version: string;
  private readonly tools: ReadonlyMap<string, Tool>;

  /** @throws CatalogueError for names that collide or are none, and for compensations that are missing */
  constructor(tools: readonly Tool[]) {
    const problems = catalogueProblems(tools);
    if (problems.length > 0) throw new CatalogueError(problems);
    const sorted = [...tools].sort((a, b) => (a.name < b.name ? -1 : 1));
    this.tools = new Map(sorted.map((tool) => [tool.name, tool]));
    this.version = digestDeclaration('catalogue', {
      tools: sorted.map(({ name, version }) => [name, version]),
    });
  }

  /** The tool of that name; undefined where there is none, and no other stands in for it. */
  get(name: string): Tool | undefined {
    return this.tools.get(name);
  }

  /** All tools, by name. */
  list(): readonly Tool[] {
    return [...this.tools.values()];
  }
}

/** A tool as an agent version pins it, with its compensation from among `tools`. */
export function manifestOf(
  tool: Tool,
  approval: ToolManifest['approval'],
  tools: { get(name: string): Tool | undefined },
): ToolManifest {
  const { name, version, description, inputSchema, effect, parallel, short, timeoutSeconds } = tool;
  return {
    name,
    version,
    description,
    inputSchema,
    effectClass: effect.class,
    namespace: effect.namespace,
    keyed: effect.keyed ?? null,
    query: effect.query ?? null,
    compensation: compensationManifestOf(tool, tools),
    parallel,
    short,
    timeoutSeconds,
    approval,
  };
}

function catalogueProblems(tools: readonly Tool[]): string[] {
  const problems: string[] = [];
  const byName = new Map<string, Tool>();
  for (const tool of tools) {
    if (!TOOL_NAME.test(tool.name)) problems.push(`"${tool.name}" is no tool name`);
    if (byName.has(tool.name)) problems.push(`two tools are named ${tool.name} — rename one of them`);
    byName.set(tool.name, tool);
  }
  for (const tool of tools) {
    problems.push(...compensationProblems(tool, byName).map(({ message }) => `${tool.name}: ${message}`));
  }
  return problems;
}
