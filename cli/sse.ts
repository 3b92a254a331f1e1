/** One frame of a Server-Sent Events stream: an event, the server's pause before a reconnect, or a sign of life. */
export type Frame =
  | { readonly kind: 'event'; readonly id: string; readonly data: string }
  | { readonly kind: 'retry'; readonly ms: number }
  | { readonly kind: 'alive' };

/**
 * Reads the frames of a stream's text as it comes. Of a frame of which only a part came nothing is told, as an
 * EventSource would: it comes again after the reconnect.
 */
export async function* readFrames(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Frame> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const piece of pieces) {
    const frames = (rest + decoder.decode(piece, { stream: true })).split('\n\n');
    rest = frames.pop() ?? '';
    yield { kind: 'alive' };
    for (const frame of frames) yield* framesIn(frame);
  }
}

function* framesIn(frame: string): Generator<Frame> {
  const fields = new Map<string, string>();
  for (const line of frame.split('\n')) {
    const [, name = '', value = ''] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    const before = fields.get(name);
    // Lines of data belong together; a line that begins with a colon is a comment.
    if (name !== '')
      fields.set(name, name === 'data' && before !== undefined ? `${before}\n${value}` : value);
  }
  const retry = Number(fields.get('retry') ?? 'none');
  if (Number.isInteger(retry)) yield { kind: 'retry', ms: retry };
  const data = fields.get('data');
  if (data !== undefined) yield { kind: 'event', id: fields.get('id') ?? '', data };
}
