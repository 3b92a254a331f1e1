import { readFile, stat } from 'node:fs/promises';
import { LineCounter, parseDocument } from 'yaml';
import type { Document } from 'yaml';
import { z } from 'zod';
import { MODEL_FAILURES, MODEL_STOP_REASONS } from '../../shared/domain/models.js';
import type { ModelFailureReason } from '../../shared/domain/models.js';

const MILLISECONDS_MAX = 24 * 3600 * 1000;
const text = z.string().max(1_000_000);
const count = z.int().min(0);
const milliseconds = z.int().min(0).max(MILLISECONDS_MAX);
const oneOrMore = z.union([z.string().min(1), z.array(z.string().min(1)).min(1)]);
const failureReasons = Object.keys(MODEL_FAILURES) as [ModelFailureReason, ...ModelFailureReason[]];

const Usage = z.strictObject({
  inputTokens: count.optional(),
  outputTokens: count.optional(),
  cachedInputTokens: count.optional(),
  reasoningTokens: count.optional(),
});

const ScriptedToolCall = z.strictObject({
  name: z.string().max(1_000),
  /** The arguments as a value; templates in its strings are filled in. */
  arguments: z.record(z.string(), z.json()).optional(),
  /** The arguments as text, sent as it stands: for JSON that is broken. Templates are filled in. */
  argumentsText: text.optional(),
  /** Default `call_<position>_<slot>`; may be empty or repeated, to try what a bad provider does. */
  callId: z.string().max(1_000).optional(),
});

const ScriptedError = z.strictObject({
  reason: z.enum(failureReasons),
  httpStatus: z.int().min(100).max(599).optional(),
  /** As the header would say it: seconds, or an HTTP date as text. */
  retryAfter: z.union([z.number().min(0), z.string()]).optional(),
  usage: Usage.optional(),
  requestId: z.string().optional(),
  detail: z.string().max(500).optional(),
});

const answerFields = {
  text: text.optional(),
  /** The text in the pieces that it is streamed in, in place of `text`. */
  pieces: z.array(text).min(1).optional(),
  /** Streamed before the text. */
  reasoning: text.optional(),
  toolCalls: z.array(ScriptedToolCall).optional(),
  /** Default: about four characters a token. */
  usage: Usage.optional(),
  /** Default `tool_calls` where there are tool calls, else `stop`. */
  stopReason: z.enum(MODEL_STOP_REASONS).optional(),
  requestId: z.string().optional(),
  /** Waits before the first piece. */
  delayMs: milliseconds.optional(),
  /** Waits before every piece but the first. */
  chunkDelayMs: milliseconds.optional(),
  /** Fails after what was streamed, if anything was. */
  error: ScriptedError.optional(),
  /** Breaks off, as `disconnected`, after this many pieces. */
  disconnectAfterChunks: count.optional(),
};

const Answer = z.strictObject(answerFields);
const Case = z.strictObject({
  /** Without it the case always fits. Each condition looks at the newest tool result. */
  when: z
    .strictObject({ resultContains: oneOrMore.optional(), resultIsError: z.boolean().optional() })
    .optional(),
  ...answerFields,
  attempts: z.array(Answer).min(1).optional(),
});
const Reply = z.strictObject({
  ...answerFields,
  /** One answer for each attempt at this reply, from 1; the last stands for all later ones. */
  attempts: z.array(Answer).min(1).optional(),
  /** The first case that fits answers. */
  cases: z.array(Case).min(1).optional(),
});

const Scenario = z.strictObject({
  name: z.string().min(1).max(200),
  /** Without it the scenario is the default, taken when no other fits. All conditions must hold. */
  when: z
    .strictObject({
      /** Compared without regard to case; of a list, every one. */
      inputContains: oneOrMore.optional(),
      /** A regular expression; its named groups become `{{input.<name>}}`. */
      inputMatches: z.string().max(1_000).refine(isRegExp, 'is not a regular expression').optional(),
    })
    .optional(),
  replies: z.array(Reply).min(1),
});

const ScriptFile = z.strictObject({
  /**
   * What a reply's position counts: the assistant messages of the whole `conversation` (default; the input
   * is its first user message), or those since the newest user message (`turn`; the input is that one).
   */
  counts: z.enum(['conversation', 'turn']).default('conversation'),
  /** Names the model in responses. Default `scripted`. */
  modelId: z.string().min(1).max(200).default('scripted'),
  /** A file, found from the script's folder, that gets one JSON line for each request. */
  log: z.string().min(1).optional(),
  replies: z.array(Reply).min(1).optional(),
  scenarios: z.array(Scenario).min(1).optional(),
});

export type ScriptedAnswer = z.infer<typeof Answer>;
export type ScriptedCase = z.infer<typeof Case>;
export type ScriptedReply = z.infer<typeof Reply>;
export type ScriptedScenario = z.infer<typeof Scenario>;

/** A script that was read and checked. */
export interface Script {
  readonly counts: 'conversation' | 'turn';
  readonly modelId: string;
  readonly log: string | undefined;
  readonly scenarios: readonly ScriptedScenario[];
}

/** A script that cannot be used; the message names file and line and says what to change. */
export class ScriptError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ScriptError';
  }
}

const cache = new Map<string, { readonly stamp: string; readonly script: Script }>();
const SCRIPTS_CACHED_MAX = 200;

/**
 * Reads a script, anew whenever its file has changed.
 *
 * @throws ScriptError when the file cannot be read, is no YAML or JSON, or is no script
 */
