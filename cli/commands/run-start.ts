import { Option } from 'commander';
import type { Run } from '../api-types.js';
import type { CommandSpec } from '../command.js';
import { usageError } from '../failures.js';
import { readJson, readText } from '../read-value.js';
import type { Session } from '../session.js';
import { factsOfRun } from './run-lines.js';
import { FROM_START, watch } from './run-watch.js';

interface StartOptions {
  readonly agent: string;
  readonly input?: string;
  readonly inputJson?: string;
  readonly contract?: string;
  readonly objective?: string;
  readonly rule?: string;
  readonly acceptedBy?: string;
  readonly owner?: string;
  readonly watch?: boolean;
}

/** `holdfast runs start`. */
export const startRun: CommandSpec = {
  name: 'start',
  summary: 'Start a run',
  description:
    'The run is admitted once for its key. When no answer comes, the same request is sent under the same key and under no ' +
    'other, so that it is one run however often it is sent.',
  options: [
    new Option('-a, --agent <name>', 'the agent').makeOptionMandatory(),
    new Option('-i, --input <text>', 'what it works on: a text, @file, or - for standard input').conflicts(
      'inputJson',
    ),
    new Option('--input-json <json>', 'the same as JSON: the JSON, @file, or -'),
    new Option(
      '--contract <json>',
      'the contract: JSON, @file, or -; the options below lay themselves over it',
    ),
    new Option('--objective <text>', 'what the job is to reach'),
    new Option('--rule <text>', 'the rule by which the job is accepted'),
    new Option('--accepted-by <role or actor>', 'who accepts it'),
    new Option('--owner <name>', 'who answers for the job'),
    new Option('-w, --watch', 'follow it to its end, with the exit code of its end'),
  ],
  examples: [
    'runs start -a refund-desk -i "Refund order ORD-1003: arrived broken" --objective "Settle it." --rule "Stated." --accepted-by desk --owner desk',
    'runs start -a refund-desk -i @request.txt --contract @contract.json --watch',
    'runs start -a refund-desk -i @request.txt --contract @contract.json --key cli-0190…',
  ],
  changes: 'at_once',
  async run(session, _args, options: StartOptions) {
    const body = {
      agent: options.agent,
      input: await inputOf(session, options),
      contract: await contractOf(session, options),
    };
    const key = await session.key();
    const progress = session.progress('starting');
    const { body: run, replayed } = await session.api
      .post<Run>('/v1/runs', body, key)
      .finally(() => progress.stop());
    if (replayed) await session.out.note('holdfast: an earlier request with this key had started it');
    if (options.watch !== true) {
      await session.out.one(run, factsOfRun);
      return;
    }
    await session.out.say(`Run ${run.run_id}`);
    return await watch(session, run.run_id, FROM_START);
  },
};

async function inputOf({ io }: Session, { input, inputJson }: StartOptions): Promise<unknown> {
  if (inputJson !== undefined) return await readJson(io, inputJson, '--input-json');
  if (input === undefined) throw usageError('What does it work on? Give --input or --input-json.');
  return await readText(io, input);
}

async function contractOf({ io }: Session, options: StartOptions): Promise<unknown> {
  const given = options.contract === undefined ? {} : await readJson(io, options.contract, '--contract');
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    throw usageError('--contract is not a JSON object.');
  }
  const { objective, rule, acceptedBy, owner } = options;
  const { acceptance } = given as { acceptance?: object };
  const judged = {
    ...(rule === undefined ? {} : { rule }),
    ...(acceptedBy === undefined ? {} : { accepted_by: acceptedBy }),
  };
  return {
    ...given,
    ...(objective === undefined ? {} : { objective }),
    ...(Object.keys(judged).length === 0 ? {} : { acceptance: { ...acceptance, ...judged } }),
    ...(owner === undefined ? {} : { owner }),
  };
}
