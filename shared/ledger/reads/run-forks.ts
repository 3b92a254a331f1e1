import type { ForkMode, ForkPins } from '../../domain/checkpoints.js';
import type { JsonValue } from '../../domain/json.js';
import type { RunState } from '../../domain/run-machine.js';
import { jsonTime } from './row-values.js';

/** Whence a run comes and what was made of it (SPEC 4.2). */
export interface RunForks {
  /** Null for a run that is no fork. */
  readonly forked_from: {
    readonly run_id: string;
    readonly checkpoint_id: string;
    /** The source's last step whose messages the fork holds. */
    readonly after_step: number;
    readonly mode: ForkMode;
    readonly pins: ForkPins;
    /** What was changed on purpose, as it was asked for. */
    readonly edits: JsonValue;
    readonly actor_id: string;
    readonly authority: string;
    readonly at: string;
  } | null;
  /** Effects of the runs before, read-only; no count of this run has them in it. */
  readonly inherited_effects: number;
  readonly total: number;
  /** The forks of this run; at most 100, the newest first. */
  readonly runs: readonly {
    readonly run_id: string;
    readonly checkpoint_id: string;
    readonly mode: ForkMode;
    readonly state: RunState;
    readonly at: string;
  }[];
}

const LISTED_MAX = 100;

/** Columns of the run read, for a row `r` of holdfast.runs; `forksOf` reads them. */
export const RUN_FORKS_COLUMNS = `
           case when r.fork_mode is not null then (select jsonb_build_object(
                'run_id', f.source_run_id, 'checkpoint_id', f.checkpoint_id, 'after_step', f.cut_step, 'mode', f.mode,
                'pins', f.pins, 'edits', f.edits, 'actor_id', f.actor_id, 'authority', f.authority, 'at', f.created_at)
              from holdfast.forks f where f.run_id = r.run_id) end as forked_from,
           case when r.fork_mode is null then 0 else (
              select count(*)::int from holdfast.inherited_effects i where i.run_id = r.run_id) end as inherited_effects,
           (select count(*)::int from holdfast.forks f where f.source_run_id = r.run_id) as forks_total,
           (select coalesce(jsonb_agg(to_jsonb(l) order by l.run_id desc), '[]') from (
              select f.run_id, f.checkpoint_id, f.mode, k.state, f.created_at as at
                from holdfast.forks f join holdfast.runs k using (run_id)
               where f.source_run_id = r.run_id order by f.run_id desc limit ${LISTED_MAX}) l) as forks`;

export interface RunForksRow {
  readonly forked_from: RunForks['forked_from'];
  readonly inherited_effects: number;
  readonly forks_total: number;
  readonly forks: RunForks['runs'];
}

/** The forks section of a run read. */
export function forksOf({ forked_from, inherited_effects, forks_total, forks }: RunForksRow): RunForks {
  return {
    forked_from: forked_from === null ? null : { ...forked_from, at: jsonTime(forked_from.at) },
    inherited_effects,
    total: forks_total,
    runs: forks.map((fork) => ({ ...fork, at: jsonTime(fork.at) })),
  };
}
