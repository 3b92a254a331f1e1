import { PassThrough, Readable } from 'node:stream';
import type { Command, Option } from 'commander';
import { markdownTable } from '../shared/domain/markdown-table.js';
import { EXITS } from './failures.js';
import type { Io } from './io.js';
import { createProgram } from './program.js';

const INTRO = `# The command line

<!-- Written by \`npm run docs:write\` from the program itself; test/cli.test.ts compares. -->

\`npx holdfast\` in the clone, after \`npm ci\`. It speaks to the HTTP API and to nothing else.

- **Tables for people, JSON for pipes.** On a terminal results are tables and lines; in a pipe, and with \`--json\`, they are JSON
  lines as the API gives them: one object a line. Everything else (keys, progress, questions, failures) goes to standard error.
- **Done once.** Each change carries an idempotency key, made anew and shown before it is sent. What is not answered is asked
  again under the same key and under no other, until \`--timeout\`; after that the exit code is 5, and the same command with
  \`--key\` asks again, whenever that is.
- **Asked first.** What decides or ends something is shown and asked about. Where nobody can be asked, \`--yes\` is needed, and
  a decision on a wait names what was looked at (\`--scope\`).
- **Followed to the end.** \`runs watch\` shows every event once and in order, through restarts of the API. Watching changes nothing.
- A failure is told as its code, what was wrong and what to do; with \`--json\` as one JSON line.
`;

/** docs/cli.md. */
export function cliPage(): string {
  const program = createProgram({ io: NOWHERE, end: () => undefined });
  const exits = Object.values(EXITS).map(({ code, means }) => [String(code), means]);
  return [
    INTRO,
    '## Exit codes\n',
    tableOf([['code', 'means'], ...exits]),
    '## Options of every command\n',
    optionsOf(program.options),
    ...program.commands.filter((command) => !command.name().startsWith('_')).flatMap(sectionOf),
  ]
    .join('\n')
    .trimEnd()
    .concat('\n');
}

function sectionOf(command: Command): string[] {
  const leaves = command.commands.length === 0 ? [command] : command.commands;
  return [
    `## ${command.name()}\n`,
    ...(command.commands.length === 0 ? [] : [`${command.description()}\n`]),
    ...leaves.flatMap((leaf) => [
      `### ${pathOf(leaf)}\n`,
      `${leaf.description()}\n`,
      ...(leaf.options.length === 0 ? [] : [optionsOf(leaf.options)]),
      `${examplesOf(leaf)}\n`,
    ]),
  ];
}

function pathOf(leaf: Command): string {
  const args = leaf.registeredArguments.map((argument) => ` <${argument.name()}>`).join('');
  const group = leaf.parent?.parent == null ? '' : `${leaf.parent.name()} `;
  return `holdfast ${group}${leaf.name()}${args}`;
}

function optionsOf(options: readonly Option[]): string {
  const rows = options.map((option) => [`\`${option.flags.replaceAll('|', '\\|')}\``, describe(option)]);
  return tableOf([['option', 'means'], ...rows]);
}

const tableOf = (rows: readonly (readonly string[])[]): string => `${markdownTable(rows).join('\n')}\n`;

function describe({ description, argChoices, defaultValue, envVar }: Option): string {
  return [
    description,
    ...(argChoices === undefined ? [] : [`one of ${argChoices.join(', ')}`]),
    ...(defaultValue === undefined || String(defaultValue) === '' ? [] : [`default ${String(defaultValue)}`]),
    ...(envVar === undefined ? [] : [`or \`${envVar}\``]),
  ].join('; ');
}

/** The examples that stand in the help, indented as code. */
function examplesOf(leaf: Command): string {
  let help = '';
  leaf.configureOutput({ writeOut: (text) => (help += text) }).outputHelp();
  const [, examples = ''] = help.split('\nExamples:\n');
  return examples
    .trim()
    .split('\n')
    .map((line) => `    ${line.trim().replace(/^\$ /, '')}`)
    .join('\n');
}

/** A program that only describes itself writes nowhere and reads nothing. */
const NOWHERE: Io = {
  ...{ stdin: Readable.from([]), stdout: new PassThrough(), stderr: new PassThrough(), env: {} },
  interrupted: new AbortController().signal,
};
