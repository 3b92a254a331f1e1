import { CommanderError } from 'commander';
import { CliError, type Exit, EXITS, jsonOf, linesOf } from './failures.js';
import { colorsOf, type Io, writeTo } from './io.js';
import { createProgram } from './program.js';

/** Carries out one command line. @returns what the process ends with */
export async function runCli(args: readonly string[], io: Io): Promise<number> {
  let exit: Exit = 'ok';
  const program = createProgram({ io, end: (how) => (exit = how) });
  try {
    await program.parseAsync([...args], { from: 'user' });
    return EXITS[exit].code;
  } catch (error) {
    // Help that was asked for is no failure; what commander says of a command line it has said already.
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXITS.ok.code : EXITS.usage.code;
    if (!(error instanceof CliError)) throw error;
    await tell(io, error, args.includes('--json'));
    return EXITS[error.exit].code;
  }
}

async function tell(io: Io, error: CliError, json: boolean): Promise<void> {
  const red = colorsOf(io, 'stderr').red;
  const lines = json ? [JSON.stringify(jsonOf(error))] : linesOf(error);
  for (const [index, line] of lines.entries()) {
    await writeTo(io.stderr, `${index === 0 && !json ? red(line) : line}\n`);
  }
}
