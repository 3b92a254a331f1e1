import { Option } from 'commander';
import type { Interrupt } from '../api-types.js';
import { askChoice, askText } from '../ask.js';
import { type CommandGroup, type CommandSpec, group } from '../command.js';
import { usageError } from '../failures.js';
import { canAsk } from '../io.js';
import { readJson, readText } from '../read-value.js';
import type { Session } from '../session.js';
import { decide, factsOfWait, listOfWaits, NOTE, readWait, showWait, WAIT } from './waits.js';

interface ResolveOptions {
  readonly answer?: string;
  readonly text?: string;
  readonly note?: string;
}

const resolve: CommandSpec = {
  name: 'resolve',
  summary: 'Answer a wait for input',
  description:
    'The answer fits the answer schema of the wait, or is refused. Without --answer or --text it is asked for on a terminal. ' +
    'An approval is decided with `holdfast approvals`.',
  args: [WAIT],
  options: [
    new Option('--answer <json>', 'the answer: JSON, @file, or -').conflicts('text'),
    new Option('--text <text>', 'an answer that is a text: itself, @file, or -'),
    NOTE,
  ],
  examples: [
    'interrupts resolve int_0190…',
    'interrupts resolve int_0190… --answer \'{"action":"try_again"}\'',
  ],
  changes: 'at_once',
  async run(session, [id], options: ResolveOptions) {
    const answer = await answerOf(session, id, options);
    const note = options.note === undefined ? {} : { note: options.note };
    await decide(session, id, { decision: 'answer', answer, ...note });
  },
};

async function answerOf(session: Session, id: string | undefined, options: ResolveOptions): Promise<unknown> {
  const { io } = session;
  if (options.answer !== undefined) return await readJson(io, options.answer, '--answer');
  if (options.text !== undefined) return await readText(io, options.text);
  if (!canAsk(io)) throw usageError('Nobody can be asked here: give --answer or --text. Nothing was sent.');
  const wait = await readWait(session, id);
  if (wait.kind === 'approval') {
    throw usageError(`${wait.interrupt_id} waits for an approval: holdfast approvals approve or deny.`);
  }
  for (const line of factsOfWait(wait)) await session.out.note(line);
  return await askedAnswer(session, wait);
}

/** Asks in the way that the schema suggests; the API judges. */
async function askedAnswer({ io }: Session, { answer_schema }: Interrupt): Promise<unknown> {
  const schema = (answer_schema ?? {}) as { type?: unknown; enum?: unknown };
  if (Array.isArray(schema.enum) && schema.enum.every((value) => typeof value === 'string')) {
    return await askChoice(io, 'The answer', schema.enum);
  }
  if (schema.type === 'string') return await askText(io, 'The answer', () => undefined);
  const text = await askText(io, 'The answer, as JSON', (given) => {
    try {
      JSON.parse(given);
      return undefined;
    } catch (error) {
      return (error as Error).message;
    }
  });
  return JSON.parse(text) as unknown;
}

/** `holdfast interrupts`. */
export const interruptsGroup: CommandGroup = (cli) =>
  group(cli, 'interrupts', 'Answer whatever waits for somebody', [
    listOfWaits(undefined, ['interrupts list', 'interrupts list --run run_0190… --state any']),
    showWait('interrupts show int_0190…'),
    resolve,
  ]);
