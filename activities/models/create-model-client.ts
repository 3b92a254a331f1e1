import { resolve } from 'node:path';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import type { ModelProfile } from '../../shared/domain/agents.js';
import type { ModelClient } from '../../shared/domain/models.js';
import { createAiSdkModel } from './ai-sdk-model.js';
import type { AiSdkModelSettings } from './ai-sdk-model.js';
import { createScriptedModel } from './scripted-model.js';

export interface ModelClientDeps {
  /** The secret of that name, looked up at each call; undefined where there is none. */
  readonly secrets: (name: string) => string | undefined;
  /** Scripts of scripted models are found from here. */
  readonly projectDir: string;
  /** Node's own where left out. */
  readonly fetch?: typeof globalThis.fetch;
  /** Milliseconds since the epoch; the system's clock where left out. */
  readonly now?: () => number;
}

/**
 * The client of one model profile. Nothing is read, opened or sent before its first call; a missing key
 * or a broken script is a call's `failed` outcome, so that a run shows it.
 *
 * @throws Error that names the profile when its base URL is missing or is no http(s) URL
 */
export function createModelClient(profile: ModelProfile, deps: ModelClientDeps): ModelClient {
  const now = deps.now ?? Date.now;
  if (profile.provider === 'scripted') {
    const path = resolve(deps.projectDir, profile.model);
    return createScriptedModel({ path, timeoutSeconds: profile.timeoutSeconds, now });
  }
  return createAiSdkModel({
    modelId: profile.model,
    timeoutSeconds: profile.timeoutSeconds,
    readKey: () => readKey(profile, deps.secrets),
    fetch: deps.fetch ?? globalThis.fetch,
    now,
    ...providerSettings(profile),
  });
}

// Given even where they are the provider level's own defaults: it would read its environment variables else.
const OPENAI_BASE_URL = 'https://api.openai.com/v1';
const ANTHROPIC_BASE_URL = 'https://api.anthropic.com/v1';
const DEFAULT_KEY_NAMES: Partial<Record<ModelProfile['provider'], string>> = {
  openai: 'OPENAI_API_KEY',
  'openai-responses': 'OPENAI_API_KEY',
  anthropic: 'ANTHROPIC_API_KEY',
};

function providerSettings(profile: ModelProfile): Pick<AiSdkModelSettings, 'connect' | 'providerOptions'> {
  const modelId = profile.model;
  switch (profile.provider) {
    case 'openai': {
      const baseURL = checkBaseUrl(profile, OPENAI_BASE_URL);
      return { connect: (key, fetch) => createOpenAI({ baseURL, apiKey: key ?? '', fetch }).chat(modelId) };
    }
    case 'openai-responses': {
      const baseURL = checkBaseUrl(profile, OPENAI_BASE_URL);
      return {
        connect: (key, fetch) => createOpenAI({ baseURL, apiKey: key ?? '', fetch }).responses(modelId),
        // The transcript is ours: nothing is kept there, so every request carries all of it.
        providerOptions: { openai: { store: false } },
      };
    }
    case 'anthropic': {
      const baseURL = checkBaseUrl(profile, ANTHROPIC_BASE_URL);
      return {
        connect: (key, fetch) => createAnthropic({ baseURL, apiKey: key ?? '', fetch }).messages(modelId),
      };
    }
    case 'openai-compatible': {
      const baseURL = checkBaseUrl(profile, null);
      return {
        connect: (key, fetch) =>
          createOpenAICompatible({
            name: 'compatible',
            baseURL,
            fetch,
            includeUsage: true,
            ...(key === undefined ? {} : { apiKey: key }),
          }).chatModel(modelId),
      };
    }
    case 'scripted':
      throw new Error('bug: a scripted model has no provider');
  }
}

function checkBaseUrl(profile: ModelProfile, fallback: string | null): string {
  const text = profile.baseUrl ?? fallback;
  if (text === null) {
    throw new Error(`Model profile ${profile.name} has no base URL; set baseUrl to the address of its API.`);
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (!url || !/^https?:$/.test(url.protocol) || url.username !== '' || url.password !== '') {
    throw new Error(
      `The base URL of model profile ${profile.name} is not an http(s) URL without user and password; ` +
        'correct baseUrl.',
    );
  }
  return text;
}

/** The name of the key that calls of this profile need and this process does not have, or null. */
export function missingModelKey(profile: ModelProfile, secrets: ModelClientDeps['secrets']): string | null {
  const name = profile.apiKeyEnv ?? DEFAULT_KEY_NAMES[profile.provider];
  return name === undefined || (secrets(name)?.trim() ?? '') !== '' ? null : name;
}

function readKey(
  profile: ModelProfile,
  secrets: ModelClientDeps['secrets'],
): { readonly key: string | undefined } | { readonly refusal: string } {
  const name = profile.apiKeyEnv ?? DEFAULT_KEY_NAMES[profile.provider];
  if (name === undefined) return { key: undefined };
  const key = secrets(name)?.trim() ?? '';
  if (key === '') return { refusal: `No key for model profile ${profile.name}: set ${name}.` };
  // A header cannot hold such a key, and the error that says so would quote it.
  if (!/^[\x21-\x7e]+$/.test(key)) {
    return {
      refusal: `The key in ${name} (profile ${profile.name}) has characters that no key has; set it again.`,
    };
  }
  return { key };
}
