import { RunEventView } from '../../api/views/trail-views.js';
import type { TestApi } from './test-api.js';
import { until } from './test-api.js';

/** One event as it came over the wire. */
export interface StreamedEvent {
  /** The `id` line. */
  readonly id: string;
  readonly seq: number;
  readonly type: string;
  readonly data: unknown;
  readonly runId: string;
}

/** A reader of one run's stream that remembers what it saw. */
export interface StreamReader {
  readonly status: number;
  readonly events: readonly StreamedEvent[];
  /** Every id that came, with or without an event. */
  readonly ids: readonly string[];
  /** Comment lines so far. */
  readonly comments: readonly string[];
  /** Milliseconds after which to reconnect, as the stream wishes. */
  readonly retries: readonly number[];
  /** Resolves when the other side ended or cut the stream. */
  readonly ended: Promise<void>;
  /** Waits until `count` events came. */
  seen(count: number): Promise<void>;
  /** Waits until the stream has said where it begins. */
  opened(): Promise<void>;
  /** Hangs up. */
  cut(): void;
}

export interface StreamRequest {
  /** Goes into the header. */
  readonly lastEventId?: string | number;
  readonly tenant?: string;
  readonly query?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Opens GET /v1/runs/{id}/stream. */
export async function openStream(
  api: Pick<TestApi, 'request'>,
  runId: string,
  options: StreamRequest = {},
): Promise<StreamReader> {
  return await openAt(api, `/v1/runs/${runId}/stream`, options);
}

/** Opens GET /v1/stream. */
export async function openTenantStream(api: TestApi, options: StreamRequest = {}): Promise<StreamReader> {
  return await openAt(api, '/v1/stream', options);
}

async function openAt(
  api: Pick<TestApi, 'request'>,
  path: string,
  { lastEventId, tenant, query = '', headers }: StreamRequest,
): Promise<StreamReader> {
  const hangUp = new AbortController();
  const response = await api.request(path + query, {
    signal: hangUp.signal,
    ...(tenant === undefined ? {} : { tenant }),
    headers: { ...headers, ...(lastEventId === undefined ? {} : { 'last-event-id': String(lastEventId) }) },
  });
  const events: StreamedEvent[] = [];
  const ids: string[] = [];
  const comments: string[] = [];
  const retries: number[] = [];
  const ended = read(response, hangUp.signal, (frame) => {
    if (frame.startsWith(':')) comments.push(frame);
    else if (frame.startsWith('retry: ')) retries.push(Number(frame.slice('retry: '.length)));
    else {
      const [idLine = '', ...lines] = frame.split('\n');
      if (!idLine.startsWith('id: ')) throw new Error(`no id: ${frame}`);
      ids.push(idLine.slice('id: '.length));
      if (lines.length > 0) events.push(eventOf(ids.at(-1) ?? '', lines));
    }
  });
  return {
    ...{ status: response.status, events, ids, comments, retries, ended },
    seen: (count) => until(`${count} events of ${path}`, () => events.length >= count),
    opened: () => until(`${path} opens`, () => ids.length > 0),
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

function eventOf(id: string, lines: readonly string[]): StreamedEvent {
  const [dataLine = ''] = lines;
  if (lines.length !== 1 || !dataLine.startsWith('data: '))
    throw new Error(`not one event: ${lines.join('|')}`);
  const event = RunEventView.parse(JSON.parse(dataLine.slice('data: '.length)));
  return { id, seq: event.seq, type: event.type, data: event.data, runId: event.run_id };
}
