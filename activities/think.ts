import type { AgentManifest } from '../shared/domain/agents.js';
import type { LimitCode } from '../shared/domain/budgets.js';
import type { ModelOutcome } from '../shared/domain/models.js';
import type { ThinkAnswer, ThinkInput } from '../shared/domain/protocol.js';
import { readManifest } from '../shared/ledger/admission.js';
import {
  appendChunks,
  claimModelCall,
  type ClaimedModelCall,
  commitModelResponse,
  failModelAttempt,
  type StoredChunk,
  type StoredMessage,
} from '../shared/ledger/model-calls.js';
import { newId } from '../shared/ledger/new-id.js';
import { ChunkWriter } from './chunk-writer.js';
import type { ActivityDeps } from './deps.js';
import { modelFailureWait } from './input-waits.js';
import { planCalls, toolSpecs } from './plan-calls.js';
import { type ActivityScope, inScope, orRefused, untilLedgerAnswers } from './scope.js';
import { type Prompt, promptOf, withMemory } from './fit-context.js';
import { callIdsOf, TranscriptCache } from './transcript.js';

/** Manifests that one worker keeps; they never change. */
const MANIFESTS_MAX = 200;

/**
 * One model call (SPEC 3.4): claim, request, response. A committed response is returned on any replay; what every
 * attempt cost is counted, whether or not its answer was kept.
 */
export function createThink(deps: ActivityDeps) {
  const transcripts = new TranscriptCache();
  const manifests = new Map<string, AgentManifest>();

  const manifestOf = async (claim: ClaimedModelCall): Promise<AgentManifest | undefined> => {
    const known = manifests.get(claim.agentVersion);
    if (known !== undefined) return known;
    const read = await readManifest(deps.db, claim.agent, claim.agentVersion);
    if (read === undefined) return undefined;
    if (manifests.size >= MANIFESTS_MAX) manifests.clear();
    manifests.set(claim.agentVersion, read);
    return read;
  };

  return (input: ThinkInput): Promise<ThinkAnswer> =>
    inScope('think', input.runId, deps, async (scope) => {
      await deps.reach('think.before_claim');
      const attemptId = newId('att');
      const claimed = await claimWithTranscript(deps, scope, input, attemptId, transcripts);
      if (claimed.kind !== 'claimed') return claimed;
      const { claim, transcript } = claimed;
      await deps.reach('think.after_claim');

      const pinned = await untilLedgerAnswers(scope, deps, () => manifestOf(claim));
      if (pinned === undefined) return { kind: 'agent_unavailable' };
      const manifest = claim.finishing === null ? pinned : forLastAnswer(pinned, claim.finishing);
      const prompt = promptOf(transcript, manifest.context);
      const prepared = { claim, manifest, transcript, prompt };
      const { outcome, chunks } = await request(deps, scope, input, prepared);
      await deps.reach('think.after_answer');

      const answer =
        outcome.kind === 'answered'
          ? await commitAnswer(deps, scope, input, { ...prepared, attemptId, outcome, chunks })
          : await commitFailure(deps, scope, input, { attemptId, claim, manifest, outcome });
      await deps.reach('think.after_commit');
      if (answer.kind === 'answered' && answer.state === 'completed') transcripts.forget(input.runId);
      return answer;
    });
}

/** The agent without anything that it could call, told why: what it says now is its last word. */
function forLastAnswer(manifest: AgentManifest, limit: LimitCode): AgentManifest {
  const told =
    `A limit of this run is reached (${limit}). No tool can be called any more. Answer now, in words, with what ` +
    'you have: say what is done, and what is not.';
  return { ...manifest, instructions: `${manifest.instructions}\n\n${told}`, tools: [], questions: [] };
}

type Claimed =
  | {
      readonly kind: 'claimed';
      readonly claim: ClaimedModelCall;
      readonly transcript: readonly StoredMessage[];
    }
  | Exclude<ThinkAnswer, { kind: 'failed' | 'agent_unavailable' }>;

