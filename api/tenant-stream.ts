import type { Request, Response } from 'express';
import { z } from 'zod';
import { HoldfastError } from '../shared/domain/errors.js';
import { idSchema } from '../shared/domain/ids.js';
import type { JsonValue } from '../shared/domain/json.js';
import { listRuns, NO_FILTERS } from '../shared/ledger/reads/list-runs.js';
import { type FeedHead, type FeedPlace, readFeedPage } from '../shared/ledger/reads/read-feed.js';
import { decodeCursor, encodeCursor } from './cursor.js';
import type { ApiDeps } from './deps.js';
import { type EventStream, LEDGER_RETRY_MS, serveStream, STREAM_PAGE } from './event-stream.js';
import { frameOf } from './run-stream.js';

/** What is committed and cannot be told yet is looked at again soon: no notification says when the older one is over. */
const PENDING_MS = 50;
/** Without a notification, how often the feed is looked at; while nobody listens, more often. */
const LOOK_MS = { listening: 5_000, polling: 1_000 };

const Place = z.tuple([z.int().min(0), z.union([z.literal(''), idSchema('run')]), z.int().min(0)]);

/** A place as the id of an event: good for this tenant's feed alone. */
export const idOfPlace = (tenantId: string, { xid, runId, seq }: FeedPlace): string =>
  encodeCursor({ list: 'stream', tenant: tenantId }, [xid, runId, seq]);

/** The place that `id` names. @throws HoldfastError `last_event_id_invalid` for one that this feed never gave */
export function placeOfId(tenantId: string, id: string, head: FeedHead): FeedPlace {
  try {
    const [xid, runId, seq] = decodeCursor({ list: 'stream', tenant: tenantId }, id, Place);
    if (xid <= head.horizon) return { xid, runId, seq };
  } catch (error) {
    if (!(error instanceof HoldfastError)) throw error;
  }
  throw new HoldfastError(
    'last_event_id_invalid',
    'The last event id is not one that this feed gave. Leave it out to begin with what comes now.',
    { errors: [{ at: 'last_event_id', problem: 'not an event id of this feed' }] },
  );
}

/** @throws HoldfastError `events_gone` when events after `place` were let go, with the newest runs instead */
export async function refuseHoles(
  deps: ApiDeps,
  tenantId: string,
  place: FeedPlace,
  head: FeedHead,
): Promise<void> {
  if (place.xid > head.floor) return;
  const runs = await listRuns(deps.pool, tenantId, NO_FILTERS, { before: null, limit: 100 });
  throw new HoldfastError(
    'events_gone',
    'Of the events after this id some were let go. `snapshot` holds the newest runs as they stand, GET /v1/runs the others; ' +
      'the feed goes on after `resume_from`.',
    {
      extensions: {
        resume_from: idOfPlace(tenantId, { xid: head.horizon, runId: '', seq: 0 }),
        snapshot: { runs: runs as unknown as JsonValue },
      },
    },
  );
}

/** Sends every event of every run of the tenant after `place`, as it becomes durable, until the reader leaves. */
export async function streamTenant(
  deps: ApiDeps,
  tenantId: string,
  place: FeedPlace,
  request: Request,
  response: Response,
): Promise<void> {
  await serveStream(deps, request, response, {
    about: { tenant_id: tenantId },
    tenantId,
    subscribe: (wake) => deps.hub.subscribeAll(wake),
    follow: (stream) => follow(deps, tenantId, place, stream),
  });
}

async function follow(deps: ApiDeps, tenantId: string, place: FeedPlace, stream: EventStream): Promise<void> {
  const { bell } = stream;
  let next = place;
  // An id without an event: who is cut off before the first one comes back to this very place.
  const tellPlace = (): Promise<void> => stream.write(`id: ${idOfPlace(tenantId, next)}\n\n`);
  await tellPlace();
  let toldAt = performance.now();
  while (!bell.closed) {
    await stream.recheck();
    bell.reset();
    const page = await stream.read(() => readFeedPage(deps.pool, tenantId, next, STREAM_PAGE));
    for (const event of page?.events ?? []) {
      if (bell.closed) return;
      await stream.write(frameOf(event.runId, event, idOfPlace(tenantId, event.place)));
    }
    next = page?.next ?? next;
    // A reader of a quiet feed does not fall behind what is let go.
    if (page?.events.length === 0 && performance.now() - toldAt > deps.limits.heartbeatMs) {
      await tellPlace();
      toldAt = performance.now();
    }
    if (page?.more === true) continue;
    if (page === null) await stream.wait(LEDGER_RETRY_MS);
    else if (page.pending) await bell.pause(PENDING_MS);
    else await stream.wait(deps.hub.isListening() ? LOOK_MS.listening : LOOK_MS.polling);
  }
}
