import { readFile } from 'node:fs/promises';
import { text as textOf } from 'node:stream/consumers';
import { InvalidArgumentError } from 'commander';
import { usageError } from './failures.js';
import type { Io } from './io.js';

/** The text that an option names: itself, `@file`, or `-` for standard input. */
export async function readText(io: Io, value: string): Promise<string> {
  if (value === '-') return await textOf(io.stdin);
  if (!value.startsWith('@')) return value;
  try {
    return await readFile(value.slice(1), 'utf8');
  } catch (error) {
    throw usageError(
      `${value.slice(1)} cannot be read (${(error as NodeJS.ErrnoException).code ?? 'failed'}).`,
    );
  }
}

/** The JSON that an option names in any of these ways. `what` names the option. */
export async function readJson(io: Io, value: string, what: string): Promise<unknown> {
  const text = await readText(io, value);
  try {
    return JSON.parse(text);
  } catch (error) {
    throw usageError(`${what} is not JSON: ${(error as Error).message}.`);
  }
}

/** Reads a whole number from `min` to `max`. */
export const wholeNumber =
  (min: number, max: number) =>
  (text: string): number => {
    const number = Number(text);
    if (/^[0-9]+$/.test(text) && number >= min && number <= max) return number;
    throw new InvalidArgumentError(`Give a whole number from ${min} to ${max}.`);
  };

/** Refuses what is not printable ASCII without spaces, as a header must be. */
export function headerText(charactersMax: number): (text: string) => string {
  return (text) => {
    if (/^[!-~]+$/.test(text) && text.length <= charactersMax) return text;
    throw new InvalidArgumentError(`Give 1 to ${charactersMax} printable ASCII characters without spaces.`);
  };
}
