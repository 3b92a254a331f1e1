import type { Request, Response } from 'express';
import { HoldfastError } from '../shared/domain/errors.js';
import type { JsonValue } from '../shared/domain/json.js';
import {
  type EventPage,
  isGone,
  readEventPage,
  type RunEventRow,
} from '../shared/ledger/reads/read-events.js';
import { readRun } from '../shared/ledger/reads/read-run.js';
import type { RunKey } from '../shared/ledger/reads/row-values.js';
import type { ApiDeps } from './deps.js';
import { type EventStream, LEDGER_RETRY_MS, serveStream, STREAM_PAGE } from './event-stream.js';
import { eventsGone } from './events-gone.js';
import { type Observed, patchOf, stateOf } from './run-state.js';

/** What a reader wants beside the events. */
export interface RunStreamOptions {
  /** The last event that the reader has. */
  readonly after: number;
  /** The run's state as a snapshot first, and its changes after the events that made them. */
  readonly state: boolean;
}

/**
 * Sends the events after sequence `after` as they become durable, until the run has ended and its last event is sent. Ids
 * are the run's own event sequence, so a reader that reconnects with the last id it saw misses nothing and sees nothing
 * twice.
 */
export async function streamRun(
  deps: ApiDeps,
  key: RunKey,
  options: RunStreamOptions,
  request: Request,
  response: Response,
): Promise<void> {
  await serveStream(deps, request, response, {
    about: { run_id: key.runId },
    tenantId: key.tenantId,
    subscribe: (wake) => deps.hub.subscribe(key.runId, wake),
    follow: (stream) => follow(deps, key, options, stream),
  });
}

async function follow(
  deps: ApiDeps,
  key: RunKey,
  { after, state: withState }: RunStreamOptions,
  stream: EventStream,
): Promise<void> {
  const { bell } = stream;
  const view = withState ? new StateView(deps, key, stream) : null;
  let last = after;
  while (!bell.closed) {
    await stream.recheck();
    // Before the read: what is committed during it rings again.
    bell.reset();
    // Before the events: they are told at least as far as the state knows.
    if (view !== null && !(await view.look(last))) {
      await stream.wait(LEDGER_RETRY_MS);
      continue;
    }
    const page = await stream.read(() => pageOf(deps, key, last));
    for (const event of page?.events ?? []) {
      if (bell.closed) return;
      await stream.write(frameOf(key.runId, event));
      last = event.seq;
    }
    await view?.tell(last);
    if (page !== null && last < page.head.eventSeq) continue;
    if (page?.head.ended === true && (view === null || view.toldOf === page.head.eventSeq)) return;
    if (page?.head.ended === true) continue;
    await stream.wait(page === null ? LEDGER_RETRY_MS : undefined);
  }
}

async function pageOf(deps: ApiDeps, key: RunKey, after: number): Promise<EventPage> {
  const page = await readEventPage(deps.pool, key, { ...STREAM_PAGE, after });
  if (page === null) throw new HoldfastError('run_not_found', `Run ${key.runId} is gone.`);
  // They were let go while they were read: the reader comes back, and is told so.
  if (isGone(page.head, after)) throw eventsGone(key, page.head, null);
  return page;
}

/** One event as SSE. No `event:` line: an EventSource would drop kinds that its page has not heard of. */
export function frameOf(runId: string, event: RunEventRow, id = String(event.seq)): string {
  const head = JSON.stringify({ run_id: runId, seq: event.seq, type: event.type, at: event.at });
  // Postgres writes jsonb on one line, line feeds inside strings escaped.
  return `id: ${id}\ndata: ${head.slice(0, -1)},"data":${event.dataText}}\n\n`;
}

/**
 * The run's state beside its events: whole at first, then the parts that changed. It is no event: `seq` says as of which
 * event it holds, and its id is that of the event before it, so that a reader who comes back misses no event.
 */
class StateView {
  /** The event up to which the reader knows the state; -1 before the snapshot. */
  toldOf = -1;
  private told: Observed['state'] | null = null;
  private seen: Observed | null = null;
  private readonly deps: ApiDeps;
  private readonly key: RunKey;
  private readonly stream: EventStream;

  constructor(deps: ApiDeps, key: RunKey, stream: EventStream) {
    this.deps = deps;
    this.key = key;
    this.stream = stream;
  }

  /** Reads the state, unless one that was read waits for its events. @returns false while the ledger cannot be read */
  async look(last: number): Promise<boolean> {
    if (this.seen !== null && this.seen.seq > last) return true;
    const run = await this.stream.read(() => readRun(this.deps.pool, this.key));
    this.seen = run === null ? null : stateOf(run);
    return this.seen !== null;
  }

  /** Tells what was read, once the reader has every event that it knows of. */
  async tell(last: number): Promise<void> {
    const { seen } = this;
    if (seen === null || seen.seq > last || this.stream.bell.closed) return;
    const data: JsonValue | null =
      this.told === null ? { state: seen.state } : patchOf(this.told, seen.state);
    this.told = seen.state;
    this.toldOf = seen.seq;
    if (data === null) return;
    const type = 'state' in (data as object) ? 'state.snapshot' : 'state.delta';
    const event = { seq: seen.seq, type, at: seen.at, dataText: JSON.stringify(data) };
    await this.stream.write(frameOf(this.key.runId, event, String(last)));
  }
}
