import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { readRunHead } from '../../shared/ledger/reads/read-events.js';
import { refuseWhenFull } from '../event-stream.js';
import { refuseGone } from '../events-gone.js';
import { lastEventIdOf } from '../last-event-id.js';
import { defineRawRoute } from '../route.js';
import { foundOf, runKeyOf } from '../run-key.js';
import { streamRun } from '../run-stream.js';

/** GET /v1/runs/{run_id}/stream: the run's events as they become durable (Server-Sent Events). */
export const streamRunRoute = defineRawRoute(
  {
    method: 'get',
    path: '/v1/runs/{run_id}/stream',
    operationId: 'streamRun',
    summary: "Follow a run's events",
    description:
      'Server-Sent Events: `id` is the event’s sequence in this run (1, 2, 3, no gaps), `data` the ' +
      'event as GET …/events gives it; there is no `event` field. Begins after the last event id, or ' +
      'with the first event. An id is a place in this run and in no other: one that this run has not ' +
      'reached is refused. A silent stream sends comments. It ends when the run has ended and its last ' +
      'event is sent; a reader that comes back then is answered 204, which tells an EventSource to stay' +
      ' away. A reader that takes nothing for a while is cut off and resumes from its last id. Events that were let go are' +
      ' 410 with the state of the run instead; docs/events.md lists every type.',
    authenticated: true,
    headers: { 'Last-Event-ID': 'The last id seen. Counts before the query parameter.' },
    query: z.strictObject({
      last_event_id: z.string().optional().meta({ description: 'For clients that cannot set the header.' }),
      from: z
        .string()
        .regex(/^[1-9][0-9]{0,15}$/, { error: 'must be the sequence of an event, from 1' })
        .optional()
        .meta({
          description:
            'The first event to send. A Last-Event-ID counts before it: it is where a reader was cut off.',
        }),
      state: z
        .enum(['true', 'false'])
        .default('false')
        .meta({
          description:
            'Beside the events: `state.snapshot` first, then `state.delta` (JSON Patch) after the events that changed something. ' +
            'These are no events of the run: their `seq` is that of the event as of which they hold.',
        }),
    }),
    replies: {
      200: { description: 'The stream.', mediaType: 'text/event-stream' },
      204: { description: 'The run has ended, and the last event id is that of its last event.' },
    },
    errors: [
      'run_not_found',
      'events_gone',
      'last_event_id_invalid',
      'invalid_request',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async (input, deps, request, response) => {
    const key = runKeyOf(input);
    const head = foundOf(await readRunHead(deps.pool, key), key);
    const asked = lastEventIdOf(request, input.query.last_event_id) ?? beforeFirst(input.query.from);
    const after = placeOf(asked, head.eventSeq);
    if (asked !== undefined && head.ended && after === head.eventSeq) {
      response.status(204).end();
      return;
    }
    await refuseGone(deps, key, head, after);
    refuseWhenFull(deps);
    await streamRun(deps, key, { after, state: input.query.state === 'true' }, request, response);
  },
);

/** The event before the first that is wanted. */
const beforeFirst = (from: string | undefined): string | undefined =>
  from === undefined ? undefined : String(Number(from) - 1);

function placeOf(asked: string | undefined, eventSeq: number): number {
  if (asked === undefined) return 0;
  if (/^(?:0|[1-9][0-9]{0,15})$/.test(asked) && Number(asked) <= eventSeq) return Number(asked);
  throw new HoldfastError(
    'last_event_id_invalid',
    `The last event id must be a whole number from 0 to ${eventSeq}, the last event of this run. ` +
      'Leave it out to begin with the first event.',
    { errors: [{ at: 'last_event_id', problem: 'not an event id of this run' }] },
  );
}
