import type { Problem } from './api-types.js';

/** What the program ends with; docs/cli.md is made from this. Never renumbered: scripts rely on them. */
export const EXITS = {
  ok: { code: 0, means: 'Done. Of a run that was followed: it is `completed`.' },
  failed: { code: 1, means: 'What was asked for failed. Of a run that was followed: it is `failed`.' },
  usage: {
    code: 2,
    means: 'The command line cannot be understood, or wants a yes that nobody can give here.',
  },
  not_reachable: {
    code: 3,
    means: 'The API cannot be reached, or cannot answer now. Nothing was changed; try again.',
  },
  refused: { code: 4, means: 'The API refused, and says why. Nothing was changed.' },
  unclear: {
    code: 5,
    means: 'A change was sent and never answered: it may have happened. Ask again with the `--key` shown.',
  },
  compensated: { code: 10, means: 'The run that was followed is `compensated`: what it did was undone.' },
  cancelled: { code: 11, means: 'The run that was followed is `cancelled`.' },
  interrupted: { code: 130, means: 'Ctrl-C. A run goes on whoever watches.' },
} as const;
export type Exit = keyof typeof EXITS;

/** A failure that the program expects, with all that is told about it. */
export class CliError extends Error {
  override readonly name = 'CliError';
  readonly exit: Exit;
  /** The problem's code, or one of this program's own. */
  readonly code: string;
  readonly problem: Problem | null;

  /** `message` says what was wrong and what to do. */
  constructor(exit: Exit, code: string, message: string, problem: Problem | null = null) {
    super(message);
    this.exit = exit;
    this.code = code;
    this.problem = problem;
  }
}

/** A command line that cannot be understood, or that must not be carried out as it stands. */
export const usageError = (message: string): CliError => new CliError('usage', 'usage', message);

/** The lines for a person: the code, what was wrong, each fault, and the name of the occurrence. */
export function linesOf(error: CliError): string[] {
  const faults = error.problem?.errors ?? [];
  return [
    `holdfast: ${error.code}: ${error.message}`,
    ...faults.map(({ at, problem }) => `  ${at}: ${problem}`),
    ...(error.problem === null ? [] : [`  occurrence: ${error.problem.instance}`]),
  ];
}

/** The same for a program: the problem as the API gave it, or as much of one. */
export function jsonOf(error: CliError): unknown {
  return {
    error: error.problem ?? { code: error.code, detail: error.message },
    exit: EXITS[error.exit].code,
  };
}
