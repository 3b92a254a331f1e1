import type { OnCancel } from '../../domain/delegates.js';
import type { ControlState, RunState } from '../../domain/run-machine.js';
import { jsonTime, jsonTimeOrNull } from './row-values.js';

/** A child of a run, in one line. */
export interface ChildLine {
  readonly run_id: string;
  /** The delegate that the parent's model called. */
  readonly tool: string;
  readonly agent: string;
  readonly turn: number;
  readonly step: number;
  readonly slot: number;
  readonly on_cancel: OnCancel;
  readonly state: RunState;
  readonly control: ControlState;
  readonly reason: string | null;
  readonly steps_granted: number;
  readonly tool_calls_granted: number;
  readonly created_at: string;
  readonly ended_at: string | null;
}

/** The runs that this one started. */
export interface RunChildren {
  readonly total: number;
  readonly by_state: Readonly<Record<string, number>>;
  /** At most 100, open ones first, then in call order; the counts are of all. */
  readonly runs: readonly ChildLine[];
}

const LISTED_MAX = 100;

/** What joins a row `r` of holdfast.runs to its place in a tree; `ROOT_OF_RUN` reads it. */
export const LINEAGE_JOIN = 'left join holdfast.child_runs h on h.child_run_id = r.run_id';
/** The top of the run's tree: the run itself where it is nobody's child. */
export const ROOT_OF_RUN = 'coalesce(h.root_run_id, r.run_id)';

/** Columns of the run read, for a row `r` of holdfast.runs with `LINEAGE_JOIN`; `childrenOf` reads the last two. */
export const LINEAGE_COLUMNS = `
           ${ROOT_OF_RUN} as root_run_id, coalesce(h.depth, 0) as depth,
           (select coalesce(jsonb_object_agg(s.state, s.count), '{}') from (
              select k.state, count(*) from holdfast.child_runs c join holdfast.runs k on k.run_id = c.child_run_id
               where c.parent_run_id = r.run_id group by k.state) s
           ) as child_counts,
           (select coalesce(jsonb_agg(to_jsonb(l) order by l.ended_at is not null, l.turn, l.step, l.slot), '[]') from (
              select c.child_run_id as run_id, c.tool, k.agent, c.turn, c.step, c.slot, c.on_cancel, k.state, k.control,
                     k.reason, c.steps_granted, c.tool_calls_granted, c.created_at, k.ended_at
                from holdfast.child_runs c join holdfast.runs k on k.run_id = c.child_run_id
               where c.parent_run_id = r.run_id
               order by k.ended_at is not null, c.turn, c.step, c.slot limit ${LISTED_MAX}) l
           ) as children`;

export interface LineageRow {
  readonly root_run_id: string;
  readonly depth: number;
  readonly child_counts: Readonly<Record<string, number>>;
  readonly children: readonly ChildLine[];
}

/** The children section of a run read. */
export function childrenOf({ child_counts, children }: LineageRow): RunChildren {
  return {
    total: Object.values(child_counts).reduce((sum, count) => sum + count, 0),
    by_state: child_counts,
    runs: children.map((line) => ({
      ...line,
      created_at: jsonTime(line.created_at),
      ended_at: jsonTimeOrNull(line.ended_at),
    })),
  };
}
