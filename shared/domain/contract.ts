import { z } from 'zod';
import { RunBudget } from './budgets.js';
import { EFFECT_CLASSES } from './effect-classes.js';

const seconds = (max: number) => z.int().min(1).max(max);
const DAY = 24 * 3600;

/**
 * What a run was admitted under (SPEC appendix A): given with the request, stored whole, immutable. Numbers that the
 * request leaves out take these defaults, and the stored contract holds every number.
 */
export const RunContract = z.strictObject({
  /** What the job is to reach, in the sponsor's words. */
  objective: z.string().min(1).max(4_000),
  /** Who accepts which evidence. Acceptance of the job is apart from the run's completion. */
  acceptance: z.strictObject({
    rule: z.string().min(1).max(4_000),
    /** A role, or the actor who judges. */
    accepted_by: z.string().min(1).max(200),
    /** Whoever asked for the run may not judge the job. */
    not_requester: z.literal(true).optional(),
  }),
  /** Answers for the job, and owns what needs reconciliation unless `reconciliation` names another. */
  owner: z.string().min(1).max(200),
  limits: z
    .strictObject({
      steps_max: z.int().min(1).max(10_000).optional(),
      tool_calls_max: z.int().min(0).max(100_000).optional(),
      wall_clock_seconds: seconds(90 * DAY).optional(),
    })
    .prefault({}),
  /** Who is started and served first where many wait: 1 first, 5 last. */
  priority: z.int().min(1).max(5).default(3),
  /** Of one operation (a model call or an effect). Attempts lost to infrastructure are not counted. */
  budget: RunBudget.prefault({}),
  retry: z
    .strictObject({
      attempts_max: z.int().min(1).max(100).default(5),
      /** The whole series, from its first attempt; an eligibility past it ends the series. */
      series_seconds_max: seconds(7 * DAY).default(3_600),
      /** A target's Retry-After longer than this ends the series at once, with the date shown. */
      retry_after_seconds_max: seconds(7 * DAY).default(3_600),
      /** What an exhausted tool series does. An exhausted model series always fails the run. */
      on_exhausted: z.enum(['tell_model', 'fail']).default('tell_model'),
    })
    .prefault({}),
  timeouts: z
    .strictObject({
      /** Of one model request. */
      model_seconds: seconds(3_600).default(300),
      /** Of one tool call; a tool that declares less keeps its own. */
      tool_seconds: seconds(3_600).default(300),
      /** Of the wait for an approval; past it the call is denied. */
      approval_seconds: seconds(90 * DAY).default(DAY),
      /** Of the wait for a person after a model failure that only they can mend; past it the run fails. */
      input_seconds: seconds(90 * DAY).default(7 * DAY),
    })
    .prefault({}),
  /** Rules by tool name. */
  effects: z
    .record(
      z.string().min(1).max(64),
      z.strictObject({
        /** Overrides the agent's file towards more care only: a contract cannot waive an approval. */
        approval: z.literal('required').optional(),
      }),
    )
    .default({}),
  /** What a run that fails makes of what it did. `compensate`: it is undone first, as its tools declare. */
  on_failure: z.enum(['compensate', 'leave']).default('leave'),
  reconciliation: z
    .strictObject({
      /** Who settles what no machine can; the job's owner when absent. */
      owner: z.string().min(1).max(200).optional(),
      deadline_seconds: seconds(90 * DAY).default(DAY),
      /** After an effect is settled as not committed. `redo` makes a new effect under a new key that supersedes it. */
      after_not_committed: z.enum(['redo', 'tell_model', 'fail']).default('redo'),
      redos_max: z.int().min(0).max(10).default(2),
      /** Classes of effects that a person settles only when another says the same. */
      two_people: z
        .array(z.enum(EFFECT_CLASSES))
        .max(EFFECT_CLASSES.length)
        .refine((classes) => new Set(classes).size === classes.length, { error: 'names a class twice' })
        .default([]),
    })
    .prefault({}),
});
export type RunContract = z.output<typeof RunContract>;
