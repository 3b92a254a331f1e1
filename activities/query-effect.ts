import type { JsonObject } from '../shared/domain/json.js';
import type { EffectInput, ExamineAnswer } from '../shared/domain/protocol.js';
import { parseStrictJson } from '../shared/domain/strict-json.js';
import { sha256 } from '../shared/ledger/digest.js';
import {
  beginQuery,
  type QueryAnswer,
  type QueryClaim,
  recordQuery,
} from '../shared/ledger/reconciliation.js';
import type { ActivityDeps } from './deps.js';
import { bodyOf, textOf } from './result-text.js';
import { type ActivityScope, inScope, orRefused, untilLedgerAnswers } from './scope.js';
import type { ProbeAnswer } from './tools/tool.js';

/**
 * One look at an unknown effect (SPEC 3.6): a late receipt settles it, or the target is asked once what became of the
 * key. Asking changes nothing outside, so this may be repeated after any crash.
 */
export function createQueryEffect(deps: ActivityDeps) {
  return (input: EffectInput): Promise<ExamineAnswer> =>
    inScope('queryEffect', input.runId, deps, async (scope) => {
      await deps.reach('query.before_begin');
      const begun = await orRefused(() =>
        untilLedgerAnswers(scope, deps, () => beginQuery(deps.db, scope, input, input.trail)),
      );
      if (begun.kind !== 'query') return begun;
      await deps.reach('query.after_begin');
      const answer = answerOf(await probe(deps, scope, begun));
      await deps.reach('query.after_probe');
      const standing = await orRefused(() =>
        untilLedgerAnswers(scope, deps, () => recordQuery(deps.db, scope, begun, answer)),
      );
      await deps.reach('query.after_record');
      return standing;
    });
}

async function probe(deps: ActivityDeps, scope: ActivityScope, query: QueryClaim): Promise<ProbeAnswer> {
  const tool = deps.catalogue.get(query.tool);
  if (tool?.probe === undefined || tool.version !== query.toolVersion) {
    return { kind: 'inconclusive', reason: 'tool_unavailable', body: null };
  }
  const parsed = parseStrictJson(query.arguments);
  if (!parsed.ok) throw new Error(`bug: the stored arguments of ${query.effectId} are no JSON`);
  const timeoutMs = Math.min(tool.timeoutSeconds, query.toolSeconds) * 1_000;
  try {
    return await tool.probe({
      arguments: parsed.value as JsonObject,
      idempotencyKey: query.idempotencyKey,
      effectId: query.effectId,
      runId: scope.runId,
      tenantId: query.tenantId,
      signal: AbortSignal.any([scope.signal, AbortSignal.timeout(timeoutMs)]),
      timeoutMs,
    });
  } catch (error) {
    deps.log.error({ err: error, tool: tool.name, effectId: query.effectId }, 'probe threw');
    return { kind: 'inconclusive', reason: 'probe_threw', body: null };
  }
}

function answerOf(answer: ProbeAnswer): QueryAnswer {
  const body = bodyOf(answer.body);
  const text = textOf(body);
  const told = {
    found: `Done: a status query found that the target committed this call.${text === '' ? '' : ` It said: ${text}`}`,
    absent: 'Not done: a status query found that the target never committed this call.',
    inconclusive: '',
  } as const;
  return {
    answer: answer.kind,
    reason: answer.kind === 'inconclusive' ? answer.reason : null,
    reference: answer.kind === 'found' ? answer.reference : null,
    body: body.bytes,
    bodySha256: sha256(body.bytes),
    contentType: body.contentType,
    truncated: body.truncated,
    resultText: told[answer.kind],
  };
}
