import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** How the project of a world differs from the usual one. */
export interface WorldProject {
  /**
   * Settings of HTTP tools, by name, laid over the usual four (`pay`, `book`, `mail`, `look`); new names are new tools.
   * A URL that is only a path is the target's.
   */
  readonly httpTools?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  /** Function tools, for worker processes too: the absolute path of a module, and the names of its tools. */
  readonly functions?: Readonly<Record<string, readonly string[]>>;
  /** The scripted model (activities/models/script-format.ts); `usualScript` unless given. */
  readonly script?: Readonly<Record<string, unknown>>;
  /** Tools that ask a person first; none unless given. */
  readonly approvals?: readonly string[];
  readonly limits?: Readonly<Record<string, number>>;
  /** Characters of a transcript that the usual agent's prompts hold at most; all unless given. */
  readonly charactersMax?: number;
  /** `fast`: the model and every HTTP tool are declared short. `normal` unless given. */
  readonly lane?: Lane;
  /** Questions that the agent may ask; none unless given. */
  readonly questions?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  /** The policy of the project file; none unless given. */
  readonly policy?: readonly Readonly<Record<string, unknown>>[];
  /** Agents that the usual one may start; none unless given. */
  readonly delegates?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  /** Agents beside the usual one, by name, with what each may call; they share its model. */
  readonly helpers?: Readonly<Record<string, readonly ListedTool[]>>;
}

type ListedTool = string | { readonly name: string; readonly approval: 'required' | 'not_required' };

export const LANES = ['normal', 'fast'] as const;
export type Lane = (typeof LANES)[number];

type HttpTools = Readonly<Record<string, Readonly<Record<string, unknown>>>>;

/** The one agent of a world's project. */
export const AGENT = 'desk';

/** One tool of each effect class, in the order pay (keyed), book (queryable), mail (opaque), look (read). */
export const TOOL_OF_CLASS = { keyed: 'pay', queryable: 'book', opaque: 'mail', read: 'look' } as const;
export type UsualTool = (typeof TOOL_OF_CLASS)[keyof typeof TOOL_OF_CLASS];

/**
 * Writes a project into `folder`: its file, the HTTP tools that ask the target at `targetUrl`, and the model's script.
 *
 * @returns the path of the project file
 */
export async function writeProject(
  folder: string,
  targetUrl: string,
  project: WorldProject,
): Promise<string> {
  await mkdir(folder, { recursive: true });
  const short = project.lane === 'fast' ? { short: true } : {};
  const tools = httpTools(targetUrl, project.httpTools ?? {}, short);
  const functions = Object.entries(project.functions ?? {});
  const names = [...Object.keys(tools), ...functions.flatMap(([, exported]) => exported)];
  const limits = { wallClockSecondsMax: 86_400, stepsMax: 500, toolCallsMax: 1_000, ...project.limits };
  const shortModel = project.lane === 'fast' ? { ...short, timeoutSeconds: 10 } : {};
  const declared = {
    version: 1,
    models: { script: { provider: 'scripted', script: 'script.json', timeoutSeconds: 60, ...shortModel } },
    tools: { http: ['tools.json'], functions: functions.map(([path]) => path) },
    questions: project.questions ?? {},
    delegates: project.delegates ?? {},
    agents: {
      [AGENT]: {
        model: 'script',
        instructions: { text: 'Do what the input says.' },
        tools: [
          ...names.map((name) => ({
            name,
            approval: project.approvals?.includes(name) ? 'required' : 'not_required',
          })),
          ...Object.keys(project.questions ?? {}),
          ...Object.keys(project.delegates ?? {}),
        ],
        limits,
        ...(project.charactersMax === undefined ? {} : { context: { charactersMax: project.charactersMax } }),
      },
      ...Object.fromEntries(
        Object.entries(project.helpers ?? {}).map(([name, tools]) => [
          name,
          { model: 'script', instructions: { text: 'Do your task.' }, tools, limits },
        ]),
      ),
    },
    ...(project.policy === undefined ? {} : { policy: project.policy }),
  };
  // JSON is YAML.
  await writeFile(join(folder, 'script.json'), JSON.stringify(project.script ?? usualScript()));
  await writeFile(join(folder, 'tools.json'), JSON.stringify({ version: 1, tools }));
  const path = join(folder, 'holdfast.yaml');
  await writeFile(path, JSON.stringify(declared));
  return path;
}

