import { RunEventView } from '../../api/views/trail-views.js';
import type { TestApi } from './test-api.js';
import { until } from './test-api.js';

/** One event as it came over the wire. */
export interface StreamedEvent {
  /** The `id` line. */
  readonly id: number;
  readonly type: string;
  readonly data: unknown;
  readonly runId: string;
}

/** A reader of one run's stream that remembers what it saw. */
export interface StreamReader {
  readonly status: number;
  readonly events: readonly StreamedEvent[];
  /** Comment lines so far. */
  readonly comments: readonly string[];
  /** Resolves when the other side ended or cut the stream. */
  readonly ended: Promise<void>;
  /** Waits until `count` events came. */
  seen(count: number): Promise<void>;
  /** Hangs up. */
  cut(): void;
}

/** Opens GET /v1/runs/{id}/stream; `lastEventId` goes into the header. */
export async function openStream(
  api: TestApi,
  runId: string,
  options: { readonly lastEventId?: string | number; readonly tenant?: string; readonly query?: string } = {},
): Promise<StreamReader> {
  const hangUp = new AbortController();
  const { lastEventId, tenant, query = '' } = options;
  const response = await api.request(`/v1/runs/${runId}/stream${query}`, {
    signal: hangUp.signal,
    ...(tenant === undefined ? {} : { tenant }),
    headers: lastEventId === undefined ? {} : { 'last-event-id': String(lastEventId) },
  });
  const events: StreamedEvent[] = [];
  const comments: string[] = [];
  const ended = read(response, hangUp.signal, (frame) => {
    if (frame.startsWith(':')) comments.push(frame);
    else if (frame.startsWith('id: ')) events.push(eventOf(frame));
  });
  return {
    ...{ status: response.status, events, comments, ended },
    seen: (count) => until(`${count} events of ${runId}`, () => events.length >= count),
    cut: () => hangUp.abort(),
  };
}

async function read(response: Response, signal: AbortSignal, take: (frame: string) => void): Promise<void> {
  if (response.body === null) return;
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for await (const chunk of response.body) {
      const frames = (rest + decoder.decode(chunk as Uint8Array, { stream: true })).split('\n\n');
      rest = frames.pop() ?? '';
      if (!signal.aborted) frames.forEach(take);
    }
  } catch {
    // Cut by either side: a frame of which only a part came does not count, as for an EventSource.
  }
}

function eventOf(frame: string): StreamedEvent {
  const lines = frame.split('\n');
  const [idLine = '', dataLine = ''] = lines;
  if (lines.length !== 2 || !dataLine.startsWith('data: ')) throw new Error(`not one event: ${frame}`);
  const event = RunEventView.parse(JSON.parse(dataLine.slice('data: '.length)));
  if (idLine !== `id: ${event.seq}`) throw new Error(`the id is not the sequence: ${frame}`);
  return { id: event.seq, type: event.type, data: event.data, runId: event.run_id };
}
