import type { Pool } from 'pg';
import { z } from 'zod';
import { HoldfastError, type RequestFault } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import type { JsonObject, JsonValue } from '../../shared/domain/json.js';
import { ANSWER_CHARACTERS_MAX } from '../../shared/domain/questions.js';
import { canonicalJson } from '../../shared/domain/strict-json.js';
import {
  APPROVAL_DECISIONS,
  type Decided,
  decideApproval,
  type DecisionRefusal,
  type NewDecision,
} from '../../shared/ledger/approvals.js';
import { sha256 } from '../../shared/ledger/digest.js';
import { approveEdited, beginEdit } from '../../shared/ledger/edit-approval.js';
import { answerInput, type AnswerRefusal } from '../../shared/ledger/questions.js';
import { type InterruptRecord, readInterrupt } from '../../shared/ledger/reads/read-interrupt.js';
import { compileSchema } from '../../shared/schema/compile-schema.js';
import { changedCall } from '../edit-call.js';
import type { Identity } from '../deps.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { settleEffect, SettleEffect } from '../settle-effect.js';
import { AnyJson } from '../views/common.js';
import { InterruptView } from '../views/desk-views.js';
import { interruptNotFound } from './interrupts.js';

const Approval = z
  .strictObject({
    decision: z.enum(APPROVAL_DECISIONS).meta({
      description: '`revoke` takes an approval back until it is used; the run then asks anew.',
    }),
    scope_sha256: z
      .string()
      .regex(/^[0-9a-f]{64}$/, { error: 'must be the scope_sha256 of the interrupt' })
      .meta({ description: 'The digest of the scope that you saw.' }),
    note: z.string().max(4_000).default('').meta({ description: 'The model is told the note of a denial.' }),
    arguments: z
      .record(z.string(), z.unknown())
      .optional()
      .meta({
        description:
          'With `approve`: what is to run instead, whole. The call that waits is superseded by one with these ' +
          'arguments, under another effect and another interrupt, and what you approve is that one.',
      }),
  })
  .refine(({ decision, arguments: args }) => args === undefined || decision === 'approve', {
    path: ['arguments'],
    error: 'may stand beside `approve` alone',
  });
const Answer = z.strictObject({
  decision: z.literal('answer'),
  answer: AnyJson.refine((value) => value !== undefined, { error: 'is missing' }).meta({
    description: 'Fits the `answer_schema` of the interrupt. The model reads it as it is.',
  }),
  note: z.string().max(4_000).default('').meta({ description: 'For whoever reads the record.' }),
});
const ResolveInterrupt = z
  .discriminatedUnion('decision', [Approval, Answer])
  .meta({ id: 'ResolveInterrupt' });

