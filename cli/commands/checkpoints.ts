import { Argument, Option } from 'commander';
import { FORK_MODES } from '../../shared/domain/checkpoints.js';
import type { Checkpoint, Run } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { usageError } from '../failures.js';
import { factsOf, timeOf } from '../output.js';
import { readJson } from '../read-value.js';
import { factsOfRun } from './run-lines.js';
import { LIMIT, pathOf, RUN } from './shared.js';

const list: CommandSpec = {
  name: 'list',
  summary: 'List the checkpoints of a run in order',
  args: [RUN],
  options: [LIMIT],
  examples: ['checkpoints list run_0190…'],
  async run({ api, out }, [runId], { limit }: { readonly limit: number }) {
    await out.many(
      api.pages<Checkpoint>(pathOf('runs', runId, '/checkpoints'), {}, 'checkpoints', limit),
      [
        { title: 'checkpoint', of: (each) => each.checkpoint_id },
        { title: 'boundary', of: (each) => each.boundary },
        { title: 'step', of: (each) => String(each.step) },
        { title: 'state', of: (each) => each.phase.state },
        {
          title: 'forkable',
          of: ({ validation }) => (validation.valid ? 'yes' : validation.faults.join(' ')),
        },
        { title: 'at', of: (each) => timeOf(each.at) },
      ],
      'There is no checkpoint yet.',
    );
  },
};

const show: CommandSpec = {
  name: 'show',
  summary: 'Show a checkpoint',
  args: [new Argument('<checkpoint>', 'the id of the checkpoint, ckp_…')],
  examples: ['checkpoints show ckp_0190…'],
  async run({ api, out }, [id]) {
    await out.one(await api.get<Checkpoint>(pathOf('checkpoints', id)), (each) =>
      factsOf({
        checkpoint: each.checkpoint_id,
        run: each.run_id,
        boundary: each.boundary,
        at: timeOf(each.at),
        state: `${each.phase.state}, control ${each.phase.control}`,
        'goes on after step': each.resumes_after_step,
        messages: each.messages.count,
        'open effects': each.open.effects.map(({ effect_id, state }) => `${effect_id} ${state}`).join('\n'),
        'unknown effects': each.unknown_effects.join('\n'),
        forkable: each.validation.valid ? 'yes' : each.validation.faults.join(' '),
      }),
    );
  },
};

/** `holdfast runs fork`. */
export const forkRun: CommandSpec = {
  name: 'fork',
  summary: 'Make a new run from a checkpoint of a run',
  description: 'Nothing of the source changes. Approvals and what was spent are not inherited.',
  args: [RUN],
  options: [
    new Option('-c, --checkpoint <checkpoint>', 'where it begins, ckp_…').makeOptionMandatory(),
    new Option('-m, --mode <mode>', 'how calls after the cut are answered')
      .choices([...FORK_MODES])
      .makeOptionMandatory(),
    new Option('--edits <json>', 'what is changed on purpose (see the API): JSON, @file, or -'),
  ],
  examples: [
    'runs fork run_0190… -c ckp_0190… -m simulate',
    'runs fork run_0190… -c ckp_0190… -m live --edits \'{"add_message":"Look again."}\'',
  ],
  changes: 'at_once',
  async run(session, [runId], options: { checkpoint: string; mode: string; edits?: string }) {
    const { checkpoint, mode } = options;
    const edits = options.edits === undefined ? {} : await readJson(session.io, options.edits, '--edits');
    if (typeof edits !== 'object' || edits === null || Array.isArray(edits)) {
      throw usageError('--edits is not a JSON object.');
    }
    const body = { ...edits, checkpoint_id: checkpoint, mode };
    const sent = await session.api.post<Run>(pathOf('runs', runId, '/forks'), body, await session.key());
    await session.out.one(sent.body, factsOfRun);
  },
};

/** `holdfast checkpoints`. */
export const checkpointsGroup: CommandGroup = (cli) =>
  group(cli, 'checkpoints', 'Read from where a run can be forked', [list, show]);
