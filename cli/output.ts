import { colorsOf, type Io, printable, writeTo } from './io.js';

/** One column of a table: its title, and how a row fills it. */
export interface Column<Row> {
  readonly title: string;
  readonly of: (row: Row) => string;
}

/** How results are told: JSON lines for programs, tables and lines for people. */
export interface Output {
  /** What was asked for by `--json` or `--table`, else by whether standard output is a terminal. */
  readonly json: boolean;
  /** One thing: a JSON line, or for people the lines that `lines` makes. */
  one<T>(value: T, lines: (value: T) => readonly string[]): Promise<void>;
  /** Many things: a JSON line each as they come, or a table at the end of each page of them. */
  many<T>(rows: AsyncIterable<T>, columns: readonly Column<T>[], none: string): Promise<void>;
  /** A line for people alone; nothing in JSON. */
  say(line: string): Promise<void>;
  /** A line on standard error, in either form. */
  note(line: string): Promise<void>;
}

// A table is made whole: as many rows as are looked at together. The next ones make the next table.
const TABLE_ROWS = 100;

export function createOutput(io: Io, form: { readonly json?: boolean; readonly table?: boolean }): Output {
  const json = form.json === true || (form.table !== true && io.stdout.isTTY !== true);
  const line = (text: string): Promise<void> => writeTo(io.stdout, `${text}\n`);
  const output: Output = {
    json,
    async one(value, lines) {
      if (json) await line(JSON.stringify(value));
      else for (const each of lines(value)) await line(each);
    },
    async many(rows, columns, none) {
      let page: unknown[] = [];
      let count = 0;
      for await (const row of rows) {
        count += 1;
        if (json) await line(JSON.stringify(row));
        else if (page.push(row) === TABLE_ROWS) {
          await line(await tableOf(io, page as never[], columns));
          page = [];
        }
      }
      if (page.length > 0) await line(await tableOf(io, page as never[], columns));
      if (count === 0 && !json) await line(none);
    },
    async say(text) {
      if (!json) await line(text);
    },
    note: (text) => writeTo(io.stderr, `${text}\n`),
  };
  return output;
}

const NO_BORDERS = Object.fromEntries(
  ['top', 'bottom', 'left', 'right', 'mid'].flatMap((side) =>
    ['', '-mid', '-left', '-right'].map((end) => [side + end, '']),
  ),
);

async function tableOf<Row>(io: Io, rows: readonly Row[], columns: readonly Column<Row>[]): Promise<string> {
  const { default: Table } = await import('cli-table3');
  const colors = colorsOf(io, 'stdout');
  const table = new Table({
    head: columns.map(({ title }) => colors.dim(title)),
    chars: { ...NO_BORDERS, 'mid-mid': '', 'left-mid': '', 'right-mid': '', middle: '  ' },
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0, compact: true },
  });
  for (const row of rows) table.push(columns.map(({ of }) => printable(of(row)).replaceAll('\n', ' ')));
  return table
    .toString()
    .split('\n')
    .map((text) => text.trimEnd())
    .join('\n');
}

/** `name  value` lines, values below each other; nulls are left out. */
export function factsOf(facts: Readonly<Record<string, string | number | null | undefined>>): string[] {
  const told = Object.entries(facts).filter(
    ([, value]) => value !== null && value !== undefined && value !== '',
  );
  const width = Math.max(0, ...told.map(([name]) => name.length));
  return told.map(([name, value]) => `${name.padEnd(width)}  ${indented(String(value), width + 2)}`);
}

const indented = (text: string, by: number): string =>
  printable(text)
    .split('\n')
    .join(`\n${' '.repeat(by)}`);

/** JSON as people read it. */
export const pretty = (value: unknown): string => JSON.stringify(value, null, 2) ?? '';

/** `2026-11-30 14:01:07`, in UTC as the API has it. */
export const timeOf = (at: string | null): string => (at === null ? '' : at.slice(0, 19).replace('T', ' '));
