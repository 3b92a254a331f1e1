import type { AgentManifest, ModelProfile, ToolManifest } from '../../shared/domain/agents.js';
import type { DelegateManifest } from '../../shared/domain/delegates.js';
import type { QuestionManifest } from '../../shared/domain/questions.js';
import { readScript, ScriptError } from '../models/script-format.js';
import { manifestOf, ToolCatalogue } from '../tools/catalogue.js';
import { compensatorOf } from '../tools/compensation.js';
import { digestDeclaration, shortProblems } from '../tools/declaration.js';
import type { Tool } from '../tools/tool.js';
import { concerns, type PolicyRule } from '../../shared/domain/policy.js';
import { loadPolicy } from './load-policy.js';
import { loadTools } from './load-tools.js';
import type { LoadedTool, LoadedTools } from './load-tools.js';
import { loadDelegates } from './load-delegates.js';
import { loadQuestions } from './load-questions.js';
import { ProjectError } from './project-error.js';
import type { AgentDeclaration, ModelDeclaration } from './project-format.js';
import { fillEnv, readProjectSource } from './project-source.js';
import type { Environment, ProjectSource } from './project-source.js';
import { readTextFile } from './yaml-file.js';

/** The agents and tools of one project file, checked as a whole. */
export interface Project {
  readonly agents: readonly AgentManifest[];
  readonly catalogue: ToolCatalogue;
  /** Absolute folder of the project file; scripts of scripted models are found from here. */
  readonly dir: string;
  /** Lower-case hex SHA-256 over every agent and tool version. */
  readonly digest: string;
  /** Ends the connections to tool servers and the processes of those that were started here. */
  close(): Promise<void>;
}

/** How a project is loaded beside its file. */
export interface LoadProjectOptions {
  /** Takes the place of every agent's model. */
  readonly modelOverride?: ModelProfile | undefined;
}

/**
 * Reads a project file and all it names: prompts, tools, models, pins. Connects to nothing: a tool server
 * is reached at the first call of one of its tools.
 *
 * @param env fills `${env:…}` now and `${secret:…}` at each dispatch
 * @throws ProjectError with every problem found, each with file, line and column
 */
export async function loadProject(
  path: string,
  env: Environment,
  options: LoadProjectOptions = {},
): Promise<Project> {
  const source = await readProjectSource(path, env);
  const loaded = await loadTools(source);
  const models = await loadModels(source, options.modelOverride);
  const questions = loadQuestions(source, loaded);
  const delegates = loadDelegates(source, { ...loaded, questions });
  const offered = { ...loaded, questions, delegates, policy: loadPolicy(source, loaded) };
  const agents = await loadAgents(source, offered, models, options.modelOverride);
  if (source.problems.length > 0) throw new ProjectError(source.problems);
  const catalogue = new ToolCatalogue([...loaded.byName.values()].map(({ tool }) => tool));
  return {
    agents,
    catalogue,
    dir: source.dir,
    digest: digestDeclaration('project', { agents, tools: catalogue.version }),
    async close() {
      await Promise.all(loaded.connections.map((connection) => connection.close()));
    },
  };
}

async function loadModels(
  source: ProjectSource,
  override: ModelProfile | undefined,
): Promise<ReadonlyMap<string, ModelProfile>> {
  const profiles = new Map<string, ModelProfile>();
  for (const [name, declared] of Object.entries(source.declared.models)) {
    profiles.set(name, profileOf(source, name, declared));
    // A script that nobody will read may be missing.
    if (declared.provider === 'scripted' && override === undefined) await checkScript(source, name, declared);
  }
  return profiles;
}

