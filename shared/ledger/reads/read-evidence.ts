import type { Db } from '../database.js';
import { BODY_START_BYTES, isoTime, isoTimeOrNull, textStart } from './row-values.js';

/** What is known of what a target sent: its size, its kind, and how it begins. */
export interface BodyStart {
  readonly content_type: string | null;
  readonly body_bytes: number;
  /** The first 4,096 bytes, where they are text. */
  readonly body_start: string | null;
}

/** One try at dispatching, with what an unclear answer looked like. */
export interface AttemptEvidence {
  readonly attempt_id: string;
  readonly attempt: number;
  readonly worker: string;
  readonly started_at: string;
  readonly ended_at: string | null;
  readonly outcome: string | null;
  readonly reason: string | null;
  /** Null where nothing came back. */
  readonly evidence: BodyStart | null;
}

/** An answer that came after its attempt had lost the right to settle. */
export interface LateReceiptEvidence extends BodyStart {
  readonly attempt_id: string;
  readonly outcome: string;
  readonly reference: string | null;
  readonly target_status: string | null;
  readonly truncated: boolean;
  readonly recorded_at: string;
}

/** What the target said of the key when it was asked. */
export interface QueryEvidence {
  readonly query: number;
  readonly answer: 'found' | 'absent' | 'inconclusive';
  /** Whether the answer came late enough to say something. */
  readonly counts: boolean;
  readonly reason: string | null;
  readonly reference: string | null;
  readonly body_start: string | null;
  readonly asked_at: string;
}

/** The newest 100 of each kind, in order. */
export interface Evidence {
  readonly attempts: readonly AttemptEvidence[];
  readonly late_receipts: readonly LateReceiptEvidence[];
  readonly queries: readonly QueryEvidence[];
}

const KEPT = 100;

/** The newest rows of each effect in a table of evidence, oldest first. */
const newestOf = (table: string, columns: string, order: string): string => `
    select ${columns} from (
      select *, row_number() over (partition by effect_id order by ${order} desc) as age
        from holdfast.${table} where effect_id = any($1)) numbered
     where age <= ${KEPT}
     order by effect_id, ${order}`;

const bodyColumns = (body: string): string =>
  `octet_length(${body}) as body_bytes, substring(${body} from 1 for ${BODY_START_BYTES}) as body`;

const ATTEMPTS = {
  name: 'reads/evidence-attempts',
  text: newestOf(
    'attempts',
    `effect_id, attempt_id, attempt, worker, started_at, ended_at, outcome, reason,
           evidence_type as content_type, ${bodyColumns('evidence')}`,
    'attempt',
  ),
};
const LATE_RECEIPTS = {
  name: 'reads/evidence-late',
  text: newestOf(
    'late_receipts',
    `effect_id, attempt_id, outcome, reference, target_status, truncated, recorded_at,
           content_type, ${bodyColumns('body')}`,
    'recorded_at',
  ),
};
const QUERIES = {
  name: 'reads/evidence-queries',
  text: newestOf(
    'status_queries',
    `effect_id, query, answer, counts, reason, reference, asked_at, ${bodyColumns('body')}`,
    'query',
  ),
};

/** What is known of each of these effects, by effect id. */
export async function readEvidence(db: Db, effectIds: readonly string[]): Promise<Map<string, Evidence>> {
  if (effectIds.length === 0) return new Map();
  const values = [effectIds];
  const attempts = await db.query<AttemptRow>({ ...ATTEMPTS, values });
  const late = await db.query<LateRow>({ ...LATE_RECEIPTS, values });
  const queries = await db.query<QueryRow>({ ...QUERIES, values });
  const of = <Row extends OfEffect>(rows: readonly Row[], id: string): Row[] =>
    rows.filter((row) => row.effect_id === id);
  return new Map(
    effectIds.map((id) => [
      id,
      {
        attempts: of(attempts.rows, id).map(attemptOf),
        late_receipts: of(late.rows, id).map(lateReceiptOf),
        queries: of(queries.rows, id).map(queryOf),
      },
    ]),
  );
}

function attemptOf(row: AttemptRow): AttemptEvidence {
  const { attempt_id, attempt, worker, outcome, reason } = row;
  return {
    ...{ attempt_id, attempt, worker },
    started_at: isoTime(row.started_at),
    ended_at: isoTimeOrNull(row.ended_at),
    ...{ outcome, reason },
    evidence: row.body === null ? null : bodyOf(row, row.body),
  };
}

function lateReceiptOf(row: LateRow): LateReceiptEvidence {
  const { attempt_id, outcome, reference, target_status, truncated } = row;
  return {
    ...{ attempt_id, outcome, reference, target_status, truncated },
    ...bodyOf(row, row.body),
    recorded_at: isoTime(row.recorded_at),
  };
}

function queryOf(row: QueryRow): QueryEvidence {
  const { query, answer, counts, reason, reference } = row;
  return {
    ...{ query, answer, counts, reason, reference },
    body_start: row.body === null ? null : textStart(row.body),
    asked_at: isoTime(row.asked_at),
  };
}

function bodyOf(row: BodyRow, body: Buffer): BodyStart {
  return { content_type: row.content_type, body_bytes: row.body_bytes ?? 0, body_start: textStart(body) };
}

interface OfEffect {
  readonly effect_id: string;
}
interface BodyRow {
  readonly content_type: string | null;
  readonly body_bytes: number | null;
}
type AttemptRow = OfEffect &
  BodyRow &
  Omit<AttemptEvidence, 'started_at' | 'ended_at' | 'evidence'> & {
    readonly started_at: Date;
    readonly ended_at: Date | null;
    readonly body: Buffer | null;
  };
type LateRow = OfEffect &
  BodyRow &
  Omit<LateReceiptEvidence, keyof BodyStart | 'recorded_at'> & {
    readonly recorded_at: Date;
    readonly body: Buffer;
  };
type QueryRow = OfEffect &
  Omit<QueryEvidence, 'body_start' | 'asked_at'> & {
    readonly asked_at: Date;
    readonly body: Buffer | null;
  };
