import { z } from 'zod';
import { RunBudget } from '../../shared/domain/budgets.js';
import { FORK_DOUBTS, FORK_MODES, FORK_PINS, type ForkDoubt } from '../../shared/domain/checkpoints.js';
import { RunContract } from '../../shared/domain/contract.js';
import { HoldfastError } from '../../shared/domain/errors.js';
import { idSchema } from '../../shared/domain/ids.js';
import type { Role } from '../../shared/domain/roles.js';
import { type Forked, forkRun } from '../../shared/ledger/forks.js';
import { readRequester } from '../../shared/ledger/reads/read-commands.js';
import { readRun } from '../../shared/ledger/reads/read-run.js';
import type { Identity } from '../deps.js';
import { roleRequired } from '../identity.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { foundOf, runKeyOf, runNotFound } from '../run-key.js';
import { RunView } from '../views/run-views.js';
import { checkpointNotFound } from './checkpoints.js';

const Step = z.int().min(-1_000_000).max(1_000_000);
/** As much as one message of a transcript may hold; the body's own limit comes first. */
const Words = z.string().min(1).max(1_000_000);

const ForkRun = z
  .strictObject({
    checkpoint_id: idSchema('ckp').meta({ description: 'One of GET /v1/runs/{run_id}/checkpoints.' }),
    mode: z.enum(FORK_MODES).meta({
      description:
        'How calls after the cut are answered. `simulate`: from the source’s receipts, or refused; nothing is sent. ' +
        '`reuse_if_identical`: from a receipt of the same call, else as in any run. `live`: as in any run.',
    }),
    pins: z.enum(FORK_PINS).default('keep').meta({
      description: '`keep`: the agent version of the source. `current`: the one that new runs take.',
    }),
    job: z.enum(['own', 'same']).default('own').meta({
      description:
        '`own`: a new job with the same objective. `same`: the source’s, while nobody has judged it.',
    }),
    messages: z
      .array(z.strictObject({ step: Step, position: z.int().min(0).max(1_000), text: Words }))
      .max(100)
      .refine(
        (edits) => new Set(edits.map((edit) => `${edit.step}/${edit.position}`)).size === edits.length,
        {
          error: 'names a message twice',
        },
      )
      .default([])
      .meta({ description: 'New words for messages of the user or the model, by their place.' }),
    tool_result: z
      .strictObject({
        step: Step,
        slot: z.int().min(0).max(999),
        text: z.string().max(65_536),
        is_error: z.boolean().default(false),
      })
      .optional()
      .meta({ description: 'Another result of one call, as the model of the fork reads it.' }),
    add_message: Words.optional().meta({ description: 'A new message of the user, the last one.' }),
    limits: RunContract.shape.limits.unwrap().default({}).meta({ description: 'Laid over the contract’s.' }),
    budget: RunBudget.optional().meta({
      description:
        'In place of the contract’s; without it the contract’s limits begin anew, with nothing used.',
    }),
  })
  .meta({ id: 'ForkRun' });

