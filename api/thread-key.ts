import { HoldfastError } from '../shared/domain/errors.js';
import { isId } from '../shared/domain/ids.js';
import { excerpt } from '../shared/domain/json-rules.js';
import type { Db } from '../shared/ledger/database.js';
import { readThread, type ThreadRecord } from '../shared/ledger/reads/read-threads.js';
import type { Posted } from '../shared/ledger/threads.js';
import { agentNotFound, budgetUnmet } from './admission-errors.js';
import { roleRequired } from './identity.js';
import { WRITE_ERRORS } from './route.js';

/**
 * The thread that `id` names, for the tenant that asks.
 *
 * @throws HoldfastError `thread_not_found` for one that is not there, is another tenant's, or could never be
 */
export async function foundThread(db: Db, tenantId: string, id: string): Promise<ThreadRecord> {
  const thread = isId('thr', id) ? await readThread(db, tenantId, id) : null;
  if (thread === null) throw threadNotFound(id);
  return thread;
}

/** The one answer for a thread that is not there. */
export function threadNotFound(id: string): HoldfastError {
  return new HoldfastError(
    'thread_not_found',
    `There is no thread ${excerpt(id, 60)}, and nothing was accepted. GET /v1/threads lists those there are.`,
  );
}

/** What posting to a thread can answer, whatever the route. */
export const MESSAGE_ERRORS = [
  ...WRITE_ERRORS,
  'contract_invalid',
  'thread_not_found',
  'idempotency_key_reused',
  'thread_archived',
  'thread_agent_mismatch',
  'agent_not_found',
  'thread_busy',
  'role_required',
  'thread_full',
  'rate_limited',
  'ledger_unavailable',
] as const;

/**
 * The id of the message that a post made, now or before.
 *
 * @throws HoldfastError the refusal, in words; nothing was accepted then
 */
export function acceptedOf(
  posted: Posted,
  asked: { readonly threadId: string; readonly agent: string },
): { readonly messageId: string; readonly isReplay: boolean } {
  switch (posted.kind) {
    case 'posted':
      return { messageId: posted.messageId, isReplay: false };
    case 'replayed':
      return { messageId: posted.messageId, isReplay: true };
    case 'reused':
      throw new HoldfastError(
        'idempotency_key_reused',
        `This key made ${posted.madeId} with another body. Nothing was accepted: send a new key, or that body.`,
        { extensions: { made_id: posted.madeId } },
      );
    case 'budget_unmet':
      throw budgetUnmet(asked.agent, posted.fault);
    default:
      throw refusalOf(posted, asked);
  }
}

function refusalOf(
  { kind, runId }: Extract<Posted, { readonly runId: string | null }>,
  { threadId, agent }: { readonly threadId: string; readonly agent: string },
): HoldfastError {
  const busy = runId === null ? {} : { extensions: { run_id: runId } };
  switch (kind) {
    case 'thread_not_found':
      return threadNotFound(threadId);
    case 'agent_not_found':
      return agentNotFound(agent);
    case 'agent_mismatch':
      return new HoldfastError(
        'thread_agent_mismatch',
        `Thread ${threadId} is of another agent than "${excerpt(agent, 64)}". Name its own agent, or start a thread for this one.`,
        { errors: [{ at: 'body/agent', problem: 'is not the agent of the thread' }] },
      );
    case 'thread_archived':
      return new HoldfastError(
        'thread_archived',
        `Thread ${threadId} is archived, and nothing was accepted. Unarchive it first, or start another.`,
      );
    case 'thread_busy':
      return new HoldfastError(
        'thread_busy',
        `Run ${runId} of the thread is in progress, and nothing was accepted. Wait for its end, or post under another policy.`,
        busy,
      );
    case 'thread_full':
      return new HoldfastError(
        'thread_full',
        `So many messages wait on thread ${threadId} that no more are accepted. Send it again when some were taken up.`,
        busy,
      );
    case 'role_required':
      return roleRequired('stop or steer the run in progress', [
        'operator (to stop it)',
        'requester (of one’s own run)',
      ]);
  }
}
