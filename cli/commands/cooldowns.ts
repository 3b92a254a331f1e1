import { Argument } from 'commander';
import type { Cooldown } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { factsOf, timeOf } from '../output.js';
import { LIMIT, pathOf } from './shared.js';

const list: CommandSpec = {
  name: 'list',
  summary: 'List what asked the runs to come later, newest first',
  options: [LIMIT],
  examples: ['cooldowns list'],
  async run({ api, out }, _args, { limit }: { readonly limit: number }) {
    await out.many(
      api.pages<Cooldown>('/v1/cooldowns', {}, 'cooldowns', limit),
      [
        { title: 'cool-down', of: (each) => each.cooldown_id },
        { title: 'target', of: (each) => each.target },
        { title: 'state', of: (each) => each.state },
        { title: 'why', of: (each) => each.reason },
        { title: 'until', of: (each) => timeOf(each.until) },
        { title: 'waiting', of: (each) => String(each.waiting_runs) },
      ],
      'Nothing cools down.',
    );
  },
};

const clear: CommandSpec = {
  name: 'clear',
  summary: 'Say that a target can be asked again',
  args: [new Argument('<cooldown>', 'the id of the cool-down, cdn_…')],
  examples: ['cooldowns clear cdn_0190… --yes'],
  changes: 'asks',
  async run(session, [id]) {
    await session.confirm(`Clear ${id ?? ''}: ask its target again now?`);
    const path = pathOf('cooldowns', id);
    const sent = await session.api.change<Cooldown>('DELETE', path, undefined, await session.key());
    await session.out.one(sent.body, (each) =>
      factsOf({
        'cool-down': each.cooldown_id,
        target: each.target,
        state: each.state,
        until: timeOf(each.until),
      }),
    );
  },
};

/** `holdfast cooldowns`. */
export const cooldownsGroup: CommandGroup = (cli) =>
  group(cli, 'cooldowns', 'Read and clear what asked the runs to come later', [list, clear]);
