import type { CommandKind } from '../domain/control-table.js';
import type { JsonObject, JsonValue } from '../domain/json.js';
import type { LookAnswer, Trail } from '../domain/protocol.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';
import type { Speaker } from './trail.js';

export interface NewCommand {
  readonly tenantId: string;
  readonly runId: string;
  readonly kind: CommandKind;
  /** What the command carries beside its kind, such as a reason. */
  readonly payload: JsonObject;
  readonly actorId: string;
  /** The role that lets the actor do it. */
  readonly authority: string;
  /** The state version that the actor has seen; null when it does not matter to them. */
  readonly expectedStateVersion: number | null;
  readonly endpoint: string;
  readonly idempotencyKey: string;
}

export type Submitted =
  | { readonly kind: 'stored' | 'replayed' | 'reused'; readonly commandId: string }
  | { readonly kind: 'run_not_found' };

const SUBMIT = {
  name: 'ledger/submit-command',
  text: 'select holdfast.submit_command($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) as answer',
};

/**
 * Stores a command, judges it by the control table and puts it in force, in one transaction. The same key answers with
 * the same command for ever; read its fate from its row.
 */
export async function submitCommand(db: Db, command: NewCommand): Promise<Submitted> {
  const { kind, payload, expectedStateVersion } = command;
  const requestSha256 = digestOf({ kind, payload, expectedStateVersion } satisfies JsonValue);
  const answer = await callFunction(db, SUBMIT, [
    newId('cmd'),
    command.tenantId,
    command.runId,
    kind,
    jsonb(payload),
    command.actorId,
    command.authority,
    expectedStateVersion,
    command.endpoint,
    command.idempotencyKey,
    requestSha256,
  ]);
  if (answer['kind'] === 'run_not_found') return { kind: 'run_not_found' };
  return {
    kind: answer['kind'] as 'stored' | 'replayed' | 'reused',
    commandId: answer['command_id'] as string,
  };
}

const CLAIM_RESUME = {
  name: 'ledger/claim-resume',
  text: 'select holdfast.claim_resume($1, $2, $3, $4) as answer',
};

/** Re-claims a run whose resume was asked for, under a new epoch. Does nothing where none was. Safe to repeat. */
export async function claimResume(db: Db, { runId, execution }: Speaker, trail: Trail): Promise<void> {
  await callFunction(db, CLAIM_RESUME, [runId, execution, trail.from, jsonb(trail.entries)]);
}

const BLOCK_RESUME = {
  name: 'ledger/block-resume',
  text: 'select holdfast.block_resume($1, $2, $3, $4, $5, $6) as answer',
};

/** Why a run cannot go on in the process that holds it: codes and names, never a value. */
export interface ResumeFault {
  readonly code: 'agent_unavailable' | 'tool_missing' | 'tool_changed' | 'secret_missing';
  /** The agent, the tool, or the name of the secret. */
  readonly name: string;
}

/** Commits the trail and keeps what a run misses whose resume was asked for; the control region does not move. Safe to repeat. */
export async function blockResume(
  db: Db,
  { runId, execution }: Speaker,
  trail: Trail,
  blocked: { readonly worker: string; readonly faults: readonly ResumeFault[] },
): Promise<void> {
  const { worker, faults } = blocked;
  await callFunction(db, BLOCK_RESUME, [
    ...[runId, execution, trail.from, jsonb(trail.entries), worker, jsonb(faults)],
  ]);
}

const PINNED_AGENT = {
  name: 'ledger/pinned-agent',
  text: 'select agent, agent_version from holdfast.runs where run_id = $1',
};

/** The agent version that a run has pinned, or null when there is no such run. Reads only. */
export async function readPinnedAgent(
  db: Db,
  runId: string,
): Promise<{ readonly agent: string; readonly agent_version: string } | null> {
  const { rows } = await db.query<{ agent: string; agent_version: string }>({
    ...PINNED_AGENT,
    values: [runId],
  });
  return rows[0] ?? null;
}

const LOOK = { name: 'ledger/look', text: 'select holdfast.look($1, $2, $3) as answer' };

/**
 * What a waiting workflow must know of its run now. Reads only.
 *
 * @param position how many of its trail entries the workflow knows to be durable; null when it does not say
 * @throws a refusal when the run has another owner, or holds more of the workflow's trail than it knows of
 */
export async function lookAtRun(
  db: Db,
  { runId, execution }: Speaker,
  position: number | null = null,
): Promise<LookAnswer> {
  const a = await callFunction(db, LOOK, [runId, execution, position]);
  return {
    kind: 'look',
    state: a['state'] as LookAnswer['state'],
    control: a['control'] as LookAnswer['control'],
    openApprovals: a['open_approvals'] as number,
    nextExpiryMs: (a['next_expiry_ms'] ?? null) as number | null,
    openInputs: a['open_inputs'] as number,
    nextInputExpiryMs: (a['next_input_expiry_ms'] ?? null) as number | null,
    inputExpired: a['input_expired'] as boolean,
    ...(a['open_children'] === 0 ? {} : { openChildren: a['open_children'] as number }),
    ...(a['draining_children'] === 0 ? {} : { drainingChildren: a['draining_children'] as number }),
    compensate: a['compensate'] as boolean,
    unknown: a['unknown'] as LookAnswer['unknown'],
  };
}

/**
 * Runs for which something was decided more than `quietSeconds` ago that they have not taken up: a command, an approval,
 * a settlement. Their workflow is told again. Reads only.
 */
export async function runsToNudge(db: Db, limit: number, quietSeconds: number): Promise<string[]> {
  const { rows } = await db.query<{ run_id: string }>({
    name: 'ledger/runs-to-nudge',
    text: 'select run_id from holdfast.runs_to_nudge($1, $2)',
    values: [limit, quietSeconds],
  });
  return rows.map((row) => row.run_id);
}
