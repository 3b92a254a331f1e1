import { Argument, Option } from 'commander';
import { usageError } from '../failures.js';
import { wholeNumber } from '../read-value.js';

/** The run that a command is about. */
export const RUN = new Argument('<run>', 'the id of the run, run_…');

/** How many rows of a list are wanted; more than a page's worth is read page by page. */
export const LIMIT = new Option('-n, --limit <number>', 'at most so many')
  .argParser(wholeNumber(1, 1_000_000))
  .default(50);

/** The path of one thing; an id that could not stand in a path is none. */
export function pathOf(collection: string, id: string | undefined, rest = ''): string {
  if (id === undefined || !/^[A-Za-z0-9_-]{1,100}$/.test(id)) {
    throw usageError(`${id ?? 'nothing'} is not an id such as the lists show.`);
  }
  return `/v1/${collection}/${id}${rest}`;
}
