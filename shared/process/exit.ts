/**
 * A start that cannot go on, for a reason the reader can mend: a bad setting, a port in use, a server
 * that does not answer. Printed as its lines alone, without a stack, and ends the process with code 1.
 */
export class StartError extends Error {
  override readonly name = 'StartError';
  /** One line a problem: what happened, to which thing, and what to do. */
  readonly problems: readonly string[];

  constructor(problems: string | readonly string[], options?: ErrorOptions) {
    const lines = typeof problems === 'string' ? [problems] : problems;
    super(lines.join('\n'), options);
    this.problems = lines;
  }
}

/** How long an ended process waits for what is still open to close by itself, in milliseconds. */
const LINGER_MS = 1_000;

/**
 * Runs an entry point to its end. A `StartError` becomes its own lines on stderr, anything else its
 * stack, since it is a bug; either way the exit code is 1. Set `process.exitCode` for other codes.
 */
export function runMain(name: string, main: () => Promise<void>): void {
  main().then(
    // A socket whose peer says nothing any more would keep the process for as long as the system probes it.
    () => void setTimeout(() => process.exit(), LINGER_MS).unref(),
    (error: unknown) => {
      process.exitCode = 1;
      for (const line of describeFailure(error)) process.stderr.write(`${name}: ${line}\n`);
      // What an unfinished start still holds open (sockets, children's pipes) must not keep the process.
      process.exit();
    },
  );
}

/** The lines that tell a person why a start failed; a stack only where it is a bug. */
export function describeFailure(error: unknown): readonly string[] {
  if (error instanceof StartError) return error.problems;
  if (error instanceof Error) return [error.stack ?? error.message];
  return [String(error)];
}
