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
  effectOf(runId: string, effectId: string): Promise<EffectView>;
  /** The run's oldest open approval. */
  openApproval(runId: string): Promise<OpenApproval | undefined>;
  /** Approves the very scope that was shown. */
  approve(actor: string, wait: OpenApproval): Promise<void>;
  cancel(actor: string, runId: string): Promise<void>;
  /** The id of an effect of the run that waits for a person to settle it. */
  unknownEffect(runId: string): Promise<string | undefined>;
  /** Settles it as committed under its outside name, or as not committed where that is null. */
  settle(actor: string, effectId: string, reference: string | null): Promise<void>;
}

const Approval = z.object({ interrupt_id: z.string(), scope_sha256: z.string() });
/** A wait for an approval as GET /v1/interrupts lists it. */
export type OpenApproval = z.infer<typeof Approval>;
const ApprovalPage = z.object({ interrupts: z.array(Approval) });
const ReconciliationPage = z.object({ reconciliations: z.array(z.object({ effect_id: z.string() })) });

const REQUEST_TIMEOUT_MS = 10_000;

/**
 * A client of Holdfast's HTTP API, made of nothing but fetch: what it does, curl could.
 *
 * @param baseUrl without a slash at its end
 * @throws Error from every method when the API answers with a problem, naming the request and the problem
 */
export function createApiClient(baseUrl: string): ApiClient {
  /** A request that a person makes: named, and under a key of its own. */
  const act = async (actor: string, path: string, key: string, body: object): Promise<void> => {
    const headers = {
      ...{ 'content-type': 'application/json', 'idempotency-key': key },
      'holdfast-actor': actor,
    };
    await request(`${baseUrl}${path}`, z.unknown(), { method: 'POST', headers, body: JSON.stringify(body) });
  };
  const client: ApiClient = {
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
    async effectOf(runId, effectId) {
      const effect = (await client.effectsOf(runId)).find((each) => each.effect_id === effectId);
      if (effect === undefined) throw new Error(`${runId} has no effect ${effectId}`);
      return effect;
    },
    async openApproval(runId) {
      const page = await request(`${baseUrl}/v1/interrupts?kind=approval&run_id=${runId}`, ApprovalPage);
      return page.interrupts[0];
    },
    approve: (actor, { interrupt_id: id, scope_sha256 }) =>
      act(actor, `/v1/interrupts/${id}/resolve`, `demo-approve-${id}`, { decision: 'approve', scope_sha256 }),
    cancel: (actor, runId) =>
      act(actor, `/v1/runs/${runId}/commands`, `demo-cancel-${runId}`, { kind: 'cancel' }),
    async unknownEffect(runId) {
      const page = await request(`${baseUrl}/v1/reconciliations?run_id=${runId}`, ReconciliationPage);
      return page.reconciliations[0]?.effect_id;
    },
    settle: (actor, effectId, reference) =>
      act(actor, `/v1/reconciliations/${effectId}/settle`, `demo-settle-${effectId}`, {
        ...(reference === null ? { decided: 'not_committed' } : { decided: 'committed', reference }),
        note: "Looked up in the provider's journal by its key.",
      }),
  };
  return client;
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
