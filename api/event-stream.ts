import type { Request, Response } from 'express';
import { HoldfastError } from '../shared/domain/errors.js';
import { isLedgerUnavailable } from '../shared/ledger/refusals.js';
import type { ApiDeps } from './deps.js';

/** Pause before a stream asks a ledger again that did not answer, in milliseconds. */
export const LEDGER_RETRY_MS = 1_000;

/** Bounds what one stream holds in memory: a page is read, written and taken before the next is read. */
export const STREAM_PAGE = { limit: 100, bytesMax: 262_144 };

/** @throws HoldfastError when this process serves as many streams as it may */
export function refuseWhenFull({ hub, limits }: ApiDeps): void {
  if (hub.subscriptions() < limits.streamsMax) return;
  throw new HoldfastError(
    'rate_limited',
    `This process serves ${limits.streamsMax} streams already. Come again later, or read …/events.`,
  );
}

/** One open stream: what is written to it, and what wakes and ends it. */
export interface EventStream {
  readonly bell: Bell;
  /** Waits until the reader took it: so a slow one holds one page of memory, and never for long. */
  write(text: string): Promise<void>;
  /** Waits for news, at most `timeoutMs`; after a heartbeat of silence it writes a comment. */
  wait(timeoutMs?: number): Promise<void>;
  /** Looks again, from time to time, whether whoever reads still may. @throws HoldfastError when not */
  recheck(): Promise<void>;
  /** What `read` gives, or null while the ledger cannot be read: the stream stays, and goes on where it was. */
  read<T>(read: () => Promise<T>): Promise<T | null>;
}

/** What a stream is about, and how it is served. */
export interface StreamOptions {
  /** For the log. */
  readonly about: Readonly<Record<string, string>>;
  readonly tenantId: string;
  /** Who wakes it; the result ends that. */
  readonly subscribe: (wake: () => void) => () => void;
  /** Writes until there is nothing more to come, or the bell is closed. */
  readonly follow: (stream: EventStream) => Promise<void>;
}

/**
 * Serves one stream of Server-Sent Events to its end: until `follow` is done, the reader leaves, takes nothing for too long
 * or may read no more, or the process stops. Nothing it meets becomes a problem any more, since the status is sent: the
 * stream is cut, and its reader resumes from the last id.
 */
export async function serveStream(
  deps: ApiDeps,
  request: Request,
  response: Response,
  options: StreamOptions,
): Promise<void> {
  response.status(200).setHeader('content-type', 'text/event-stream; charset=utf-8');
  response.setHeader('cache-control', 'no-cache, no-transform');
  // Proxies that buffer would hold events back.
  response.setHeader('x-accel-buffering', 'no');
  response.flushHeaders();
  if (request.method === 'HEAD') {
    response.end();
    return;
  }
  const bell = new Bell();
  const leave = options.subscribe(() => bell.ring());
  const hangUp = (): void => bell.close();
  response.on('close', hangUp);
  deps.stopping.addEventListener('abort', hangUp);
  try {
    if (deps.stopping.aborted) bell.close();
    const stream = openStream(deps, request, response, bell, options);
    await stream.write(`retry: ${jittered(deps.limits.reconnectMs)}\n\n`);
    await options.follow(stream);
    response.end();
  } catch (error) {
    const expected = error instanceof SlowReader || error instanceof HoldfastError;
    if (expected || !response.destroyed)
      deps.log[expected ? 'info' : 'error']({ ...options.about, err: error }, 'stream cut');
    response.destroy();
  } finally {
    leave();
    response.off('close', hangUp);
    deps.stopping.removeEventListener('abort', hangUp);
  }
}

/** From once to twice `ms`: readers that one stop cut off together do not come back together. */
const jittered = (ms: number): number => Math.round(ms * (1 + Math.random()));

function openStream(
  deps: ApiDeps,
  request: Request,
  response: Response,
  bell: Bell,
  { about, tenantId }: StreamOptions,
): EventStream {
  const { heartbeatMs, recheckMs } = deps.limits;
  let checkedAt = performance.now();
  const stream: EventStream = {
    bell,
    write: (text) => write(deps, response, text),
    async wait(timeoutMs = heartbeatMs) {
      const rang = await bell.wait(Math.min(timeoutMs, heartbeatMs, recheckMs));
      if (!rang && !bell.closed) await stream.write(': waiting\n\n');
    },
    async recheck() {
      if (performance.now() - checkedAt < recheckMs) return;
      const identity = await stream.read(async () => await deps.authenticate(request));
      if (identity === null) return;
      if (identity.tenantId !== tenantId) {
        throw new HoldfastError('role_required', 'Whoever reads belongs to another tenant by now.');
      }
      checkedAt = performance.now();
    },
    async read(read) {
      try {
        return await read();
      } catch (error) {
        if (!isLedgerUnavailable(error)) throw error;
        deps.log.info({ ...about, err: error }, 'a stream waits for the ledger');
        return null;
      }
    },
  };
  return stream;
}

class SlowReader extends Error {
  override readonly name = 'SlowReader';
}

function write(deps: ApiDeps, response: Response, text: string): Promise<void> {
  if (response.destroyed || response.write(text)) return Promise.resolve();
  const { slowReaderMs } = deps.limits;
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      clearTimeout(timer);
      response.off('drain', taken).off('close', taken);
    };
    const taken = (): void => {
      leave();
      resolve();
    };
    const timer = setTimeout(() => {
      leave();
      reject(new SlowReader(`nothing was taken for ${slowReaderMs} ms`));
    }, slowReaderMs);
    response.on('drain', taken).on('close', taken);
  });
}

/** Remembers one ring until the next wait; closing it ends every wait. */
class Bell {
  closed = false;
  private rung = false;
  private wakeUp: (() => void) | null = null;

  ring(): void {
    this.rung = true;
    this.wakeUp?.();
  }

  close(): void {
    this.closed = true;
    this.wakeUp?.();
  }

  reset(): void {
    this.rung = false;
  }

  /** Lets `ms` go by, whoever rings; closing it ends that. */
  async pause(ms: number): Promise<void> {
    const end = performance.now() + ms;
    for (let left = ms; left > 0 && !this.closed; left = end - performance.now()) {
      this.rung = false;
      await this.wait(left);
    }
  }

  /** True when it rang, false when `timeoutMs` went by or it was closed. */
  wait(timeoutMs: number): Promise<boolean> {
    if (this.rung || this.closed) return Promise.resolve(this.rung);
    return new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        this.wakeUp = null;
        resolve(this.rung);
      };
      const timer = setTimeout(done, timeoutMs);
      this.wakeUp = done;
    });
  }
}
