import { createHash } from 'node:crypto';
import type pg from 'pg';
import { isId } from '../../domain/ids.js';
import type { JsonValue } from '../../domain/json.js';
import { canonicalJson } from '../../domain/strict-json.js';
import type { RunKey } from './row-values.js';

/** Names the form of an export; raised when that changes. */
export const EXPORT_SCHEMA = 'holdfast.run-export/1';

/** Tables that hold rows of a run without naming it: how they are found. Every table with a `run_id` is taken by that. */
export const EXPORTED_BY_WAY: Readonly<Record<string, string>> = {
  jobs: 'job_id in (select job_id from holdfast.runs where run_id = $run)',
  job_acceptances: 'job_id in (select job_id from holdfast.runs where run_id = $run)',
  agent_versions:
    '(agent, agent_version) in (select agent, agent_version from holdfast.runs where run_id = $run)',
  budgets: 'root_run_id in (select root_run_id from holdfast.runs where run_id = $run)',
  schedule_occurrences:
    'run_id = $run or message_id in (select message_id from holdfast.thread_messages where run_id = $run)',
  child_runs: 'parent_run_id = $run or child_run_id = $run',
  decisions: 'interrupt_id in (select interrupt_id from holdfast.interrupts where run_id = $run)',
  threads: 'thread_id in (select thread_id from holdfast.runs where run_id = $run)',
  webhook_attempts:
    'delivery_id in (select delivery_id from holdfast.webhook_deliveries where run_id = $run)',
};

/** Tables that hold nothing of a run: pointers, what concerns all runs, rules, places that hold secrets, rights, and what was refused at any door. */
export const NOT_EXPORTED = [
  'active_run_limit_changes',
  'active_run_limits',
  'agents',
  'cooldowns',
  'feed_floors',
  'legal_transitions',
  'migrations',
  'refusals',
  'role_grants',
  'schedule_backfills',
  'schedule_changes',
  'schedule_pauses',
  'schedules',
  'standing_grants',
  'tenant_budget_changes',
  'webhook_endpoints',
] as const;

// Rows hold bodies of up to 1 MiB: few at a time bound the memory of an export, whatever the run did.
const ROWS_AT_ONCE = 20;

const COLUMNS = {
  name: 'reads/export-columns',
  text: `
    select c.relname as "table", a.attname as name, coalesce(b.typname, t.typname) as type,
           coalesce((select array_position(k.conkey, a.attnum) from pg_constraint k
                      where k.conrelid = c.oid and k.contype = 'p'), 0) as key
      from pg_class c
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      join pg_type t on t.oid = a.atttypid
      left join pg_type b on b.oid = t.typbasetype
     where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')
     order by c.relname, a.attnum`,
};

/**
 * Everything that the ledger holds of a run, as one JSON document in pieces: `{ document, sha256 }`, where `sha256` is over
 * the RFC 8785 form of `document`, which is the form it is written in. Reads one snapshot; holds one connection and a few
 * rows at a time. The digest comes last, so what was cut off on the way has none.
 *
 * Times are UTC in microseconds, bytes are base64, everything else is as it is stored.
 *
 * @returns null when this tenant has no such run
 */
export async function exportRun(pool: pg.Pool, key: RunKey): Promise<AsyncGenerator<string> | null> {
  // The one text that goes into statements; a cursor takes no parameters.
  if (!isId('run', key.runId)) return null;
  const client = await pool.connect();
  // One that dies between two rows speaks to nobody else, and unheard it would end the process.
  client.on('error', ignore);
  try {
    await client.query('begin isolation level repeatable read read only');
    const { rowCount } = await client.query({
      name: 'reads/export-run',
      text: 'select from holdfast.runs where run_id = $1 and tenant_id = $2',
      values: [key.runId, key.tenantId],
    });
    if (rowCount === 1) {
      const pieces = piecesOf(client, key.runId);
      // Enters it, so that whoever ends it early, even before its first piece, gives the connection back.
      await pieces.next();
      return pieces;
    }
    await client.query('commit');
  } catch (error) {
    giveBack(client, false);
    throw error;
  }
  giveBack(client, true);
  return null;
}

/** A reader that left, or an outage, leaves a transaction behind that nobody else may get. */
function giveBack(client: pg.PoolClient, isClean: boolean): void {
  client.release(!isClean);
  client.off('error', ignore);
}

const ignore = (): void => undefined;

async function* piecesOf(client: pg.PoolClient, runId: string): AsyncGenerator<string> {
  let isWhole = false;
  try {
    const digest = createHash('sha256');
    const document = function* (text: string): Generator<string> {
      digest.update(text, 'utf8');
      yield text;
    };
    yield '';
    yield '{"document":';
    yield* document(`{"run_id":"${runId}","schema":"${EXPORT_SCHEMA}","tables":{`);
    let between = '';
    for (const table of await tablesOf(client)) {
      yield* document(`${between}"${table.name}":[`);
      between = ',';
      let first = true;
      for await (const row of rowsOf(client, table, runId)) {
        yield* document((first ? '' : ',') + canonicalJson(row));
        first = false;
      }
      yield* document(']');
    }
    yield* document('}}');
    yield `,"sha256":"${digest.digest('hex')}"}`;
    await client.query('commit');
    isWhole = true;
  } finally {
    giveBack(client, isWhole);
  }
}

interface Column {
  readonly table: string;
  readonly name: string;
  readonly type: string;
  /** Place in the primary key from 1; 0 outside it. */
  readonly key: number;
}
interface Table {
  readonly name: string;
  readonly columns: readonly Column[];
  readonly where: string;
}

async function tablesOf(client: pg.PoolClient): Promise<Table[]> {
  const { rows } = await client.query<Column>(COLUMNS);
  const names = [...new Set(rows.map(({ table }) => table))].toSorted();
  return names.flatMap((name) => {
    const columns = rows.filter(({ table }) => table === name);
    const where = columns.some((column) => column.name === 'run_id')
      ? 'run_id = $run'
      : EXPORTED_BY_WAY[name];
    return where === undefined ? [] : [{ name, columns, where }];
  });
}

async function* rowsOf(client: pg.PoolClient, table: Table, runId: string): AsyncGenerator<JsonValue> {
  const keys = table.columns.filter(({ key }) => key > 0).toSorted((a, b) => a.key - b.key);
  const order = keys.length === 0 ? '' : ` order by ${keys.map(({ name }) => `t."${name}"`).join(', ')}`;
  const where = table.where.replaceAll('$run', `'${runId}'`);
  await client.query(
    `declare export_rows no scroll cursor for
       select ${table.columns.map(expressionOf).join(', ')} from holdfast."${table.name}" t where ${where}${order}`,
  );
  for (;;) {
    const { rows } = await client.query<Record<string, JsonValue>>(`fetch ${ROWS_AT_ONCE} from export_rows`);
    yield* rows;
    if (rows.length < ROWS_AT_ONCE) break;
  }
  await client.query('close export_rows');
}

/** A column in a form that JSON can say. */
function expressionOf({ name, type }: Column): string {
  const column = `t."${name}"`;
  switch (type) {
    case 'timestamptz':
      return `to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as "${name}"`;
    case 'bytea':
      return `translate(encode(${column}, 'base64'), E'\\n', '') as "${name}"`;
    case 'int8':
      // Sequences and counters, far below 2^53.
      return `${column}::float8 as "${name}"`;
    default:
      return `${column} as "${name}"`;
  }
}
