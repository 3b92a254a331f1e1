import type { JsonObject, JsonValue } from '../shared/domain/json.js';
import { canonicalJson } from '../shared/domain/strict-json.js';
import type { RunRecord } from '../shared/ledger/reads/run-record.js';

/** A run's state as of one of its events. */
export interface Observed {
  readonly seq: number;
  readonly at: string;
  readonly state: JsonObject;
}

/** The parts of the run read that change while it runs. What is fixed at its admission is read once. */
const PARTS = [
  'execution',
  'concurrency',
  'model',
  'effects',
  'children',
  'control',
  'compensation',
  'budget',
  'recovery',
  'terminal',
] as const satisfies readonly (keyof RunRecord)[];

/** The changing parts of a run read. Pure. */
export function stateOf(run: RunRecord): Observed {
  const state = Object.fromEntries(PARTS.map((part) => [part, run[part] as unknown as JsonValue]));
  return { seq: run.freshness.event_seq, at: run.freshness.as_of, state };
}

/** What makes `after` of `before`, as JSON Patch (RFC 6902) by whole parts; null when nothing changed. Pure. */
export function patchOf(before: JsonObject, after: JsonObject): JsonValue | null {
  const patch = Object.entries(after)
    .filter(([part, value]) => canonicalJson(value) !== canonicalJson(before[part] ?? null))
    .map(([part, value]) => ({ op: 'replace', path: `/${part}`, value }));
  return patch.length === 0 ? null : { patch };
}
