import { dirname, join, resolve } from 'node:path';
import { readDeclaration } from '../tools/declaration.js';
import type { DeclarationProblem } from '../tools/declaration.js';
import { expandEnv } from '../tools/expand.js';
import type { LookUp } from '../tools/expand.js';
import { ProjectError } from './project-error.js';
import type { ProjectProblem } from './project-error.js';
import { projectSchema } from './project-format.js';
import type { ProjectFile } from './project-format.js';
import { readYamlFile } from './yaml-file.js';
import type { ValuePath, YamlFile } from './yaml-file.js';

/** Variables as a process has them. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** A project file that was read, with all that is needed to read the files it names. */
export interface ProjectSource {
  readonly yaml: YamlFile;
  readonly declared: ProjectFile;
  /** Absolute folder of the project file. */
  readonly dir: string;
  readonly env: LookUp;
  /** Filled while the project is read, so that one start shows everything. */
  readonly problems: ProjectProblem[];
  /** Absolute path of a file that the project names. */
  pathOf(name: string): string;
  /** The same path as a reader is shown it. */
  shownPathOf(name: string): string;
  /** Notes a problem at a place in the project file. */
  problem(path: ValuePath, message: string): void;
}

/**
 * Reads a project file and checks its form. What it names is not read yet.
 *
 * @throws ProjectError when the file cannot be read or its form is wrong
 */
export async function readProjectSource(path: string, env: Environment): Promise<ProjectSource> {
  const yaml = await readYamlFile(resolve(path), path);
  if (Array.isArray(yaml)) throw new ProjectError(yaml);
  const read = readDeclaration(projectSchema, yaml.value);
  if (!read.ok) throw new ProjectError(read.problems.map((each) => problemIn(yaml, [], each)));
  const problems: ProjectProblem[] = [];
  const dir = dirname(resolve(path));
  return {
    yaml,
    declared: read.value,
    dir,
    env: (name) => env[name],
    problems,
    pathOf: (name) => resolve(dir, name),
    shownPathOf: (name) => join(dirname(path), name),
    problem: (at, message) => problems.push(yaml.problemAt(at, message)),
  };
}

/** A declaration's problem at its place in a file. */
export function problemIn(yaml: YamlFile, under: ValuePath, problem: DeclarationProblem): ProjectProblem {
  return yaml.problemAt([...under, ...problem.path], problem.message);
}

/** Fills `${env:…}` in a text of the project file; a missing variable is noted, and the text stays. */
export function fillEnv(source: ProjectSource, at: ValuePath, text: string): string {
  const filled = expandEnv(text, source.env);
  if (filled.ok) return filled.value;
  source.problem(at, filled.message);
  return text;
}
