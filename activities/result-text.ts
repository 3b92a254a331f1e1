import type { ToolAnswer, ToolBody } from './tools/tool.js';

/** Characters of a result that the model is told; the receipt keeps the rest. */
export const RESULT_TEXT_MAX = 65_536;

const EMPTY = new Uint8Array(0);

/** The bytes to keep of an answer; none where the target sent none. */
export function bodyOf(body: ToolBody | null): ToolBody {
  return body ?? { bytes: EMPTY, contentType: null, truncated: false };
}

/**
 * A target's bytes as text that a prompt, jsonb and UTF-8 can all hold: bytes that are no UTF-8 become U+FFFD, and
 * NUL becomes U+2400 (its picture). Text that only spells an escape is left alone. The receipt keeps the raw bytes.
 */
export function textOf(body: ToolBody): string {
  const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(body.bytes).replaceAll('\0', '\u2400');
  const cut = text.length > RESULT_TEXT_MAX ? wholeCharacters(text.slice(0, RESULT_TEXT_MAX)) : text;
  return cut.length < text.length || body.truncated ? `${cut}\n[cut: the answer was longer]` : cut;
}

/** Not ending in half a surrogate pair. */
function wholeCharacters(text: string): string {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last <= 0xdbff ? text.slice(0, -1) : text;
}

/** What the model is told of an answer that settles its call. */
export function resultTextOf(answer: Extract<ToolAnswer, { kind: 'succeeded' | 'rejected' }>): string {
  const text = textOf(answer.body);
  if (answer.kind === 'succeeded') return text === '' ? 'Done.' : text;
  return `Refused by the target (${answer.status}).${text === '' ? '' : ` It said: ${text}`}`;
}
