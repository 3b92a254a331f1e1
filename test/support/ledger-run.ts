import { randomUUID } from 'node:crypto';
import type { EffectClass } from '../../shared/domain/effect-classes.js';
import type { ModelResponse } from '../../shared/domain/models.js';
import type { Trail, TrailEntry } from '../../shared/domain/protocol.js';
import type { RunState } from '../../shared/domain/run-machine.js';
import { sha256 } from '../../shared/ledger/digest.js';
import {
  claimModelCall,
  type ClaimedModelCall,
  commitModelResponse,
  type DelegateCallRow,
  type PlannedCallRow,
  type PlanRow,
  type QuestionCallRow,
} from '../../shared/ledger/model-calls.js';
import { newId } from '../../shared/ledger/new-id.js';
import { commitTrail, type Speaker, takeOver } from '../../shared/ledger/trail.js';
import { LedgerCall } from './ledger-call.js';
import type { LedgerWorld } from './ledger-world.js';

/** What one answer of the model cost in every test of the ledger. */
export const USAGE = { inputTokens: 100, outputTokens: 20, cachedInputTokens: 0, reasoningTokens: 0 };

/** A call that the model asked for: what is left out of an effect's is as usual. */
export type PlannedPart = Partial<PlannedCallRow> | QuestionCallRow | DelegateCallRow;

/** One run as its workflow sees it: what it commits keeps its position by itself. */
export class LedgerRun implements Speaker {
  readonly world: LedgerWorld;
  readonly runId: string;
  readonly execution: string;
  step = 0;
  #trail = 0;

  constructor(world: LedgerWorld, runId: string, execution: string, trail = 0, step = 0) {
    this.world = world;
    this.runId = runId;
    this.execution = execution;
    this.#trail = trail;
    this.step = step;
  }

  get position(): number {
    return this.#trail;
  }

  /** The trail that rides along next; counted as committed at once. */
  trail(...entries: readonly TrailEntry[]): Trail {
    const from = this.#trail + 1;
    this.#trail += entries.length;
    return { from, entries };
  }

  async commit(...entries: readonly TrailEntry[]): Promise<void> {
    await this.send(this.trail(...entries));
  }

  /** Commits a trail, perhaps not for the first time. */
  async send(trail: Trail): Promise<void> {
    await commitTrail(this.world.db, this, trail);
  }

  async start(): Promise<void> {
    await this.commit({ kind: 'move', to: 'running', reason: 'run_started' });
  }

  /** Claims the next model call, or this one again under another attempt. */
  async claimThink(
    options: { readonly step?: number; readonly attemptId?: string; readonly knownStep?: number } = {},
  ): ReturnType<typeof claimModelCall> {
    return await claimModelCall(
      this.world.db,
      this,
      { turn: 1, step: options.step ?? this.step + 1 },
      {
        trail: this.trail(),
        attemptId: options.attemptId ?? newId('att'),
        worker: 'test:1',
        knownStep: options.knownStep ?? 0,
      },
    );
  }

  /** One whole model call that plans these calls; the run's step is then this one. */
  async plan(calls: readonly PlannedPart[]): Promise<void> {
    const attemptId = newId('att');
    const claim = await this.claimThink({ attemptId });
    if (claim.kind !== 'claimed') throw new Error(`the model call was not claimed: ${claim.kind}`);
    this.step += 1;
    const answer = await this.answerThink(claim, attemptId, {
      calls,
      stopReason: calls.length > 0 ? 'tool_calls' : 'stop',
    });
    if (answer.kind !== 'answered') throw new Error(`the answer was not kept: ${answer.kind}`);
  }

  /** Commits an answer of the model at the current step, for an attempt that may have lost its right to. */
  async answerThink(
    claim: Pick<ClaimedModelCall, 'attempt'>,
    attemptId: string,
    options: {
      readonly calls?: readonly PlannedPart[];
      readonly stopReason?: ModelResponse['stopReason'];
      readonly text?: string;
      readonly step?: number;
      readonly execution?: string;
      readonly complete?: boolean;
      readonly usage?: ModelResponse['usage'];
      /** The call of this slot is refused for no reason in particular. */
      readonly refusedSlot?: number;
    } = {},
  ): ReturnType<typeof commitModelResponse> {
    const text = options.text ?? 'Done.';
    const plan = (options.calls ?? []).map((call, slot) => plannedCall(slot, call));
    return await commitModelResponse(
      this.world.db,
      { runId: this.runId, execution: options.execution ?? this.execution },
      { turn: 1, step: options.step ?? this.step },
      {
        attempt: claim.attempt,
        attemptId,
        response: {
          parts: [{ type: 'text', text }],
          stopReason: options.stopReason ?? 'stop',
          ...{
            usage: options.usage ?? USAGE,
            requestId: `req-${attemptId}`,
            modelId: 'scripted',
            warnings: [],
          },
        },
        plan,
        assistant: { parts: [{ type: 'text', text }] },
        refused: [options.refusedSlot].flatMap((slot) =>
          slot === undefined ? [] : [{ slot, code: 'x', content: { callId: `call_${slot}`, text: 'No.' } }],
        ),
        chunks: [],
        complete: options.complete ?? false,
      },
    );
  }