/** POST /v1/interrupts/{interrupt_id}/resolve: one person's word on a wait. */
export const resolveInterruptRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/interrupts/{interrupt_id}/resolve',
    operationId: 'resolveInterrupt',
    summary: 'Approve, deny or revoke; approve with other arguments; answer',
    description:
      'An approval is decided about the very scope whose digest is sent. The approver has the required role and is not the ' +
      'requester; an approval is used once, in the claim of the effect, where the approver’s role is looked at again, and ' +
      'only until it expires. With `arguments` the answer is another interrupt, which stands for the changed call: of a ' +
      'quorum, the others approve that one. The tool cannot be changed. A wait for input takes `answer`, which is checked ' +
      'against the `answer_schema` of this very wait; so does one over a budget, whose answer raises the limit or refuses, ' +
      'and a reconciliation, whose answer is what POST /v1/reconciliations/{effect_id}/settle takes, by the same rules. ' +
      'What is decided counts whether Temporal is up or not.',
    authenticated: true,
    idempotent: true,
    body: ResolveInterrupt,
    replies: {
      200: {
        description:
          'Decided, by this request or by an earlier one with this key; the wait that was decided, as it is now.',
        body: InterruptView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
      202: {
        description: 'Of a reconciliation: your word is kept, and another person must say the same.',
        body: InterruptView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'interrupt_not_found',
      'idempotency_key_reused',
      'decision_mismatch',
      'run_ended',
      'cancel_in_force',
      'interrupt_superseded',
      'interrupt_withdrawn',
      'interrupt_expired',
      'not_revocable',
      'interrupt_decided',
      'already_settled',
      'second_person_needed',
      'words_differ',
      'role_required',
      'self_approval',
      'scope_changed',
      'answer_invalid',
      'arguments_invalid',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, body, identity, idempotencyKey }, { pool }) => {
    const { interrupt_id: id } = params;
    const { tenantId, actorId, roles } = identity;
    const seen = isId('int', id) ? await readInterrupt(pool, tenantId, id) : null;
    if (seen === null) throw interruptNotFound(id);
    if (seen.kind === 'reconciliation') {
      const replayed = await settle(pool, identity, seen, body, idempotencyKey);
      const headers = replayed ? { 'idempotent-replayed': 'true' } : {};
      const interrupt = (await readInterrupt(pool, tenantId, id)) ?? seen;
      return interrupt.state === 'open' ? reply(202, interrupt, headers) : reply(200, interrupt, headers);
    }
    const word = {
      ...{ tenantId, interruptId: id, actorId, idempotencyKey, note: body.note },
      // Without the role the ledger refuses, and keeps that somebody tried.
      authority: roles.find((role) => role === seen.required_role) ?? 'none',
      endpoint: `POST /v1/interrupts/${id}/resolve`,
    };
    const faults = body.decision === 'answer' ? faultsOf(seen, body.answer as JsonValue) : [];
    const decided =
      body.decision === 'answer'
        ? await answerInput(pool, { ...word, answer: body.answer as JsonValue, fits: faults.length === 0 })
        : await decide(
            pool,
            { ...word, decision: body.decision, scopeSha256: body.scope_sha256 },
            roles,
            body.arguments,
          );
    switch (decided.kind) {
      case 'interrupt_not_found':
        throw interruptNotFound(id);
      case 'reused':
        throw new HoldfastError(
          'idempotency_key_reused',
          `This key stands for another decision on ${id}. Nothing was done: send a new key, or that decision.`,
          { extensions: { interrupt_id: id } },
        );
      case 'refused':
        throw refusalOf(decided.code, (await readInterrupt(pool, tenantId, id)) ?? seen, actorId, faults);
      case 'decided':
      case 'replayed': {
        const interrupt =
          (await readInterrupt(
            pool,
            tenantId,
            'interrupt_id' in decided ? String(decided.interrupt_id) : id,
          )) ?? seen;
        const headers = decided.kind === 'replayed' ? { 'idempotent-replayed': 'true' } : {};
        return reply(200, interrupt, headers);
      }
    }
  },
);

/** What is wrong with an answer, by the schema that the wait was opened with. */
function faultsOf({ kind, answer_schema }: InterruptRecord, answer: JsonValue): RequestFault[] {
  // The ledger refuses it as another kind of decision.
  if (kind === 'approval') return [];
  if (canonicalJson(answer).length > ANSWER_CHARACTERS_MAX) {
    return [{ at: 'body/answer', problem: `has more than ${ANSWER_CHARACTERS_MAX} characters as JSON` }];
  }
  const check = compileSchema(answer_schema as JsonObject, 'the answer');
  return check(answer).map((problem) => ({ at: 'body/answer', problem }));
}

/** The answer to the wait over an effect is a settlement, the same as at the desk. Whether this key had said so before. */
async function settle(
  pool: Pool,
  identity: Identity,
  wait: InterruptRecord,
  body: z.output<typeof ResolveInterrupt>,
  idempotencyKey: string,
): Promise<boolean> {
  if (body.decision !== 'answer') throw refusalOf('decision_mismatch', wait, identity.actorId, []);
  const faults = faultsOf(wait, body.answer as JsonValue);
  if (body.note !== '') faults.push({ at: 'body/note', problem: 'stands in the answer: body/answer/note' });
  if (faults.length > 0) throw refusalOf('answer_invalid', wait, identity.actorId, faults);
  const { replayed } = await settleEffect(pool, identity, {
    ...{ effectId: wait.effect_id ?? '', interruptId: wait.interrupt_id, idempotencyKey },
    said: SettleEffect.parse(body.answer),
  });
  return replayed;
}

