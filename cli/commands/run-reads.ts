import { Option } from 'commander';
import { RUN_STATES } from '../../shared/domain/run-machine.js';
import type { Effect, Run, RunSummary, Story, StoryEntry } from '../api-types.js';
import type { CommandSpec } from '../command.js';
import { printable } from '../io.js';
import { factsOf, timeOf } from '../output.js';
import type { Session } from '../session.js';
import { factsOfRun } from './run-lines.js';
import { LIMIT, pathOf, RUN } from './shared.js';

interface ListOptions {
  readonly state?: string;
  readonly agent?: string;
  readonly job?: string;
  readonly parent?: string;
  readonly limit: number;
}

/** `holdfast runs list`. */
export const listRuns: CommandSpec = {
  name: 'list',
  summary: 'List runs, newest first',
  options: [
    new Option('-s, --state <state>', 'in this state').choices([...RUN_STATES]),
    new Option('-a, --agent <name>', 'of this agent'),
    new Option('--job <job>', 'of this job'),
    new Option('--parent <run>', 'children of this run'),
    LIMIT,
  ],
  examples: ['runs list --state needs_reconciliation', 'runs list --json -n 1000 | jq -r .run_id'],
  async run({ api, out }, _args, { state, agent, job, parent, limit }: ListOptions) {
    const query = { state, agent, job_id: job, parent };
    await out.many(
      api.pages<RunSummary>('/v1/runs', query, 'runs', limit),
      [
        { title: 'run', of: (run) => run.run_id },
        { title: 'agent', of: (run) => run.agent },
        { title: 'state', of: (run) => run.state },
        { title: 'control', of: (run) => (run.control === 'active' ? '' : run.control) },
        { title: 'why', of: (run) => run.reason ?? '' },
        { title: 'asked for by', of: (run) => run.actor_id },
        { title: 'admitted', of: (run) => timeOf(run.admitted_at) },
        { title: 'ended', of: (run) => timeOf(run.ended_at) },
      ],
      'There is no such run.',
    );
  },
};

/** `holdfast runs show`. */
export const showRun: CommandSpec = {
  name: 'show',
  summary: 'Show where a run stands',
  description: 'Reading starts nothing.',
  args: [RUN],
  examples: ['runs show run_0190…', 'runs show run_0190… --json | jq .execution.state'],
  async run({ api, out }, [runId]) {
    await out.one(await api.get<Run>(pathOf('runs', runId)), factsOfRun);
  },
};

/** `holdfast runs effects`. */
export const listEffects: CommandSpec = {
  name: 'effects',
  summary: 'List what a run did to the outside',
  args: [RUN],
  options: [LIMIT],
  examples: [
    'runs effects run_0190…',
    'runs effects run_0190… --json | jq -c \'select(.state == "unknown")\'',
  ],
  async run({ api, out }, [runId], { limit }: { readonly limit: number }) {
    await out.many(
      api.pages<Effect>(pathOf('runs', runId, '/effects'), {}, 'effects', limit),
      [
        { title: 'effect', of: (effect) => effect.effect_id },
        { title: 'place', of: (effect) => `${effect.turn}.${effect.step}.${effect.slot}` },
        { title: 'tool', of: (effect) => effect.tool },
        { title: 'class', of: (effect) => effect.effect_class },
        { title: 'state', of: (effect) => effect.state },
        { title: 'tries', of: (effect) => `${effect.attempts}/${effect.attempts_max}` },
        { title: 'reference', of: (effect) => effect.reference ?? '' },
        { title: 'key', of: (effect) => effect.idempotency_key },
      ],
      'The run did nothing to the outside.',
    );
  },
};

/** `holdfast runs story`. */
export const readStory: CommandSpec = {
  name: 'story',
  summary: 'Tell what happened in a run, by whom and why',
  description:
    'Made from the record alone, whose chain is recomputed. In JSON: a line each for its entries, and a last one for the end, ' +
    'the effects and the chain.',
  args: [RUN],
  examples: ['runs story run_0190…'],
  async run(session, [runId]) {
    let cursor: string | undefined;
    let story: Story;
    do {
      const query = cursor === undefined ? { limit: 100 } : { limit: 100, cursor };
      story = await session.api.get<Story>(pathOf('runs', runId, '/story'), query);
      for (const entry of story.entries) await session.out.one(entry, (one) => [lineOfEntry(one)]);
      cursor = story.next_cursor ?? undefined;
    } while (cursor !== undefined);
    await tellEnd(session, story);
    // A record that somebody changed is no answer to rely on.
    return story.chain.holds ? 'ok' : 'failed';
  },
};

const lineOfEntry = ({ at, actor, what, reason }: StoryEntry): string =>
  printable(`${timeOf(at)}  ${actor.padEnd(20)}  ${what}${reason === null ? '' : ` (${reason})`}`);

async function tellEnd({ out }: Session, story: Story): Promise<void> {
  const { entries: _entries, next_cursor: _cursor, ...whole } = story;
  const { happened, did_not_happen, never_sent, unknown, reads } = whole.effects;
  await out.one(whole, ({ end, chain, disagreements }) => [
    '',
    ...factsOf({
      end: end === null ? 'open' : `${end.outcome}, by ${end.actor_id}: ${end.meaning}`,
      effects: `${happened.count} happened, ${did_not_happen.count} did not, ${never_sent.count} never left, ${unknown.count} unknown; ${reads} reads`,
      chain: chain.holds
        ? `holds over ${chain.transitions} transitions`
        : `BROKEN at ${chain.broken?.seq ?? '?'}: ${chain.broken?.problem ?? ''}`,
      disagreements: disagreements.length === 0 ? null : disagreements.length,
    }),
  ]);
}