/**
 * The usual model: for the input `pay …` it calls `pay` once, and ends; so for each tool. `steps pay book …` calls one
 * tool after the other, each in a step of its own.
 */
export function usualScript(): Record<string, unknown> {
  const call = (name: string) => ({ toolCalls: [{ name, arguments: { note: '{{input}}' } }] });
  const tools = Object.values(TOOL_OF_CLASS);
  return {
    scenarios: [
      ...tools.map((name) => ({
        name,
        when: { inputMatches: `^${name}\\b` },
        replies: [call(name), { text: 'Done.' }],
      })),
      {
        name: 'each tool',
        when: { inputMatches: '^each\\b' },
        replies: [...tools.map(call), { text: 'Done.' }],
      },
      {
        name: 'all at once',
        when: { inputMatches: '^together\\b' },
        replies: [{ toolCalls: tools.flatMap((name) => call(name).toolCalls) }, { text: 'Done.' }],
      },
      { name: 'nothing', replies: [{ text: 'Done.' }] },
    ],
  };
}

function httpTools(
  targetUrl: string,
  changes: HttpTools,
  every: object,
): Record<string, Record<string, unknown>> {
  const usual: Record<string, Record<string, unknown>> = {
    pay: {
      description: 'Pays. The target honours keys.',
      class: 'keyed',
      keyed: { windowSeconds: 3_600, resendsMax: 3, comparesBodies: true },
      url: `${targetUrl}/keyed`,
      answers: [{ status: 409, at: '/error', equals: 'key_in_progress', outcome: 'in_progress' }],
    },
    book: {
      description: 'Books. The target can be asked about a key.',
      class: 'queryable',
      query: { settlingSeconds: 0.2, equalAnswers: 2, intervalSeconds: 0.1, queriesMax: 10 },
      url: `${targetUrl}/queryable`,
      probe: {
        url: `${targetUrl}/queryable/{$key}`,
        reference: '/id',
        keyEcho: '/key',
        answers: [
          { status: 200, outcome: 'found' },
          { status: 404, outcome: 'absent' },
        ],
      },
    },
    mail: { description: 'Mails. The target knows no keys.', class: 'opaque', url: `${targetUrl}/opaque` },
    look: { description: 'Looks.', class: 'read', url: `${targetUrl}/read` },
  };
  const names = [...new Set([...Object.keys(usual), ...Object.keys(changes)])];
  return Object.fromEntries(
    names.map((name) => [
      name,
      atTarget(targetUrl, { ...common(targetUrl), ...usual[name], ...every, ...changes[name] }),
    ]),
  );
}

/** A URL that is only a path is the target's, in the tool and in its probe. */
function atTarget(targetUrl: string, tool: Record<string, unknown>): Record<string, unknown> {
  const { url, probe } = tool;
  return {
    ...tool,
    ...(typeof url === 'string' && url.startsWith('/') ? { url: targetUrl + url } : {}),
    ...(isRecord(probe) ? { probe: atTarget(targetUrl, probe) } : {}),
  };
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function common(targetUrl: string): Record<string, unknown> {
  return {
    input: {
      type: 'object',
      additionalProperties: false,
      required: ['note'],
      properties: { note: { type: 'string', maxLength: 1_000 } },
    },
    namespace: 'target',
    method: 'POST',
    keyHeader: 'Idempotency-Key',
    body: 'arguments',
    reference: '/id',
    timeoutSeconds: 5,
    allow: [new URL(targetUrl).host],
  };
}
