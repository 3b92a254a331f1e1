import { Argument, Option } from 'commander';
import type { Interrupt, InterruptSummary } from '../api-types.js';
import type { CommandSpec } from '../command.js';
import { usageError } from '../failures.js';
import { printable } from '../io.js';
import { factsOf, pretty, timeOf } from '../output.js';
import type { Session } from '../session.js';
import { LIMIT, pathOf } from './shared.js';

/** The wait that a command is about. */
export const WAIT = new Argument('<interrupt>', 'the id of the wait, int_…');
/** What is said beside a decision. */
export const NOTE = new Option('--note <text>', 'said beside the decision, for the record');

interface ListOptions {
  readonly state: string;
  readonly run?: string;
  readonly tree?: string;
  readonly agent?: string;
  readonly role?: string;
  readonly limit: number;
}

const STATES = [
  'open',
  'approved',
  'consumed',
  'denied',
  'answered',
  'expired',
  'withdrawn',
  'superseded',
  'any',
];

/** A list of waits: of one kind, or of all where `kind` is undefined. */
export function listOfWaits(kind: string | undefined, examples: readonly string[]): CommandSpec {
  return {
    name: 'list',
    summary:
      kind === 'approval' ? 'List calls that wait for an approval' : 'List waits for somebody, oldest first',
    options: [
      new Option('-s, --state <state>', 'in this state').choices(STATES).default('open'),
      new Option('--run <run>', 'of this run'),
      new Option('--tree <run>', 'of this run and every run below it'),
      new Option('-a, --agent <name>', 'of this agent'),
      new Option('--role <role>', 'that this role decides'),
      LIMIT,
    ],
    examples,
    async run({ api, out }, _args, options: ListOptions) {
      const { state, run, tree, agent, role, limit } = options;
      await out.many(
        api.pages<InterruptSummary>(
          '/v1/interrupts',
          { kind, state, run_id: run, root_run_id: tree, agent, role },
          'interrupts',
          limit,
        ),
        [
          { title: 'wait', of: (wait) => wait.interrupt_id },
          { title: 'kind', of: (wait) => wait.kind },
          { title: 'state', of: (wait) => wait.state },
          { title: 'tool', of: (wait) => wait.tool },
          { title: 'run', of: (wait) => wait.run_id },
          { title: 'asked for by', of: (wait) => wait.requested_by },
          { title: 'role', of: (wait) => wait.required_role },
          { title: 'approvals', of: (wait) => `${wait.approvals}/${wait.quorum}` },
          { title: 'until', of: (wait) => timeOf(wait.expires_at) },
        ],
        'Nobody is waited for.',
      );
    },
  };
}

/** One wait, with everything that is needed to decide it. */
export function showWait(example: string): CommandSpec {
  return {
    name: 'show',
    summary: 'Show a wait: what would run, and who may decide',
    description: 'Reading decides nothing.',
    args: [WAIT],
    examples: [example],
    async run({ out, ...session }, [id]) {
      await out.one(await readWait(session, id), factsOfWait);
    },
  };
}

export const readWait = ({ api }: Pick<Session, 'api'>, id: string | undefined): Promise<Interrupt> =>
  api.get<Interrupt>(pathOf('interrupts', id));

/** A wait for people. What would run is made from the stored arguments; the model's words stand apart, and are called so. */
export function factsOfWait(wait: Interrupt): string[] {
  const { scope, model_words: words } = wait;
  return factsOf({
    wait: wait.interrupt_id,
    kind: wait.kind,
    state: wait.state,
    run: `${wait.run_id} of ${wait.agent}, ${wait.run_state}`,
    'asked for by': wait.requested_by,
    tool: wait.tool,
    'would run': pretty((scope as { arguments?: unknown } | null)?.arguments ?? scope),
    'scope sha256': wait.scope_sha256,
    'decided by': `${wait.quorum} with the role ${wait.required_role}; ${wait.approvals} so far`,
    until: `${timeOf(wait.expires_at)}, then ${wait.on_expiry}`,
    'answer schema': wait.kind === 'approval' ? null : pretty(wait.answer_schema),
    decisions: wait.decisions
      .map(({ actor_id, decision, note }) => `${actor_id}: ${decision} ${note}`)
      .join('\n'),
    'superseded by': wait.superseded_by,
    'the model’s words': words,
  });
}

/** Tells a wait that was just decided. */
export function tellDecided(session: Session, wait: Interrupt): Promise<void> {
  return session.out.one(wait, ({ interrupt_id, state, tool, approvals, quorum }) => [
    `${interrupt_id}  ${printable(tool)} is ${state}` +
      (state === 'open' ? `: ${approvals} of ${quorum} have approved` : ''),
  ]);
}

/**
 * The digest of the scope that is decided about: what `--scope` names, or what was shown on a terminal just now. Nobody
 * approves what nobody has seen.
 */
export async function seenScope(
  session: Session,
  wait: Interrupt,
  given: string | undefined,
): Promise<string> {
  if (given !== undefined) return given;
  if (session.io.stderr.isTTY !== true) {
    throw usageError(
      `Name what was looked at: --scope, the scope_sha256 that \`show ${wait.interrupt_id}\` gives. Nothing was sent.`,
    );
  }
  for (const line of factsOfWait(wait)) await session.out.note(line);
  return wait.scope_sha256;
}

/** Sends one word on a wait. */
export async function decide(session: Session, id: string | undefined, body: object): Promise<void> {
  const { api } = session;
  const { body: wait } = await api.post<Interrupt>(
    pathOf('interrupts', id, '/resolve'),
    body,
    await session.key(),
  );
  await tellDecided(session, wait);
}