function profileOf(source: ProjectSource, name: string, declared: ModelDeclaration): ModelProfile {
  const { provider, maxOutputTokens, timeoutSeconds, short, price } = declared;
  const limits = { maxOutputTokens, timeoutSeconds, short, ...(price === undefined ? {} : { price }) };
  for (const { path, message } of shortProblems(short, timeoutSeconds)) {
    source.problem(['models', name, ...path], message);
  }
  if (declared.provider === 'scripted') {
    return { name, provider, model: declared.script, baseUrl: null, apiKeyEnv: null, ...limits };
  }
  const at = ['models', name, 'baseUrl'];
  const baseUrl = declared.baseUrl === undefined ? null : fillEnv(source, at, declared.baseUrl);
  if (baseUrl !== null && !(/^https?:\/\//.test(baseUrl) && URL.canParse(baseUrl))) {
    source.problem(at, `"${baseUrl}" is no http or https URL — correct it`);
  }
  return { name, provider, model: declared.model, baseUrl, apiKeyEnv: declared.apiKeyEnv ?? null, ...limits };
}

async function checkScript(
  source: ProjectSource,
  name: string,
  declared: Extract<ModelDeclaration, { provider: 'scripted' }>,
): Promise<void> {
  try {
    await readScript(source.pathOf(declared.script), source.shownPathOf(declared.script));
  } catch (error) {
    if (!(error instanceof ScriptError)) throw error;
    source.problem(['models', name, 'script'], `the script cannot be used: ${error.message}`);
  }
}

/** All that an agent may list among its tools, and the rules that may concern them. */
interface Offered extends LoadedTools {
  readonly questions: ReadonlyMap<string, QuestionManifest>;
  readonly policy: readonly PolicyRule[];
  readonly delegates: ReadonlyMap<string, DelegateManifest>;
}

async function loadAgents(
  source: ProjectSource,
  offered: Offered,
  models: ReadonlyMap<string, ModelProfile>,
  override: ModelProfile | undefined,
): Promise<AgentManifest[]> {
  const agents: AgentManifest[] = [];
  for (const [name, declared] of Object.entries(source.declared.agents)) {
    const at = ['agents', name];
    const model = override ?? models.get(declared.model);
    if (!models.has(declared.model)) {
      source.problem([...at, 'model'], `there is no model ${declared.model} — declare it under models`);
    }
    const instructions = await instructionsOf(source, name, declared);
    const { tools, questions, delegates } = toolsOf(source, name, declared, offered);
    if (model === undefined || instructions === null) continue;
    const rules = offered.policy.filter((rule) => tools.some((tool) => concerns(rule, tool)));
    agents.push({
      ...{ name, instructions, model, tools },
      // An agent that asks nobody is the same version as before there were questions.
      ...(questions.length === 0 ? {} : { questions }),
      ...(delegates.length === 0 ? {} : { delegates }),
      limits: declared.limits,
      ...(declared.context === undefined ? {} : { context: declared.context }),
      ...(rules.length === 0 ? {} : { policy: rules }),
    });
  }
  return agents;
}

async function instructionsOf(
  source: ProjectSource,
  agent: string,
  declared: AgentDeclaration,
): Promise<string | null> {
  const { instructions } = declared;
  if (typeof instructions !== 'string') return instructions.text;
  const at = ['agents', agent, 'instructions'];
  const text = await readTextFile(source.pathOf(instructions), source.shownPathOf(instructions));
  if (typeof text !== 'string') {
    source.problem(at, `${instructions}: ${text.message}; or write the text itself under \`text:\``);
    return null;
  }
  if (text.trim() !== '') return text;
  source.problem(at, `${instructions} is empty — say in it what the agent is to do`);
  return null;
}

function toolsOf(
  source: ProjectSource,
  agent: string,
  declared: AgentDeclaration,
  offered: Offered,
): Required<Pick<AgentManifest, 'tools' | 'questions' | 'delegates'>> {
  const tools: ToolManifest[] = [];
  const questions: QuestionManifest[] = [];
  const delegates: DelegateManifest[] = [];
  const seen = new Set<string>();
  for (const [index, entry] of declared.tools.entries()) {
    const at = ['agents', agent, 'tools', index];
    const asked = typeof entry === 'string' ? { name: entry } : entry;
    const loaded = offered.byName.get(asked.name);
    const question = offered.questions.get(asked.name);
    const delegate = offered.delegates.get(asked.name);
    if (seen.has(asked.name)) source.problem(at, `${asked.name} is listed twice — remove one of them`);
    else if (loaded !== undefined) {
      const approval = asked.approval ?? loaded.approval ?? approvalByClass(loaded);
      // What is wrong with a compensation was noted with its tool.
      if (lacksCompensator(loaded.tool, offered)) continue;
      tools.push(manifestOf(loaded.tool, approval, { get: (other) => offered.byName.get(other)?.tool }));
    } else if (question !== undefined) {
      if (asked.approval !== undefined) {
        source.problem(at, `${asked.name} is a question, which nobody approves — remove \`approval\``);
      }
      questions.push(question);
    } else if (delegate !== undefined) {
      if (asked.approval !== undefined) {
        source.problem(
          at,
          `${asked.name} is another agent, whose own tools are approved — remove \`approval\``,
        );
      }
      delegates.push(delegate);
    } else if (!offered.broken.has(asked.name)) {
      source.problem(at, `there is no tool ${asked.name} — declare it under tools or correct its name`);
    } else continue;
    seen.add(asked.name);
  }
  return { tools, questions, delegates };
}

function lacksCompensator({ effect }: Tool, tools: LoadedTools): boolean {
  return effect.compensation !== undefined && !tools.byName.has(compensatorOf(effect.compensation));
}

/** Without a rule a person is asked before anything outside can change. */
function approvalByClass({ tool }: LoadedTool): ToolManifest['approval'] {
  return tool.effect.class === 'read' ? 'not_required' : 'required';
}
