/** Member of a call's `_meta` that tells its HTTP request from others. */
export const CALL_ID_META = 'holdfast/callId';

/** A fetch that reports when the answer stream of a call is over, and the way to hear it. */
export interface WatchedStreams {
  readonly fetch: typeof fetch;
  /** Calls `hear` once the stream that answers `callId` has ended or broken; returns the way to stop. */
  readonly onEnd: (callId: string, hear: () => void) => () => void;
}

/**
 * Watches the streams that answer calls over streamable HTTP. The protocol library goes on waiting for an
 * answer whose stream is gone; with this, a call whose server died is unclear at once, not at its time-out.
 */
export function watchStreams(): WatchedStreams {
  const listeners = new Map<string, () => void>();
  return {
    async fetch(input, init) {
      const response = await fetch(input, init);
      const callId = callIdIn(init?.body);
      if (callId === undefined || response.body === null) return response;
      const body = reportEnd(response.body, () => listeners.get(callId)?.());
      const { status, statusText, headers } = response;
      return new Response(body, { status, statusText, headers });
    },
    onEnd(callId, hear) {
      listeners.set(callId, hear);
      return () => {
        listeners.delete(callId);
      };
    },
  };
}

function callIdIn(body: unknown): string | undefined {
  if (typeof body !== 'string' || !body.includes(CALL_ID_META)) return undefined;
  const message = JSON.parse(body) as { params?: { _meta?: Record<string, unknown> } };
  const callId = message.params?._meta?.[CALL_ID_META];
  return typeof callId === 'string' ? callId : undefined;
}

function reportEnd(body: ReadableStream<Uint8Array>, ended: () => void): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (!done) {
          controller.enqueue(value);
          return;
        }
        controller.close();
        ended();
      } catch (error) {
        controller.error(error);
        ended();
      }
    },
    async cancel(reason) {
      ended();
      await reader.cancel(reason);
    },
  });
}