/** POST /v1/runs/{run_id}/forks: a new run from a checkpoint of this one. */
export const forkRunRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/runs/{run_id}/forks',
    operationId: 'forkRun',
    summary: 'Fork a run from one of its checkpoints',
    description:
      'Makes a run of its own from any checkpoint that validates, whatever the source is doing; nothing of the source ' +
      'changes. The fork holds what the source’s prompt held up to the last whole step (`resumes_after_step`), with what ' +
      'is changed here, and goes on from there. Effects before the cut are inherited as read-only receipts; approvals ' +
      'and budgets are not. Where calls had left that have no result at the checkpoint, only a fork that cannot do them ' +
      'again is made. Takes the role operator; a requester may fork their own run.',
    authenticated: true,
    idempotent: true,
    body: ForkRun,
    replies: {
      201: { description: 'Forked by this request.', body: RunView, headers: { Location: 'The fork.' } },
      200: {
        description: 'Forked by an earlier request with this key; the fork as it is now.',
        body: RunView,
        headers: { Location: 'The fork.', 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'run_not_found',
      'role_required',
      'checkpoint_not_found',
      'idempotency_key_reused',
      'checkpoint_not_forkable',
      'fork_edit_invalid',
      'contract_invalid',
      'job_decided',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async (input, { pool, taskQueue }) => {
    const key = runKeyOf(input);
    const { body, identity, idempotencyKey } = input;
    const { messages, tool_result, add_message, checkpoint_id: checkpointId, mode, pins, job } = body;
    const forked = await forkRun(pool, {
      ...{ tenantId: key.tenantId, sourceRunId: key.runId, checkpointId, mode, pins, job, taskQueue },
      edits: {
        ...(messages.length === 0 ? {} : { messages }),
        ...(tool_result === undefined ? {} : { tool_result }),
        ...(add_message === undefined ? {} : { add_message }),
      },
      ...{ limits: body.limits, budget: body.budget, idempotencyKey },
      actorId: identity.actorId,
      authority: authorityOver(identity, foundOf(await readRequester(pool, key), key)),
      endpoint: `POST /v1/runs/${key.runId}/forks`,
    });
    if (forked === null) throw runNotFound(key.runId);
    const { kind, runId } = acceptedOf(forked, checkpointId);
    const made = { tenantId: key.tenantId, runId };
    const run = foundOf(await readRun(pool, made), made);
    const headers = { location: `/v1/runs/${runId}` };
    return kind === 'forked'
      ? reply(201, run, headers)
      : reply(200, run, { ...headers, 'idempotent-replayed': 'true' });
  },
);

/** Whoever asked for a run may try another way from it. */
function authorityOver(identity: Identity, requester: string): Role {
  if (identity.roles.includes('operator')) return 'operator';
  if (identity.roles.includes('requester') && identity.actorId === requester) return 'requester';
  throw roleRequired('fork this run', ['operator', 'requester (of one’s own run)']);
}

type Accepted = Extract<Forked, { kind: 'forked' | 'replayed' }>;

const WHAT_TO_DO: Readonly<Record<ForkDoubt, string>> = {
  effects_unresolved:
    'Nobody knows what became of a call that had left there. Wait until it is settled, or fork with mode simulate.',
  step_half_done:
    'Some calls of its step had happened, and a live fork would do them again. Take another checkpoint, or fork with ' +
    'mode reuse_if_identical or simulate.',
};

/** The run that was made. @throws HoldfastError for every answer that made none */
function acceptedOf(forked: Forked, checkpointId: string): Accepted {
  switch (forked.kind) {
    case 'forked':
    case 'replayed':
      return forked as Accepted;
    case 'reused':
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key made ${forked.runId} with another body. Nothing was forked: send a new key, or that body.`,
        { extensions: { run_id: forked.runId } },
      );
    case 'checkpoint_not_found':
      throw checkpointNotFound(checkpointId);
    case 'not_forkable': {
      const doubt = FORK_DOUBTS.find((reason) => forked.reasons.includes(reason));
      const what =
        doubt === undefined ? `It does not validate (${forked.reasons.join(', ')}).` : WHAT_TO_DO[doubt];
      throw new HoldfastError(
        'checkpoint_not_forkable',
        `No run can go on from ${checkpointId} this way. ${what}`,
        {
          extensions: { reasons: [...forked.reasons], in_doubt: [...forked.in_doubt] },
        },
      );
    }
    case 'edit_invalid': {
      const { at, problem } = forked.fault;
      throw new HoldfastError('fork_edit_invalid', `${at}: ${problem}. Nothing was forked.`, {
        errors: [forked.fault],
      });
    }
    case 'budget_unmet': {
      const fault = { ...forked.fault, at: forked.fault.at.replace('/contract', '') };
      throw new HoldfastError(
        'contract_invalid',
        `The budget limits what the agent does not have: ${fault.at} ${fault.problem}. Nothing was forked.`,
        { errors: [fault] },
      );
    }
    case 'job_decided':
      throw new HoldfastError(
        'job_decided',
        `Job ${forked.jobId} is accepted or rejected and stays so. Fork with a job of its own.`,
        { extensions: { job_id: forked.jobId } },
      );
  }
}
