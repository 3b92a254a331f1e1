import { edges } from '../domain/run-machine.js';
import type { Db } from './database.js';
import { type TransitionRecord, transitionDigest } from './transition-digest.js';

/** What is wrong with a row; the first that applies, in this order. */
export type ChainProblem =
  /** The number is not that of the row before plus one: a row is missing, or there are two. */
  | 'gap'
  /** It does not name the digest of the row before. */
  | 'broken_link'
  /** Its content is not what its digest was made of. */
  | 'content_changed'
  /** It belongs to another tenant than its run. */
  | 'other_tenant'
  /** It does not start where its region stood. */
  | 'wrong_start'
  /** No edge of the run machine leads there. */
  | 'illegal_move'
  /** Its epoch is older than that of the row before. */
  | 'epoch_fell'
  /** The run's own row stands elsewhere than its last transition: the end of the trail is missing, or the run was moved. */
  | 'run_differs';

/** The first row of a run that does not hold, and why. */
export interface BrokenTransition {
  readonly runId: string;
  readonly seq: number;
  readonly problem: ChainProblem;
}

export interface ChainVerdict {
  readonly runs: number;
  readonly transitions: number;
  /** One at most for each run, by run id. */
  readonly broken: readonly BrokenTransition[];
}

/** Runs that one statement reads. */
const PAGE_RUNS = 100;

const PAGE = {
  name: 'ledger/verify-page',
  text: `
    with page as (
      select run_id, tenant_id, state, control, state_version, last_digest, epoch from holdfast.runs
       where run_id > $1 and ($2::text is null or run_id = $2) order by run_id limit $3)
    select p.run_id as "runId", p.tenant_id as "tenantId", p.state, p.control, p.state_version as "stateVersion",
           p.last_digest as "lastDigest", p.epoch as "runEpoch",
           t.seq, t.tenant_id as "rowTenantId", t.region, t.from_state as "from", t.to_state as "to", t.reason,
           t.actor_id as "actorId", t.epoch, t.prev_digest as "prevDigest", t.digest,
           to_char(t.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at
      from page p left join holdfast.transitions t using (run_id)
     order by p.run_id, t.seq`,
};

/**
 * Recomputes the hash chain of every run, or of one, and names the first row of each that does not hold. Reads only;
 * each page of runs is read as of one moment, so it may run beside everything else.
 */
export async function verifyTransitions(
  db: Db,
  options: { readonly runId?: string } = {},
): Promise<ChainVerdict> {
  let runs = 0;
  let transitions = 0;
  const broken: BrokenTransition[] = [];
  for (let after = ''; ;) {
    const { rows } = await db.query<PageRow>({ ...PAGE, values: [after, options.runId ?? null, PAGE_RUNS] });
    const last = rows.at(-1);
    if (last === undefined) return { runs, transitions, broken };
    for (const [head, ...rest] of byRun(rows)) {
      const trail = [head, ...rest].flatMap((row) =>
        row.seq === null ? [] : [{ ...row, tenantId: row.rowTenantId }],
      );
      runs += 1;
      transitions += trail.length;
      const found = firstBroken(head, trail as unknown as TransitionRecord[]);
      if (found !== undefined) broken.push({ runId: head.runId, ...found });
    }
    after = last.runId;
  }
}

/** Where a run says it stands. */
interface RunHead {
  readonly runId: string;
  readonly tenantId: string;
  readonly state: string;
  readonly control: string;
  readonly stateVersion: number;
  readonly lastDigest: string;
  readonly runEpoch: number;
}
type PageRow = RunHead & { readonly seq: number | null; readonly rowTenantId: string };

function byRun(rows: readonly PageRow[]): [PageRow, ...PageRow[]][] {
  const groups: [PageRow, ...PageRow[]][] = [];
  for (const row of rows) {
    const group = groups.at(-1);
    if (group?.[0].runId === row.runId) group.push(row);
    else groups.push([row]);
  }
  return groups;
}

const LEGAL = new Set(edges().map(({ region, from, to }) => `${region} ${from} ${to}`));

/** The first row of a run's trail that does not hold, and why; undefined when all do. Pure. */
export function firstBroken(
  run: RunHead,
  trail: readonly TransitionRecord[],
): { readonly seq: number; readonly problem: ChainProblem } | undefined {
  const at = { run: null as string | null, control: 'active' as string | null };
  let before = { seq: 0, digest: '', epoch: 0 };
  for (const row of trail) {
    const problem = problemOf(run, row, before, at[row.region]);
    if (problem !== undefined) return { seq: problem === 'gap' ? before.seq + 1 : row.seq, problem };
    at[row.region] = row.to;
    before = row;
  }
  const holds =
    run.stateVersion === before.seq &&
    run.lastDigest === before.digest &&
    run.runEpoch >= before.epoch &&
    run.state === at.run &&
    run.control === at.control;
  return holds ? undefined : { seq: before.seq + 1, problem: 'run_differs' };
}

function problemOf(
  run: RunHead,
  row: TransitionRecord,
  before: { readonly seq: number; readonly digest: string; readonly epoch: number },
  stood: string | null,
): ChainProblem | undefined {
  if (row.seq !== before.seq + 1) return 'gap';
  if (row.prevDigest !== before.digest) return 'broken_link';
  if (row.digest !== transitionDigest(run.runId, row)) return 'content_changed';
  if (row.tenantId !== run.tenantId) return 'other_tenant';
  if (row.from !== stood) return 'wrong_start';
  const isAdmission = row.seq === 1 && row.region === 'run' && row.to === 'admitted';
  if (!isAdmission && !LEGAL.has(`${row.region} ${row.from} ${row.to}`)) return 'illegal_move';
  return row.epoch < before.epoch ? 'epoch_fell' : undefined;
}