/** Arguments that are what waits already change nothing: that is an approval like any other. */
async function decide(
  pool: Pool,
  decision: NewDecision,
  roles: readonly string[],
  args: Readonly<Record<string, unknown>> | undefined,
): Promise<Decided> {
  if (args === undefined) return await decideApproval(pool, decision);
  const call = await beginEdit(pool, decision.tenantId, decision.interruptId);
  if (call === null) return { kind: 'interrupt_not_found' };
  const changed = await changedCall(pool, call, args as JsonObject);
  if (sha256(changed.arguments) === call.arguments_sha256) return await decideApproval(pool, decision);
  return await approveEdited(pool, call, changed, { ...decision, roles });
}

type Refusal = DecisionRefusal | AnswerRefusal;

function refusalOf(
  code: Refusal,
  interrupt: InterruptRecord,
  actorId: string,
  errors: readonly RequestFault[],
): HoldfastError {
  const { interrupt_id, run_id, state, scope_sha256 } = interrupt;
  return new HoldfastError(code, WORDS[code](interrupt, actorId), {
    ...(code === 'answer_invalid' ? { errors } : {}),
    extensions: { interrupt_id, run_id, state, scope_sha256 },
  });
}

const WORDS: Readonly<Record<Refusal, (interrupt: InterruptRecord, actorId: string) => string>> = {
  decision_mismatch: ({ interrupt_id, kind }) =>
    kind !== 'approval'
      ? `${interrupt_id} asks for an answer. Send {"decision":"answer","answer":…} that fits its answer_schema.`
      : `${interrupt_id} asks for an approval. Send {"decision":"approve" or "deny","scope_sha256":…}.`,
  interrupt_expired: ({ interrupt_id, kind, expires_at }) =>
    kind === 'input' || kind === 'budget'
      ? `${interrupt_id} expired at ${expires_at}, so the answer was not taken. The run has gone on without it.`
      : `${interrupt_id} expired at ${expires_at}, so nothing ran. The model is told so and may ask again.`,
  interrupt_decided: ({ interrupt_id, state, quorum, approvals }) =>
    state === 'open'
      ? `You have approved ${interrupt_id} already; ${approvals} of ${quorum} have. Another person must.`
      : `${interrupt_id} is ${state} and takes no further decision. Read it to see who decided.`,
  interrupt_superseded: ({ interrupt_id }) =>
    `${interrupt_id} was superseded: another interrupt of its run has taken its place. Decide about that one.`,
  not_revocable: ({ interrupt_id, state }) =>
    `${interrupt_id} is ${state}: only an approval that is complete and not yet used can be revoked. ` +
    'Cancel the run to stop it.',
  role_required: ({ interrupt_id, required_role }) =>
    `To decide ${interrupt_id} takes the role ${required_role}, which you do not have. Ask somebody who has it.`,
  self_approval: ({ interrupt_id, requested_by }, actorId) =>
    `${interrupt_id} was asked for by ${requested_by}, and you are ${actorId}. Somebody else must decide.`,
  scope_changed: ({ interrupt_id }) =>
    `The digest sent is not that of ${interrupt_id}. Read it again and decide about what it says now.`,
  answer_invalid: ({ interrupt_id }) =>
    `The answer does not fit the answer_schema of ${interrupt_id}, which still waits. Mend what errors names.`,
  run_ended: ({ interrupt_id, run_id, run_state }) =>
    `Run ${run_id} is ${run_state}, so ${interrupt_id} waits for nobody. Nothing ran.`,
  cancel_in_force: ({ interrupt_id, run_id }) =>
    `Run ${run_id} is being cancelled, so ${interrupt_id} takes no decision any more. Nothing ran.`,
  interrupt_withdrawn: ({ interrupt_id, run_id }) =>
    `${interrupt_id} was taken back before anybody decided: its run has no use for a decision any more. ` +
    `GET /v1/interrupts?run_id=${run_id} lists what it waits for now.`,
};
