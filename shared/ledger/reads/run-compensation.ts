/** What a run that undoes what it did has undone, and what is left (SPEC 3.7). Every effect stands in one list. */
export interface CompensationReport {
  /** Why it began: the reason of the first move into `compensating`. */
  readonly cause: string;
  /** By a tool, or by hand. */
  readonly undone: UndoGroup;
  /** A person left it as it is. */
  readonly left: UndoGroup;
  /** Not undone yet; always empty once the run has ended. */
  readonly open: UndoGroup;
}

export interface UndoGroup {
  readonly count: number;
  /** At most 100, the newest first: in the order in which they are undone. */
  readonly effects: readonly UndoLine[];
}

export interface UndoLine {
  readonly effect_id: string;
  readonly tool: string;
  /** The outside name of what was done. */
  readonly reference: string | null;
  /** `tool`: by an effect of its own. Null while nobody has decided. */
  readonly by: 'tool' | 'person' | null;
  readonly compensation_effect_id: string | null;
  /** The outside name of what undid it. */
  readonly undo_reference: string | null;
  /** Why it waits for a person, or did. */
  readonly why: string | null;
  readonly actor_id: string | null;
  readonly note: string | null;
}

const LISTED_MAX = 100;

/** A column of the run read, for a row `r` of holdfast.runs; `compensationOf` reads it. */
export const RUN_COMPENSATION_COLUMN = `
           case when r.compensation_cause is not null then (
             select coalesce(jsonb_agg(to_jsonb(x) order by x.turn desc, x.step desc, x.slot desc), '[]') from (
               select l.*, row_number() over (partition by l.list order by l.turn desc, l.step desc, l.slot desc) as place,
                      count(*) over (partition by l.list) as count
                 from (
                   select e.turn, e.step, e.slot, e.effect_id, e.tool, p.reference,
                          case when c.state in ('succeeded', 'committed') or u.state = 'compensated' then 'undone'
                               when u.state = 'left' then 'left' else 'open' end as list,
                          case when c.state in ('succeeded', 'committed') then 'tool'
                               when u.state in ('compensated', 'left') then 'person' end as by,
                          c.effect_id as compensation_effect_id, coalesce(u.reference, q.reference) as undo_reference,
                          u.why, u.actor_id, u.note
                     from holdfast.effects e
                     left join holdfast.undos u using (effect_id)
                     left join holdfast.receipts p using (effect_id)
                     left join lateral (select * from holdfast.effects c where c.compensates = e.effect_id
                                         order by c.redo desc limit 1) c on true
                     left join holdfast.receipts q on q.effect_id = c.effect_id
                    where e.run_id = r.run_id and e.compensates is null and e.effect_class <> 'read'
                      and e.state in ('succeeded', 'committed')) l) x
              where x.place <= ${LISTED_MAX}) end as compensation`;

type ListedLine = UndoLine & {
  readonly list: 'undone' | 'left' | 'open';
  readonly count: number;
};

export interface RunCompensationRow {
  readonly compensation_cause: string | null;
  readonly compensation: readonly ListedLine[] | null;
}

/** What is undone and what is left; null for a run that undoes nothing. */
export function compensationOf(row: RunCompensationRow): CompensationReport | null {
  const { compensation_cause: cause, compensation } = row;
  if (cause === null || compensation === null) return null;
  const groupOf = (list: ListedLine['list']): UndoGroup => {
    const lines = compensation.filter((line) => line.list === list);
    return { count: lines[0]?.count ?? 0, effects: lines.map(lineOf) };
  };
  return { cause, undone: groupOf('undone'), left: groupOf('left'), open: groupOf('open') };
}

function lineOf(line: ListedLine): UndoLine {
  const { effect_id, tool, reference, by, compensation_effect_id, undo_reference, why, actor_id, note } =
    line;
  return { effect_id, tool, reference, by, compensation_effect_id, undo_reference, why, actor_id, note };
}
