import { setTimeout as pause } from 'node:timers/promises';
import { Option } from 'commander';
import type { Command } from '../api-types.js';
import type { CommandSpec } from '../command.js';
import { CliError, type Exit } from '../failures.js';
import { interruptedError } from '../http.js';
import { factsOf, timeOf } from '../output.js';
import { wholeNumber } from '../read-value.js';
import type { Session } from '../session.js';
import { pathOf, RUN } from './shared.js';

interface ControlOptions {
  readonly reason?: string;
  readonly expectVersion?: number;
  readonly compensate?: boolean;
  readonly wait?: boolean;
}

const OPTIONS = [
  new Option('-r, --reason <text>', 'why, for whoever reads the trail'),
  new Option(
    '--expect-version <number>',
    'refuse when the run has moved on from this state version',
  ).argParser(wholeNumber(1, Number.MAX_SAFE_INTEGER)),
  new Option('-w, --wait', 'wait until the run has carried it out'),
];

const IN_FORCE = 'It is in force as soon as it is accepted; the run carries it out at its next safe point.';

/** `holdfast runs pause`. */
export const pauseRun: CommandSpec = {
  name: 'pause',
  summary: 'Pause a run',
  description: `Nothing new is begun; what is in flight settles first. ${IN_FORCE}`,
  args: [RUN],
  options: OPTIONS,
  examples: ['runs pause run_0190…', 'runs pause run_0190… --reason "a look at the order" --wait'],
  changes: 'at_once',
  run: (session, [runId], options: ControlOptions) => submit(session, runId, 'pause', options),
};

/** `holdfast runs resume`. */
export const resumeRun: CommandSpec = {
  name: 'resume',
  summary: 'Resume a paused run',
  description: IN_FORCE,
  args: [RUN],
  options: OPTIONS,
  examples: ['runs resume run_0190…'],
  changes: 'at_once',
  run: (session, [runId], options: ControlOptions) => submit(session, runId, 'resume', options),
};

/** `holdfast runs cancel`. */
export const cancelRun: CommandSpec = {
  name: 'cancel',
  summary: 'Cancel a run',
  description: `What it did stays done, unless --compensate asks for it to be undone. It cannot be taken back. ${IN_FORCE}`,
  args: [RUN],
  options: [...OPTIONS, new Option('--compensate', 'undo what the run did, as its tools declare')],
  examples: ['runs cancel run_0190…', 'runs cancel run_0190… --compensate --yes --wait'],
  changes: 'asks',
  async run(session, [runId], options: ControlOptions) {
    const what = options.compensate === true ? 'and undo what it did' : 'and leave what it did';
    await session.confirm(`Cancel ${runId ?? ''} ${what}?`);
    return await submit(session, runId, 'cancel', options);
  },
};

async function submit(
  session: Session,
  runId: string | undefined,
  kind: 'pause' | 'resume' | 'cancel',
  options: ControlOptions,
): Promise<Exit> {
  const { reason, expectVersion, compensate } = options;
  const body = {
    kind,
    ...(reason === undefined ? {} : { reason }),
    ...(expectVersion === undefined ? {} : { expected_state_version: expectVersion }),
    ...(compensate === true ? { compensate } : {}),
  };
  const path = pathOf('runs', runId, '/commands');
  const sent = await session.api.post<Command>(path, body, await session.key());
  const command = options.wait === true ? await decided(session, sent.body) : sent.body;
  await session.out.one(command, factsOfCommand);
  return command.fate === 'accepted' || command.fate === 'applied' ? 'ok' : 'failed';
}

const LOOK_MS = 500;

async function decided(session: Session, sent: Command): Promise<Command> {
  const progress = session.progress(`the ${sent.kind} is in force; the run has yet to carry it out`);
  try {
    let command = sent;
    while (command.fate === 'accepted') {
      await pause(LOOK_MS, undefined, { signal: session.io.interrupted }).catch(() => {
        throw interruptedError();
      });
      command = await session.api.get<Command>(pathOf('commands', sent.command_id));
    }
    return command;
  } catch (error) {
    if (!(error instanceof CliError) || error.exit === 'interrupted') throw error;
    // What was asked for is in force whether or not it can be looked at.
    const message = `${sent.command_id} is accepted, and cannot be looked at now: ${error.message}`;
    throw new CliError(error.exit, error.code, message, error.problem);
  } finally {
    progress.stop();
  }
}

const factsOfCommand = (command: Command): string[] =>
  factsOf({
    command: command.command_id,
    kind: command.kind + (command.compensate ? ', with compensation' : ''),
    run: command.run_id,
    fate: command.fate + (command.code === null ? '' : ` (${command.code})`),
    'sent by': `${command.actor_id}, as ${command.authority}`,
    'met the run': `${command.state}, control ${command.control}`,
    sent: timeOf(command.created_at),
    decided: timeOf(command.decided_at),
  });
