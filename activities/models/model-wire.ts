/** What was seen of the one HTTP exchange of a call. */
export interface Wire {
  /** Undefined until headers of an answer came. */
  status: number | undefined;
  headers: Headers | undefined;
}

/** Most bytes of one answer, its framing included. */
export const WIRE_BYTES_MAX = 64 * 1024 * 1024;

/** The answer was larger than `WIRE_BYTES_MAX`; the rest was not read. */
export class AnswerTooLarge extends Error {
  constructor() {
    super(`The answer is larger than ${WIRE_BYTES_MAX} bytes.`);
    this.name = 'AnswerTooLarge';
  }
}

/**
 * `fetch` that notes status and headers in `wire`, reads at most `WIRE_BYTES_MAX` bytes, and follows no
 * redirect: following one would be a second request, and would carry the key elsewhere.
 */
export function recordWire(fetch: typeof globalThis.fetch, wire: Wire): typeof globalThis.fetch {
  return async (input, init) => {
    const response = await fetch(input, { ...init, redirect: 'manual' });
    wire.status = response.status;
    wire.headers = response.headers;
    if (!response.body) return response;
    const { status, statusText, headers } = response;
    return new Response(response.body.pipeThrough(limitBytes()), { status, statusText, headers });
  };
}

/** The id a provider's support desk asks for, as its headers give it. */
export function requestIdOf(wire: Wire): string | undefined {
  const id = wire.headers?.get('x-request-id') ?? wire.headers?.get('request-id') ?? undefined;
  return id === undefined || id === '' ? undefined : id.slice(0, 200);
}

function limitBytes(): TransformStream<Uint8Array, Uint8Array> {
  let bytes = 0;
  return new TransformStream({
    transform(chunk, controller) {
      bytes += chunk.byteLength;
      if (bytes > WIRE_BYTES_MAX) controller.error(new AnswerTooLarge());
      else controller.enqueue(chunk);
    },
  });
}
