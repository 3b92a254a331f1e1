import { pathToFileURL } from 'node:url';
import { compensationProblems, compensatorOf } from '../tools/compensation.js';
import { readDeclaration, ToolDeclarationError } from '../tools/declaration.js';
import { isFunctionTool } from '../tools/define-tool.js';
import { httpFileSchema } from '../tools/http-format.js';
import { createHttpTool } from '../tools/http-tool.js';
import type { ToolManifest } from '../../shared/domain/agents.js';
import { McpConnection } from '../tools/mcp-connection.js';
import type { McpServerDeclaration } from '../tools/mcp-format.js';
import { McpPinsError, MCP_PINS_FILE, readMcpPins } from '../tools/mcp-pins.js';
import type { McpPins } from '../tools/mcp-pins.js';
import { createMcpTool } from '../tools/mcp-tools.js';
import type { Tool } from '../tools/tool.js';
import { UsedSecrets } from '../tools/used-secrets.js';
import type { ProjectProblem } from './project-error.js';
import { fillEnv, problemIn } from './project-source.js';
import type { ProjectSource } from './project-source.js';
import { readYamlFile } from './yaml-file.js';

/** A tool of a project, and where a problem with it is reported. */
export interface LoadedTool {
  readonly tool: Tool;
  /** What its own declaration says of approval; the class decides where that is null. */
  readonly approval: ToolManifest['approval'] | null;
  readonly problem: (message: string, under?: readonly (string | number)[]) => ProjectProblem;
}

/** The tools of a project by name, and the connections they share. */
export interface LoadedTools {
  readonly byName: ReadonlyMap<string, LoadedTool>;
  /** Names that are declared and could not be made: their problems are noted, so nobody need miss them. */
  readonly broken: ReadonlySet<string>;
  readonly connections: readonly McpConnection[];
}

/** Reads every tool that a project names; what is wrong is noted in the source. Connects to nothing. */
export async function loadTools(source: ProjectSource): Promise<LoadedTools> {
  const connections: McpConnection[] = [];
  const broken = new Set<string>();
  const secrets = new UsedSecrets(source.env);
  const declared = [
    ...(await loadFunctions(source)),
    ...(await loadHttpTools(source, secrets, broken)),
    ...(await loadMcpTools(source, secrets, connections, broken)),
  ];
  const loaded = declared.map((each) => ({ ...each, tool: secrets.hideFrom(each.tool) }));
  const byName = new Map<string, LoadedTool>();
  for (const each of loaded) {
    const earlier = byName.get(each.tool.name);
    if (earlier === undefined) {
      byName.set(each.tool.name, each);
      continue;
    }
    const other = earlier.problem('');
    const place = `${other.file}:${other.line}`;
    source.problems.push(
      each.problem(`a tool ${each.tool.name} is declared at ${place} too — rename one of them`),
    );
  }
  const tools = new Map([...byName].map(([name, { tool }]) => [name, tool]));
  for (const each of byName.values()) {
    const { compensation } = each.tool.effect;
    if (compensation === undefined || broken.has(compensatorOf(compensation))) continue;
    for (const { path, message } of compensationProblems(each.tool, tools)) {
      source.problems.push(each.problem(`${each.tool.name}: ${message}`, path));
    }
  }
  return { byName, broken, connections };
}

async function loadFunctions(source: ProjectSource): Promise<LoadedTool[]> {
  const loaded: LoadedTool[] = [];
  for (const [index, name] of source.declared.tools.functions.entries()) {
    const at = ['tools', 'functions', index];
    const tools = await importTools(source.pathOf(name));
    if (typeof tools === 'string') source.problem(at, `${name}: ${tools}`);
    else {
      const problem = (message: string) => source.yaml.problemAt(at, message);
      loaded.push(...tools.map((tool) => ({ tool, approval: null, problem })));
    }
  }
  return loaded;
}

/** The tools a module exports, by name or as its default; a text says why there are none. */
async function importTools(path: string): Promise<Tool[] | string> {
  let module: Record<string, unknown>;
  try {
    module = (await import(pathToFileURL(path).href)) as Record<string, unknown>;
  } catch (error) {
    // By name: the module may have loaded another copy of the class.
    if (error instanceof Error && error.name === 'ToolDeclarationError') {
      const { tool, problems } = error as ToolDeclarationError;
      return problems.map(({ path, message }) => `${tool}: ${path.join('.')}: ${message}`).join('; ');
    }
    const why = error instanceof Error ? (error.message.split('\n', 1)[0] ?? '') : String(error);
    return `it cannot be imported (${why}) — correct the path or the module`;
  }
  const exported = Object.values(module).flatMap((value) =>
    Array.isArray(value) ? (value as unknown[]) : [value],
  );
  // A module may export one tool by name and in its default list.
  const tools = [...new Set(exported.filter((value) => isFunctionTool(value)))];
  return tools.length > 0 ? tools : 'it exports no tool — export what defineTool returns';
}

