import type { IncomingMessage } from 'node:http';
import type { Pool } from 'pg';
import type { Role } from '../shared/domain/roles.js';
import type { EventHub } from '../shared/ledger/reads/event-hub.js';
import type { AllowEntry } from '../shared/process/address-guard.js';
import type { Logger } from '../shared/process/log.js';
import type { SecretKeys } from '../shared/process/webhook-secrets.js';
import type { Readiness } from './readiness.js';

/** Who asks: every read is bounded by the tenant, every write names the actor. */
export interface Identity {
  /** 1–64 characters. */
  readonly tenantId: string;
  /** 1–200 characters, in the one form in which actors are compared: trimmed, in lower case. */
  readonly actorId: string;
  readonly roles: readonly Role[];
}

/**
 * Tells who sent a request, from its headers alone.
 *
 * @throws HoldfastError when it cannot be told; that is then the answer
 */
export type Authenticate = (request: IncomingMessage) => Identity | Promise<Identity>;

/** Bounds of what one API process takes on. */
export interface ApiLimits {
  /** Largest request body in bytes. */
  readonly bodyBytesMax: number;
  /** Requests a minute under /v1 by one actor; 0 sets no limit. An open stream counts once. */
  readonly requestsPerMinute: number;
  /** Open event streams of this process. */
  readonly streamsMax: number;
  /** Exports that this process writes at once; each holds a connection of the pool. */
  readonly exportsMax: number;
  /** A comment is sent on a stream that was silent this long, so that both sides notice a dead one. */
  readonly heartbeatMs: number;
  /** A stream whose reader takes nothing for this long is dropped; it can be resumed from its last id. */
  readonly slowReaderMs: number;
  /** How long an EventSource waits at least before it reconnects; each is told up to twice that, so that many spread out. */
  readonly reconnectMs: number;
  /** How often an open stream looks again whether whoever reads still may: a right that is taken away ends it by then. */
  readonly recheckMs: number;
}

/** The limits of an API process unless it is told otherwise. */
export const DEFAULT_LIMITS: ApiLimits = {
  bodyBytesMax: 1_048_576,
  requestsPerMinute: 12_000,
  streamsMax: 1_000,
  exportsMax: 2,
  heartbeatMs: 15_000,
  slowReaderMs: 30_000,
  reconnectMs: 2_000,
  recheckMs: 15_000,
};

/** Everything the API works with, handed in: it opens nothing itself. */
export interface ApiDeps {
  readonly pool: Pool;
  readonly hub: EventHub;
  readonly log: Logger;
  readonly authenticate: Authenticate;
  /** What this process can prove about its ability to serve. Never throws. */
  readonly readiness: () => Promise<Readiness>;
  /** Where admitted runs are to be worked on. */
  readonly taskQueue: string;
  readonly limits: ApiLimits;
  readonly webhooks: {
    /** Null: this process cannot seal the secret of a new endpoint. */
    readonly keys: SecretKeys | null;
    /** Private places, and such without TLS, that webhooks may go to. */
    readonly allow: readonly AllowEntry[];
  };
  /** Aborted when the process stops: open streams then end, and their readers resume elsewhere. */
  readonly stopping: AbortSignal;
}
