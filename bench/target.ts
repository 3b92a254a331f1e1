import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/**
 * The outside world of the benchmark, in a process of its own so that its work is in nobody's figures: applies each
 * keyed effect once, answers at once, and can say what it applied.
 */
const applied = new Map<string, string>();
let requests = 0;

async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === 'GET') {
    answer(response, 200, { effects: applied.size, requests });
    return;
  }
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const key = request.headers['idempotency-key'];
  if (typeof key !== 'string') {
    answer(response, 400, { error: { code: 'key_missing' } });
    return;
  }
  requests += 1;
  const known = applied.get(key);
  const id = known ?? `chg_${applied.size + 1}`;
  applied.set(key, id);
  answer(response, known === undefined ? 201 : 200, { change_id: id, status: 'applied' });
}

function answer(response: ServerResponse, status: number, body: object): void {
  const bytes = Buffer.from(JSON.stringify(body));
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': bytes.byteLength });
  response.end(bytes);
}

const server = createServer((request, response) => {
  handle(request, response).catch((error: unknown) => response.destroy(error as Error));
});
server.listen(0, '127.0.0.1', () => {
  const { port } = server.address() as AddressInfo;
  process.send?.({ kind: 'ready', role: 'target', url: `http://127.0.0.1:${port}` });
});
process.once('SIGTERM', () => process.exit(0));
process.once('disconnect', () => process.exit(0));
