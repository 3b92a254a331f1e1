import { Argument, Option } from 'commander';
import type { Job } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { factsOf, timeOf } from '../output.js';
import { readJson } from '../read-value.js';
import { pathOf } from './shared.js';

const JOB = new Argument('<job>', 'the id of the job, job_…');

const show: CommandSpec = {
  name: 'show',
  summary: 'Show a job: what was to be reached, what came of it, and what it took',
  args: [JOB],
  examples: ['jobs show job_0190…'],
  async run({ api, out }, [id]) {
    await out.one(await api.get<Job>(pathOf('jobs', id)), factsOfJob);
  },
};

const accept: CommandSpec = {
  name: 'accept',
  summary: 'Accept a job, on evidence',
  description: 'Once its runs have ended, by whoever its contract names. The word is final.',
  args: [JOB],
  options: [
    new Option(
      '--evidence <json>',
      'what was looked at: a list of {name, reference, sha256?} as JSON, @file, or -',
    ).makeOptionMandatory(),
    new Option('--note <text>', 'for the record'),
  ],
  examples: ['jobs accept job_0190… --evidence \'[{"name":"report","reference":"reports/ORD-1.md"}]\''],
  changes: 'asks',
  async run(session, [id], { evidence, note }: { readonly evidence: string; readonly note?: string }) {
    const looked = await readJson(session.io, evidence, '--evidence');
    await session.confirm(`Accept ${id ?? ''}, for ever?`);
    const body = { decision: 'accept', evidence: looked, ...(note === undefined ? {} : { note }) };
    const sent = await session.api.post<Job>(pathOf('jobs', id, '/acceptance'), body, await session.key());
    await session.out.one(sent.body, factsOfJob);
  },
};

const reject: CommandSpec = {
  name: 'reject',
  summary: 'Reject a job, with the reason',
  args: [JOB],
  options: [new Option('--note <text>', 'why').makeOptionMandatory()],
  examples: ['jobs reject job_0190… --note "The wrong order was refunded."'],
  changes: 'asks',
  async run(session, [id], { note }: { readonly note: string }) {
    await session.confirm(`Reject ${id ?? ''}, for ever?`);
    const body = { decision: 'reject', note };
    const sent = await session.api.post<Job>(pathOf('jobs', id, '/acceptance'), body, await session.key());
    await session.out.one(sent.body, factsOfJob);
  },
};

function factsOfJob(job: Job): string[] {
  const { acceptance, decision, cost } = job;
  return factsOf({
    job: job.job_id,
    objective: job.objective,
    state: job.state,
    owner: job.owner,
    rule: acceptance.rule,
    'accepted by': acceptance.accepted_by,
    decision:
      decision === null
        ? null
        : `${decision.decision} by ${decision.actor_id}, ${timeOf(decision.decided_at)}: ${decision.note}`,
    runs: job.runs.map(({ run_id, state }) => `${run_id} ${state}`).join('\n'),
    model: `${cost.model.calls} calls, ${cost.model.input_tokens} tokens in, ${cost.model.output_tokens} out`,
    tools: `${cost.tools.calls} calls, ${cost.tools.attempts} attempts`,
    people: `${cost.human.decisions} decisions, ${cost.human.settlements} settlements, ${cost.human.waiting_seconds} s waited`,
  });
}

/** `holdfast jobs`. */
export const jobsGroup: CommandGroup = (cli) =>
  group(cli, 'jobs', 'Read jobs, and accept or reject them', [show, accept, reject]);
