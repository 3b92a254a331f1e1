import type { ActAnswer, ActInput } from '../shared/domain/protocol.js';
import { parseStrictJson } from '../shared/domain/strict-json.js';
import type { JsonObject } from '../shared/domain/json.js';
import { sha256 } from '../shared/ledger/digest.js';
import { openApproval } from '../shared/ledger/approvals.js';
import {
  type ApprovalRequired,
  claimEffect,
  type ClaimedEffect,
  type EffectSettlement,
  settleEffect,
} from '../shared/ledger/effects.js';
import { newId } from '../shared/ledger/new-id.js';
import { refusalOf } from '../shared/ledger/refusals.js';
import { type Called, callTool, STOP_GRACE_MS } from './call-tool.js';
import type { ActivityDeps } from './deps.js';
import { storableText } from './models/storable-text.js';
import { bodyOf, resultTextOf } from './result-text.js';
import { type ActivityScope, inScope, orRefused, untilLedgerAnswers } from './scope.js';
import { maySendLater } from './tools/reasons.js';
import type { ToolAnswer } from './tools/tool.js';

/**
 * One attempt at one effect (SPEC 3.1). The order is the guarantee: intent and claim, dispatch, receipt. Whoever finds
 * the claim taken dispatches nothing; whoever cannot tell what happened says `unknown`.
 */
export function createAct(deps: ActivityDeps) {
  return (input: ActInput): Promise<ActAnswer> =>
    inScope('act', input.runId, deps, async (scope) => {
      await deps.reach('act.before_claim');
      // One id for every repetition of this claim: if its acknowledgement is lost, it is still ours.
      const attemptId = newId('att');
      const ask = (): Promise<Asked> => claimOrRefusal(deps, scope, input, attemptId);
      const first = await ask();
      const claim = first.answer;
      if (claim.kind === 'approval_required') return await requireApproval(deps, scope, claim);
      if (claim.kind !== 'claimed') return claim;
      await deps.reach('act.after_claim');

      const isOurs = await isStillOurs(scope, first.askedAt, ask);
      const { answer, late } = isOurs ? await dispatch(deps, scope, claim) : CLAIM_TOO_OLD;
      await deps.reach('act.after_call');

      const settlement = settlementOf(answer);
      const standing = await untilLedgerAnswers(scope, deps, () =>
        settleEffect(deps.db, scope.execution, claim, settlement),
      );
      await deps.reach('act.after_settle');
      if (late !== null) hearLate(deps, scope, claim, late);
      return standing;
    });
}

/** A call that was left while it still ran is heard all the same: its answer is evidence (SPEC 3.4). */
function hearLate(
  deps: ActivityDeps,
  scope: ActivityScope,
  claim: ClaimedEffect,
  late: Promise<ToolAnswer>,
): void {
  // Nobody waits for this any more, so nobody calls it off; it ends with the process.
  const unbound = { ...scope, signal: new AbortController().signal };
  late
    .then(async (answer) => {
      if (answer.kind === 'unknown') return;
      const settlement = settlementOf(answer);
      await untilLedgerAnswers(unbound, deps, () =>
        settleEffect(deps.db, scope.execution, claim, settlement),
      );
    })
    .catch((error: unknown) => {
      deps.log.warn({ err: error, effectId: claim.effectId }, 'a late answer was not kept');
    });
}

/** Lets a person see what will run before it does. The claim comes again when they have decided. */
async function requireApproval(
  deps: ActivityDeps,
  scope: ActivityScope,
  { needed }: ApprovalRequired,
): Promise<ActAnswer> {
  if (needed !== null) {
    const opened = await orRefused(() =>
      untilLedgerAnswers(scope, deps, async () => {
        await openApproval(deps.db, scope, needed);
        return { kind: 'opened' as const };
      }),
    );
    if (opened.kind !== 'opened') return opened;
  }
  return { kind: 'approval_required' };
}

interface Asked {
  readonly answer: ClaimedEffect | ApprovalRequired | Exclude<ActAnswer, { kind: 'approval_required' }>;
  /** When the call began that was answered, by this process' monotonic clock. */
  readonly askedAt: number;
}