  /** The call of a slot of the current step. */
  call(slot: number, step = this.step): LedgerCall {
    return new LedgerCall(this, { turn: 1, step, slot });
  }

  /** The same run in the hands of another execution, which takes it over. */
  async takenOver(): Promise<LedgerRun> {
    const next = new LedgerRun(
      this.world,
      this.runId,
      `exec-${randomUUID()}`,
      (
        await this.world.rows<{ at: number }>(
          'select trail_position::int as at from holdfast.runs where run_id = $1',
          this.runId,
        )
      )[0]!.at,
      this.step,
    );
    const { epoch } = await this.world.runRow(this.runId);
    await takeOver(this.world.db, next, epoch, 'reset');
    return next;
  }
}

/** A planned call of the test tool of a class, with the usual policy of that class. */
export function callOf(
  effectClass: EffectClass,
  policy: Readonly<Record<string, unknown>> = {},
): Partial<PlannedCallRow> {
  const over = (usual: object, own: unknown): object | null =>
    own === null ? null : { ...usual, ...(own as object | undefined) };
  const { keyed, query, ...rest } = policy;
  return {
    toolName: `tool_${effectClass}`,
    effectClass,
    namespace: `tool_${effectClass}`,
    policy: {
      approval: 'not_required',
      timeoutSeconds: 30,
      keyed:
        effectClass === 'keyed'
          ? over(
              { windowSeconds: 3_600, resendsMax: 2, comparesBodies: false, keepsServerErrors: false },
              keyed,
            )
          : null,
      query:
        effectClass === 'queryable' || query !== undefined
          ? over({ settlingSeconds: 60, equalAnswers: 2, intervalSeconds: 1, queriesMax: 4 }, query)
          : null,
      compensation: null,
      ...rest,
    } as PlannedCallRow['policy'],
  };
}

function plannedCall(slot: number, call: PlannedPart): PlanRow {
  if (call.kind === 'question' || call.kind === 'delegate') return { ...call, slot, callId: `call_${slot}` };
  const text = call.arguments ?? `{"slot":${slot}}`;
  return {
    kind: 'planned',
    slot,
    callId: `call_${slot}`,
    toolName: 'tool_opaque',
    toolVersion: 'a'.repeat(64),
    effectClass: 'opaque',
    namespace: 'tool_opaque',
    parallel: false,
    short: false,
    argumentsSha256: sha256(text),
    policy: {},
    ...call,
    arguments: text,
  };
}

/** The moves that bring a fresh run to each state, from `running` on. */
const WAY_TO: Readonly<Record<Exclude<RunState, 'admitted'>, readonly RunState[]>> = {
  running: [],
  waiting_for_input: ['waiting_for_input'],
  awaiting_approval: ['awaiting_approval'],
  retry_wait: ['retry_wait'],
  compensating: ['compensating'],
  cancelling: ['cancelling'],
  needs_reconciliation: ['needs_reconciliation'],
  reconciling: ['needs_reconciliation', 'reconciling'],
  completed: ['completed'],
  compensated: ['compensating', 'compensated'],
  failed: ['failed'],
  cancelled: ['cancelling', 'cancelled'],
};

/** Brings a run that is `admitted` or `running` to a state by lawful moves. */
export async function bringRunTo(run: LedgerRun, state: RunState): Promise<void> {
  if (state === 'admitted') return;
  const { state: from } = await run.world.runRow(run.runId);
  const way: readonly RunState[] = from === 'admitted' ? ['running', ...WAY_TO[state]] : WAY_TO[state];
  await run.commit(...way.map((to) => ({ kind: 'move', to, reason: 'internal_error' }) as const));
}
