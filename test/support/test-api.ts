import { createServer, connect } from 'node:net';
import type { IncomingHttpHeaders } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { afterAll } from 'vitest';
import type { Pool } from 'pg';
import { createApp } from '../../api/app.js';
import { DEFAULT_LIMITS } from '../../api/deps.js';
import type { ApiDeps, ApiLimits } from '../../api/deps.js';
import { startHttpServer } from '../../api/http-server.js';
import { ACTOR_HEADER } from '../../api/identity.js';
import { checkReadiness } from '../../api/readiness.js';
import { canonicalActor } from '../../shared/domain/actors.js';
import { ROLES } from '../../shared/domain/roles.js';
import { registerAgent } from '../../shared/ledger/admission.js';
import { createLedgerPool } from '../../shared/ledger/database.js';
import { startEventHub } from '../../shared/ledger/reads/event-hub.js';
import type { EventHub } from '../../shared/ledger/reads/event-hub.js';
import { createLogger } from '../../shared/process/log.js';
import { until as untilWithin } from './until.js';

/** An API in this process over a database, with who asks read from the headers x-tenant, x-actor and x-roles. */
export interface TestApi {
  readonly url: string;
  readonly port: number;
  readonly pool: Pool;
  readonly hub: EventHub;
  /** What the API's streams listen on for its stop. */
  readonly stopping: AbortSignal;
  /** Everything the API logged so far. */
  readonly logged: () => string;
  /** Sends a request; `tenant` is `default` unless given. */
  request(path: string, init?: RequestInit & { readonly tenant?: string }): Promise<Response>;
  /** POST /v1/runs with `body`, or with a complete one. */
  start(options?: StartOptions): Promise<Response>;
  close(): Promise<void>;
}

export interface StartOptions {
  readonly key?: string;
  readonly tenant?: string;
  readonly body?: string | Uint8Array;
  readonly headers?: Record<string, string>;
}

/** A body that POST /v1/runs admits, with `changes` laid over it. */
export function startBody(changes: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    agent: AGENT.name,
    input: { text: 'Refund order ORD-1' },
    contract: {
      objective: 'The customer has the money back.',
      acceptance: { rule: 'One refund of the right amount.', accepted_by: 'desk' },
      owner: 'desk',
    },
    ...changes,
  };
}

export async function startTestApi(options: {
  readonly databaseUrl: string;
  readonly limits?: Partial<ApiLimits>;
  /** False polls only. */
  readonly listen?: boolean;
  readonly pollMs?: number;
  readonly webhooks?: ApiDeps['webhooks'];
  /** Where its runs wait for a worker; nobody listens unless given. */
  readonly taskQueue?: string;
  /** Looks before the headers say who asks; what it throws is the answer. */
  readonly admit?: (headers: IncomingHttpHeaders) => void;
  readonly timeouts?: Parameters<typeof startHttpServer>[2];
}): Promise<TestApi> {
  const lines: string[] = [];
  const log = createLogger({
    name: 'api',
    level: 'debug',
    destination: { write: (line) => lines.push(line) },
  });
  const { databaseUrl } = options;
  const pool = createLedgerPool({
    ...{ databaseUrl, max: 5, applicationName: 'test-api' },
    onIdleError: (error) => log.warn({ err: error }, 'an idle ledger connection was lost'),
  });
  const listen = options.listen === false ? null : { connectionString: databaseUrl };
  const hub = startEventHub({ db: pool, listen, log, pollMs: options.pollMs ?? 200 });
  const stopping = new AbortController();
  const app = createApp({
    ...{ pool, hub, log, taskQueue: options.taskQueue ?? 'test', stopping: stopping.signal },
    authenticate: ({ headers }) => {
      options.admit?.(headers);
      return {
        tenantId: String(headers['x-tenant'] ?? 'default'),
        actorId: canonicalActor(String(headers['x-actor'] ?? headers[ACTOR_HEADER] ?? 'tester')) ?? 'tester',
        roles: ROLES.filter((role) => (headers['x-roles'] ?? ROLES.join()).includes(role)),
      };
    },
    readiness: () =>
      checkReadiness({ pool, hub, schemaLevel: () => Promise.resolve({ ok: true, evidence: 'test' }) }),
    limits: { ...DEFAULT_LIMITS, requestsPerMinute: 0, ...options.limits },
    webhooks: options.webhooks ?? { keys: null, allow: [] },
  });
  const server = await startHttpServer(app, { host: '127.0.0.1', port: 0 }, options.timeouts);
  const request: TestApi['request'] = (path, { tenant = 'default', ...init } = {}) =>
    fetch(server.url + path, { ...init, headers: { 'x-tenant': tenant, ...init.headers } });
  let closed = false;
  const api: TestApi = {
    ...{ url: server.url, port: server.port, pool, hub, request, stopping: stopping.signal },
    logged: () => lines.join(''),
    start: ({ key, tenant, body, headers } = {}) =>
      request('/v1/runs', {
        method: 'POST',
        ...(tenant === undefined ? {} : { tenant }),
        headers: {
          'content-type': 'application/json',
          ...(key === undefined ? {} : { 'idempotency-key': key }),
          ...headers,
        },
        body: (body ?? JSON.stringify(startBody())) as NonNullable<RequestInit['body']>,
      }),
    close: async () => {
      if (closed) return;
      closed = true;
      stopping.abort();
      await server.stop(1_000);
      await hub.stop();
      await pool.end();
    },
  };
  open.push(api);
  return api;
}

