import { randomUUID } from 'node:crypto';
import { modelFailureWait, questionWait } from '../../activities/input-waits.js';
import type { JsonObject } from '../../shared/domain/json.js';
import type { ModelFailureReason } from '../../shared/domain/models.js';
import type { QuestionManifest } from '../../shared/domain/questions.js';
import { canonicalJson } from '../../shared/domain/strict-json.js';
import { failModelAttempt, type QuestionCallRow } from '../../shared/ledger/model-calls.js';
import { newId } from '../../shared/ledger/new-id.js';
import { type Answered, answerInput, askQuestion, type NewAnswer } from '../../shared/ledger/questions.js';
import { refusalOf } from '../../shared/ledger/refusals.js';
import type { InterruptRow } from './desk.js';
import type { LedgerRun } from './ledger-run.js';
import { type ContractChanges, LEDGER_AGENT, type LedgerWorld } from './ledger-world.js';

/** A question as a project file would declare it, with changes. */
export function question(changes: Partial<QuestionManifest> = {}): QuestionManifest {
  return {
    name: 'ask_desk',
    version: 'b'.repeat(64),
    description: 'Asks the desk.',
    answerSchema: {
      type: 'object',
      required: ['order'],
      additionalProperties: false,
      properties: { order: { type: 'string', maxLength: 20 } },
    },
    role: 'operator',
    expiresSeconds: 3_600,
    onExpiry: 'tell_model',
    ...changes,
  };
}

/** A planned call of a question. */
export function asking(text: string, changes: Partial<QuestionManifest> = {}): QuestionCallRow {
  const asked = question(changes);
  const args: JsonObject = { text };
  const origin = {
    tenantId: 'default',
    runId: 'run',
    agent: LEDGER_AGENT.name,
    agentVersion: 'c'.repeat(64),
  };
  return {
    ...{ kind: 'question', slot: 0, callId: 'call_0', toolName: asked.name, toolVersion: asked.version },
    ...questionWait(origin, asked, { value: args, canonical: canonicalJson(args) }),
    expiresSeconds: asked.expiresSeconds,
  };
}

/** A wait for input that is open. */
export interface Wait {
  readonly run: LedgerRun;
  readonly interruptId: string;
}

/** A running run whose one call asks; the wait is open. */
export async function newWait(
  world: LedgerWorld,
  changes: Partial<QuestionManifest> = {},
  contract: ContractChanges = {},
): Promise<Wait> {
  const run = await world.newStep([asking('Which order?', changes)], contract);
  const kind = await ask(run);
  if (kind !== 'open') throw new Error(`the question is ${kind}`);
  return { run, interruptId: (await inputsOf(run))[0]!.interrupt_id };
}

/** What the ledger says of the question in a slot of the current step: its kind, what holds it, or the refusal. */
export async function ask(run: LedgerRun, slot = 0): Promise<string> {
  try {
    const answer = await askQuestion(run.world.db, run, { turn: 1, step: run.step, slot }, run.trail());
    return answer.kind === 'control' ? answer.control : answer.kind === 'limit' ? answer.limit : answer.kind;
  } catch (error) {
    return refusalOf(error) ?? String(error);
  }
}

export interface InputRow extends InterruptRow {
  readonly step: number;
  readonly slot: number | null;
  readonly on_expiry: string;
}

/** The run's waits for input, oldest first. */
export async function inputsOf({ world, runId }: LedgerRun): Promise<InputRow[]> {
  return await world.rows<InputRow>(
    `select * from holdfast.interrupts where run_id = $1 and kind = 'input' order by created_at`,
    runId,
  );
}

/** One person's answer to a wait: that of `user:olga`, which fits, under a key of its own unless told otherwise. */
export async function answer(wait: Wait, changes: Partial<NewAnswer> = {}): Promise<Answered> {
  return await answerInput(wait.run.world.db, {
    ...{ tenantId: 'default', interruptId: wait.interruptId, actorId: 'user:olga', authority: 'operator' },
    ...{ answer: { order: 'ORD-7' }, fits: true, note: '' },
    ...{ endpoint: `POST /v1/interrupts/${wait.interruptId}/resolve`, idempotencyKey: randomUUID() },
    ...changes,
  });
}

/** What became of an answer, in a word. */
export async function told(wait: Wait, changes: Partial<NewAnswer> = {}): Promise<string> {
  const said = await answer(wait, changes);
  return said.kind === 'refused' ? said.code : said.kind;
}

/** Lets the time of a wait be over since so many milliseconds, or end in as many when negative. */
export async function runOut({ run, interruptId }: Wait, agoMs = 1): Promise<void> {
  await run.world.rows(
    `update holdfast.interrupts set expires_at = clock_timestamp() - $2 * interval '1 millisecond'
      where interrupt_id = $1`,
    interruptId,
    agoMs,
  );
}

/** What a claim of the model call answers, in a word, and the attempt it opened. */
export async function claimModel(run: LedgerRun, step = 1): Promise<{ kind: string; attemptId: string }> {
  const attemptId = newId('att');
  const claim = await run.claimThink({ step, attemptId });
  run.step = step;
  return { kind: claim.kind, attemptId };
}

/** One attempt at the run's model call that ends with this failure, as `think` commits it. */
export async function failModel(
  run: LedgerRun,
  reason: ModelFailureReason,
  { step = 1, attemptId }: { readonly step?: number; readonly attemptId?: string } = {},
): Promise<string> {
  const id = attemptId ?? (await claimModel(run, step)).attemptId;
  const [row] = await run.world.rows<{ attempt: number }>(
    'select attempt from holdfast.model_attempts where attempt_id = $1',
    id,
  );
  const attempt = row?.attempt ?? 0;
  const outcome = { kind: 'failed', reason, detail: 'The account is empty.' } as const;
  const origin = {
    tenantId: 'default',
    runId: run.runId,
    agent: LEDGER_AGENT.name,
    agentVersion: 'c'.repeat(64),
  };
  const failed = await failModelAttempt(
    run.world.db,
    run,
    { turn: 1, step },
    {
      ...{ attempt, attemptId: id, reason, detail: outcome.detail, requestId: null },
      usage: { inputTokens: 10, outputTokens: 0 },
      wait: modelFailureWait(origin, LEDGER_AGENT, attempt, outcome),
    },
  );
  return failed.kind;
}
