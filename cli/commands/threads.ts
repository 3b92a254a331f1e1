import { Argument, Option } from 'commander';
import { DOUBLE_TEXTING } from '../../shared/domain/thread-table.js';
import type { Memory, Thread, ThreadMessage, ThreadSummary } from '../api-types.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { printable } from '../io.js';
import { factsOf, timeOf } from '../output.js';
import { readJson, readText } from '../read-value.js';
import { LIMIT, pathOf } from './shared.js';

const THREAD = new Argument('<thread>', 'the id of the thread, thr_…');
const POLICY = new Option('--policy <policy>', 'what a message makes of a run in progress').choices([
  ...DOUBLE_TEXTING,
]);

const list: CommandSpec = {
  name: 'list',
  summary: 'List threads, newest first',
  options: [
    new Option('-a, --agent <name>', 'of this agent'),
    new Option('--archived <yes>', 'archived ones, or those that are not').choices(['true', 'false']),
    LIMIT,
  ],
  examples: ['threads list --agent refund-desk --archived false'],
  async run({ api, out }, _args, options: { agent?: string; archived?: string; limit: number }) {
    const { agent, archived, limit } = options;
    await out.many(
      api.pages<ThreadSummary>('/v1/threads', { agent, archived }, 'threads', limit),
      [
        { title: 'thread', of: (thread) => thread.thread_id },
        { title: 'agent', of: (thread) => thread.agent },
        { title: 'turn', of: ({ turn }) => (turn === null ? '' : turn.state) },
        { title: 'runtime', of: (thread) => thread.runtime },
        { title: 'messages', of: (thread) => String(thread.messages) },
        { title: 'updated', of: (thread) => timeOf(thread.updated_at) },
        { title: 'archived', of: (thread) => timeOf(thread.archived_at) },
      ],
      'There is no such thread.',
    );
  },
};

const show: CommandSpec = {
  name: 'show',
  summary: 'Show a thread: who holds it, its turn, whether it is archived, and how fresh that is',
  description: 'Reading starts nothing.',
  args: [THREAD],
  examples: ['threads show thr_0190…'],
  async run({ api, out }, [id]) {
    await out.one(await api.get<Thread>(pathOf('threads', id)), factsOfThread);
  },
};

const create: CommandSpec = {
  name: 'create',
  summary: 'Create a thread',
  description: 'Starts nothing: a run begins with a message.',
  options: [
    new Option('-a, --agent <name>', 'the agent of its runs').makeOptionMandatory(),
    new Option(
      '--contract <json>',
      'what its runs are admitted under: JSON, @file, or -',
    ).makeOptionMandatory(),
    POLICY,
  ],
  examples: ['threads create -a refund-desk --contract @contract.json'],
  changes: 'at_once',
  async run(session, _args, options: { agent: string; contract: string; policy?: string }) {
    const { agent, policy } = options;
    const contract = await readJson(session.io, options.contract, '--contract');
    const body = { agent, contract, ...(policy === undefined ? {} : { policy }) };
    const sent = await session.api.post<Thread>('/v1/threads', body, await session.key());
    await session.out.one(sent.body, factsOfThread);
  },
};

const post: CommandSpec = {
  name: 'post',
  summary: 'Post a message',
  description: 'Delivered once for its key, however often it is sent.',
  args: [THREAD],
  options: [new Option('-t, --text <text>', 'itself, @file, or -').makeOptionMandatory(), POLICY],
  examples: [
    'threads post thr_0190… -t "And the second order?"',
    'threads post thr_0190… -t - --policy steer',
  ],
  changes: 'at_once',
  async run(session, [id], { text, policy }: { readonly text: string; readonly policy?: string }) {
    const body = { text: await readText(session.io, text), ...(policy === undefined ? {} : { policy }) };
    const path = pathOf('threads', id, '/messages');
    const sent = await session.api.post<ThreadMessage>(path, body, await session.key());
    await session.out.one(sent.body, factsOfMessage);
  },
};

const messages: CommandSpec = {
  name: 'messages',
  summary: 'List what was said, in order, and what became of it',
  args: [THREAD],
  options: [LIMIT],
  examples: ['threads messages thr_0190…'],
  async run({ api, out }, [id], { limit }: { readonly limit: number }) {
    await out.many(
      api.pages<ThreadMessage>(pathOf('threads', id, '/messages'), {}, 'messages', limit),
      [
        { title: 'n', of: (message) => String(message.seq) },
        { title: 'by', of: (message) => message.actor_id },
        { title: 'state', of: ({ state, code }) => (code === null ? state : `${state} (${code})`) },
        { title: 'run', of: ({ run }) => (run === null ? '' : `${run.run_id} ${run.state}`) },
        { title: 'text', of: ({ text }) => printable(text.slice(0, 80)) },
      ],
      'Nothing was said.',
    );
  },
};

const memory: CommandSpec = {
  name: 'memory',
  summary: 'List the generations of what is remembered, newest first',
  args: [THREAD],
  options: [LIMIT],
  examples: ['threads memory thr_0190… -n 1'],
  async run({ api, out }, [id], { limit }: { readonly limit: number }) {
    await out.many(
      api.pages<Memory>(pathOf('threads', id, '/memory'), {}, 'generations', limit),
      [
        { title: 'generation', of: (each) => String(each.generation) },
        { title: 'made by', of: (each) => each.run_id },
        { title: 'at', of: (each) => timeOf(each.created_at) },
        { title: 'text', of: ({ text }) => printable(text.slice(0, 80)) },
      ],
      'Nothing is remembered.',
    );
  },
};

function archiving(name: 'archive' | 'unarchive', summary: string): CommandSpec {
  return {
    name,
    summary,
    args: [THREAD],
    examples: [`threads ${name} thr_0190…`],
    changes: 'at_once',
    async run(session, [id]) {
      const path = pathOf('threads', id, `/${name}`);
      const sent = await session.api.post<Thread>(path, undefined, await session.key());
      await session.out.one(sent.body, factsOfThread);
    },
  };
}

const factsOfThread = (thread: Thread): string[] =>
  factsOf({
    thread: thread.thread_id,
    agent: thread.agent,
    policy: thread.policy,
    runtime: thread.runtime,
    turn: thread.turn === null ? null : `${thread.turn.run_id} ${thread.turn.state}`,
    messages: `${thread.messages.total} in ${thread.runs} runs`,
    archived: thread.archived === null ? null : `${timeOf(thread.archived.at)} by ${thread.archived.by}`,
    'as of': timeOf(thread.freshness.as_of),
  });

const factsOfMessage = (message: ThreadMessage): string[] =>
  factsOf({
    message: message.message_id,
    thread: message.thread_id,
    state: message.state,
    run: message.run === null ? null : message.run.run_id,
    'met the run': message.met_run_id,
  });

/** `holdfast threads`. */
export const threadsGroup: CommandGroup = (cli) =>
  group(cli, 'threads', 'Hold conversations', [
    list,
    show,
    create,
    post,
    messages,
    memory,
    archiving('archive', 'Archive a thread: it takes no messages any more'),
    archiving('unarchive', 'Take a thread out of the archive'),
  ]);
