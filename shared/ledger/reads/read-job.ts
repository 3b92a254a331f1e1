import type { JsonValue } from '../../domain/json.js';
import type { RunState } from '../../domain/run-machine.js';
import type { Db } from '../database.js';
import { isoTime, jsonTime, jsonTimeOrNull } from './row-values.js';

/** What a job took so far, as far as the ledger knows it; null is not measured, never zero. */
export interface JobCost {
  readonly model: {
    readonly calls: number;
    readonly attempts: number;
    readonly input_tokens: number;
    readonly output_tokens: number;
    /** Of attempts that gave no answer; in the sums above too. */
    readonly wasted_tokens: number;
    readonly money: null;
  };
  readonly tools: {
    /** Calls that the model asked for and that became effects. */
    readonly calls: number;
    /** Requests that left, or may have. */
    readonly attempts: number;
    readonly money: null;
  };
  readonly human: {
    /** Words on waits. */
    readonly decisions: number;
    /** Unknown outcomes that a person settled. */
    readonly settlements: number;
    /** Commands of people. */
    readonly commands: number;
    /** How long waits for somebody were open, added up. */
    readonly waiting_seconds: number;
    readonly money: null;
  };
  /** What went into finding out and doing again; the attempts are in the sums above too. */
  readonly recovery: {
    readonly model_attempts_lost: number;
    readonly effect_attempts_lost: number;
    readonly effect_attempts_unclear: number;
    readonly status_queries: number;
    readonly reconciliations: number;
    readonly takeovers: number;
    readonly money: null;
  };
  /** From admission to end, of all runs together; of open ones until now. */
  readonly run_seconds: number;
  readonly orchestration: null;
  readonly sandbox: null;
  readonly storage: null;
  readonly total: null;
}

/** The business objective, what its runs came to, and the word on it. */
export interface JobRecord {
  readonly job_id: string;
  readonly objective: string;
  readonly owner: string;
  readonly created_by: string;
  readonly created_at: string;
  readonly acceptance: {
    readonly rule: string;
    /** A role, or the one actor. */
    readonly accepted_by: string;
    /** Whoever asked for a run of it may not judge it. */
    readonly not_requester: boolean;
  };
  /** `working`: a run is open; `to_be_accepted`: its runs have ended and nobody has said what they are worth. */
  readonly state: 'working' | 'to_be_accepted' | 'accepted' | 'rejected';
  readonly decision: {
    readonly decision: 'accepted' | 'rejected';
    readonly evidence: JsonValue;
    readonly note: string;
    readonly actor_id: string;
    readonly authority: string;
    readonly decided_at: string;
  } | null;
  /** The newest 100, newest first. */
  readonly runs: readonly {
    readonly run_id: string;
    readonly state: RunState;
    readonly ended_at: string | null;
  }[];
  readonly cost: JobCost;
}

// One statement is one snapshot: the word, the runs and what they took are of the same instant.
const READ_JOB = {
  name: 'reads/job',
  text: `
    with mine as (select * from holdfast.runs where job_id = $1 and tenant_id = $2)
    select j.job_id, j.objective, j.owner, j.created_by, j.created_at, j.acceptance_rule, j.accepted_by,
           coalesce((select bool_or((contract #>> '{acceptance,not_requester}')::boolean) from mine), false) as not_requester,
           exists (select from mine where ended_at is null) as working,
           to_jsonb(a) as decision,
           (select coalesce(jsonb_agg(to_jsonb(r) order by r.run_id desc), '[]') from (
              select run_id, state, ended_at from mine order by run_id desc limit 100) r) as runs,
           (select jsonb_build_object('calls', coalesce(sum(model_calls), 0), 'attempts', coalesce(sum(model_attempts), 0),
              'input_tokens', coalesce(sum(input_tokens), 0), 'output_tokens', coalesce(sum(output_tokens), 0)) from mine) as model,
           (select jsonb_build_object('wasted', coalesce(sum(m.input_tokens + m.output_tokens)
                filter (where m.outcome is distinct from 'answered'), 0),
              'lost', count(*) filter (where m.outcome = 'lost'))
              from holdfast.model_attempts m join mine using (run_id)) as model_attempts,
           (select count(*)::int from holdfast.effects e join mine using (run_id)) as effects,
           (select jsonb_build_object('all', count(*), 'lost', count(*) filter (where t.outcome = 'lost'),
              'unclear', count(*) filter (where t.outcome in ('unknown', 'in_progress')))
              from holdfast.attempts t join mine using (run_id)) as attempts,
           (select jsonb_build_object('waiting', coalesce(sum(extract(epoch from
                coalesce(i.decided_at, clock_timestamp()) - i.created_at)), 0)::float8)
              from holdfast.interrupts i join mine using (run_id)) as waits,
           (select count(*)::int from holdfast.decisions d
              join holdfast.interrupts i using (interrupt_id) join mine on mine.run_id = i.run_id) as decisions,
           (select count(*)::int from holdfast.commands c join mine using (run_id)) as commands,
           (select count(*)::int from holdfast.status_queries q join mine using (run_id)) as queries,
           (select jsonb_build_object('all', count(*), 'person', count(*) filter (where s.source = 'person'))
              from holdfast.reconciliations s join mine using (run_id)) as settlements,
           (select count(*)::int from holdfast.run_executions x join mine using (run_id)
             where x.reason in ('reset', 'swept')) as takeovers,
           (select coalesce(sum(extract(epoch from coalesce(ended_at, clock_timestamp()) - admitted_at)), 0)::float8
              from mine) as run_seconds
      from holdfast.jobs j left join holdfast.job_acceptances a using (job_id)
     where j.job_id = $1 and j.tenant_id = $2`,
};

