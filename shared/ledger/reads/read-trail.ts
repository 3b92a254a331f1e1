import type { JsonValue } from '../../domain/json.js';
import { isoTime } from './row-values.js';
import type { Db } from '../database.js';
import type { RunKey } from './row-values.js';

/** One move of a run in either region, as it stands in the chain. */
export interface TransitionRecord {
  readonly seq: number;
  readonly region: 'run' | 'control';
  /** Null for the admission alone. */
  readonly from_state: string | null;
  readonly to_state: string;
  readonly reason: string;
  readonly actor_id: string;
  readonly epoch: number;
  readonly at: string;
  readonly prev_digest: string;
  readonly digest: string;
}

const LIST_TRANSITIONS = {
  name: 'reads/transitions',
  text: `
    select seq, region, from_state, to_state, reason, actor_id, epoch, created_at, prev_digest, digest
      from holdfast.transitions
     where run_id = $1 and tenant_id = $2 and seq > $3
     order by seq
     limit $4`,
};

/** Transitions after sequence `after`, in order, at most `limit`. */
export async function listTransitions(
  db: Db,
  key: RunKey,
  page: { readonly after: number; readonly limit: number },
): Promise<TransitionRecord[]> {
  const { rows } = await db.query<Omit<TransitionRecord, 'at'> & { created_at: Date }>({
    ...LIST_TRANSITIONS,
    values: [key.runId, key.tenantId, page.after, page.limit],
  });
  return rows.map(({ created_at, ...row }) => ({ ...row, at: isoTime(created_at) }));
}

/** One message of the transcript at its place. `content` is a `ModelMessage` (shared/domain/models.ts). */
export interface MessageRecord {
  readonly turn: number;
  readonly step: number;
  /** 0 is the user's or the assistant's message, n + 1 the result of call slot n. */
  readonly position: number;
  readonly role: 'user' | 'assistant' | 'tool';
  readonly content: JsonValue;
  readonly at: string;
}

/** The place of a message; pages of the transcript go on after one. */
export type MessagePlace = readonly [turn: number, step: number, position: number];

const LIST_MESSAGES = {
  name: 'reads/messages',
  text: `
    select turn, step, position, role, content, created_at
      from holdfast.messages
     where run_id = $1 and tenant_id = $2 and (turn, step, position) > ($3, $4, $5)
     order by turn, step, position
     limit $6`,
};

/** Messages after the place `after`, in order, at most `limit`. */
export async function listMessages(
  db: Db,
  key: RunKey,
  page: { readonly after: MessagePlace; readonly limit: number },
): Promise<MessageRecord[]> {
  const { rows } = await db.query<Omit<MessageRecord, 'at'> & { created_at: Date }>({
    ...LIST_MESSAGES,
    values: [key.runId, key.tenantId, ...page.after, page.limit],
  });
  return rows.map(({ created_at, ...row }) => ({ ...row, at: isoTime(created_at) }));
}
