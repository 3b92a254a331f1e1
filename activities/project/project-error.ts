/** One thing wrong with a project: where, and in words what and what to do. */
export interface ProjectProblem {
  /** As a reader of the message finds it: beside the project file's own path as it was given. */
  readonly file: string;
  /** From 1. */
  readonly line: number;
  /** From 1. */
  readonly column: number;
  /** `what was wrong — what to do` */
  readonly message: string;
}

/** A project cannot be loaded. Its message lists every problem, one line each, in the order of the files. */
export class ProjectError extends Error {
  readonly code = 'project_invalid';
  readonly problems: readonly ProjectProblem[];

  constructor(problems: readonly ProjectProblem[]) {
    super(problems.map(problemLine).join('\n'));
    this.name = 'ProjectError';
    this.problems = problems;
  }
}

function problemLine(problem: ProjectProblem): string {
  return `${problem.file}:${problem.line}:${problem.column}  ${problem.message}`;
}
