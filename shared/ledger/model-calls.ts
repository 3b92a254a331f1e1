import type { JsonObject, JsonValue } from '../domain/json.js';
import type { DelegateShare, OnCancel } from '../domain/delegates.js';
import type { InputWait } from '../domain/questions.js';
import type { LimitCode } from '../domain/budgets.js';
import type { ModelResponse, TokenUsage } from '../domain/models.js';
import type { ChildSlot, Cooling, Held, PlannedSlot, Trail } from '../domain/protocol.js';
import type { RunState } from '../domain/run-machine.js';
import { coolingOf, notBeforeOf } from './cooldowns.js';
import { callFunction, type Db, jsonb } from './database.js';
import { newId } from './new-id.js';
import type { Speaker } from './trail.js';

/** The place of one logical model call: its key for ever. */
export interface StepPlace {
  readonly turn: number;
  readonly step: number;
}

/** A transcript row as stored. */
export interface StoredMessage {
  /** 0 for what earlier runs of the thread left. */
  readonly step: number;
  readonly position: number;
  readonly role: 'user' | 'assistant' | 'tool';
  readonly content: JsonObject;
}

/** One generation of a thread's memory. */
export interface RememberedText {
  readonly generation: number;
  readonly text: string;
}

export interface ClaimedModelCall {
  readonly kind: 'claimed';
  /** Fencing token of the call: only the newest attempt may commit. */
  readonly attempt: number;
  readonly tenantId: string;
  readonly agent: string;
  readonly agentVersion: string;
  readonly modelSeconds: number;
  /** The contract's rules by tool name. */
  readonly effectRules: Readonly<Record<string, { readonly approval?: 'required' }>>;
  readonly toolCallsLeft: number;
  /** This is the run's last answer, over this limit: no tool is offered any more. Null for every other call. */
  readonly finishing: LimitCode | null;
  /** What is remembered of the conversation, as the run's admission found it; null where that was nothing. */
  readonly memory: RememberedText | null;
  /** The transcript after the step that the caller already knows, in order. */
  readonly messages: readonly StoredMessage[];
}
export interface AnsweredModelCall {
  readonly kind: 'answered';
  readonly stopReason: ModelResponse['stopReason'];
  readonly calls: readonly PlannedSlot[];
  readonly asks?: readonly number[];
  readonly children?: readonly ChildSlot[];
  readonly refused: number;
  readonly state: RunState;
}

const CLAIM = {
  name: 'ledger/claim-model-call',
  text: 'select holdfast.claim_model_call($1, $2, $3, $4, $5, $6, $7, $8, $9) as answer',
};

/**
 * Commits the trail and opens the next attempt of a model call, or answers with the response that is there.
 *
 * Call it again with the same `attemptId` when the acknowledgement was lost: the attempt is opened once, and `late`
 * says that another one holds the call by now.
 *
 * @throws a refusal: `run_ended`, `unknown_execution`, `lost_ownership`, `out_of_step`
 */
export async function claimModelCall(
  db: Db,
  speaker: Speaker,
  place: StepPlace,
  claim: {
    readonly trail: Trail;
    readonly attemptId: string;
    readonly worker: string;
    readonly knownStep: number;
  },
): Promise<
  | ClaimedModelCall
  | AnsweredModelCall
  | Cooling
  | Held
  | { readonly kind: 'exhausted' | 'late' | 'person_needed' | 'given_up' }
