import { once } from 'node:events';
import { createServer } from 'node:http';
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { anthropicEvents, chatEvents, responsesEvents } from './model-events.js';

/** One answer of the test server. Without dials it is a good, short text. */
export interface ServedAnswer {
  /** Sent piece by piece. Default `['Hello', ' world']`. */
  readonly text?: readonly string[];
  readonly reasoning?: readonly string[];
  /** Anthropic: signature of the reasoning; responses API: its encrypted content. */
  readonly signature?: string;
  /** The arguments are streamed in the pieces given, exactly as they stand. */
  readonly toolCalls?: readonly {
    readonly id: string;
    readonly name: string;
    readonly pieces: readonly string[];
  }[];
  /** In the provider's own words, such as `stop`, `tool_calls`, `max_tokens`. */
  readonly stopReason?: string;
  /** With another status than 200, `body` is sent and nothing is streamed. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
  /** Sent as the data of one event, as it stands, before event number `at` (from 0). */
  readonly insert?: { readonly at: number; readonly data: string };
  /** Stops after that many events: `reset` tears the connection, `end` ends the body properly. */
  readonly cut?: { readonly afterEvents: number; readonly how: 'reset' | 'end' };
  /** Accepts the request and never answers. */
  readonly silent?: boolean;
  /** After that many events nothing more comes, and the connection stays open. */
  readonly stallAfterEvents?: number;
  /** Wait before the first byte, in milliseconds. */
  readonly delayMs?: number;
}

export interface ServedRequest {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: Record<string, unknown>;
  /** True once the client closed the connection before the answer was whole. */
  clientLeft: boolean;
}

/** A real HTTP server that speaks the three APIs, so that adapters are tested through real sockets. */
export interface ModelServer {
  /** Base URL for `openai`, `openai-responses`, `openai-compatible` and `anthropic` alike. */
  readonly baseUrl: string;
  readonly requests: ServedRequest[];
  /** Answers to come, in order; with none left the server answers a plain text. */
  readonly answers: ServedAnswer[];
  close(): Promise<void>;
}

/** Starts the server on a free local port. */
export async function startModelServer(): Promise<ModelServer> {
  const requests: ServedRequest[] = [];
  const answers: ServedAnswer[] = [];
  const server = createServer((request, response) => {
    serve(request, response, requests, answers).catch((error: unknown) => {
      response.destroy(error instanceof Error ? error : new Error(String(error)));
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    baseUrl: `http://127.0.0.1:${port}/v1`,
    requests,
    answers,
    async close() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

async function serve(
  request: IncomingMessage,
  response: ServerResponse,
  requests: ServedRequest[],
  answers: ServedAnswer[],
): Promise<void> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  const path = request.url ?? '';
  const body = JSON.parse(Buffer.concat(pieces).toString('utf8')) as Record<string, unknown>;
  const served: ServedRequest = { path, headers: request.headers, body, clientLeft: false };
  requests.push(served);
  response.on('close', () => {
    served.clientLeft = !response.writableEnded;
  });
  const answer = answers.shift() ?? {};
  if (answer.silent) return;
  if (answer.delayMs) await wait(answer.delayMs);
  if (answer.body !== undefined || (answer.status ?? 200) !== 200) {
    response.writeHead(answer.status ?? 200, { 'content-type': 'application/json', ...answer.headers });
    response.end(answer.body ?? '');
    return;
  }
  await stream(response, eventsOf(path, answer), answer);
}

function eventsOf(path: string, answer: ServedAnswer): string[] {
  if (path.endsWith('/messages')) return anthropicEvents(answer);
  if (path.endsWith('/responses')) return responsesEvents(answer);
  return chatEvents(answer);
}

async function stream(response: ServerResponse, events: string[], answer: ServedAnswer): Promise<void> {
  response.writeHead(200, { 'content-type': 'text/event-stream', ...answer.headers });
  if (answer.insert) events.splice(answer.insert.at, 0, answer.insert.data);
  for (const [index, data] of events.entries()) {
    if (index === answer.stallAfterEvents) return;
    if (index === answer.cut?.afterEvents) {
      if (answer.cut.how === 'reset') response.destroy();
      else response.end();
      return;
    }
    const name = /^\{"type":"([\w.]+)"/.exec(data)?.[1];
    // Waiting for the write keeps each event a packet of its own, so a cut falls where the test says.
    await new Promise<void>((written, failed) => {
      response.write(`${name === undefined ? '' : `event: ${name}\n`}data: ${data}\n\n`, (error) =>
        error ? failed(error) : written(),
      );
    });
  }
  response.end();
}
