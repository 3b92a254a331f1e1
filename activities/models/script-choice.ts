import type { ModelRequest, ToolResultPart } from '../../shared/domain/models.js';
import { ScriptError } from './script-format.js';
import type {
  Script,
  ScriptedAnswer,
  ScriptedCase,
  ScriptedReply,
  ScriptedScenario,
} from './script-format.js';

/** The answer that a script gives to a request, and what its templates may name. */
export interface ScriptChoice {
  readonly scenario: string;
  /** Place of the reply in its scenario, from 0. */
  readonly position: number;
  readonly answer: ScriptedAnswer;
  readonly input: string;
  readonly captures: Readonly<Record<string, string>>;
  readonly results: readonly ToolResultPart[];
}

/**
 * Chooses by what the request itself holds, and by nothing else: the same request gets the same answer in
 * every process and after every restart, which a replayed run depends on.
 *
 * @throws ScriptError when no scenario or case fits, or the replies have run out
 */
export function chooseAnswer(script: Script, request: ModelRequest): ScriptChoice {
  const view = readView(script, request);
  const { scenario, captures } = chooseScenario(script, view.input);
  const reply = scenario.replies[view.position];
  if (!reply) {
    throw new ScriptError(
      `Scenario ${scenario.name} has ${scenario.replies.length} replies and was asked for number ` +
        `${view.position + 1}; add a reply at position ${view.position + 1}.`,
    );
  }
  const chosen = reply.cases ? chooseCase(reply.cases, view, scenario.name) : reply;
  return { scenario: scenario.name, answer: chooseAttempt(chosen, request.attempt), captures, ...view };
}

interface RequestView {
  readonly input: string;
  readonly position: number;
  readonly results: readonly ToolResultPart[];
}

function readView(script: Script, request: ModelRequest): RequestView {
  const { messages } = request;
  const isUser = (message: (typeof messages)[number]): boolean => message.role === 'user';
  const start = script.counts === 'turn' ? messages.findLastIndex(isUser) : messages.findIndex(isUser);
  const first = messages[start];
  const counted = script.counts === 'turn' ? messages.slice(Math.max(0, start)) : messages;
  return {
    input: first?.role === 'user' ? first.text : '',
    position: counted.filter((message) => message.role === 'assistant').length,
    results: counted.flatMap((message) => (message.role === 'tool' ? message.results : [])),
  };
}

function chooseScenario(
  script: Script,
  input: string,
): { readonly scenario: ScriptedScenario; readonly captures: Readonly<Record<string, string>> } {
  for (const scenario of script.scenarios) {
    const captures = scenario.when && matchInput(scenario.when, input);
    if (captures) return { scenario, captures };
  }
  const fallback = script.scenarios.find((scenario) => !scenario.when);
  if (fallback) return { scenario: fallback, captures: {} };
  const names = script.scenarios.map((scenario) => scenario.name).join(', ');
  throw new ScriptError(
    `No scenario fits the input (there are: ${names}); add one without a when as the default.`,
  );
}

/** The named groups where all conditions hold; undefined where one does not. */
function matchInput(
  when: NonNullable<ScriptedScenario['when']>,
  input: string,
): Readonly<Record<string, string>> | undefined {
  if (when.inputContains !== undefined && !containsAll(input, when.inputContains)) return undefined;
  if (when.inputMatches === undefined) return {};
  const match = new RegExp(when.inputMatches, 'i').exec(input);
  if (!match) return undefined;
  const groups = Object.entries(match.groups ?? {}).filter(([, value]) => value !== undefined);
  return Object.fromEntries(groups);
}

function chooseCase(cases: readonly ScriptedCase[], view: RequestView, scenario: string): ScriptedReply {
  const newest = view.results.at(-1);
  const found = cases.find(({ when }) => {
    if (when?.resultIsError !== undefined && newest?.isError !== when.resultIsError) return false;
    return when?.resultContains === undefined || containsAll(newest?.text ?? '', when.resultContains);
  });
  if (found) return found;
  throw new ScriptError(
    `No case of reply ${view.position + 1} in scenario ${scenario} fits the newest tool result; ` +
      'add a case without a when as the last.',
  );
}

function chooseAttempt(reply: ScriptedReply, attempt: number): ScriptedAnswer {
  const attempts = reply.attempts;
  return attempts ? (attempts[Math.min(attempt, attempts.length) - 1] ?? {}) : reply;
}

function containsAll(haystack: string, needles: string | readonly string[]): boolean {
  const lower = haystack.toLowerCase();
  return (typeof needles === 'string' ? [needles] : needles).every((needle) =>
    lower.includes(needle.toLowerCase()),
  );
}