> {
  const a = await callFunction(db, CLAIM, [
    speaker.runId,
    speaker.execution,
    claim.trail.from,
    jsonb(claim.trail.entries),
    place.turn,
    place.step,
    claim.attemptId,
    claim.worker,
    claim.knownStep,
  ]);
  switch (a['kind']) {
    case 'answered':
      return answered(a);
    case 'claimed':
      return {
        kind: 'claimed',
        attempt: a['attempt'] as number,
        tenantId: a['tenant_id'] as string,
        agent: a['agent'] as string,
        agentVersion: a['agent_version'] as string,
        modelSeconds: a['model_seconds'] as number,
        effectRules: a['effect_rules'] as ClaimedModelCall['effectRules'],
        toolCallsLeft: a['tool_calls_left'] as number,
        finishing: (a['finishing'] ?? null) as LimitCode | null,
        memory: (a['memory'] ?? null) as RememberedText | null,
        messages: a['messages'] as StoredMessage[],
      };
    case 'cooling':
      return coolingOf(a);
    default:
      return a as unknown as Held | { kind: 'exhausted' | 'late' | 'person_needed' | 'given_up' };
  }
}

function answered(a: Record<string, unknown>): AnsweredModelCall {
  return {
    kind: 'answered',
    stopReason: a['stop_reason'] as AnsweredModelCall['stopReason'],
    calls: a['calls'] as PlannedSlot[],
    ...(a['asks'] === undefined ? {} : { asks: a['asks'] as number[] }),
    ...(a['children'] === undefined ? {} : { children: a['children'] as ChildSlot[] }),
    refused: a['refused'] as number,
    state: (a['state'] ?? 'running') as RunState,
  };
}

/** A piece of a streaming answer as stored: coalesced, in order. */
export type StoredChunk = { readonly type: 'text' | 'reasoning'; readonly text: string };

/** A call that may be dispatched, with the tool's declaration in force when it was planned. */
export interface PlannedCallRow {
  readonly kind: 'planned';
  readonly slot: number;
  readonly callId: string;
  readonly toolName: string;
  readonly toolVersion: string;
  readonly effectClass: string;
  readonly namespace: string;
  readonly parallel: boolean;
  readonly short: boolean;
  /** RFC 8785 text: the very bytes that are digested, approved and dispatched. */
  readonly arguments: string;
  readonly argumentsSha256: string;
  readonly policy: JsonObject;
}
/** A call that asks a person: it never becomes an effect. What the wait will show is written down with it. */
export interface QuestionCallRow extends InputWait {
  readonly kind: 'question';
  readonly slot: number;
  readonly callId: string;
  readonly toolName: string;
  readonly toolVersion: string;
  readonly expiresSeconds: number;
}
/** A call that starts a child run: it never becomes an effect. What that run is given is written down with it. */
export interface DelegateCallRow {
  readonly kind: 'delegate';
  readonly slot: number;
  readonly callId: string;
  readonly toolName: string;
  readonly toolVersion: string;
  readonly agent: string;
  readonly task: string;
  readonly parallel: boolean;
  readonly onCancel: OnCancel;
  readonly share: DelegateShare;
}
/** What becomes of one tool call of an answer. */
export type PlanRow = PlannedCallRow | QuestionCallRow | DelegateCallRow | RefusedCallRow;
/** A call that was answered with an error result. It keeps its slot. */
export interface RefusedCallRow {
  readonly kind: 'refused';
  readonly slot: number;
  readonly callId: string;
  readonly toolName: string;
  readonly code: string;
}

/** What of a transcript a prompt did not hold, for its length. */
export interface LeftOut {
  readonly messages: number;
  /** Of those messages as JSON. */
  readonly characters: number;
}

export interface ResponseCommit {
  readonly attempt: number;
  readonly attemptId: string;
  readonly response: ModelResponse;
  readonly plan: readonly PlanRow[];
  /** The assistant's message, as the next prompt will hold it. */
  readonly assistant: JsonValue;
  /** One error result for each refused call. */
  readonly refused: readonly { readonly slot: number; readonly code: string; readonly content: JsonValue }[];
  /** What the prompt left out; null where it held everything. */
  readonly leftOut?: LeftOut | null;
  /** Chunks not stored yet. */
  readonly chunks: readonly StoredChunk[];
  /** Lets a final answer end the run in the same commit. */
  readonly complete: boolean;
}

const COMMIT_RESPONSE = {
  name: 'ledger/commit-model-response',
  text: 'select holdfast.commit_model_response($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) as answer',
};

