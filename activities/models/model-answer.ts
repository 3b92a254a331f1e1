import { excerpt } from '../../shared/domain/json-rules.js';
import type { JsonObject } from '../../shared/domain/json.js';
import type {
  ModelChunk,
  ModelResponsePart,
  ModelStopReason,
  RawToolCall,
} from '../../shared/domain/models.js';
import { PieceCleaner } from './storable-text.js';

/** Most text, reasoning and arguments of one answer, in characters. */
export const ANSWER_CHARACTERS_MAX = 16 * 1024 * 1024;

/** An entry a provider needs back with a later request, by provider. */
export type ProviderMetadata = Readonly<Record<string, object>>;

interface OpenText {
  readonly type: 'text' | 'reasoning';
  readonly cleaner: PieceCleaner;
  text: string;
  metadata: Record<string, object>;
}

/**
 * Puts a streamed answer together. Parts keep the order in which they began; the pieces that `onChunk`
 * hears, joined, are the text of the answer.
 */
export class ModelAnswer {
  private readonly parts: (OpenText | ({ readonly type: 'raw_tool_call' } & RawToolCall))[] = [];
  private readonly open = new Map<string, OpenText>();
  private readonly notes: string[] = [];
  private readonly onChunk: (chunk: ModelChunk) => void;
  private characters = 0;

  constructor(onChunk: (chunk: ModelChunk) => void) {
    this.onChunk = onChunk;
  }

  /** Begins a part; `id` names it until its end and may be used again after. */
  beginText(type: 'text' | 'reasoning', id: string, metadata: ProviderMetadata | undefined): void {
    const part: OpenText = { type, cleaner: new PieceCleaner(), text: '', metadata: {} };
    this.parts.push(part);
    this.open.set(`${type} ${id}`, part);
    merge(part, metadata);
  }

  /** @returns false when the answer has become too long to keep */
  addText(
    type: 'text' | 'reasoning',
    id: string,
    piece: string,
    metadata: ProviderMetadata | undefined,
  ): boolean {
    const key = `${type} ${id}`;
    if (!this.open.has(key)) this.beginText(type, id, undefined);
    const part = this.open.get(key);
    if (!part) throw new Error(`bug: part ${key} was not begun`);
    merge(part, metadata);
    this.show(part, part.cleaner.push(piece));
    return this.grow(piece.length);
  }

  endText(type: 'text' | 'reasoning', id: string, metadata: ProviderMetadata | undefined): void {
    const key = `${type} ${id}`;
    const part = this.open.get(key);
    if (!part) return;
    merge(part, metadata);
    this.show(part, part.cleaner.end());
    this.open.delete(key);
  }

  /** A whole call. @returns false when the answer has become too long to keep */
  addToolCall(call: RawToolCall): boolean {
    this.parts.push({ type: 'raw_tool_call', ...call });
    return this.grow(call.argumentsText.length);
  }

  /** A loss or an ignored setting, in the provider's words. */
  warn(note: string): void {
    if (this.notes.length < WARNINGS_MAX) this.notes.push(excerpt(note, WARNING_CHARACTERS_MAX));
  }

  get warnings(): readonly string[] {
    return this.notes;
  }

  get isEmpty(): boolean {
    return this.parts.length === 0;
  }

  /** The parts of the answer that ended for `stopReason`. Parts without any content are left out. */
  finish(stopReason: ModelStopReason): ModelResponsePart[] {
    for (const key of [...this.open.keys()]) {
      const [type, id] = [key.slice(0, key.indexOf(' ')), key.slice(key.indexOf(' ') + 1)];
      this.endText(type === 'reasoning' ? 'reasoning' : 'text', id, undefined);
    }
    this.dropCutToolCall(stopReason);
    const parts: ModelResponsePart[] = [];
    for (const part of this.parts) {
      if (part.type === 'raw_tool_call') parts.push(part);
      else if (part.text !== '' || Object.keys(part.metadata).length > 0) {
        parts.push({ type: part.type, text: part.text, ...metadataField(part.metadata) });
      }
    }
    return parts;
  }

  /**
   * An answer that was cut short is cut in its last part. A call cut before its first argument is reported
   * as a call without arguments, which a schema may well allow: so it is not a call at all.
   */
  private dropCutToolCall(stopReason: ModelStopReason): void {
    if (stopReason !== 'length' && stopReason !== 'content_filter' && stopReason !== 'error') return;
    if (this.parts.at(-1)?.type !== 'raw_tool_call') return;
    this.parts.pop();
    this.warn(`The answer was cut short (${stopReason}) in its last tool call, which is left out.`);
  }

  private show(part: OpenText, text: string): void {
    if (text === '') return;
    part.text += text;
    this.onChunk({ type: part.type, text });
  }

  private grow(characters: number): boolean {
    this.characters += characters;
    return this.characters <= ANSWER_CHARACTERS_MAX;
  }
}

const WARNINGS_MAX = 20;
const WARNING_CHARACTERS_MAX = 200;

/** `providerMetadata` as a plain JSON object, or nothing where there is none. */
export function metadataField(metadata: ProviderMetadata | undefined): {
  readonly providerMetadata?: JsonObject;
} {
  if (!metadata || Object.keys(metadata).length === 0) return {};
  // Through text: what a provider level hands over may hold `undefined`, which JSON has not.
  return { providerMetadata: JSON.parse(JSON.stringify(metadata)) as JsonObject };
}

/** A signature comes apart from the id of its block: entries of one provider add up. */
function merge(part: OpenText, metadata: ProviderMetadata | undefined): void {
  for (const [provider, entry] of Object.entries(metadata ?? {})) {
    part.metadata[provider] = { ...part.metadata[provider], ...entry };
  }
}