/** Makes the test agent known to the ledger, as a worker does when it starts. */
export async function registerTestAgent(pool: Pool): Promise<string> {
  return registerAgent(pool, AGENT);
}

/** A TCP way to a server that can be cut and mended: Postgres goes away and comes back for those behind it. */
export interface CuttableWay {
  readonly url: string;
  /** Ends every connection and refuses new ones. */
  cut(): Promise<void>;
  mend(): Promise<void>;
  close(): Promise<void>;
}

/** A way to the Postgres of `databaseUrl`; its `url` is used in place of that. */
export async function openWay(databaseUrl: string): Promise<CuttableWay> {
  const target = new URL(databaseUrl);
  const sockets = new Set<Socket>();
  const server = createServer((near) => {
    const far = connect(Number(target.port), target.hostname);
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(socket);
      socket.pipe(other);
      // A cut shows as a reset on either side; the other side is all that has to hear of it.
      socket
        .on('error', () => other.destroy())
        .on('close', () => {
          sockets.delete(socket);
          other.destroy();
        });
    }
  });
  const listen = (port: number): Promise<void> =>
    new Promise((resolve) => void server.listen(port, '127.0.0.1', resolve));
  await listen(0);
  const { port } = server.address() as AddressInfo;
  const cut = async (): Promise<void> => {
    if (!server.listening) return;
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    for (const socket of sockets) socket.destroy();
    await closed;
  };
  const url = new URL(databaseUrl);
  url.hostname = '127.0.0.1';
  url.port = String(port);
  return { url: url.href, cut, mend: () => listen(port), close: cut };
}

/** Waits until `look` answers true. Fails with `what` when it has not within ten seconds. */
export async function until(what: string, look: () => boolean | Promise<boolean>): Promise<void> {
  await untilWithin(what, look, 10_000);
}

const AGENT = {
  name: 'test-agent',
  instructions: 'Refund what is broken.',
  model: {
    ...{ name: 'desk', provider: 'scripted' as const, model: 'desk.yaml', baseUrl: null, apiKeyEnv: null },
    ...{ maxOutputTokens: 1024, timeoutSeconds: 60, short: false },
  },
  tools: [],
  limits: { stepsMax: 10, toolCallsMax: 20, wallClockSecondsMax: 3600 },
};

const open: TestApi[] = [];

afterAll(async () => {
  for (const api of open) await api.close();
});
