import { Argument, Option } from 'commander';
import type { Reconciliation } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { usageError } from '../failures.js';
import { factsOf, pretty, timeOf } from '../output.js';
import { LIMIT, pathOf } from './shared.js';

const EFFECT = new Argument('<effect>', 'the id of the effect, eff_…');

interface ListOptions {
  readonly state: string;
  readonly run?: string;
  readonly agent?: string;
  readonly tool?: string;
  readonly owner?: string;
  readonly overdue?: boolean;
  readonly limit: number;
}

const list: CommandSpec = {
  name: 'list',
  summary: 'List effects that wait for a person, the most urgent first',
  options: [
    new Option('-s, --state <state>', 'still open, or settled').choices(['open', 'settled']).default('open'),
    new Option('--run <run>', 'of this run'),
    new Option('-a, --agent <name>', 'of this agent'),
    new Option('--tool <name>', 'of this tool'),
    new Option('--owner <name>', 'that this owner settles'),
    new Option('--overdue', 'past their deadline'),
    LIMIT,
  ],
  examples: ['reconcile list', 'reconcile list --overdue --json'],
  async run({ api, out }, _args, options: ListOptions) {
    const { state, run, agent, tool, owner, overdue, limit } = options;
    await out.many(
      api.pages<Reconciliation>(
        '/v1/reconciliations',
        { state, run_id: run, agent, tool, owner, overdue: overdue === true ? 'true' : undefined },
        'reconciliations',
        limit,
      ),
      [
        { title: 'effect', of: (item) => item.effect_id },
        { title: 'tool', of: (item) => item.intent.tool },
        { title: 'run', of: (item) => item.run_id },
        { title: 'asks', of: (item) => item.waiting?.about ?? '' },
        { title: 'owner', of: (item) => item.waiting?.owner ?? '' },
        { title: 'deadline', of: (item) => timeOf(item.waiting?.deadline_at ?? null) },
        { title: '', of: (item) => (item.waiting?.overdue === true ? 'OVERDUE' : '') },
        { title: 'settled', of: (item) => item.settlement?.decided ?? item.undo?.state ?? '' },
      ],
      'No effect waits for a person.',
    );
  },
};

const show: CommandSpec = {
  name: 'show',
  summary: 'Show an effect with its intent, its attempts and the evidence',
  args: [EFFECT],
  examples: ['reconcile show eff_0190…'],
  async run({ api, out }, [id]) {
    await out.one(await api.get<Reconciliation>(pathOf('reconciliations', id)), factsOfItem);
  },
};

interface SettleOptions {
  readonly as: string;
  readonly reference?: string;
  readonly note: string;
}

const settle: CommandSpec = {
  name: 'settle',
  summary: 'Say what became of an effect',
  description:
    'committed: it happened, under the outside name --reference. not_committed: it did not. compensated: it happened and ' +
    '--reference undid it. left: it happened, and stays as it is. The word stands for ever, with your name.',
  args: [EFFECT],
  options: [
    new Option('--as <word>', 'what became of it')
      .choices(['committed', 'not_committed', 'compensated', 'left'])
      .makeOptionMandatory(),
    new Option('--reference <name>', 'the outside name of what was done, or of what undid it'),
    new Option('--note <text>', 'why you are sure').makeOptionMandatory(),
  ],
  examples: [
    'reconcile settle eff_0190… --as committed --reference re_123 --note "In the provider\'s journal."',
    'reconcile settle eff_0190… --as not_committed --note "The provider knows no such key." --yes',
  ],
  changes: 'asks',
  async run(session, [id], { as: decided, reference, note }: SettleOptions) {
    const path = pathOf('reconciliations', id);
    const wantsReference = decided === 'committed' || decided === 'compensated';
    if (wantsReference !== (reference !== undefined)) {
      throw usageError(
        wantsReference ? `--as ${decided} takes --reference.` : `--as ${decided} takes no --reference.`,
      );
    }
    if (session.io.stderr.isTTY === true) {
      const item = await session.api.get<Reconciliation>(path);
      for (const line of factsOfItem(item)) await session.out.note(line);
    }
    await session.confirm(`Settle ${id ?? ''} as ${decided}, for ever?`);
    const body = { decided, note, ...(reference === undefined ? {} : { reference }) };
    const sent = await session.api.post<Reconciliation>(`${path}/settle`, body, await session.key());
    await session.out.one(sent.body, ({ effect_id, waiting, effect_state }) => [
      waiting === null
        ? `${effect_id} is ${decided}.`
        : `${effect_id} is ${effect_state} still: your word is kept, and another person must say the same.`,
    ]);
  },
};

function factsOfItem(item: Reconciliation): string[] {
  const { intent, waiting } = item;
  return factsOf({
    effect: `${item.effect_id}, ${item.effect_state}`,
    run: item.run_id,
    tool: `${intent.tool}, ${intent.effect_class}, in ${intent.namespace}`,
    key: intent.idempotency_key,
    arguments: pretty(intent.arguments),
    asks:
      waiting === null ? null : `${waiting.about}, of ${waiting.owner} until ${timeOf(waiting.deadline_at)}`,
    'first word':
      waiting?.first_word == null ? null : `${waiting.first_word.actor_id}: ${waiting.first_word.decided}`,
    attempts: item.attempts
      .map(
        ({ attempt, outcome, reason, started_at }) =>
          `${attempt}. ${timeOf(started_at)} ${outcome ?? 'open'} ${reason ?? ''}`,
      )
      .join('\n'),
    'late receipts': item.late_receipts
      .map(({ outcome, reference, recorded_at }) => `${timeOf(recorded_at)} ${outcome} ${reference ?? ''}`)
      .join('\n'),
    queries: item.queries
      .map(({ query, answer, asked_at }) => `${query}. ${timeOf(asked_at)} ${answer}`)
      .join('\n'),
    settled:
      item.settlement === null
        ? null
        : `${item.settlement.decided}, by ${item.settlement.actor_id}: ${item.settlement.note}`,
  });
}

/** `holdfast reconcile`. */
export const reconcileGroup: CommandGroup = (cli) =>
  group(cli, 'reconcile', 'Settle what no machine can find out', [list, show, settle]);
