import { REQUEST_LOG } from './run-checks.js';

/** A tool call of a script; the input as its note, unless other arguments are given. */
export function call(name: string, args: Readonly<Record<string, unknown>> = { note: '{{input}}' }) {
  return { name, arguments: args };
}

/** A reply that makes these calls; a tool's name stands for the usual call of it. */
export function reply(...calls: readonly (string | Readonly<Record<string, unknown>>)[]) {
  return { toolCalls: calls.map((each) => (typeof each === 'string' ? call(each) : each)) };
}

/** The last word of a run. */
export const DONE = { text: 'Done.' };

/** What the model answers where the input's first word is `word`, reply by reply. */
export function when(word: string, ...replies: readonly Readonly<Record<string, unknown>>[]) {
  return { name: word, when: { inputMatches: `^${word}\\b` }, replies };
}

/** A script that logs every request for `modelRequests`, and goes by the newest message of the user. */
export function script(...scenarios: readonly Readonly<Record<string, unknown>>[]) {
  return { log: REQUEST_LOG, counts: 'turn', scenarios };
}
