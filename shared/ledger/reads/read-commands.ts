import type { CommandKind } from '../../domain/control-table.js';
import type { ControlState, RunState } from '../../domain/run-machine.js';
import type { Db } from '../database.js';
import type { RunKey } from './row-values.js';
import { isoTime, isoTimeOrNull } from './row-values.js';

/** One control request with its fate (SPEC 4). */
export interface CommandRecord {
  readonly command_id: string;
  readonly run_id: string;
  readonly kind: CommandKind;
  /** In the words of whoever asked; null when they gave none. */
  readonly reason: string | null;
  /** Of a cancel: what the run did is to be undone. */
  readonly compensate: boolean;
  readonly actor_id: string;
  /** The role that let the actor do it. */
  readonly authority: string;
  readonly expected_state_version: number | null;
  /** `accepted`: in force, and not carried out yet. */
  readonly fate: 'accepted' | 'applied' | 'rejected' | 'expired';
  /** Why it was rejected or expired: an error code. */
  readonly code: string | null;
  /** What the run was when the command was judged. */
  readonly state: RunState;
  readonly control: ControlState;
  readonly created_at: string;
  readonly decided_at: string | null;
}

const COLUMNS = `command_id, run_id, kind, payload ->> 'reason' as reason,
  coalesce((payload ->> 'compensate')::boolean, false) as compensate, actor_id, authority,
           expected_state_version, fate, code, state, control, created_at, decided_at`;

const LIST_COMMANDS = {
  name: 'reads/commands',
  text: `
    select ${COLUMNS} from holdfast.commands
     where run_id = $1 and tenant_id = $2 and command_id > $3
     order by command_id
     limit $4`,
};

/** Commands of a run after the id `after` ('' for the first), oldest first, at most `limit`. */
export async function listCommands(
  db: Db,
  key: RunKey,
  page: { readonly after: string; readonly limit: number },
): Promise<CommandRecord[]> {
  const values = [key.runId, key.tenantId, page.after, page.limit];
  const { rows } = await db.query<CommandRow>({ ...LIST_COMMANDS, values });
  return rows.map(recordOf);
}

const READ_COMMAND = {
  name: 'reads/command',
  text: `select ${COLUMNS} from holdfast.commands where command_id = $1 and tenant_id = $2`,
};

/** A command as it is now, or null when this tenant has no such command. */
export async function readCommand(
  db: Db,
  tenantId: string,
  commandId: string,
): Promise<CommandRecord | null> {
  const { rows } = await db.query<CommandRow>({ ...READ_COMMAND, values: [commandId, tenantId] });
  return rows[0] === undefined ? null : recordOf(rows[0]);
}

const READ_REQUESTER = {
  name: 'reads/requester',
  text: 'select actor_id from holdfast.runs where run_id = $1 and tenant_id = $2',
};

/** Who asked for a run, or null when this tenant has no such run. */
export async function readRequester(db: Db, key: RunKey): Promise<string | null> {
  const { rows } = await db.query<{ actor_id: string }>({
    ...READ_REQUESTER,
    values: [key.runId, key.tenantId],
  });
  return rows[0]?.actor_id ?? null;
}

type CommandRow = Omit<CommandRecord, 'created_at' | 'decided_at'> & {
  readonly created_at: Date;
  readonly decided_at: Date | null;
};

function recordOf(row: CommandRow): CommandRecord {
  return { ...row, created_at: isoTime(row.created_at), decided_at: isoTimeOrNull(row.decided_at) };
}
