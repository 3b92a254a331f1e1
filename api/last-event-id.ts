import type { Request } from 'express';

/** The id after which a reader goes on: of the header that an EventSource sets by itself, else of the query. */
export function lastEventIdOf(request: Request, fromQuery: string | undefined): string | undefined {
  const header = request.headers['last-event-id'];
  return header === undefined ? fromQuery : String(header);
}
