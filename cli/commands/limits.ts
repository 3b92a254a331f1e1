import { Option } from 'commander';
import type { ActiveRunLimits } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { usageError } from '../failures.js';
import type { Output } from '../output.js';
import { wholeNumber } from '../read-value.js';

const PATH = '/v1/active-run-limits';

const list: CommandSpec = {
  name: 'list',
  summary: 'List how many runs may be under way at once, and how many are',
  examples: ['limits list'],
  async run({ api, out }) {
    await show(out, await api.get<ActiveRunLimits>(PATH));
  },
};

const set: CommandSpec = {
  name: 'set',
  summary: 'Limit how many runs are under way at once, or lift the limit',
  options: [
    new Option('-a, --agent <name>', 'of this agent; of the whole tenant without it'),
    new Option('--max <number>', 'so many at once').argParser(wholeNumber(0, 1_000_000)).conflicts('lift'),
    new Option('--lift', 'no limit any more'),
  ],
  examples: ['limits set --max 20', 'limits set -a refund-desk --lift'],
  changes: 'at_once',
  async run(
    session,
    _args,
    options: { readonly agent?: string; readonly max?: number; readonly lift?: true },
  ) {
    if (options.max === undefined && options.lift === undefined) throw usageError('Give --max or --lift.');
    const body = { agent: options.agent ?? null, active_max: options.max ?? null };
    const sent = await session.api.change<ActiveRunLimits>('PUT', PATH, body, await session.key());
    await show(session.out, sent.body);
  },
};

async function show(out: Output, { items }: ActiveRunLimits): Promise<void> {
  const each = async function* () {
    yield* items;
  };
  await out.many(
    each(),
    [
      { title: 'agent', of: (limit) => limit.agent ?? '(all)' },
      { title: 'at once', of: (limit) => String(limit.active_max) },
      { title: 'active', of: (limit) => String(limit.active) },
      { title: 'queued', of: (limit) => String(limit.queued) },
      { title: 'set by', of: (limit) => limit.changed_by },
    ],
    'There is no limit.',
  );
}

/** `holdfast limits`. */
export const limitsGroup: CommandGroup = (cli) =>
  group(cli, 'limits', 'Limit how many runs are under way at once', [list, set]);
