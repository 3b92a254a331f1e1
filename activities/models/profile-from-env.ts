import type { ModelProfile } from '../../shared/domain/agents.js';

type Provider = ModelProfile['provider'];

const PROVIDERS = ['scripted', 'openai', 'openai-responses', 'anthropic', 'openai-compatible'] as const;

// Small models that call tools well: enough for a first look, and cheap.
const DEFAULT_MODELS: Partial<Record<Provider, string>> = {
  openai: 'gpt-4.1-mini',
  'openai-responses': 'gpt-4.1-mini',
  anthropic: 'claude-haiku-4-5',
};

/**
 * The model that the environment asks for in place of an agent's own; undefined when it asks for none.
 * A variable that is empty counts as not set.
 *
 * | variable | is |
 * |---|---|
 * | `HOLDFAST_MODEL_PROVIDER` | one of `PROVIDERS` |
 * | `HOLDFAST_MODEL` | the provider's name of the model, or the script's file; some have a default |
 * | `HOLDFAST_MODEL_BASE_URL` | address of the API; needed for `openai-compatible` |
 * | `HOLDFAST_MODEL_API_KEY_ENV` | name of the variable that holds the key |
 * | `HOLDFAST_MODEL_MAX_OUTPUT_TOKENS` | tokens of one answer, 1–1,000,000; default 4,096 |
 * | `HOLDFAST_MODEL_TIMEOUT_SECONDS` | limit of one call, 1–86,400; default 120 |
 * | `HOLDFAST_MODEL_API_KEY` | the key, where no other variable is named |
 * | `OPENAI_API_KEY`, `ANTHROPIC_API_KEY` | the provider's key; alone it also chooses it, OpenAI first |
 *
 * Without a provider, a base URL chooses `openai-compatible`. Pure: keys are never read, only looked for.
 *
 * @throws Error that names the variable and what to set
 */
export function modelOverrideFromEnv(
  env: Readonly<Record<string, string | undefined>>,
): ModelProfile | undefined {
  const read = (name: string): string | undefined => env[name]?.trim() || undefined;
  const provider = chooseProvider(read);
  if (provider === undefined) {
    if (read('HOLDFAST_MODEL') === undefined) return undefined;
    throw new Error('HOLDFAST_MODEL is set, but no provider: set HOLDFAST_MODEL_PROVIDER or a provider key.');
  }
  const model = read('HOLDFAST_MODEL') ?? DEFAULT_MODELS[provider];
  if (model === undefined) throw new Error(`HOLDFAST_MODEL is not set; ${provider} has no default model.`);
  const baseUrl = read('HOLDFAST_MODEL_BASE_URL') ?? null;
  if (provider === 'openai-compatible' && baseUrl === null) {
    throw new Error('HOLDFAST_MODEL_BASE_URL is not set; openai-compatible needs the address of the API.');
  }
  return {
    name: 'from-environment',
    provider,
    model,
    baseUrl,
    apiKeyEnv: keyName(provider, read),
    maxOutputTokens: wholeNumber(read, 'HOLDFAST_MODEL_MAX_OUTPUT_TOKENS', 4_096, 1_000_000),
    timeoutSeconds: wholeNumber(read, 'HOLDFAST_MODEL_TIMEOUT_SECONDS', 120, 86_400),
    short: false,
  };
}

type Read = (name: string) => string | undefined;

function chooseProvider(read: Read): Provider | undefined {
  const named = read('HOLDFAST_MODEL_PROVIDER');
  if (named !== undefined) {
    const provider = PROVIDERS.find((known) => known === named);
    if (provider) return provider;
    throw new Error(
      `HOLDFAST_MODEL_PROVIDER is ${JSON.stringify(named)}; it is one of ${PROVIDERS.join(', ')}.`,
    );
  }
  if (read('HOLDFAST_MODEL_BASE_URL') !== undefined) return 'openai-compatible';
  if (read('OPENAI_API_KEY') !== undefined) return 'openai';
  return read('ANTHROPIC_API_KEY') === undefined ? undefined : 'anthropic';
}

function keyName(provider: Provider, read: Read): string | null {
  const named = read('HOLDFAST_MODEL_API_KEY_ENV');
  if (provider === 'scripted') return null;
  if (named !== undefined) return named;
  if (read('HOLDFAST_MODEL_API_KEY') !== undefined) return 'HOLDFAST_MODEL_API_KEY';
  if (provider === 'openai-compatible') return null;
  return provider === 'anthropic' ? 'ANTHROPIC_API_KEY' : 'OPENAI_API_KEY';
}

function wholeNumber(read: Read, name: string, fallback: number, max: number): number {
  const text = read(name);
  if (text === undefined) return fallback;
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= 1 && value <= max) return value;
  throw new Error(`${name} is ${JSON.stringify(text)}; it is a whole number from 1 to ${max}.`);
}
