import { appendFile } from 'node:fs/promises';
import { basename, dirname, resolve } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import type {
  ModelChunk,
  ModelClient,
  ModelOutcome,
  ModelRequest,
  ModelResponse,
  RawToolCall,
  TokenUsage,
} from '../../shared/domain/models.js';
import { startCallLimits } from './call-limits.js';
import type { CallLimits } from './call-limits.js';
import { ModelAnswer } from './model-answer.js';
import { parseRetryAfter } from './retry-after.js';
import { chooseAnswer } from './script-choice.js';
import type { ScriptChoice } from './script-choice.js';
import { readScript, ScriptError } from './script-format.js';
import type { Script, ScriptedAnswer } from './script-format.js';
import { fillText, fillValue, TemplateError } from './script-template.js';

export interface ScriptedModelSettings {
  /** The script's file, YAML or JSON (docs of the format: script-format.ts). */
  readonly path: string;
  readonly timeoutSeconds: number;
  /** Milliseconds since the epoch; a `retryAfter` date is counted from it. */
  readonly now: () => number;
}

/**
 * A model that answers from a file: works without key or network, and the same request always gets the same
 * answer. It keeps no state, so any number of processes may use one script, and a restart changes nothing.
 * A script that is missing, broken or run out is a `failed` outcome (`bad_request`) that names the place.
 */
export function createScriptedModel(settings: ScriptedModelSettings): ModelClient {
  return {
    async call(request, options) {
      const limits = startCallLimits(options.signal, settings.timeoutSeconds);
      try {
        return await play(settings, request, limits, options.onChunk);
      } catch (error) {
        const ended = limits.endedBy();
        if (ended && isAbort(error)) return { kind: 'failed', reason: ended, detail: ENDED[ended] };
        if (error instanceof ScriptError || error instanceof TemplateError) {
          return { kind: 'failed', reason: 'bad_request', detail: error.message.slice(0, 500) };
        }
        throw error;
      } finally {
        limits.close();
      }
    },
  };
}

const ENDED = {
  aborted: 'The call was aborted before its answer was whole.',
  timed_out: "The answer was not whole within the profile's time limit.",
} as const;

async function play(
  settings: ScriptedModelSettings,
  request: ModelRequest,
  limits: CallLimits,
  onChunk: (chunk: ModelChunk) => void,
): Promise<ModelOutcome> {
  limits.signal.throwIfAborted();
  const script = await readScript(settings.path, basename(settings.path));
  const choice = chooseAnswer(script, request);
  await logRequest(settings.path, script, request, choice);
  const { answer } = choice;
  // Filled in before anything is streamed: a script's fault must not look like a broken stream.
  const filled = fill(choice);
  const built = new ModelAnswer(onChunk);
  const pieces = [
    ...filled.reasoning.map((piece) => ['reasoning', piece] as const),
    ...filled.text.map((piece) => ['text', piece] as const),
  ];
  for (const [index, [type, piece]] of pieces.entries()) {
    if (index === answer.disconnectAfterChunks) return disconnected(index, request);
    await pause(index === 0 ? answer.delayMs : answer.chunkDelayMs, limits.signal);
    built.addText(type, '0', piece, undefined);
  }
  if (pieces.length === 0) await pause(answer.delayMs, limits.signal);
  if (answer.disconnectAfterChunks !== undefined) return disconnected(pieces.length, request);
  if (answer.error) return failed(answer.error, settings.now(), request);
  return { kind: 'answered', response: respond(script, choice, filled.toolCalls, built, request) };
}

interface FilledAnswer {
  readonly reasoning: readonly string[];
  readonly text: readonly string[];
  readonly toolCalls: readonly RawToolCall[];
}

