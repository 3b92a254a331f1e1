import type * as Prompts from '@clack/prompts';
import { interruptedError } from './http.js';
import { type Io, printable } from './io.js';

// Questions stand on standard error, so that results can be piped on; the library is loaded when one is asked.

async function asked<T>(
  io: Io,
  ask: (
    prompts: typeof Prompts,
    common: { input: Io['stdin']; output: Io['stderr']; signal: AbortSignal },
  ) => Promise<T>,
): Promise<Exclude<T, symbol>> {
  const prompts = await import('@clack/prompts');
  const answer = await ask(prompts, { input: io.stdin, output: io.stderr, signal: io.interrupted });
  if (prompts.isCancel(answer)) throw interruptedError();
  return answer as Exclude<T, symbol>;
}

/** Yes or no; no is the default. */
export function confirm(io: Io, question: string): Promise<boolean> {
  return asked(io, ({ confirm: ask }, common) =>
    ask({ message: printable(question), initialValue: false, ...common }),
  );
}

/** One line of text; `check` says what is wrong with it. */
export function askText(
  io: Io,
  question: string,
  check: (text: string) => string | undefined,
  initialValue = '',
): Promise<string> {
  return asked(io, ({ text }, common) =>
    text({ message: printable(question), initialValue, validate: (value) => check(value ?? ''), ...common }),
  );
}

/** One of several. */
export function askChoice(io: Io, question: string, choices: readonly string[]): Promise<string> {
  return asked(io, ({ select }, common) =>
    select({
      message: printable(question),
      options: choices.map((value) => ({ value, label: printable(value) })),
      ...common,
    }),
  );
}
