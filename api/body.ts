import type { IncomingMessage } from 'node:http';
import { HoldfastError } from '../shared/domain/errors.js';
import type { JsonValue } from '../shared/domain/json.js';
import { parseStrictJson } from '../shared/domain/strict-json.js';

/**
 * Reads a JSON body as it was sent and refuses what cannot be kept faithfully. The order of the checks is
 * the order in docs/errors.md: media type, size, text, JSON. What is refused for its size is not held in
 * memory.
 *
 * @throws HoldfastError `unsupported_media_type`, `payload_too_large`, `invalid_json`
 * @throws ClientGone when the sender hung up; nobody is left to answer
 */
export async function readJsonBody(request: IncomingMessage, bytesMax: number): Promise<JsonValue> {
  checkMediaType(request);
  const bytes = await readBytes(request, bytesMax);
  const text = decodeUtf8(bytes);
  const read = parseStrictJson(text, { bytesMax });
  if (read.ok) return read.value;
  throw new HoldfastError('invalid_json', `The body was refused: ${read.message}`, {
    errors: [{ at: `body${read.at}`, problem: read.message }],
    extensions: { json_code: read.code },
  });
}

const HUNG_UP = 'The sender hung up in the middle of its request.';

/** The sender closed the connection before its request was whole. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone';
}

const MEDIA_TYPE = /^application\/json[ \t]*(?:;[ \t]*charset[ \t]*=[ \t]*"?utf-8"?[ \t]*)?;?$/i;

function checkMediaType(request: IncomingMessage): void {
  const sent = request.headers['content-type'];
  if (sent === undefined || !MEDIA_TYPE.test(sent.trim())) {
    const what = sent === undefined ? 'The Content-Type header is missing' : 'The Content-Type is another';
    throw new HoldfastError(
      'unsupported_media_type',
      `${what}. Send Content-Type: application/json in UTF-8.`,
    );
  }
  const encoding = request.headers['content-encoding'];
  if (encoding !== undefined && encoding.trim().toLowerCase() !== 'identity') {
    throw new HoldfastError(
      'unsupported_media_type',
      'The body is compressed (Content-Encoding). Send it as it is.',
    );
  }
}

/**
 * Counts what really arrives: a Content-Length may lie and a chunked body has none. After a refusal Node
 * reads the rest and throws it away, so that the sender can hear the answer; the server's request time-out
 * bounds that.
 */
function readBytes(request: IncomingMessage, bytesMax: number): Promise<Buffer> {
  const tooLarge = (): HoldfastError =>
    new HoldfastError(
      'payload_too_large',
      `The body is larger than ${bytesMax} bytes. Send less; nothing was done.`,
      {
        extensions: { bytes_max: bytesMax },
      },
    );
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > bytesMax) return Promise.reject(tooLarge());
  // Closed while the identity was looked up: none of the events below would come any more.
  if (request.destroyed) return Promise.reject(new ClientGone(HUNG_UP));
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    const leave = (): void => {
      request.off('data', take).off('end', finish).off('error', fail).off('close', gone);
    };
    const take = (chunk: Buffer): void => {
      bytes += chunk.length;
      chunks.push(chunk);
      if (bytes <= bytesMax) return;
      leave();
      // The answer is decided; that the rest never arrives changes nothing.
      request.on('error', () => undefined);
      request.resume();
      reject(tooLarge());
    };
    const finish = (): void => {
      leave();
      resolve(Buffer.concat(chunks, bytes));
    };
    const fail = (cause: Error): void => {
      leave();
      reject(new ClientGone(HUNG_UP, { cause }));
    };
    const gone = (): void => fail(new Error('closed'));
    request.on('data', take).on('end', finish).on('error', fail).on('close', gone);
  });
}

function decodeUtf8(bytes: Buffer): string {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (cause) {
    if (!(cause instanceof TypeError)) throw cause;
    throw new HoldfastError('invalid_json', 'The body is not valid UTF-8. Send JSON in UTF-8.', {
      errors: [{ at: 'body', problem: 'not valid UTF-8' }],
      extensions: { json_code: 'not_json' },
      cause,
    });
  }
  if (!text.startsWith('\ufeff')) return text;
  throw new HoldfastError('invalid_json', 'The body begins with a byte order mark. Send JSON without one.', {
    errors: [{ at: 'body', problem: 'begins with a byte order mark' }],
    extensions: { json_code: 'not_json' },
  });
}