export async function readScript(path: string, shownPath: string = path): Promise<Script> {
  let source: string;
  let stamp: string;
  try {
    const { mtimeNs, size, ino } = await stat(path, { bigint: true });
    stamp = `${mtimeNs} ${size} ${ino}`;
    const cached = cache.get(path);
    if (cached?.stamp === stamp) return cached.script;
    source = await readFile(path, 'utf8');
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown error';
    throw new ScriptError(
      `The script ${shownPath} cannot be read (${code}); check the model's name in the profile.`,
      {
        cause: error,
      },
    );
  }
  const script = parseScript(source, shownPath);
  if (cache.size >= SCRIPTS_CACHED_MAX) cache.clear();
  cache.set(path, { stamp, script });
  return script;
}

/**
 * Checks the text of a script, YAML or JSON.
 *
 * @throws ScriptError that lists up to ten faults, each with its line
 */
export function parseScript(source: string, shownPath: string): Script {
  const lines = new LineCounter();
  const document = parseDocument(source, { lineCounter: lines, prettyErrors: false });
  const broken = document.errors[0];
  if (broken) {
    throw new ScriptError(`${shownPath}:${lines.linePos(broken.pos[0]).line}: ${broken.message}`);
  }
  let value: unknown;
  try {
    value = document.toJS({ maxAliasCount: 100 });
  } catch (error) {
    throw new ScriptError(`${shownPath}:1: ${error instanceof Error ? error.message : String(error)}`, {
      cause: error,
    });
  }
  const parsed = ScriptFile.safeParse(value);
  const faults = parsed.success ? conflicts(parsed.data) : parsed.error.issues.map(shapeFault);
  if (!parsed.success || faults.length > 0) {
    const shown = faults.slice(0, 10).map((fault) => {
      const place = fault.path.map(String).join('.');
      const line = lineOf(document, lines, fault.path);
      return `${shownPath}:${line}: ${place === '' ? 'the script' : place}: ${fault.message}`;
    });
    throw new ScriptError(shown.join('\n'));
  }
  const { counts, modelId, log, replies, scenarios } = parsed.data;
  return { counts, modelId, log, scenarios: scenarios ?? [{ name: 'replies', replies: replies ?? [] }] };
}

interface Fault {
  readonly path: readonly PropertyKey[];
  readonly message: string;
}

/** A key that does not belong there is named by its own place, not by the place it stands in. */
function shapeFault(issue: z.core.$ZodIssue): Fault {
  const extra = issue.code === 'unrecognized_keys' ? issue.keys.slice(0, 1) : [];
  return { path: [...issue.path, ...extra], message: issue.message };
}

/** What the shape alone cannot say. */
function conflicts(script: z.infer<typeof ScriptFile>): Fault[] {
  const faults: Fault[] = [];
  if ((script.replies === undefined) === (script.scenarios === undefined)) {
    faults.push({ path: [], message: 'needs either replies or scenarios, and not both' });
  }
  for (const [index, reply] of (script.replies ?? []).entries())
    faults.push(...replyFaults(reply, ['replies', index]));
  const names = new Set<string>();
  let defaults = 0;
  for (const [index, scenario] of (script.scenarios ?? []).entries()) {
    const path = ['scenarios', index];
    if (names.has(scenario.name))
      faults.push({ path, message: `a second scenario is named ${scenario.name}` });
    names.add(scenario.name);
    if (!scenario.when && ++defaults > 1)
      faults.push({ path, message: 'a second scenario has no when; only one is the default' });
    for (const [at, reply] of scenario.replies.entries())
      faults.push(...replyFaults(reply, [...path, 'replies', at]));
  }
  return faults;
}

function replyFaults(reply: ScriptedReply, path: PropertyKey[]): Fault[] {
  const { attempts, cases, ...answer } = reply;
  const ways = [attempts, cases, Object.keys(answer).length > 0 ? answer : undefined];
  if (ways.filter((way) => way !== undefined).length !== 1) {
    return [{ path, message: 'needs exactly one of: an answer of its own, attempts, cases' }];
  }
  const faults: Fault[] = answerFaults(answer, path);
  for (const [index, attempt] of (attempts ?? []).entries())
    faults.push(...answerFaults(attempt, [...path, 'attempts', index]));
  for (const [index, { when: _when, ...rest }] of (cases ?? []).entries()) {
    faults.push(...replyFaults(rest, [...path, 'cases', index]));
  }
  return faults;
}

function answerFaults(answer: ScriptedAnswer, path: PropertyKey[]): Fault[] {
  const faults: Fault[] = [];
  if (answer.text !== undefined && answer.pieces !== undefined) {
    faults.push({ path: [...path, 'pieces'], message: 'stands beside text; keep one of them' });
  }
  if (answer.error && answer.disconnectAfterChunks !== undefined) {
    faults.push({
      path: [...path, 'error'],
      message: 'stands beside disconnectAfterChunks; keep one of them',
    });
  }
  for (const [index, call] of (answer.toolCalls ?? []).entries()) {
    if ((call.arguments === undefined) === (call.argumentsText === undefined)) {
      const message = 'needs either arguments or argumentsText, and not both';
      faults.push({ path: [...path, 'toolCalls', index], message });
    }
  }
  return faults;
}

/** Line of the innermost part of `path` that stands in the file, from 1. */
function lineOf(document: Document, lines: LineCounter, path: readonly PropertyKey[]): number {
  for (let length = path.length; length > 0; length -= 1) {
    const node: unknown = document.getIn(path.slice(0, length), true);
    if (typeof node === 'object' && node !== null && 'range' in node && Array.isArray(node.range)) {
      return lines.linePos(Number(node.range[0])).line;
    }
  }
  return 1;
}

function isRegExp(source: string): boolean {
  try {
    new RegExp(source);
    return true;
  } catch {
    return false;
  }
}