async function claimOrRefusal(
  deps: ActivityDeps,
  scope: ActivityScope,
  input: ActInput,
  attemptId: string,
): Promise<Asked> {
  let askedAt = 0;
  const claim = (): ReturnType<typeof claimEffect> => {
    askedAt = performance.now();
    return claimEffect(deps.db, scope, input, {
      trail: input.trail,
      redo: input.redo,
      attemptId,
      worker: deps.workerName,
      leaseMarginMs: STOP_GRACE_MS + (scope.heartbeatMs ?? 0),
    });
  };
  try {
    const answer = await orRefused(() => untilLedgerAnswers(scope, deps, claim));
    return { answer, askedAt };
  } catch (error) {
    if (refusalOf(error) === 'key_conflict') return { answer: { kind: 'key_conflict' }, askedAt };
    throw error;
  }
}

const CLAIM_TOO_OLD = inTime({ kind: 'not_sent', reason: 'claim_too_old' });

function inTime(answer: ToolAnswer): Called {
  return { answer, late: null };
}

/**
 * Whether the claim stands at this moment. A process that slept after it may have been taken for lost, and its claim
 * with it: the clock is monotonic, so a stop is seen; half of what it may sleep leaves room for the send itself. An answer
 * that came late from a slow ledger looks the same, so the ledger is asked again, under the same attempt.
 */
async function isStillOurs(
  scope: ActivityScope,
  claimedAt: number,
  ask: () => Promise<Asked>,
): Promise<boolean> {
  let askedAt = claimedAt;
  while (performance.now() - askedAt > scope.silenceMs / 2 && !scope.signal.aborted) {
    const again = await ask();
    if (again.answer.kind !== 'claimed') return false;
    askedAt = again.askedAt;
  }
  return true;
}

async function dispatch(deps: ActivityDeps, scope: ActivityScope, claim: ClaimedEffect): Promise<Called> {
  const tool = deps.catalogue.get(claim.tool);
  if (tool === undefined || tool.version !== claim.toolVersion) return inTime(toolUnavailable(claim));
  const parsed = parseStrictJson(claim.arguments);
  if (!parsed.ok) throw new Error(`bug: the stored arguments of ${claim.effectId} are no JSON`);
  if (scope.signal.aborted) return inTime({ kind: 'not_sent', reason: 'aborted_before_send' });
  return await callTool(deps, scope, tool, claim, parsed.value as JsonObject);
}

/** No other handler is put in its place: what the model saw, what runs and what policy knows are one version. */
function toolUnavailable(claim: ClaimedEffect): ToolAnswer {
  const text = JSON.stringify({
    error: 'tool_unavailable',
    tool: claim.tool,
    message: `The tool ${claim.tool} is not available in the version of this run. Nothing was sent. Do without it.`,
  });
  const body = { bytes: new TextEncoder().encode(text), contentType: 'application/json', truncated: false };
  return { kind: 'rejected', status: 'tool_unavailable', body };
}

function settlementOf(answer: ToolAnswer): EffectSettlement {
  const body = bodyOf('body' in answer ? answer.body : null);
  const kept = {
    body: body.bytes,
    bodySha256: sha256(body.bytes),
    contentType: storable(body.contentType),
    truncated: body.truncated,
  };
  const none = { reason: null, reference: null, targetStatus: null, resultText: '', retryAfterMs: null };
  switch (answer.kind) {
    case 'succeeded':
      return {
        ...none,
        ...kept,
        outcome: 'succeeded',
        reference: storable(answer.reference),
        resultText: resultTextOf(answer),
      };
    case 'rejected':
      return {
        ...none,
        ...kept,
        outcome: 'rejected',
        targetStatus: storable(answer.status),
        resultText: resultTextOf(answer),
      };
    case 'not_sent':
      // Proof that nothing left, and that no other attempt can go better: an end, and the model hears why.
      if (!maySendLater(answer.reason)) {
        return {
          ...none,
          ...kept,
          outcome: 'rejected',
          reason: answer.reason,
          targetStatus: 'not_sent',
          resultText: `Not sent (${answer.reason}): the call was refused before anything left, and would be again.`,
        };
      }
      return { ...none, ...kept, outcome: 'not_sent', reason: storable(answer.reason) };
    case 'unknown':
      return { ...none, ...kept, outcome: 'unknown', reason: storable(answer.reason) };
    case 'throttled':
    case 'in_progress':
      return { ...none, ...kept, outcome: answer.kind, retryAfterMs: answer.retryAfterMs };
  }
}

/** A target's words must never keep its receipt from being written. */
function storable(text: string | null): string | null {
  return text === null ? null : storableText(text);
}
