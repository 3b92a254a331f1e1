import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Webhook } from 'standardwebhooks';
import { afterAll } from 'vitest';

/** One request as the receiver got it. */
export interface Received {
  readonly path: string;
  readonly id: string;
  readonly timestamp: string;
  readonly signature: string;
  readonly body: string;
  readonly message: {
    readonly type: string;
    readonly timestamp: string;
    readonly data: Readonly<Record<string, unknown>>;
    readonly links: Readonly<Record<string, string>>;
  };
}

/** What the receiver answers: a status, a status with headers, or no answer until `release`. */
export type Answer = number | { readonly status: number; readonly headers: Record<string, string> } | 'hold';

export interface WebhookReceiver {
  readonly url: string;
  readonly port: number;
  /** Everything that arrived, in order. */
  received(): readonly Received[];
  /** Decides the answer to each request from now on. */
  answer(how: (request: Received) => Answer): void;
  /** Answers what is held with 200. */
  release(): void;
}

/** A receiver on 127.0.0.1 that takes every message until told otherwise; closed after the file. */
export async function startWebhookReceiver(): Promise<WebhookReceiver> {
  const seen: Received[] = [];
  const held: ServerResponse[] = [];
  let how: (request: Received) => Answer = () => 200;
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('error', () => undefined);
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const header = (name: string) => String(request.headers[name] ?? '');
      const body = Buffer.concat(chunks).toString('utf8');
      const one: Received = {
        ...{ path: request.url ?? '', id: header('webhook-id'), timestamp: header('webhook-timestamp') },
        ...{ signature: header('webhook-signature'), body },
        message: JSON.parse(body) as Received['message'],
      };
      seen.push(one);
      const answer = how(one);
      if (answer === 'hold') held.push(response);
      else if (typeof answer === 'number') response.writeHead(answer).end();
      else response.writeHead(answer.status, answer.headers).end();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  afterAll(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return {
    ...{ url: `http://127.0.0.1:${port}/hook`, port },
    received: () => seen,
    answer(next) {
      how = next;
    },
    release() {
      for (const response of held.splice(0)) response.writeHead(200).end();
    },
  };
}

/** What a receiver does that uses the library of Standard Webhooks: the message, or its `WebhookVerificationError`. */
export function verify(secret: string, { id, timestamp, signature, body }: Received): unknown {
  return new Webhook(secret).verify(body, {
    ...{ 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature },
  });
}
