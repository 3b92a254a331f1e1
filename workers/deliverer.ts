import { openDeadline } from '../activities/tools/deadline.js';
import { exchange } from '../activities/tools/http-request.js';
import { openSocket, type ResolveHost } from '../activities/tools/http-socket.js';
import { parseRetryAfter } from '../activities/tools/retry-after.js';
import type { Db } from '../shared/ledger/database.js';
import {
  finishWebhook,
  type LeasedWebhook,
  leaseWebhooks,
  type WebhookResult,
} from '../shared/ledger/webhooks.js';
import type { AddressGuard } from '../shared/process/address-guard.js';
import type { Logger } from '../shared/process/log.js';
import { type SecretKeys, signWebhook } from '../shared/process/webhook-secrets.js';

/** Longest a try may take, from the look-up of the name to the last byte of the answer. */
const TRY_MS = 15_000;
/** Above the longest try, so that a live worker's message is never given to another. */
const LEASE_SECONDS = 30;
/** Tries of one worker at once, and those at one endpoint: a silent receiver must not hold up the others. */
const IN_FLIGHT_MAX = 50;
const PER_ENDPOINT_MAX = 5;
/** A receiver that asks for longer than this is taken at its word no further. */
const RETRY_AFTER_SECONDS_MAX = 86_400;

export interface DelivererDeps {
  readonly db: Db;
  readonly keys: SecretKeys;
  readonly guard: AddressGuard;
  readonly log: Logger;
  readonly workerName: string;
  /** The system's resolver by default. */
  readonly resolve?: ResolveHost;
}

export interface Deliverer {
  /** Takes what is due and begins to send it; does not wait for the answers. @returns how many were taken */
  round(): Promise<number>;
  /** Resolves when nothing is on its way any more. */
  settled(): Promise<void>;
}

/**
 * Sends what stands in the outbox: signed, in the order of each run, again until it is taken (SPEC 6). The lease and the
 * outcome are rows, so a worker that dies in between is followed by another, which sends the same id again.
 *
 * @param onFree called when a try has ended, so that the next message of its run need not wait for a pause
 */
export function createDeliverer(deps: DelivererDeps, onFree: () => void = () => undefined): Deliverer {
  const { db, log, workerName } = deps;
  const underWay = new Set<Promise<void>>();

  const deliver = async (leased: LeasedWebhook): Promise<void> => {
    const result = await send(deps, leased);
    const state = await finishWebhook(db, leased, result);
    const { deliveryId, endpointId, attempt } = leased;
    const { httpStatus, reason } = result;
    if (result.outcome === 'delivered') return;
    log.warn({ deliveryId, endpointId, attempt, httpStatus, reason, state }, 'a webhook was not taken');
  };

  return {
    async round() {
      const limit = IN_FLIGHT_MAX - underWay.size;
      if (limit <= 0) return 0;
      const lease = { worker: workerName, limit, perEndpoint: PER_ENDPOINT_MAX, leaseSeconds: LEASE_SECONDS };
      const leased = await leaseWebhooks(db, lease);
      for (const one of leased) {
        const trying = deliver(one)
          // What the ledger did not hear is tried again when the lease is over.
          .catch((error: unknown) =>
            log.warn({ err: error, deliveryId: one.deliveryId }, 'a webhook was tried and not noted'),
          )
          .finally(() => {
            underWay.delete(trying);
            onFree();
          });
        underWay.add(trying);
      }
      return leased.length;
    },
    async settled() {
      while (underWay.size > 0) await Promise.all(underWay);
    },
  };
}

/** One request over one fresh connection; no redirect is followed. */
async function send(deps: DelivererDeps, leased: LeasedWebhook): Promise<WebhookResult> {
  const secret = deps.keys.open(leased.secret, leased.endpointId);
  if (secret === null) return failed('secret_unreadable');
  const url = new URL(leased.url);
  const deadline = openDeadline({ signal: new AbortController().signal, timeoutMs: TRY_MS }, TRY_MS);
  try {
    const opened = await openSocket(url, {
      ...{ guard: deps.guard, connectTimeoutMs: TRY_MS, signal: deadline.signal },
      ...(deps.resolve === undefined ? {} : { resolve: deps.resolve }),
    });
    if (opened.kind === 'not_sent') return failed(opened.reason);
    const message = { id: leased.deliveryId, at: new Date(), body: leased.body };
    const headers = { 'content-type': 'application/json', ...signWebhook(secret, message) };
    const body = Buffer.from(leased.body, 'utf8');
    const answer = await exchange(opened.socket, { method: 'POST', url, headers, body }, deadline);
    if (answer.kind === 'broken') return failed(answer.reason);
    const { status, header } = answer;
    if (status >= 200 && status < 300) {
      return { outcome: 'delivered', httpStatus: status, reason: null, retryAfterSeconds: null };
    }
    if (status === 410) return { outcome: 'gone', httpStatus: 410, reason: 'gone', retryAfterSeconds: null };
    const waitMs = parseRetryAfter(header('retry-after'), {
      responseDate: header('date'),
      nowMs: Date.now(),
    });
    return {
      ...failed(status >= 300 && status < 400 ? 'redirect_not_followed' : `http_${status}`),
      httpStatus: status,
      retryAfterSeconds: waitMs === null ? null : Math.min(Math.ceil(waitMs / 1000), RETRY_AFTER_SECONDS_MAX),
    };
  } finally {
    deadline.end();
  }
}

function failed(reason: string): WebhookResult {
  return { outcome: 'failed', httpStatus: null, reason, retryAfterSeconds: null };
}
