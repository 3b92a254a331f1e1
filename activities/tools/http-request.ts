import { request as sendHttp } from 'node:http';
import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';
import type { Socket } from 'node:net';
import { bodyOfBytes } from './answers.js';
import type { Deadline } from './deadline.js';
import type { UnknownReason } from './reasons.js';
import { RESULT_BYTES_MAX } from './tool.js';
import type { ToolBody } from './tool.js';

/** A request ready to be sent. */
export interface HttpRequest {
  readonly method: string;
  readonly url: URL;
  readonly headers: Readonly<Record<string, string>>;
  /** Null for a request without a body. */
  readonly body: Uint8Array | null;
}

/** What came of a request whose first byte may have left. */
export type Exchange =
  | {
      readonly kind: 'answered';
      readonly status: number;
      readonly header: (name: string) => string | null;
      readonly body: ToolBody;
      /** True when we stopped reading at our cap; false when the message came whole. */
      readonly capped: boolean;
    }
  | {
      readonly kind: 'broken';
      readonly reason: UnknownReason;
      /** What had come by then; null when no answer had begun. */
      readonly partial: ToolBody | null;
    };

/** Largest head of an answer, in bytes. */
const HEADER_BYTES_MAX = 32_768;

/**
 * Sends one request over its own fresh connection and reads its answer until the deadline. Never throws
 * after the first byte may have left. The connection ends with the answer, so bytes that come later, a
 * second answer say, can never be taken for the answer to another call.
 *
 * @throws TypeError from Node, before a byte is sent, for a header or method that HTTP cannot carry
 */
export function exchange(socket: Socket, request: HttpRequest, deadline: Deadline): Promise<Exchange> {
  const { url, body } = request;
  const headers: OutgoingHttpHeaders = {
    host: url.host,
    'accept-encoding': 'identity',
    'user-agent': 'holdfast',
    ...request.headers,
    connection: 'close',
    ...(body === null ? {} : { 'content-length': body.byteLength }),
  };
  const outgoing = sendHttp({
    createConnection: () => socket,
    method: request.method,
    path: url.pathname + url.search,
    headers,
    setHost: false,
    maxHeaderSize: HEADER_BYTES_MAX,
  });
  return new Promise((resolve) => {
    let answer: Reading | null = null;
    const settle = (result: Exchange) => {
      deadline.signal.removeEventListener('abort', onGiveUp);
      socket.destroy();
      resolve(result);
    };
    const broken = (reason: UnknownReason) => {
      settle({ kind: 'broken', reason, partial: answer === null ? null : answer.body() });
    };
    const onGiveUp = () => {
      broken(deadline.cause() ?? 'aborted');
    };
    // A message that came whole is an answer whatever its connection does next (a second answer, a
    // reset): its own `end` settles, which may be heard after these.
    outgoing.on('error', (error: NodeJS.ErrnoException) => {
      if (answer?.isWhole() !== true) broken(brokenBy(error, answer !== null));
    });
    outgoing.on('close', () => {
      if (answer?.isWhole() !== true) broken(answer === null ? 'connection_closed' : 'body_truncated');
    });
    outgoing.on('response', (message) => {
      answer = readAnswer(message, settle, () => {
        broken('body_truncated');
      });
    });
    deadline.signal.addEventListener('abort', onGiveUp, { once: true });
    if (deadline.signal.aborted) onGiveUp();
    else if (body === null) outgoing.end();
    else outgoing.end(body);
  });
}

interface Reading {
  isWhole(): boolean;
  body(): ToolBody;
}

function readAnswer(
  message: IncomingMessage,
  settle: (result: Exchange) => void,
  truncated: () => void,
): Reading {
  const chunks: Buffer[] = [];
  let size = 0;
  const contentType = message.headers['content-type'] ?? null;
  const isWhole = () => message.complete;
  const body = () => bodyOfBytes(Buffer.concat(chunks), contentType, !isWhole());
  const answered = (capped: boolean) => {
    settle({
      kind: 'answered',
      status: message.statusCode ?? 0,
      header: (name) => {
        const value = message.headers[name];
        return (Array.isArray(value) ? value[0] : value) ?? null;
      },
      body: body(),
      capped,
    });
  };
  message.on('data', (chunk: Buffer) => {
    chunks.push(chunk);
    size += chunk.byteLength;
    if (size > RESULT_BYTES_MAX) answered(true);
  });
  message.on('end', () => {
    if (isWhole()) answered(false);
    else truncated();
  });
  message.on('error', truncated);
  return { isWhole, body };
}

function brokenBy(error: NodeJS.ErrnoException, hasAnswer: boolean): UnknownReason {
  if (hasAnswer) return 'body_truncated';
  if (error.code?.startsWith('HPE_') === true) return 'answer_malformed';
  // Node words a connection that closed without an answer as a reset with this message.
  return error.message === 'socket hang up' ? 'connection_closed' : 'connection_reset';
}
