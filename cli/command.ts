import { type Argument, Command, type Option } from 'commander';
import type { Exit } from './failures.js';
import type { Io } from './io.js';
import { headerText } from './read-value.js';
import { openSession, type Session } from './session.js';

/** What every command is made with. */
export interface Cli {
  readonly io: Io;
  /** Takes how the command ended. */
  readonly end: (exit: Exit) => void;
}

/** One file of `cli/commands` gives one of these: the group, made for this invocation. */
export type CommandGroup = (cli: Cli) => Command;

/** One command, as data. */
export interface CommandSpec {
  readonly name: string;
  readonly summary: string;
  /** What is worth knowing beyond the summary. */
  readonly description?: string;
  readonly args?: readonly Argument[];
  readonly options?: readonly Option[];
  /** Command lines without the program's name. */
  readonly examples: readonly string[];
  /** It changes something: takes `--key`; and `--yes`, where it asks first. */
  readonly changes?: 'asks' | 'at_once';
  /** Carries it out; an exit other than `ok` where the end of something says so. */
  run(session: Session, args: readonly string[], options: never): Promise<Exit | void>;
}

/** A group of commands: `holdfast runs …`. */
export function group(cli: Cli, name: string, summary: string, specs: readonly CommandSpec[]): Command {
  const made = new Command(name).summary(summary).description(`${summary}.`);
  for (const spec of specs) made.addCommand(commandOf(cli, spec));
  return made;
}

/** One command that a spec describes. */
export function commandOf(cli: Cli, spec: CommandSpec): Command {
  const made = new Command(spec.name).summary(spec.summary);
  made.description([`${spec.summary}.`, spec.description].filter((text) => text !== undefined).join('\n\n'));
  for (const argument of spec.args ?? []) made.addArgument(argument);
  for (const option of spec.options ?? []) made.addOption(option);
  if (spec.changes !== undefined) {
    made.addOption(
      made
        .createOption('--key <key>', 'the idempotency key of the request: ask again with the same')
        .argParser(headerText(255)),
    );
  }
  if (spec.changes === 'asks') made.option('-y, --yes', 'do it without being asked');
  made.addHelpText('after', `\nExamples:\n${spec.examples.map((line) => `  $ holdfast ${line}\n`).join('')}`);
  made.action(async (...given: unknown[]) => {
    const session = openSession(cli.io, made);
    const args = given.slice(0, spec.args?.length ?? 0).map((value) => value as string);
    cli.end((await spec.run(session, args, made.opts() as never)) ?? 'ok');
  });
  return made;
}
