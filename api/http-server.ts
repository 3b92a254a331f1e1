import { createServer } from 'node:http';
import type { Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { promisify } from 'node:util';
import type { Express } from 'express';
import { HoldfastError, problemOf } from '../shared/domain/errors.js';
import { newId } from '../shared/ledger/new-id.js';
import { PROBLEM_TYPE } from './problems.js';

/** A server that listens. */
export interface HttpServer {
  /** Without a slash at the end. */
  readonly url: string;
  readonly port: number;
  /**
   * Takes no new connections, lets requests in flight end, and cuts what is left after `graceMs`. Abort the
   * `stopping` signal of the app first: open streams would otherwise use the whole grace.
   */
  stop(graceMs: number): Promise<void>;
}

/** Whole request, headers and body; also bounds how long the rest of a refused body is read away. */
const REQUEST_TIMEOUT_MS = 30_000;
const HEADERS_TIMEOUT_MS = 10_000;
/** How often connections are looked at for what is late; Node's own half a minute would let slow ones pile up. */
const LATE_LOOK_MS = 1_000;
const IDLE_SWEEP_MS = 50;

/**
 * Listens on `host` and `port` (0 takes any free one).
 *
 * @throws the system's error, for example with code EADDRINUSE, when the port cannot be had
 */
export async function startHttpServer(
  app: Express,
  address: { readonly host: string; readonly port: number },
  timeouts: { readonly requestMs: number; readonly headersMs: number } = {
    requestMs: REQUEST_TIMEOUT_MS,
    headersMs: HEADERS_TIMEOUT_MS,
  },
): Promise<HttpServer> {
  const { requestMs, headersMs } = timeouts;
  const server = createServer(
    {
      ...{ requestTimeout: requestMs, headersTimeout: headersMs, keepAliveTimeout: 5_000 },
      connectionsCheckingInterval: Math.min(LATE_LOOK_MS, headersMs),
    },
    // Express answers by itself; what it returns says nothing.
    (request, response) => void app(request, response),
  );
  server.on('clientError', answerBrokenRequest);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(address.port, address.host, () => {
      server.off('error', reject);
      resolve();
    });
  });
  const { port } = server.address() as AddressInfo;
  const host = address.host.includes(':') ? `[${address.host}]` : address.host;
  return { url: `http://${host}:${port}`, port, stop: (graceMs) => stopServer(server, graceMs) };
}

async function stopServer(server: Server, graceMs: number): Promise<void> {
  const closed = promisify(server.close.bind(server))();
  // A connection whose request ends during the stop turns idle then, and would be kept for the next one.
  const sweep = setInterval(() => server.closeIdleConnections(), IDLE_SWEEP_MS);
  const cut = setTimeout(() => server.closeAllConnections(), graceMs);
  await closed;
  clearInterval(sweep);
  clearTimeout(cut);
}

/**
 * What Node's parser refuses never reaches the app: control characters in headers, headers too large, no
 * HTTP.
 */
function answerBrokenRequest(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const late = error.code === 'ERR_HTTP_REQUEST_TIMEOUT';
  const detail = late
    ? `The request was not whole within ${REQUEST_TIMEOUT_MS / 1000} s. Nothing was done; send it again.`
    : 'This is not HTTP that can be read: a header is malformed, holds a control character or is too large.';
  const problem = problemOf(new HoldfastError('invalid_request', detail), newId('req'));
  const body = JSON.stringify(problem);
  socket.end(
    `HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: ${PROBLEM_TYPE}\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}
