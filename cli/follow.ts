import { setTimeout as pause } from 'node:timers/promises';
import { isTerminal, type RunState } from '../shared/domain/run-machine.js';
import type { Run, RunEvent } from './api-types.js';
import { CliError } from './failures.js';
import { type ApiClient, interruptedError, notTheApi, refusalOf, whyOf } from './http.js';
import { readFrames } from './sse.js';

/** How a run is followed. */
export interface FollowOptions {
  /** The last event that was seen: what comes after it is told. */
  readonly after: number;
  /** How long the API may stay away before the following is given up. */
  readonly patienceMs: number;
  readonly interrupted: AbortSignal;
  /** Hears that the stream broke, and that it goes on. */
  readonly onBroken: (why: string, waitMs: number) => void;
  readonly onAgain: () => void;
  /** Hears that these events were let go: the gap is told, never filled. */
  readonly onGone: (first: number, last: number) => void;
}

/** Longest pause between two tries; each takes a random part of it, so that many readers do not come at once. */
const PAUSE_MAX_MS = 5_000;
/** A stream that says nothing for this long, not even that it lives, is dead. */
const SILENCE_MS = 45_000;

/**
 * The events of a run from `after` on, each exactly once and in order, to the run's end, through restarts of the API:
 * a stream that breaks is opened again with the last id that was told.
 *
 * @returns the state in which the run ended
 * @throws CliError when the API refuses, or stays away for longer than `patienceMs`
 */
export async function* followRun(
  api: ApiClient,
  runId: string,
  options: FollowOptions,
): AsyncGenerator<RunEvent, RunState> {
  const place: Place = {
    last: options.after,
    baseMs: 1_000,
    failures: 0,
    aliveAt: Date.now(),
    opened: false,
  };
  for (;;) {
    let why = 'it ended';
    try {
      const end = yield* readStream(api, runId, place, options);
      if (end !== null) return end;
    } catch (error) {
      if (options.interrupted.aborted) throw interruptedError();
      if (error instanceof CliError) throw error;
      why = whyOf(error);
    }
    const waitMs = Math.round(Math.random() * Math.min(PAUSE_MAX_MS, place.baseMs * 2 ** place.failures));
    place.failures += 1;
    // Nobody there from the beginning: more likely a wrong address than a restart.
    if (!place.opened || Date.now() - place.aliveAt > options.patienceMs) {
      const goOn = place.opened
        ? ` Go on with --from ${place.last}.`
        : ' Is it running, and is this its address?';
      const message = `The stream of ${runId} at ${api.url} broke (${why}).${goOn} The run goes on by itself.`;
      throw new CliError('not_reachable', 'not_reachable', message);
    }
    options.onBroken(why, waitMs);
    await pause(waitMs, undefined, { signal: options.interrupted }).catch(() => {
      throw interruptedError();
    });
  }
}

interface Place {
  last: number;
  /** The server's own wish, from its `retry` field. */
  baseMs: number;
  failures: number;
  aliveAt: number;
  /** It was there once, so that a silence is a restart. */
  opened: boolean;
}

/** One connection. @returns the run's end, or null when the stream ended before it */
async function* readStream(
  api: ApiClient,
  runId: string,
  place: Place,
  options: FollowOptions,
): AsyncGenerator<RunEvent, RunState | null> {
  const silence = new AbortController();
  const watchdog = setTimeout(() => silence.abort(new Error('it went silent')), SILENCE_MS);
  try {
    const signal = AbortSignal.any([options.interrupted, silence.signal]);
    const headers = { accept: 'text/event-stream', 'last-event-id': String(place.last) };
    const response = await api.open(`/v1/runs/${encodeURIComponent(runId)}/stream`, headers, signal);
    // Everything was seen, and the run has ended: its own row says how.
    if (response.status === 204) return (await api.get<Run>(`/v1/runs/${runId}`)).execution.state;
    if (!response.ok || response.body === null) {
      const refusal = refusalOf({ status: response.status, text: await response.text() }, api.url);
      const resumeFrom = Number(refusal.problem?.['resume_from']);
      if (refusal.code === 'events_gone' && resumeFrom > place.last) {
        options.onGone(place.last + 1, resumeFrom);
        place.last = resumeFrom;
        return yield* readStream(api, runId, place, options);
      }
      if (refusal.exit === 'refused' && refusal.problem?.retry !== 'later') throw refusal;
      throw new Error(refusal.message);
    }
    if (!(response.headers.get('content-type') ?? '').startsWith('text/event-stream')) {
      throw notTheApi(api.url, 'something else than a stream');
    }
    if (place.opened) options.onAgain();
    place.opened = true;
    let end: RunState | null = null;
    for await (const frame of readFrames(response.body)) {
      watchdog.refresh();
      place.aliveAt = Date.now();
      if (frame.kind === 'retry') place.baseMs = frame.ms;
      if (frame.kind !== 'event') continue;
      const event = JSON.parse(frame.data) as RunEvent;
      if (event.seq <= place.last) continue;
      // A gap is never passed over: what is missing is asked for again.
      if (event.seq !== place.last + 1) throw new Error(`event ${place.last + 1} is missing`);
      place.last = event.seq;
      place.failures = 0;
      end = endOf(event) ?? end;
      yield event;
    }
    return end;
  } finally {
    clearTimeout(watchdog);
  }
}

/** The end that an event tells of, if it does. */
function endOf({ type, data }: RunEvent): RunState | null {
  const { region, to } = data as { region?: unknown; to?: unknown };
  if (type !== 'run.transition' || region !== 'run' || typeof to !== 'string') return null;
  return isTerminal(to as RunState) ? (to as RunState) : null;
}
