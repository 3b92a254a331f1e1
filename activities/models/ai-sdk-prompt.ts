import type {
  LanguageModelV3FunctionTool,
  LanguageModelV3Message,
  SharedV3ProviderOptions,
} from '@ai-sdk/provider';
import type { JsonObject } from '../../shared/domain/json.js';
import type { AssistantPart, ModelMessage, ToolSpec } from '../../shared/domain/models.js';

/** Our messages in the provider level's form; nothing is added and order is kept. */
export function toPrompt(system: string, messages: readonly ModelMessage[]): LanguageModelV3Message[] {
  const prompt: LanguageModelV3Message[] = [];
  if (system.trim() !== '') prompt.push({ role: 'system', content: system });
  for (const message of messages) {
    const translated = toMessage(message);
    const last = prompt.at(-1);
    // Some providers refuse a conversation in which one side speaks twice in a row, and some a text in parts.
    if (translated?.role === 'user' && last?.role === 'user') {
      prompt[prompt.length - 1] = {
        role: 'user',
        content: [{ type: 'text', text: textOf(last, translated) }],
      };
    } else if (translated) prompt.push(translated);
  }
  return prompt;
}

/** What the model sees of each tool. */
export function toTools(tools: readonly ToolSpec[]): LanguageModelV3FunctionTool[] {
  return tools.map((tool) => ({
    type: 'function',
    name: tool.name,
    description: tool.description,
    inputSchema: tool.inputSchema as LanguageModelV3FunctionTool['inputSchema'],
  }));
}

type UserMessage = Extract<LanguageModelV3Message, { role: 'user' }>;

function textOf(...messages: readonly UserMessage[]): string {
  const parts = messages.flatMap(({ content }) => content);
  return parts.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('\n\n');
}

// Providers refuse a whole conversation for one blank text in it.
const BLANK_USER_TEXT = '(empty message)';

function toMessage(message: ModelMessage): LanguageModelV3Message | undefined {
  switch (message.role) {
    case 'user': {
      const text = message.text.trim() === '' ? BLANK_USER_TEXT : message.text;
      return { role: 'user', content: [{ type: 'text', text }] };
    }
    case 'assistant': {
      const content = message.parts.filter((part) => !isBlankText(part)).map(toAssistantPart);
      return content.length === 0 ? undefined : { role: 'assistant', content };
    }
    case 'tool':
      return {
        role: 'tool',
        content: message.results.map((result) => ({
          type: 'tool-result',
          toolCallId: result.callId,
          toolName: result.toolName,
          output: { type: result.isError ? 'error-text' : 'text', value: result.text },
        })),
      };
  }
}

type AssistantContent = Extract<LanguageModelV3Message, { role: 'assistant' }>['content'][number];

function toAssistantPart(part: AssistantPart): AssistantContent {
  const options = part.providerMetadata ? { providerOptions: toProviderOptions(part.providerMetadata) } : {};
  if (part.type !== 'tool_call') return { type: part.type, text: part.text, ...options };
  // Given as an object, since a string would be sent on as it stands.
  return {
    type: 'tool-call',
    toolCallId: part.callId,
    toolName: part.toolName,
    input: part.arguments,
    ...options,
  };
}

/** A reasoning part may be empty and still carry the signature that the next request needs. */
function isBlankText(part: AssistantPart): boolean {
  return part.type === 'text' && part.text.trim() === '';
}

/** Kept as it came from the same provider level; another provider's entry is one it does not look at. */
function toProviderOptions(metadata: JsonObject): SharedV3ProviderOptions {
  return metadata as unknown as SharedV3ProviderOptions;
}
