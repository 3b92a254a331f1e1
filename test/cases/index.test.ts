import { readdirSync, readFileSync } from 'node:fs';
import ts from 'typescript';
import { expect, test } from 'vitest';

// Goal: each case from the field and each fault that issues 3 to 5 name is a test that says its number, and README.md says
// where, or why not. Method: the titles of every test, read from the source, against the table.

const ROOT = new URL('../../', import.meta.url);

/** 7 for a case, `A07` for a fault; `A01-A03` is a row of them. */
const ISSUES = {
  3: {
    cases: '1-14 40 41 48 50 51 53 54 68 70 71 87-89 92-99',
    faults: 'A01-A23 B01-B05 C01-C05 C11 C15 C17 D01 D03-D06 D13 F01-F10 G01-G06',
  },
  4: {
    cases: '15-39 42-47 66 67 72 85 86 90 101 102 107-110',
    faults: 'A22-A26 B12 D08-D14 E01-E22 S10 S13',
  },
  5: { cases: '49 52 55-65 68 69 79-86 91 100 103-105', faults: 'G06-G13 H01-H07' },
} as const;

const WANTED = new Set(
  Object.values(ISSUES).flatMap(({ cases, faults }) => [
    ...numbersIn(cases).map((number) => `case ${number}`),
    ...numbersIn(faults),
  ]),
);

function numbersIn(text: string): string[] {
  return text.split(' ').flatMap((range) => {
    const [first = '', last = first] = range.split('-');
    const letter = /^[A-Z]?/.exec(first)?.[0] ?? '';
    const [from, to] = [first, last].map((each) => Number(each.slice(letter.length)));
    const digits = letter === '' ? 1 : 2;
    return Array.from(
      { length: to! - from! + 1 },
      (_, n) => letter + String(from! + n).padStart(digits, '0'),
    );
  });
}

/** What the table says of each number: the files that try it, or why none does. */
function readTable(): Map<string, { readonly files: readonly string[]; readonly why: string }> {
  const rows = readFileSync(new URL('test/cases/README.md', ROOT), 'utf8').matchAll(
    /^\| *(case \d+|[A-Z]\d\d) *\| *(.*?) *\|$/gm,
  );
  return new Map(
    [...rows].map(([, number = '', where = '']) => {
      const files = [...where.matchAll(/`([^`]+\.ts)`/g)].map(([, file = '']) => file);
      return [number, { files, why: files.length === 0 ? where : '' }];
    }),
  );
}

const read = new Map<string, string[]>();

/** The titles of the tests and groups of a file. */
function titlesOf(file: string): string[] {
  const known = read.get(file);
  if (known !== undefined) return known;
  const source = ts.createSourceFile(file, readFileSync(new URL(file, ROOT), 'utf8'), ts.ScriptTarget.Latest);
  const titles: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isCallExpression(node)) {
      const [title] = node.arguments;
      if (title !== undefined && ts.isStringLiteralLike(title) && isOfTest(node.expression))
        titles.push(title.text);
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  read.set(file, titles);
  return titles;
}

/** `test`, `describe`, and what is made of them: `test.each(…)`, `test.concurrent`. */
function isOfTest(node: ts.Expression): boolean {
  if (ts.isIdentifier(node)) return node.text === 'test' || node.text === 'describe';
  return (ts.isPropertyAccessExpression(node) || ts.isCallExpression(node)) && isOfTest(node.expression);
}

function numbersNamed(title: string): string[] {
  return [...title.matchAll(/\bcase \d+\b|\b[A-HS]\d\d\b/g)].map(([number]) => number);
}

const TABLE = readTable();

test('every case and fault of issues 3 to 5 stands in the table, once', () => {
  const rows = readFileSync(new URL('test/cases/README.md', ROOT), 'utf8').match(
    /^\| *(case \d+|[A-Z]\d\d) /gm,
  );
  expect([...TABLE.keys()].toSorted()).toStrictEqual([...WANTED].toSorted());
  expect(rows).toHaveLength(TABLE.size);
});

test('each is named by a test of every file that the table gives, or has its reason', () => {
  const missing: string[] = [];
  for (const [number, { files, why }] of TABLE) {
    if (files.length === 0 && why.length < 20) missing.push(`${number}: neither a file nor a reason`);
    for (const file of files) {
      const isNamed = titlesOf(file).some((title) => numbersNamed(title).includes(number));
      if (!isNamed) missing.push(`${number}: no test of ${file} names it`);
    }
  }
  expect(missing).toStrictEqual([]);
});

test('what has a reason has no test, so that a reason goes when its test comes', () => {
  const named = new Set(
    ['test/', 'test/cases/', 'test/support/'].flatMap((folder) =>
      readdirSync(new URL(folder, ROOT))
        .filter((name) => name.endsWith('.ts') && name !== 'index.test.ts')
        .flatMap((name) => titlesOf(`${folder}${name}`).flatMap(numbersNamed)),
    ),
  );
  const reasoned = [...TABLE].filter(([, { files }]) => files.length === 0).map(([number]) => number);
  expect(reasoned.filter((number) => named.has(number))).toStrictEqual([]);
});
