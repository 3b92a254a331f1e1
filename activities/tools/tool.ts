import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { JsonObject } from '../../shared/domain/json.js';
import type { MemoryWritten } from '../../shared/ledger/memory.js';

/** What a target sent back, kept whatever it is (SPEC 3.1.4). At most `RESULT_BYTES_MAX` bytes. */
export interface ToolBody {
  readonly bytes: Uint8Array;
  /** For example `application/json`; null where the target named none. */
  readonly contentType: string | null;
  /** True when the target sent more than we keep. */
  readonly truncated: boolean;
}

/** The answer of one attempt. Every unclear ending is `unknown`; a tool never throws for one. */
export type ToolAnswer =
  /** The target confirmed. `reference` is the outside name of what it did (a payment id, a message id). */
  | { readonly kind: 'succeeded'; readonly reference: string | null; readonly body: ToolBody }
  /** The target refused for good: it did nothing and never will for this key. */
  | { readonly kind: 'rejected'; readonly status: string; readonly body: ToolBody }
  /** Proof that nothing left this process (DNS, refused connection, local check). */
  | { readonly kind: 'not_sent'; readonly reason: string }
  /** The target says it did nothing and asks to come later. */
  | { readonly kind: 'throttled'; readonly retryAfterMs: number | null; readonly body: ToolBody | null }
  /** The target still works on this very key. */
  | { readonly kind: 'in_progress'; readonly retryAfterMs: number | null; readonly body: ToolBody | null }
  /** Anything else. `reason` is a short closed code, such as `timed_out`, `connection_reset`, `http_500`. */
  | { readonly kind: 'unknown'; readonly reason: string; readonly body: ToolBody | null };

/** What a status query said of a key (SPEC 3.3 `queryable`). */
export type ProbeAnswer =
  | { readonly kind: 'found'; readonly reference: string | null; readonly body: ToolBody }
  | { readonly kind: 'absent'; readonly body: ToolBody | null }
  | { readonly kind: 'inconclusive'; readonly reason: string; readonly body: ToolBody | null };

/** What a tool says of a call while it works: for people who watch, believed by nobody (SPEC 6). */
export interface ToolProgress {
  /** In words, at most 500 characters; null for none. */
  readonly message: string | null;
  /** How much is done, and of how much; null where it is not known. */
  readonly done: number | null;
  readonly total: number | null;
}

/** What a tool is told of the one attempt it makes. */
export interface ToolCall {
  readonly arguments: JsonObject;
  /** The idempotency key of the logical effect: the same on every attempt, 16–200 printable ASCII characters. */
  readonly idempotencyKey: string;
  readonly effectId: string;
  readonly runId: string;
  readonly tenantId: string;
  /** From 1. */
  readonly attempt: number;
  /** Aborted on time-out, cancel and worker shutdown. After bytes left, an aborted call is `unknown`. */
  readonly signal: AbortSignal;
  /** The attempt's whole time budget in milliseconds, counted from the call; a tool ends itself before it. */
  readonly timeoutMs: number;
  /** Tells those who watch how far the call is: as often as it likes, the newest is shown. Never fails. */
  progress(progress: ToolProgress): void;
  /** Does at the ledger what the intent of a memory's effect says; for our own tool that writes one. */
  readonly writeMemory?: () => Promise<MemoryWritten>;
}

/** A question after a call, by its key. */
export type ToolQuery = Omit<ToolCall, 'attempt' | 'progress' | 'writeMemory'>;

/** The tool that undoes another: by name, or with the rule that makes its arguments (`compensationSchema`). */
export type DeclaredCompensation = string | { readonly tool: string; readonly arguments: JsonObject };

/** Declared by the tool, owned by the operator (SPEC 3.3). */
export interface EffectPolicy {
  readonly class: EffectClass;
  /** Names the target's key space, for example `payments`; keys are unique in it. */
  readonly namespace: string;
  /** Class `keyed` only: how long and how often the same key may be sent again after an unknown outcome. */
  readonly keyed?: {
    readonly windowSeconds: number;
    readonly resendsMax: number;
    /** The target refuses the key with another body. */
    readonly comparesBodies: boolean;
    /** The target stores a 5xx under the key and answers it again, so a resend cannot help. */
    readonly keepsServerErrors: boolean;
  };
  /** Needs a `probe`. Class `queryable`, or `keyed` with a probe for past its window. */
  readonly query?: {
    /** No `absent` counts before this long after the last dispatch ended. */
    readonly settlingSeconds: number;
    /** This many equal `absent` answers in a row settle the effect as not committed. */
    readonly equalAnswers: number;
    readonly intervalSeconds: number;
    /** Bound of the series; past it a person settles. */
    readonly queriesMax: number;
  };
  /** The tool that undoes this one (SPEC 3.7), and how its arguments are made; checked when the project is loaded. */
  readonly compensation?: DeclaredCompensation;
}

/** A tool as the catalogue holds it: what the model sees, what runs and what policy knows are one version. */
export interface Tool {
  readonly name: string;
  /** Lower-case hex SHA-256 over the canonical JSON of everything declared about the tool. */
  readonly version: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
  readonly effect: EffectPolicy;
  /** May run beside other calls of the same step that say so too. */
  readonly parallel: boolean;
  /** Its calls take the fast lane; see `SHORT_SECONDS_MAX`. */
  readonly short: boolean;
  readonly timeoutSeconds: number;
  /** Answers when nothing of the call runs in this process any more; whoever calls bounds the wait. */
  call(call: ToolCall): Promise<ToolAnswer>;
  /** Names of the secrets that a call would need and that this process does not have; absent where it needs none. */
  missingSecrets?(): readonly string[];
  /** Asks the target what became of a key. Sends nothing that changes anything. */
  probe?(query: ToolQuery): Promise<ProbeAnswer>;
}

/** Bytes of a target's answer that are kept; the rest is cut and marked. */
export const RESULT_BYTES_MAX = 1_048_576;