/**
 * Commits the response under the attempt's own fence. Safe to repeat.
 *
 * @returns `late` when the attempt no longer holds the call: its cost was counted, its text is dropped
 */
export async function commitModelResponse(
  db: Db,
  speaker: Speaker,
  place: StepPlace,
  commit: ResponseCommit,
): Promise<AnsweredModelCall | { readonly kind: 'late' }> {
  const { stopReason, usage, modelId, requestId } = commit.response;
  const a = await callFunction(db, COMMIT_RESPONSE, [
    speaker.runId,
    speaker.execution,
    place.turn,
    place.step,
    commit.attempt,
    commit.attemptId,
    JSON.stringify(commit.response),
    jsonb({ stopReason, usage, modelId, requestId, ...(commit.leftOut ? { leftOut: commit.leftOut } : {}) }),
    jsonb(commit.plan),
    jsonb(commit.assistant),
    jsonb(commit.refused),
    jsonb(commit.chunks),
    commit.complete,
  ]);
  return a['kind'] === 'late' ? { kind: 'late' } : answered(a);
}

const APPEND_CHUNKS = {
  name: 'ledger/append-chunks',
  text: 'select holdfast.append_chunks($1, $2, $3, $4, $5, $6) as held',
};

/** Stores pieces of an answer while it comes. @returns false when the attempt no longer holds the call */
export async function appendChunks(
  db: Db,
  speaker: Speaker,
  place: StepPlace,
  attempt: number,
  chunks: readonly StoredChunk[],
): Promise<boolean> {
  const { rows } = await db.query<{ held: boolean }>({
    ...APPEND_CHUNKS,
    values: [speaker.runId, speaker.execution, place.turn, place.step, attempt, jsonb(chunks)],
  });
  return rows[0]?.held === true;
}

export interface ModelAttemptFailure {
  readonly attempt: number;
  readonly attemptId: string;
  readonly reason: string;
  /** For operators, at most 2,000 characters. */
  readonly detail: string;
  readonly requestId: string | null;
  readonly usage: Pick<TokenUsage, 'inputTokens' | 'outputTokens'>;
  /** The provider's Retry-After; absent where it gave none. */
  readonly retryAfterMs?: number | undefined;
  /** Whom to ask, where only a person can mend it: opened in the same transaction. */
  readonly wait?: InputWait | undefined;
}
export interface ModelSeriesStanding {
  readonly kind: 'failed';
  readonly attempt: number;
  readonly attemptsMax: number;
  readonly seriesMsLeft: number;
  readonly retryAfterMaxMs: number;
  /** The run's turn in the cool-down that it met; absent where there is none. */
  readonly notBeforeMs?: number;
}

const FAIL_ATTEMPT = {
  name: 'ledger/fail-model-attempt',
  text: 'select holdfast.fail_model_attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) as answer',
};

/** Ends an attempt that gave no response; what it cost is counted. Safe to repeat. */
export async function failModelAttempt(
  db: Db,
  speaker: Speaker,
  place: StepPlace,
  failure: ModelAttemptFailure,
): Promise<ModelSeriesStanding | { readonly kind: 'late' }> {
  const a = await callFunction(db, FAIL_ATTEMPT, [
    speaker.runId,
    speaker.execution,
    place.turn,
    place.step,
    failure.attempt,
    failure.attemptId,
    failure.reason,
    failure.detail.slice(0, 2_000),
    failure.requestId,
    failure.usage.inputTokens,
    failure.usage.outputTokens,
    newId('int'),
    failure.wait === undefined ? null : jsonb(failure.wait),
    failure.retryAfterMs ?? null,
  ]);
  if (a['kind'] === 'late') return { kind: 'late' };
  return {
    kind: 'failed',
    attempt: a['attempt'] as number,
    attemptsMax: a['attempts_max'] as number,
    seriesMsLeft: a['series_ms_left'] as number,
    retryAfterMaxMs: a['retry_after_max_ms'] as number,
    ...notBeforeOf(a),
  };
}