async function claimWithTranscript(
  deps: ActivityDeps,
  scope: ActivityScope,
  input: ThinkInput,
  attemptId: string,
  transcripts: TranscriptCache,
): Promise<Claimed> {
  // A second round only when the transcript was dropped between the question and the answer: then it is read whole.
  for (let knownStep = transcripts.knownStep(input.runId); ; knownStep = 0) {
    // What is known must end before this step, or a replay of an earlier step would see its own future.
    const from = knownStep < input.step ? knownStep : 0;
    const claim = await orRefused(() =>
      untilLedgerAnswers(scope, deps, () =>
        claimModelCall(deps.db, scope, input, {
          trail: input.trail,
          attemptId,
          worker: deps.workerName,
          knownStep: from,
        }),
      ),
    );
    if (claim.kind !== 'claimed') return claim;
    const transcript = transcripts.extend(input.runId, from, input.step, claim.messages);
    if (transcript !== undefined) return { kind: 'claimed', claim, transcript };
  }
}

interface Prepared {
  readonly claim: ClaimedModelCall;
  readonly manifest: AgentManifest;
  readonly transcript: readonly StoredMessage[];
  readonly prompt: Prompt;
}

async function request(
  deps: ActivityDeps,
  scope: ActivityScope,
  input: ThinkInput,
  { claim, manifest, prompt }: Prepared,
): Promise<{ readonly outcome: ModelOutcome; readonly chunks: readonly StoredChunk[] }> {
  const lost = new AbortController();
  const outOfTime = AbortSignal.timeout(claim.modelSeconds * 1_000);
  const writer = new ChunkWriter({
    store: async (chunks) => {
      const stored = await appendChunks(deps.db, scope, input, claim.attempt, chunks);
      deps.announcer.announce(scope.runId);
      return stored;
    },
    onLost: () => lost.abort(),
    onError: (error) => deps.log.warn({ err: error, runId: scope.runId }, 'chunks were not stored'),
  });
  const outcome = await deps.modelClient(manifest.model).call(
    {
      system: withMemory(manifest.instructions, claim.memory),
      messages: prompt.messages,
      tools: toolSpecs(manifest),
      maxOutputTokens: manifest.model.maxOutputTokens,
      callKey: `${scope.runId}:t${input.turn}:s${input.step}`,
      attempt: claim.attempt,
    },
    {
      signal: AbortSignal.any([scope.signal, lost.signal, outOfTime]),
      onChunk: (chunk) => writer.push(chunk),
    },
  );
  const chunks = await writer.close();
  if (outcome.kind === 'failed' && outcome.reason === 'aborted' && outOfTime.aborted) {
    return { outcome: { ...outcome, reason: 'timed_out' }, chunks };
  }
  return { outcome, chunks };
}

async function commitAnswer(
  deps: ActivityDeps,
  scope: ActivityScope,
  input: ThinkInput,
  answered: Prepared & {
    readonly attemptId: string;
    readonly outcome: Extract<ModelOutcome, { kind: 'answered' }>;
    readonly chunks: readonly StoredChunk[];
  },
): Promise<ThinkAnswer> {
  const { claim, manifest, transcript, outcome } = answered;
  const plan = planCalls(outcome.response, manifest, claim, {
    runId: scope.runId,
    turn: input.turn,
    step: input.step,
    usedCallIds: callIdsOf(transcript),
  });
  return await untilLedgerAnswers(scope, deps, () =>
    commitModelResponse(deps.db, scope, input, {
      attempt: claim.attempt,
      attemptId: answered.attemptId,
      response: outcome.response,
      plan: plan.plan,
      assistant: plan.assistant as never,
      refused: plan.refused,
      leftOut: answered.prompt.leftOut,
      chunks: answered.chunks,
      complete: true,
    }),
  );
}

async function commitFailure(
  deps: ActivityDeps,
  scope: ActivityScope,
  input: ThinkInput,
  failed: {
    readonly attemptId: string;
    readonly claim: ClaimedModelCall;
    readonly manifest: AgentManifest;
    readonly outcome: Extract<ModelOutcome, { kind: 'failed' }>;
  },
): Promise<ThinkAnswer> {
  const { claim, manifest, outcome } = failed;
  const wait = modelFailureWait({ ...claim, runId: scope.runId }, manifest, claim.attempt, outcome);
  const standing = await untilLedgerAnswers(scope, deps, () =>
    failModelAttempt(deps.db, scope, input, {
      attempt: claim.attempt,
      attemptId: failed.attemptId,
      reason: outcome.reason,
      detail: outcome.detail,
      requestId: outcome.requestId ?? null,
      usage: outcome.usage ?? { inputTokens: 0, outputTokens: 0 },
      retryAfterMs: outcome.retryAfterMs,
      wait,
    }),
  );
  if (standing.kind === 'late') return standing;
  return { ...standing, reason: outcome.reason, retryAfterMs: outcome.retryAfterMs ?? null };
}
