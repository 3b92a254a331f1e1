// With the `u` flag a surrogate matches only where it stands alone.
const NOT_STORABLE = /\p{Cs}|\0/gu;

/** Model text in a form that Postgres and UTF-8 can hold: NUL and lone surrogates become U+FFFD. */
export function storableText(text: string): string {
  return text.replace(NOT_STORABLE, '\ufffd');
}

/** Makes streamed pieces storable; a character that the stream cuts in two comes with the later piece. */
export class PieceCleaner {
  private held = '';

  /** The text that may be shown now; empty while only half a character came. */
  push(piece: string): string {
    const text = this.held + piece;
    const last = text.charCodeAt(text.length - 1);
    this.held = last >= 0xd800 && last <= 0xdbff ? text.slice(-1) : '';
    return storableText(text.slice(0, text.length - this.held.length));
  }

  /** What was held back and will never be completed. */
  end(): string {
    const rest = storableText(this.held);
    this.held = '';
    return rest;
  }
}
