import type {
  LanguageModelV3,
  LanguageModelV3StreamPart,
  SharedV3ProviderOptions,
  SharedV3Warning,
} from '@ai-sdk/provider';
import type {
  ModelClient,
  ModelOutcome,
  ModelRequest,
  ModelStopReason,
  TokenUsage,
} from '../../shared/domain/models.js';
import { failedCall, isMissingFinish } from './ai-sdk-failure.js';
import type { FailedCall } from './ai-sdk-failure.js';
import { toPrompt, toTools } from './ai-sdk-prompt.js';
import { startCallLimits } from './call-limits.js';
import { metadataField, ModelAnswer } from './model-answer.js';
import { recordWire, requestIdOf } from './model-wire.js';
import type { Wire } from './model-wire.js';
import { toTokenUsage, TokensSoFar } from './provider-tokens.js';

/** What differs between the providers that the AI SDK's provider level speaks to. */
export interface AiSdkModelSettings {
  /** As the profile names it; answers that do not name their model are given this one. */
  readonly modelId: string;
  readonly timeoutSeconds: number;
  /**
   * The key, asked for at each call so that a changed one is taken up. `refusal` says why there is none
   * to use, without showing it.
   */
  readonly readKey: () => { readonly key: string | undefined } | { readonly refusal: string };
  /** Builds the provider's model for one call. The level below has no retries: one call, one request. */
  readonly connect: (key: string | undefined, fetch: typeof globalThis.fetch) => LanguageModelV3;
  readonly providerOptions?: SharedV3ProviderOptions;
  readonly fetch: typeof globalThis.fetch;
  /** Milliseconds since the epoch; a `Retry-After` date is counted from it. */
  readonly now: () => number;
}

/** A model behind a provider's API, one streamed request a call. */
export function createAiSdkModel(settings: AiSdkModelSettings): ModelClient {
  return {
    async call(request, options) {
      const limits = startCallLimits(options.signal, settings.timeoutSeconds);
      try {
        const key = settings.readKey();
        if ('refusal' in key) return { kind: 'failed', reason: 'authentication', detail: key.refusal };
        const wire: Wire = { status: undefined, headers: undefined };
        const model = settings.connect(key.key, recordWire(settings.fetch, wire));
        const tokens = new TokensSoFar();
        const failed = (error: unknown): ModelOutcome =>
          failedCall({ error, request, wire, limits, tokens, secret: key.key, nowMs: settings.now() });
        return await new StreamedCall({ settings, model, request, wire, tokens, failed }).run(
          limits.signal,
          new ModelAnswer(options.onChunk),
        );
      } finally {
        // Also closes the connection of a call that is given up in the middle.
        limits.close();
      }
    },
  };
}

interface StreamedCallParts {
  readonly settings: AiSdkModelSettings;
  readonly model: LanguageModelV3;
  readonly request: ModelRequest;
  readonly wire: Wire;
  readonly tokens: TokensSoFar;
  readonly failed: (error: unknown) => ModelOutcome;
}

type Finish = Extract<LanguageModelV3StreamPart, { type: 'finish' }>;

/** One request from its first byte to its outcome. */
class StreamedCall {
  private readonly parts: StreamedCallParts;
  private responseId: string | undefined;
  private modelId: string | undefined;

  constructor(parts: StreamedCallParts) {
    this.parts = parts;
  }

  async run(signal: AbortSignal, answer: ModelAnswer): Promise<ModelOutcome> {
    const { failed, tokens } = this.parts;
    let reader: ReadableStreamDefaultReader<LanguageModelV3StreamPart>;
    try {
      signal.throwIfAborted();
      reader = await this.send(signal);
    } catch (error) {
      return failed(error);
    }
    for (;;) {
      let part: LanguageModelV3StreamPart | undefined;
      try {
        part = (await reader.read()).value;
      } catch (error) {
        return failed(error);
      }
      // Outside the `try`: what `onChunk` throws is a bug of the caller, not a failure of the model.
      if (part === undefined) return failed(noFinish(answer.isEmpty));
      if (part.type === 'raw') tokens.hear(part.rawValue);
      else if (part.type === 'error') {
        return failed(isMissingFinish(part.error) ? noFinish(answer.isEmpty) : part.error);
      } else if (part.type === 'finish') return this.finish(part, answer);
      else if (!this.take(part, answer)) return failed({ failedCall: 'too_long' } satisfies FailedCall);
    }
  }

