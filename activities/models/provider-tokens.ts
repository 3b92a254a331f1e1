import type { LanguageModelV3Usage } from '@ai-sdk/provider';
import type { TokenUsage } from '../../shared/domain/models.js';

/** The provider level's usage as ours; what a provider does not report is 0. */
export function toTokenUsage(usage: LanguageModelV3Usage): TokenUsage {
  return {
    inputTokens: count(usage.inputTokens.total),
    outputTokens: count(usage.outputTokens.total),
    cachedInputTokens: count(usage.inputTokens.cacheRead),
    reasoningTokens: count(usage.outputTokens.reasoning),
  };
}

/** Listens to a stream's own events, so that a call that breaks off still says what it had cost. */
export class TokensSoFar {
  private usage: TokenUsage | undefined;

  /** `event` is one event as the provider sent it; anything without usage is passed over. */
  hear(event: unknown): void {
    const outer = asRecord(event);
    // Anthropic counts the prompt in `message.usage` at the start; all others say all in `usage`.
    const usage =
      asRecord(outer?.['usage']) ??
      asRecord(asRecord(outer?.['message'])?.['usage']) ??
      asRecord(asRecord(outer?.['response'])?.['usage']);
    if (!usage) return;
    const cached =
      number(usage['cache_read_input_tokens']) ??
      number(asRecord(usage['prompt_tokens_details'])?.['cached_tokens']) ??
      number(asRecord(usage['input_tokens_details'])?.['cached_tokens']);
    const input = promptTokens(usage);
    const output = number(usage['output_tokens']) ?? number(usage['completion_tokens']);
    const before = this.usage;
    this.usage = {
      inputTokens: input ?? before?.inputTokens ?? 0,
      outputTokens: output ?? before?.outputTokens ?? 0,
      cachedInputTokens: cached ?? before?.cachedInputTokens ?? 0,
      reasoningTokens: before?.reasoningTokens ?? 0,
    };
  }

  /** For a failed outcome: the usage field, or nothing where nothing is known. */
  field(): { readonly usage?: TokenUsage } {
    return this.usage ? { usage: this.usage } : {};
  }
}

/** Anthropic's `input_tokens` leaves out what its cache read and wrote; other providers' counts do not. */
function promptTokens(usage: Record<string, unknown>): number | undefined {
  const tokens = number(usage['input_tokens']) ?? number(usage['prompt_tokens']);
  if (tokens === undefined) return undefined;
  return tokens + count(usage['cache_read_input_tokens']) + count(usage['cache_creation_input_tokens']);
}

function count(value: unknown): number {
  return number(value) ?? 0;
}

function number(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0 ? Math.round(value) : undefined;
}

function asRecord(value: unknown): Record<string, unknown> | undefined {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined;
}
