import type { Response } from 'express';
import { HoldfastError } from '../shared/domain/errors.js';
import { isLedgerUnavailable } from '../shared/ledger/refusals.js';
import { readEventPage } from '../shared/ledger/reads/read-events.js';
import type { EventPage, RunEventRow } from '../shared/ledger/reads/read-events.js';
import type { RunKey } from '../shared/ledger/reads/row-values.js';
import type { ApiDeps } from './deps.js';

/** Bounds what one stream holds in memory: a page is read, written and taken before the next is read. */
const PAGE = { limit: 100, bytesMax: 262_144 };

/** Pause before a stream asks a ledger again that did not answer, in milliseconds. */
const LEDGER_RETRY_MS = 1_000;

/**
 * Sends the events after sequence `after` as they become durable, until the run has ended and its last
 * event is sent, the reader leaves, takes nothing for too long, or the process stops. The answer has begun
 * when this is called; nothing it meets becomes a problem any more. Ids are the run's own event sequence,
 * so a reader that reconnects with the last id it saw misses nothing and sees nothing twice.
 */
export async function streamRun(
  deps: ApiDeps,
  key: RunKey,
  after: number,
  response: Response,
): Promise<void> {
  const bell = new Bell();
  const leave = deps.hub.subscribe(key.runId, () => bell.ring());
  const hangUp = (): void => bell.close();
  response.on('close', hangUp);
  deps.stopping.addEventListener('abort', hangUp);
  try {
    if (deps.stopping.aborted) bell.close();
    await write(deps, response, `retry: ${deps.limits.reconnectMs}\n\n`);
    await follow(deps, key, after, response, bell);
    response.end();
  } catch (error) {
    // The status is sent: all that is left is to cut the stream. The reader resumes from its last id.
    const slow = error instanceof SlowReader;
    if (slow || !response.destroyed)
      deps.log[slow ? 'info' : 'error']({ run_id: key.runId, err: error }, 'stream cut');
    response.destroy();
  } finally {
    leave();
    response.off('close', hangUp);
    deps.stopping.removeEventListener('abort', hangUp);
  }
}

async function follow(
  deps: ApiDeps,
  key: RunKey,
  after: number,
  response: Response,
  bell: Bell,
): Promise<void> {
  let last = after;
  while (!bell.closed) {
    // Before the read: what is committed during it rings again.
    bell.reset();
    const page = await readPage(deps, key, last);
    for (const event of page?.events ?? []) {
      if (bell.closed) return;
      await write(deps, response, frameOf(key.runId, event));
      last = event.seq;
    }
    if (page !== null && last < page.head.eventSeq) continue;
    if (page?.head.ended === true) return;
    const { heartbeatMs } = deps.limits;
    const rang = await bell.wait(page === null ? Math.min(heartbeatMs, LEDGER_RETRY_MS) : heartbeatMs);
    if (!rang && !bell.closed) await write(deps, response, ': waiting\n\n');
  }
}

/** Null while the ledger cannot be read: the stream stays, and goes on where it was. */
async function readPage(deps: ApiDeps, key: RunKey, after: number): Promise<EventPage | null> {
  try {
    const page = await readEventPage(deps.pool, key, { ...PAGE, after });
    if (page === null) throw new HoldfastError('run_not_found', `Run ${key.runId} is gone.`);
    return page;
  } catch (error) {
    if (!isLedgerUnavailable(error)) throw error;
    deps.log.info({ run_id: key.runId, err: error }, 'a stream waits for the ledger');
    return null;
  }
}

/** One event as SSE. No `event:` line: an EventSource would drop kinds that its page has not heard of. */
function frameOf(runId: string, event: RunEventRow): string {
  const head = JSON.stringify({ run_id: runId, seq: event.seq, type: event.type, at: event.at });
  // Postgres writes jsonb on one line, line feeds inside strings escaped.
  return `id: ${event.seq}\ndata: ${head.slice(0, -1)},"data":${event.dataText}}\n\n`;
}

class SlowReader extends Error {
  override readonly name = 'SlowReader';
}

/**
 * Waits until the reader took what was written: so a slow one holds one page of memory, and never for long.
 */
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