/** A job as it is now, or null when this tenant has no such job. */
export async function readJob(db: Db, tenantId: string, jobId: string): Promise<JobRecord | null> {
  const { rows } = await db.query<JobRow>({ ...READ_JOB, values: [jobId, tenantId] });
  return rows[0] === undefined ? null : jobOf(rows[0]);
}

type Counts<Name extends string> = Readonly<Record<Name, number>>;
interface JobRow {
  readonly job_id: string;
  readonly objective: string;
  readonly owner: string;
  readonly created_by: string;
  readonly created_at: Date;
  readonly acceptance_rule: string;
  readonly accepted_by: string;
  readonly not_requester: boolean;
  readonly working: boolean;
  readonly decision: NonNullable<JobRecord['decision']> | null;
  readonly runs: JobRecord['runs'];
  readonly model: Counts<'calls' | 'attempts' | 'input_tokens' | 'output_tokens'>;
  readonly model_attempts: Counts<'wasted' | 'lost'>;
  readonly effects: number;
  readonly attempts: Counts<'all' | 'lost' | 'unclear'>;
  readonly waits: Counts<'waiting'>;
  readonly decisions: number;
  readonly commands: number;
  readonly queries: number;
  readonly settlements: Counts<'all' | 'person'>;
  readonly takeovers: number;
  readonly run_seconds: number;
}

function jobOf(row: JobRow): JobRecord {
  const { job_id, objective, owner, created_by, acceptance_rule, accepted_by, not_requester } = row;
  return {
    ...{ job_id, objective, owner, created_by },
    created_at: isoTime(row.created_at),
    acceptance: { rule: acceptance_rule, accepted_by, not_requester },
    state: row.decision?.decision ?? (row.working ? 'working' : 'to_be_accepted'),
    decision: decisionOf(row.decision),
    runs: row.runs.map((run) => ({ ...run, ended_at: jsonTimeOrNull(run.ended_at) })),
    cost: costOf(row),
  };
}

function decisionOf(row: JobRow['decision']): JobRecord['decision'] {
  if (row === null) return null;
  // The row holds the key and digest of its request too, which are nobody's.
  const { decision, evidence, note, actor_id, authority } = row;
  return { decision, evidence, note, actor_id, authority, decided_at: jsonTime(row.decided_at) };
}

function costOf(row: JobRow): JobCost {
  return {
    model: { ...row.model, wasted_tokens: row.model_attempts.wasted, money: null },
    tools: { calls: row.effects, attempts: row.attempts.all, money: null },
    human: {
      decisions: row.decisions,
      settlements: row.settlements.person,
      commands: row.commands,
      waiting_seconds: Math.round(row.waits.waiting),
      money: null,
    },
    recovery: {
      model_attempts_lost: row.model_attempts.lost,
      effect_attempts_lost: row.attempts.lost,
      effect_attempts_unclear: row.attempts.unclear,
      status_queries: row.queries,
      reconciliations: row.settlements.all,
      takeovers: row.takeovers,
      money: null,
    },
    run_seconds: Math.round(row.run_seconds),
    ...{ orchestration: null, sandbox: null, storage: null, total: null },
  };
}
