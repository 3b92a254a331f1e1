import { z } from 'zod';
import { readFeedHead } from '../../shared/ledger/reads/read-feed.js';
import { refuseWhenFull } from '../event-stream.js';
import { lastEventIdOf } from '../last-event-id.js';
import { defineRawRoute } from '../route.js';
import { placeOfId, refuseHoles, streamTenant } from '../tenant-stream.js';

/** GET /v1/stream: the events of every run of the tenant (Server-Sent Events). */
export const streamTenantRoute = defineRawRoute(
  {
    method: 'get',
    path: '/v1/stream',
    operationId: 'streamTenant',
    summary: 'Follow the events of every run',
    description:
      'Server-Sent Events with the same `data` as a run’s own stream. The events of one run come in its order; `id` is a place ' +
      'in this feed, opaque and good for it alone. Begins with what comes now, with everything that is still there for ' +
      '`from=start`, or after the last event id, and misses nothing from there on. An event is told as soon as no older ' +
      'transaction is at work, since what that writes comes before it. It ends with its reader. Where events after an id ' +
      'were let go it is 410, with the newest runs instead.',
    authenticated: true,
    headers: { 'Last-Event-ID': 'The last id seen. Counts before the query parameters.' },
    query: z.strictObject({
      last_event_id: z.string().optional().meta({ description: 'For clients that cannot set the header.' }),
      from: z.enum(['now', 'start']).default('now').meta({ description: 'Where to begin without an id.' }),
    }),
    replies: { 200: { description: 'The stream.', mediaType: 'text/event-stream' } },
    errors: ['events_gone', 'last_event_id_invalid', 'invalid_request', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ query, identity }, deps, request, response) => {
    const { tenantId } = identity;
    const head = await readFeedHead(deps.pool, tenantId);
    const asked = lastEventIdOf(request, query.last_event_id);
    const place =
      asked === undefined
        ? { xid: query.from === 'now' ? head.horizon : head.floor + 1, runId: '', seq: 0 }
        : placeOfId(tenantId, asked, head);
    if (asked !== undefined) await refuseHoles(deps, tenantId, place, head);
    refuseWhenFull(deps);
    await streamTenant(deps, tenantId, place, request, response);
  },
);
