import { readFile } from 'node:fs/promises';
import { isMap, isPair, isScalar, isSeq, LineCounter, parseDocument } from 'yaml';
import type { Document, Pair } from 'yaml';
import type { ProjectProblem } from './project-error.js';

/** Where in a value something stands: member names and indexes from the root. */
export type ValuePath = readonly (string | number)[];

/** A YAML file with the position of everything in it. */
export interface YamlFile {
  /** The path as it is shown to a reader. */
  readonly file: string;
  readonly value: unknown;
  /** A problem at a place in the file, or at the nearest place above it that is there. */
  problemAt(path: ValuePath, message: string): ProjectProblem;
}

/** Larger files are no project files. */
const FILE_BYTES_MAX = 4 * 1024 * 1024;

/** Reads a YAML file, or says what is wrong with it as a whole: missing, too large, or no YAML. */
export async function readYamlFile(path: string, file: string): Promise<YamlFile | ProjectProblem[]> {
  const text = await readTextFile(path, file);
  if (typeof text !== 'string') return [text];
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false, uniqueKeys: true });
  if (document.errors.length > 0) {
    return document.errors.map((error) => {
      const { line, col } = lines.linePos(error.pos[0]);
      return { file, line, column: col, message: `${firstLine(error.message)} — correct the YAML` };
    });
  }
  const problemAt = (at: ValuePath, message: string): ProjectProblem => {
    const offset = offsetOf(document, at);
    const { line, col } = lines.linePos(offset);
    return { file, line: Math.max(1, line), column: Math.max(1, col), message };
  };
  try {
    return { file, value: document.toJS({ maxAliasCount: 100 }) as unknown, problemAt };
  } catch (error) {
    // The only way here is a file whose aliases multiply past all measure.
    const why = error instanceof Error ? firstLine(error.message) : String(error);
    return [problemAt([], `${why} — write it out without so many aliases`)];
  }
}

/** Reads a text file of a project, or says why it cannot be read. */
export async function readTextFile(path: string, file: string): Promise<string | ProjectProblem> {
  try {
    const bytes = await readFile(path);
    if (bytes.byteLength > FILE_BYTES_MAX) {
      return {
        file,
        line: 1,
        column: 1,
        message: `it is larger than ${FILE_BYTES_MAX} bytes — make it smaller`,
      };
    }
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (error) {
    return { file, line: 1, column: 1, message: unreadable(error) };
  }
}

function unreadable(error: unknown): string {
  const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown error';
  if (code === 'ENOENT') return 'there is no such file — create it or correct the path that leads here';
  if (code === 'ERR_ENCODING_INVALID_ENCODED_DATA') return 'it is no UTF-8 text — save it as UTF-8';
  return `it cannot be read (${code}) — see to it that it can`;
}

/** A scalar's own place; for a map or list the place of its name, since it begins on the next line. */
function offsetOf(document: Document, path: ValuePath): number {
  let node: unknown = document.contents;
  let offset = startOf(node) ?? 0;
  for (const part of path) {
    if (isMap(node)) {
      const pair = node.items.find((each) => isPair(each) && keyOf(each) === String(part));
      if (pair === undefined) return offset;
      node = pair.value;
      offset = (isScalar(node) ? startOf(node) : startOf(pair.key)) ?? offset;
    } else if (isSeq(node)) {
      node = node.items[Number(part)];
      offset = startOf(node) ?? offset;
    } else {
      return offset;
    }
  }
  return offset;
}

function keyOf(pair: Pair): string {
  return isScalar(pair.key) ? String(pair.key.value) : String(pair.key);
}

function startOf(node: unknown): number | undefined {
  const range = typeof node === 'object' && node !== null && 'range' in node ? node.range : undefined;
  return Array.isArray(range) ? (range[0] as number) : undefined;
}

function firstLine(text: string): string {
  return text.split('\n', 1)[0] ?? text;
}
