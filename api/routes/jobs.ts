import { z } from 'zod';
import { HoldfastError } from '../../shared/domain/errors.js';
import { isId } from '../../shared/domain/ids.js';
import { excerpt } from '../../shared/domain/json-rules.js';
import { judgeJob, type JobRefusal } from '../../shared/ledger/jobs.js';
import { type JobRecord, readJob } from '../../shared/ledger/reads/read-job.js';
import type { ApiDeps } from '../deps.js';
import { defineRoute, reply, WRITE_ERRORS } from '../route.js';
import { JobView } from '../views/job-views.js';

/** GET /v1/jobs/{job_id}: what was to be reached, what came of it, and what it took. */
export const readJobRoute = defineRoute(
  {
    method: 'get',
    path: '/v1/jobs/{job_id}',
    operationId: 'readJob',
    summary: 'Read a job, the word on it and its cost',
    description: 'The cost has the parts that the ledger knows; null is not measured.',
    authenticated: true,
    replies: { 200: { description: 'The job.', body: JobView } },
    errors: ['job_not_found', 'rate_limited', 'ledger_unavailable'],
  },
  async ({ params, identity }, deps) => reply(200, await foundJob(deps, identity.tenantId, params.job_id)),
);

const Evidence = z.strictObject({
  name: z.string().min(1).max(200).meta({ description: 'What was looked at.' }),
  reference: z.string().min(1).max(1_000).meta({ description: 'Where it is found.' }),
  sha256: z
    .string()
    .regex(/^[0-9a-f]{64}$/, { error: 'must be a lower-case hex SHA-256' })
    .optional(),
});

const JudgeJob = z
  .discriminatedUnion('decision', [
    z.strictObject({
      decision: z.literal('accept'),
      evidence: z.array(Evidence).min(1).max(100),
      note: z.string().max(4_000).default(''),
    }),
    z.strictObject({
      decision: z.literal('reject'),
      evidence: z.array(Evidence).max(100).default([]),
      note: z.string().min(1).max(4_000).regex(/\S/, { error: 'must say why' }),
    }),
  ])
  .meta({ id: 'JudgeJob' });

/** POST /v1/jobs/{job_id}/acceptance: the one word on a job. */
export const judgeJobRoute = defineRoute(
  {
    method: 'post',
    path: '/v1/jobs/{job_id}/acceptance',
    operationId: 'judgeJob',
    summary: 'Accept or reject a job',
    description:
      'Once its runs have ended, by whoever its contract names in `acceptance.accepted_by`: a role, or one actor. The ' +
      'word is final and changes no run. An acceptance names its evidence, a rejection its reason.',
    authenticated: true,
    idempotent: true,
    body: JudgeJob,
    replies: {
      200: {
        description: 'Decided, by this request or by an earlier one with this key; the job as it is now.',
        body: JobView,
        headers: { 'Idempotent-Replayed': '`true`' },
      },
    },
    errors: [
      ...WRITE_ERRORS,
      'job_not_found',
      'idempotency_key_reused',
      'role_required',
      'self_approval',
      'job_decided',
      'job_not_ended',
      'rate_limited',
      'ledger_unavailable',
    ],
  },
  async ({ params, body, identity, idempotencyKey }, deps) => {
    const { tenantId, actorId, roles } = identity;
    const { job_id: id } = params;
    if (!isId('job', id)) throw jobNotFound(id);
    const judged = await judgeJob(deps.pool, {
      ...{ tenantId, jobId: id, actorId, roles, idempotencyKey },
      decision: body.decision === 'accept' ? 'accepted' : 'rejected',
      ...{ evidence: body.evidence, note: body.note },
    });
    const job = await foundJob(deps, tenantId, id);
    switch (judged.kind) {
      case 'job_not_found':
        throw jobNotFound(id);
      case 'reused':
        throw new HoldfastError(
          'idempotency_key_reused',
          `This key gave another word on ${id}. Nothing was changed: read what stands.`,
          { extensions: { job_id: id } },
        );
      case 'refused':
        throw new HoldfastError(judged.code, WORDS[judged.code](job, actorId), {
          extensions: { job_id: id, state: job.state },
        });
      case 'decided':
        return reply(200, job);
      case 'replayed':
        return reply(200, job, { 'idempotent-replayed': 'true' });
    }
  },
);

const WORDS: Readonly<Record<JobRefusal, (job: JobRecord, actorId: string) => string>> = {
  role_required: ({ job_id, acceptance }) =>
    `Job ${job_id} is accepted by ${acceptance.accepted_by}, and you are not. Ask them; nothing was decided.`,
  self_approval: ({ job_id }, actorId) =>
    `A run of ${job_id} was asked for by ${actorId}, and its contract wants somebody else's word.`,
  job_decided: ({ job_id, state, decision }) =>
    `Job ${job_id} is ${state}, by ${decision?.actor_id ?? 'somebody'}, and stays so. Start a new job for what is left.`,
  job_not_ended: ({ job_id }) =>
    `A run of ${job_id} still works, so there is nothing whole to judge. Wait for its end, or cancel it.`,
};

async function foundJob({ pool }: ApiDeps, tenantId: string, id: string): Promise<JobRecord> {
  const job = isId('job', id) ? await readJob(pool, tenantId, id) : null;
  if (job === null) throw jobNotFound(id);
  return job;
}

/** The one answer for a job that is not there, is another tenant's, or could never be. */
function jobNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'job_not_found',
    `There is no job ${excerpt(id, 60)}. A run's \`identity.job_id\` names its job.`,
  );
}
