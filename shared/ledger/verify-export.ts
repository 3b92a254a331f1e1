import type { JsonValue } from '../domain/json.js';
import { canonicalJson } from '../domain/strict-json.js';
import { digestOf, sha256 } from './digest.js';
import { EXPORT_SCHEMA } from './reads/export-run.js';
import { firstBroken } from './verify-transitions.js';
import type { TransitionRecord } from './transition-digest.js';

type Row = Readonly<Record<string, JsonValue>>;

/** An export as it is read back. */
export interface RunExport {
  readonly document: {
    readonly run_id: string;
    readonly schema: string;
    readonly tables: Readonly<Record<string, readonly Row[]>>;
  };
  readonly sha256: string;
}

/**
 * Checks an export by itself, with no ledger at hand: the digest of the whole, the chain of transitions, and that arguments,
 * receipts, scopes, contract and agent are what their digests say.
 *
 * @returns a line for each thing that does not hold; empty when all do
 */
export function verifyExport({ document, sha256: digest }: RunExport): string[] {
  const problems: string[] = [];
  const check = (holds: boolean, what: string): void => void (holds || problems.push(what));
  const { run_id: runId, tables } = document;
  const rows = (table: string): readonly Row[] => tables[table] ?? [];
  const text = (row: Row, column: string): string => {
    const value = row[column];
    return typeof value === 'string' ? value : '';
  };
  const bytesOf = (row: Row, column: string) => Buffer.from(text(row, column), 'base64');

  check(document.schema === EXPORT_SCHEMA, `the schema is ${document.schema}, not ${EXPORT_SCHEMA}`);
  check(sha256(canonicalJson(document as unknown as JsonValue)) === digest, 'the digest of the document');
  const run = rows('runs').find((row) => row['run_id'] === runId);
  if (run === undefined) return [...problems, 'the run itself is missing'];
  check(digestOf(run['contract'] ?? null) === run['contract_sha256'], 'the digest of the contract');
  for (const version of rows('agent_versions')) {
    check(digestOf(version['manifest'] ?? null) === version['agent_version'], 'the digest of the agent');
  }
  const broken = firstBroken(headOf(run), rows('transitions').map(transitionOf));
  check(broken === undefined, `transition ${broken?.seq}: ${broken?.problem}`);
  // Of a run whose events were let go, what came after.
  const eventsFrom = typeof run['events_from'] === 'number' ? run['events_from'] : 1;
  rows('run_events').forEach((event, index) => {
    check(event['seq'] === eventsFrom + index, `event ${String(event['seq'])}: gap`);
  });
  for (const effect of rows('effects')) {
    const isDigest = sha256(text(effect, 'arguments')) === effect['arguments_sha256'];
    check(isDigest, `the arguments of ${text(effect, 'effect_id')}`);
  }
  const effects = new Map(rows('effects').map((effect) => [effect['effect_id'], effect]));
  for (const table of ['receipts', 'late_receipts']) {
    for (const receipt of rows(table)) {
      const id = text(receipt, 'effect_id');
      check(sha256(bytesOf(receipt, 'body')) === receipt['body_sha256'], `the body in ${table} of ${id}`);
      check(effects.has(id), `the effect of ${table} ${id} is missing`);
    }
  }
  for (const receipt of rows('receipts')) {
    const id = text(receipt, 'effect_id');
    check(effects.get(id)?.['state'] === receipt['status'], `the state of ${id} is not its receipt's`);
  }
  for (const interrupt of rows('interrupts')) {
    const isDigest = digestOf(interrupt['scope'] ?? null) === interrupt['scope_sha256'];
    check(isDigest, `the scope of ${text(interrupt, 'interrupt_id')}`);
  }
  return problems;
}

function headOf(run: Row): Parameters<typeof firstBroken>[0] {
  return {
    runId: run['run_id'] as string,
    tenantId: run['tenant_id'] as string,
    state: run['state'] as string,
    control: run['control'] as string,
    stateVersion: run['state_version'] as number,
    lastDigest: run['last_digest'] as string,
    runEpoch: run['epoch'] as number,
  };
}

function transitionOf(row: Row): TransitionRecord {
  return {
    seq: row['seq'] as number,
    tenantId: row['tenant_id'] as string,
    region: row['region'] as TransitionRecord['region'],
    from: row['from_state'] as string | null,
    to: row['to_state'] as string,
    reason: row['reason'] as string,
    actorId: row['actor_id'] as string,
    epoch: row['epoch'] as number,
    at: row['created_at'] as string,
    prevDigest: row['prev_digest'] as string,
    digest: row['digest'] as string,
  };
}
