import type { RunContract } from '../domain/contract.js';
import type { RequestFault } from '../domain/errors.js';
import type { JsonValue } from '../domain/json.js';
import type { Role } from '../domain/roles.js';
import type { DoubleTexting } from '../domain/thread-table.js';
import { prepareRun, underOneKey } from './admission.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';
import { newId } from './new-id.js';

export interface NewThread {
  readonly tenantId: string;
  readonly actorId: string;
  readonly endpoint: string;
  readonly idempotencyKey: string;
  readonly agent: string;
  readonly policy: DoubleTexting;
  /** What its runs are admitted under, unless a message brings a contract of its own. */
  readonly contract: RunContract;
}
export type ThreadCreated =
  | { readonly kind: 'created' | 'replayed' | 'reused'; readonly threadId: string }
  | { readonly kind: 'agent_not_found' };

const CREATE = {
  name: 'ledger/create-thread',
  text: 'select holdfast.create_thread($1, $2, $3, $4, $5, $6, $7, $8, $9) as answer',
};

/** Makes a thread. The same key and body answer with the same thread for ever. */
export async function createThread(db: Db, thread: NewThread): Promise<ThreadCreated> {
  const { agent, policy, contract } = thread;
  const requestSha256 = digestOf({ agent, policy, contract: contract as unknown as JsonValue });
  const threadId = newId('thr');
  const answer = await underOneKey(() =>
    callFunction(db, CREATE, [
      thread.tenantId,
      thread.actorId,
      thread.endpoint,
      thread.idempotencyKey,
      requestSha256,
      threadId,
      agent,
      policy,
      jsonb(contract),
    ]),
  );
  if (answer['kind'] === 'agent_not_found') return { kind: 'agent_not_found' };
  return {
    kind: answer['kind'] as 'created' | 'replayed' | 'reused',
    threadId: answer['thread_id'] as string,
  };
}

export type ThreadArchived = { readonly kind: 'done' | 'thread_not_found' | 'role_required' };

const ARCHIVE = {
  name: 'ledger/archive-thread',
  text: 'select holdfast.archive_thread($1, $2, $3, $4, $5) as answer',
};

/** Archives a thread, or takes that back; again changes nothing. What it accepted before goes its way. */
export async function archiveThread(
  db: Db,
  thread: {
    readonly tenantId: string;
    readonly threadId: string;
    readonly actorId: string;
    readonly roles: readonly Role[];
    readonly archived: boolean;
  },
): Promise<ThreadArchived> {
  const { tenantId, threadId, actorId, roles, archived } = thread;
  const answer = await callFunction(db, ARCHIVE, [tenantId, threadId, actorId, roles, archived]);
  return answer as unknown as ThreadArchived;
}

export interface NewMessage {
  readonly tenantId: string;
  readonly threadId: string;
  readonly actorId: string;
  readonly roles: readonly Role[];
  readonly endpoint: string;
  readonly idempotencyKey: string;
  readonly input: JsonValue;
  /** Null: the thread's own. */
  readonly policy: DoubleTexting | null;
  readonly contract: RunContract;
  readonly agent: string;
  readonly taskQueue: string;
}

export type Posted =
  | { readonly kind: 'posted' | 'replayed'; readonly messageId: string }
  /** The key made this with another body. Nothing was written. */
  | { readonly kind: 'reused'; readonly madeId: string }
  | { readonly kind: 'budget_unmet'; readonly fault: RequestFault }
  | { readonly kind: MessageRefusal; readonly runId: string | null };

/** Why a message was not accepted; nothing was written. */
export type MessageRefusal =
  | 'thread_not_found'
  | 'thread_archived'
  | 'thread_busy'
  | 'thread_full'
  | 'agent_mismatch'
  | 'agent_not_found'
  | 'role_required';

const POST = {
  name: 'ledger/post-message',
  text: 'select holdfast.post_message($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) as answer',
};

/**
 * Posts a message to a thread: accepted and judged by the thread's policy or its own, in one transaction, or refused with
 * nothing changed. The one door for every route that carries input to a thread. The same key and body answer with the same
 * message for ever.
 */
export async function postMessage(db: Db, message: NewMessage): Promise<Posted> {
  const { agent, input, contract, policy, threadId } = message;
  const request = { agent, input, contract: contract as unknown as JsonValue, policy, thread: threadId };
  const requestSha256 = digestOf(request);
  const { run, fault } = await prepareRun(db, message);
  const messageId = newId('msg');
  const answer = await underOneKey(() =>
    callFunction(db, POST, [
      message.tenantId,
      threadId,
      message.actorId,
      message.roles,
      policy,
      message.endpoint,
      message.idempotencyKey,
      requestSha256,
      messageId,
      jsonb(run),
    ]),
  );
  const kind = answer['kind'] as Posted['kind'];
  switch (kind) {
    case 'posted':
    case 'replayed':
      return { kind, messageId: answer['message_id'] as string };
    case 'reused':
      return { kind, madeId: (answer['message_id'] ?? answer['run_id']) as string };
    case 'budget_unmet':
      if (fault === null) throw new Error('bug: the ledger refused a budget that can be met');
      return { kind, fault };
    default:
      return { kind, runId: (answer['run_id'] ?? null) as string | null };
  }
}