function fill(choice: ScriptChoice): FilledAnswer {
  const { answer, position } = choice;
  const text = answer.pieces
    ? answer.pieces.map((piece) => fillText(piece, choice))
    : cutIntoPieces(fillText(answer.text ?? '', choice));
  return {
    reasoning: cutIntoPieces(fillText(answer.reasoning ?? '', choice)),
    text,
    toolCalls: (answer.toolCalls ?? []).map((call, slot) => ({
      providerCallId: call.callId ?? `call_${position}_${slot}`,
      toolName: call.name,
      argumentsText:
        call.argumentsText === undefined
          ? JSON.stringify(fillValue(call.arguments ?? {}, choice))
          : fillText(call.argumentsText, choice),
    })),
  };
}

function respond(
  script: Script,
  choice: ScriptChoice,
  toolCalls: readonly RawToolCall[],
  built: ModelAnswer,
  request: ModelRequest,
): ModelResponse {
  const { answer } = choice;
  for (const call of toolCalls) built.addToolCall(call);
  const stopReason = answer.stopReason ?? (toolCalls.length > 0 ? 'tool_calls' : 'stop');
  const parts = built.finish(stopReason);
  return {
    parts,
    stopReason,
    usage: {
      inputTokens: tokensOf(request),
      outputTokens: tokensOf(parts),
      cachedInputTokens: 0,
      reasoningTokens: 0,
      ...definedCounts(answer.usage),
    },
    requestId: answer.requestId ?? `scripted_${choice.position}_${request.attempt}`,
    modelId: script.modelId,
    warnings: built.warnings,
  };
}

function failed(
  error: NonNullable<ScriptedAnswer['error']>,
  nowMs: number,
  request: ModelRequest,
): ModelOutcome {
  const retryAfter = error.retryAfter === undefined ? undefined : String(error.retryAfter);
  const retryAfterMs = parseRetryAfter((name) => (name === 'retry-after' ? retryAfter : undefined), nowMs);
  return {
    kind: 'failed',
    reason: error.reason,
    detail: error.detail ?? `The script answers attempt ${request.attempt} with ${error.reason}.`,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...(error.httpStatus === undefined ? {} : { httpStatus: error.httpStatus }),
    ...(error.requestId === undefined ? {} : { requestId: error.requestId }),
    ...(error.usage === undefined ? {} : { usage: { ...NO_TOKENS, ...definedCounts(error.usage) } }),
  };
}

const NO_TOKENS: TokenUsage = { inputTokens: 0, outputTokens: 0, cachedInputTokens: 0, reasoningTokens: 0 };

function disconnected(pieces: number, request: ModelRequest): ModelOutcome {
  return {
    kind: 'failed',
    reason: 'disconnected',
    detail: `The script breaks attempt ${request.attempt} off after ${pieces} pieces.`,
    usage: { ...NO_TOKENS, inputTokens: tokensOf(request) },
  };
}

/** One line a request; appended whole, so that several processes may share the file. */
async function logRequest(
  scriptPath: string,
  script: Script,
  request: ModelRequest,
  choice: ScriptChoice,
): Promise<void> {
  if (script.log === undefined) return;
  const line = JSON.stringify({ scenario: choice.scenario, position: choice.position, ...request });
  try {
    await appendFile(resolve(dirname(scriptPath), script.log), `${line}\n`);
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown error';
    throw new ScriptError(
      `The request log ${script.log} cannot be written (${code}); correct log in the script.`,
      {
        cause: error,
      },
    );
  }
}

/** Splits before words, a few words a piece, as a model streams. */
function cutIntoPieces(text: string): string[] {
  return text.match(/\s*\S{1,24}(?:\s+\S{1,8}){0,2}|\s+$/g) ?? (text === '' ? [] : [text]);
}

async function pause(milliseconds: number | undefined, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  if (milliseconds) await wait(milliseconds, undefined, { signal });
}

/** About four characters a token, as a rule of thumb: the same text always costs the same. */
function tokensOf(value: unknown): number {
  return Math.ceil(JSON.stringify(value).length / 4);
}

function definedCounts(usage: ScriptedAnswer['usage']): Partial<TokenUsage> {
  return Object.fromEntries(Object.entries(usage ?? {}).filter(([, count]) => count !== undefined));
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === 'AbortError';
}
