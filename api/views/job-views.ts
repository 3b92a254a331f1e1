import { z } from 'zod';
import { AnyJson, Time } from './common.js';
import { State } from './run-views.js';

const Money = z.null().meta({ description: 'Not measured.' });

/** What a job took. */
const JobCostView = z
  .strictObject({
    model: z.strictObject({
      calls: z.int(),
      attempts: z.int(),
      input_tokens: z.int(),
      output_tokens: z.int(),
      wasted_tokens: z.int().meta({ description: 'Of attempts that gave no answer; in the sums too.' }),
      money: Money,
    }),
    tools: z.strictObject({
      calls: z.int(),
      attempts: z.int().meta({ description: 'Requests that left, or may have.' }),
      money: Money,
    }),
    human: z.strictObject({
      decisions: z.int(),
      settlements: z.int().meta({ description: 'Unknown outcomes that a person settled.' }),
      commands: z.int(),
      waiting_seconds: z.int().meta({ description: 'How long waits for somebody were open, added up.' }),
      money: Money,
    }),
    recovery: z
      .strictObject({
        model_attempts_lost: z.int(),
        effect_attempts_lost: z.int(),
        effect_attempts_unclear: z.int(),
        status_queries: z.int(),
        reconciliations: z.int(),
        takeovers: z.int(),
        money: Money,
      })
      .meta({ description: 'What went into finding out and doing again; its attempts are in the sums too.' }),
    run_seconds: z.int().meta({ description: 'From admission to end, of all runs together.' }),
    orchestration: Money,
    sandbox: Money,
    storage: Money,
    total: Money,
  })
  .meta({ id: 'JobCost' });

/** A job with its runs, the word on it, and what it took. */
export const JobView = z
  .strictObject({
    job_id: z.string(),
    objective: z.string(),
    owner: z.string(),
    created_by: z.string(),
    created_at: Time,
    acceptance: z.strictObject({
      rule: z.string(),
      accepted_by: z.string().meta({ description: 'A role, or the one actor.' }),
      not_requester: z.boolean(),
    }),
    state: z.enum(['working', 'to_be_accepted', 'accepted', 'rejected']).meta({
      description: 'That a run is `completed` says nothing of the job: it is `to_be_accepted` then.',
    }),
    decision: z
      .strictObject({
        decision: z.enum(['accepted', 'rejected']),
        evidence: AnyJson,
        note: z.string(),
        actor_id: z.string(),
        authority: z.string().meta({ description: 'The role, or `named`: the contract names the actor.' }),
        decided_at: Time,
      })
      .nullable(),
    runs: z
      .array(z.strictObject({ run_id: z.string(), state: State, ended_at: Time.nullable() }))
      .readonly()
      .meta({ description: 'The newest 100, newest first.' }),
    cost: JobCostView,
  })
  .meta({ id: 'Job' });
