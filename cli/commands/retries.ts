import { Option } from 'commander';
import type { RetrySeries } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { timeOf } from '../output.js';
import { LIMIT, pathOf } from './shared.js';

const list: CommandSpec = {
  name: 'list',
  summary: 'List operations that stopped and are tried again, or were given up',
  options: [new Option('--run <run>', 'of this run, its past ones too'), LIMIT],
  examples: ['retries list', 'retries list --run run_0190…'],
  async run({ api, out }, _args, { run, limit }: { readonly run?: string; readonly limit: number }) {
    const path = run === undefined ? '/v1/retries' : pathOf('runs', run, '/retries');
    await out.many(
      api.pages<RetrySeries>(path, {}, 'retries', limit),
      [
        { title: 'run', of: (each) => each.run_id },
        { title: 'step', of: (each) => String(each.step) },
        { title: 'what', of: (each) => each.tool ?? 'model' },
        { title: 'state', of: (each) => each.state },
        { title: 'why', of: (each) => each.reason },
        { title: 'attempt', of: (each) => `${each.attempt}/${each.attempts_max}` },
        { title: 'next', of: (each) => timeOf(each.next_at) },
        { title: 'owner', of: (each) => each.owner },
      ],
      'Nothing is tried again.',
    );
  },
};

/** `holdfast retries`. */
export const retriesGroup: CommandGroup = (cli) => group(cli, 'retries', 'Read what is tried again', [list]);
