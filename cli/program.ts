import { Command, Option } from 'commander';
import type { Cli } from './command.js';
import { candidates, COMPLETE } from './commands/completion.js';
import { GROUPS } from './commands/index.js';
import { writeTo } from './io.js';
import { headerText, wholeNumber } from './read-value.js';

/** Columns that help is written to where no terminal says how wide it is. */
const WIDTH = 100;

/** The whole program, made for one invocation. */
export function createProgram(cli: Cli): Command {
  const { io } = cli;
  const program = new Command('holdfast');
  program
    .description('Start, follow and steer the runs of AI agents, over the HTTP API of Holdfast.')
    .addOption(new Option('--api <url>', 'where the API is').env('HOLDFAST_API'))
    .addOption(
      new Option('--actor <name>', 'who you are, where the API believes it')
        .env('HOLDFAST_ACTOR')
        .argParser(headerText(200)),
    )
    .option('--json', 'JSON lines, as in a pipe')
    .option('--table', 'tables, as on a terminal')
    .addOption(
      new Option('--timeout <seconds>', 'how long a request may take, asking again included')
        .argParser(wholeNumber(1, 3_600))
        .default(30),
    )
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .addHelpText('after', '\nExit codes, and more examples: docs/cli.md');
  for (const make of GROUPS) program.addCommand(make(cli));
  const complete = new Command(COMPLETE).argument('[words...]').allowUnknownOption();
  complete.action(async (words: string[]) => {
    await writeTo(
      io.stdout,
      candidates(program, words)
        .map((word) => `${word}\n`)
        .join(''),
    );
    cli.end('ok');
  });
  program.addCommand(complete, { hidden: true });
  for (const command of everyCommand(program)) {
    command.exitOverride().configureOutput({
      writeOut: (text) => void io.stdout.write(text),
      writeErr: (text) => void io.stderr.write(text),
      outputError: (text, write) => write(text.replace(/^error: /, 'holdfast: usage: ')),
      getOutHelpWidth: () => io.stdout.columns ?? WIDTH,
      getErrHelpWidth: () => WIDTH,
    });
    command.configureHelp({ showGlobalOptions: command.parent !== null });
  }
  return program;
}

function* everyCommand(command: Command): Generator<Command> {
  yield command;
  for (const sub of command.commands) yield* everyCommand(sub);
}