  private async send(signal: AbortSignal): Promise<ReadableStreamDefaultReader<LanguageModelV3StreamPart>> {
    const { settings, model, request } = this.parts;
    const { stream } = await model.doStream({
      prompt: toPrompt(request.system, request.messages),
      ...(request.tools.length > 0 ? { tools: toTools(request.tools), toolChoice: { type: 'auto' } } : {}),
      maxOutputTokens: request.maxOutputTokens,
      headers: { 'x-client-request-id': requestName(request) },
      ...(settings.providerOptions ? { providerOptions: settings.providerOptions } : {}),
      includeRawChunks: true,
      abortSignal: signal,
    });
    return stream.getReader();
  }

  /** @returns false when the answer has become too long to keep */
  private take(part: LanguageModelV3StreamPart, answer: ModelAnswer): boolean {
    switch (part.type) {
      case 'stream-start':
        for (const warning of part.warnings) answer.warn(warningText(warning));
        return true;
      case 'response-metadata':
        this.responseId = part.id ?? this.responseId;
        this.modelId = part.modelId ?? this.modelId;
        return true;
      case 'text-start':
        answer.beginText('text', part.id, part.providerMetadata);
        return true;
      case 'text-delta':
        return answer.addText('text', part.id, part.delta, part.providerMetadata);
      case 'text-end':
        answer.endText('text', part.id, part.providerMetadata);
        return true;
      case 'reasoning-start':
        answer.beginText('reasoning', part.id, part.providerMetadata);
        return true;
      case 'reasoning-delta':
        return answer.addText('reasoning', part.id, part.delta, part.providerMetadata);
      case 'reasoning-end':
        answer.endText('reasoning', part.id, part.providerMetadata);
        return true;
      case 'tool-call':
        return takeToolCall(part, answer);
      case 'tool-input-start':
      case 'tool-input-delta':
      case 'tool-input-end':
        // Only whole calls count: these are the pieces of one that may never be whole.
        return true;
      default:
        answer.warn(`The provider sent a part of type ${part.type}, which is not kept.`);
        return true;
    }
  }

  private finish(part: Finish, answer: ModelAnswer): ModelOutcome {
    const { wire, settings, failed } = this.parts;
    const { unified, raw } = part.finishReason;
    // The provider level ends every stream with a finish part, even one that was cut off before its end;
    // it then has no reason of the provider's own.
    if (raw === undefined && (unified === 'other' || unified === 'error'))
      return failed(noFinish(answer.isEmpty));
    const stopReason = STOP_REASONS[unified];
    const usage: TokenUsage = toTokenUsage(part.usage);
    return {
      kind: 'answered',
      response: {
        parts: answer.finish(stopReason),
        stopReason,
        usage,
        requestId: requestIdOf(wire) ?? this.responseId ?? null,
        modelId: this.modelId ?? settings.modelId,
        warnings: answer.warnings,
      },
    };
  }
}

const STOP_REASONS: Record<Finish['finishReason']['unified'], ModelStopReason> = {
  stop: 'stop',
  length: 'length',
  'content-filter': 'content_filter',
  'tool-calls': 'tool_calls',
  error: 'error',
  other: 'other',
};

function noFinish(isEmpty: boolean): FailedCall {
  return { failedCall: isEmpty ? 'ended_empty' : 'ended_early' };
}

function takeToolCall(
  part: Extract<LanguageModelV3StreamPart, { type: 'tool-call' }>,
  answer: ModelAnswer,
): boolean {
  if (part.providerExecuted) {
    answer.warn(`The provider ran ${part.toolName} itself; that call is not kept.`);
    return true;
  }
  return answer.addToolCall({
    providerCallId: part.toolCallId,
    toolName: part.toolName,
    argumentsText: part.input,
    ...metadataField(part.providerMetadata),
  });
}

function warningText(warning: SharedV3Warning): string {
  if (warning.type === 'other') return warning.message;
  return `${warning.type}: ${warning.feature}${warning.details === undefined ? '' : ` (${warning.details})`}`;
}

/** The call's name in a form that a header can hold. */
function requestName(request: ModelRequest): string {
  return encodeURIComponent(`${request.callKey}/${request.attempt}`).replaceAll('%2F', '/').slice(0, 512);
}
