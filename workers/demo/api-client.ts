import { z } from 'zod';
import type { LedgerEffect } from './compare.js';

const RunView = z.object({
  run_id: z.string(),
  execution: z.object({ state: z.string() }),
});
const Effect = z.object({
  effect_id: z.string(),
  tool: z.string(),
  effect_class: z.string(),
  state: z.string(),
  idempotency_key: z.string(),
  // A count, or the attempts themselves.
  attempts: z.union([z.int(), z.array(z.unknown()).transform((all) => all.length)]),
  reference: z.string().nullable(),
  reconciliation: z.object({ owner: z.string(), deadline_at: z.string() }).nullable(),
});
const EffectPage = z.object({ effects: z.array(Effect), next_cursor: z.string().nullable() });

/** One effect as the API gives it, with the run it belongs to and how often it was tried. */
export interface EffectView extends LedgerEffect {
  readonly effect_class: string;
  readonly attempts: number;
}

/** What the demo asks of the HTTP API. */
export interface ApiClient {
  /** Starts a run, or gives the run that this key started before. */
  startRun(idempotencyKey: string, body: object): Promise<string>;
  /** The run's state, one of the thirteen. */
  stateOf(runId: string): Promise<string>;
  /** All effects of the run, reads included. */
  effectsOf(runId: string): Promise<EffectView[]>;
}

const REQUEST_TIMEOUT_MS = 10_000;

/**
 * A client of Holdfast's HTTP API, made of nothing but fetch: what it does, curl could.
 *
 * @param baseUrl without a slash at its end
 * @throws Error from every method when the API answers with a problem, naming the request and the problem
 */
export function createApiClient(baseUrl: string): ApiClient {
  return {
    async startRun(idempotencyKey, body) {
      const headers = { 'content-type': 'application/json', 'idempotency-key': idempotencyKey };
      const init = { method: 'POST', headers, body: JSON.stringify(body) };
      return (await request(`${baseUrl}/v1/runs`, z.object({ run_id: z.string() }), init)).run_id;
    },
    async stateOf(runId) {
      return (await request(`${baseUrl}/v1/runs/${runId}`, RunView)).execution.state;
    },
    async effectsOf(runId) {
      const effects: EffectView[] = [];
      let cursor: string | null = null;
      do {
        const query: string = cursor === null ? '' : `&cursor=${encodeURIComponent(cursor)}`;
        const page = await request(`${baseUrl}/v1/runs/${runId}/effects?limit=100${query}`, EffectPage);
        effects.push(...page.effects.map((effect) => ({ ...effect, run_id: runId })));
        cursor = page.next_cursor;
      } while (cursor !== null);
      return effects;
    },
  };
}

async function request<T>(url: string, schema: z.ZodType<T>, init: RequestInit = {}): Promise<T> {
  const response = await fetch(url, { ...init, signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
  const text = await response.text();
  const what = `${init.method ?? 'GET'} ${url}`;
  if (!response.ok) throw new Error(`${what} was answered ${response.status}: ${text.slice(0, 500)}`);
  const parsed = schema.safeParse(JSON.parse(text));
  if (parsed.success) return parsed.data;
  throw new Error(
    `${what} was answered with something else than expected:\n${z.prettifyError(parsed.error)}`,
  );
}