async function loadHttpTools(
  source: ProjectSource,
  secrets: UsedSecrets,
  broken: Set<string>,
): Promise<LoadedTool[]> {
  const loaded: LoadedTool[] = [];
  for (const [index, name] of source.declared.tools.http.entries()) {
    const yaml = await readYamlFile(source.pathOf(name), source.shownPathOf(name));
    if (Array.isArray(yaml)) {
      source.problem(['tools', 'http', index], `${name} cannot be used — see the problem in it`);
      source.problems.push(...yaml);
      continue;
    }
    const file = readDeclaration(httpFileSchema, yaml.value);
    if (!file.ok) {
      source.problems.push(...file.problems.map((problem) => problemIn(yaml, [], problem)));
      continue;
    }
    for (const [toolName, declaration] of Object.entries(file.value.tools)) {
      const at = ['tools', toolName];
      const problem: LoadedTool['problem'] = (message, under = []) =>
        yaml.problemAt([...at, ...under], message);
      const make = () => createHttpTool(toolName, declaration, { env: source.env, secrets: secrets.read });
      const tool = makeTool(make, (each) => source.problems.push(problemIn(yaml, at, each)));
      if (tool === null) broken.add(toolName);
      else loaded.push({ tool, approval: null, problem });
    }
  }
  return loaded;
}

async function loadMcpTools(
  source: ProjectSource,
  secrets: UsedSecrets,
  connections: McpConnection[],
  broken: Set<string>,
): Promise<LoadedTool[]> {
  const servers = mcpServersOf(source);
  if (servers.length === 0) return [];
  const pins = await pinsOf(source);
  if (pins === null) return [];
  const loaded: LoadedTool[] = [];
  for (const [server, declared] of servers) {
    const connection = new McpConnection({
      name: server,
      server: declared,
      secrets: secrets.read,
      dir: source.dir,
    });
    connections.push(connection);
    for (const [remoteName, declaredTool] of Object.entries(declared.tools)) {
      const at = ['tools', 'mcp', server, 'tools', remoteName];
      const name = declaredTool.as ?? remoteName;
      const pin = pins.servers[server]?.[remoteName];
      if (pin === undefined) {
        broken.add(name);
        source.problem(at, `${server}/${remoteName} is not pinned in ${MCP_PINS_FILE} — pin the MCP tools`);
        continue;
      }
      const make = () => createMcpTool({ server, remoteName, declared: declaredTool, pin, connection });
      const tool = makeTool(make, (each) => source.problems.push(problemIn(source.yaml, at, each)));
      const problem: LoadedTool['problem'] = (message, under = []) =>
        source.yaml.problemAt([...at, ...under], message);
      if (tool === null) broken.add(name);
      else loaded.push({ tool, approval: declaredTool.approval ?? null, problem });
    }
  }
  return loaded;
}

async function pinsOf(source: ProjectSource): Promise<McpPins | null> {
  try {
    return await readMcpPins(source.dir);
  } catch (error) {
    if (!(error instanceof McpPinsError)) throw error;
    const file = source.shownPathOf(MCP_PINS_FILE);
    source.problems.push({ file, line: 1, column: 1, message: error.message });
    return null;
  }
}

/** The MCP servers of a project, with the places of this machine filled in. */
export function mcpServersOf(source: ProjectSource): (readonly [string, McpServerDeclaration])[] {
  return Object.entries(source.declared.tools.mcp).map(([name, server]) => {
    const at = (...path: (string | number)[]) => ['tools', 'mcp', name, ...path];
    const fillAll = (member: string, texts: Readonly<Record<string, string>>) =>
      Object.fromEntries(
        Object.entries(texts).map(([key, text]) => [key, fillEnv(source, at(member, key), text)]),
      );
    if (server.transport === 'http') {
      const url = fillEnv(source, at('url'), server.url);
      if (!/^https?:\/\//.test(url) || !URL.canParse(url)) {
        source.problem(at('url'), `"${url}" is no http or https URL — correct it`);
      }
      return [name, { ...server, url, headers: fillAll('headers', server.headers) }];
    }
    const args = server.args.map((text, index) => fillEnv(source, at('args', index), text));
    const command = fillEnv(source, at('command'), server.command);
    return [name, { ...server, command, args, env: fillAll('env', server.env) }];
  });
}

function makeTool(
  make: () => Tool,
  note: (problem: ToolDeclarationError['problems'][number]) => void,
): Tool | null {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof ToolDeclarationError)) throw error;
    error.problems.forEach(note);
    return null;
  }
}
