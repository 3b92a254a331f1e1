import type { RunContract } from '../domain/contract.js';
import type { RequestFault } from '../domain/errors.js';
import type { JsonObject, JsonValue } from '../domain/json.js';
import { prepareRun } from './admission.js';
import { callFunction, type Db, jsonb } from './database.js';
import { digestOf } from './digest.js';

/** Who consolidates idle threads, how, and after how long without anything new. */
export interface Sleeper {
  readonly agent: string;
  readonly idleSeconds: number;
  /** Of its runs; its priority is the lowest. */
  readonly contract: RunContract;
  readonly taskQueue: string;
}

export interface SetSleepTrigger {
  readonly tenantId: string;
  readonly actorId: string;
  readonly authority: string;
  /** Whose threads. */
  readonly agent: string;
  /** Null: nobody does any more. */
  readonly sleeper: Sleeper | null;
  readonly endpoint: string;
  readonly idempotencyKey: string;
}

export type SleepTriggerSet =
  | { readonly kind: 'set' | 'replayed' | 'reused' }
  | { readonly kind: 'agent_not_found'; readonly agent: string }
  | { readonly kind: 'budget_unmet'; readonly fault: RequestFault };

const SET = {
  name: 'ledger/set-sleep-trigger',
  text: 'select holdfast.set_sleep_trigger($1, $2, $3, $4, $5, $6, $7, $8) as answer',
};

/** Says who consolidates the idle threads of an agent, in place of whoever did. What is under way goes on. */
export async function setSleepTrigger(db: Db, set: SetSleepTrigger): Promise<SleepTriggerSet> {
  const { agent, sleeper } = set;
  if (sleeper !== null) {
    const { fault } = await prepareRun(db, { ...sleeper, input: null });
    if (fault !== null) return { kind: 'budget_unmet', fault };
  }
  const trigger = sleeper === null ? {} : storedOf(sleeper);
  const answer = await callFunction(db, SET, [
    ...[set.tenantId, set.actorId, set.authority, agent, jsonb(trigger), set.endpoint, set.idempotencyKey],
    // Where the request arrived is no part of it.
    digestOf({ agent, trigger: { ...trigger, task_queue: null } }),
  ]);
  return answer as unknown as SleepTriggerSet;
}

function storedOf({ agent, idleSeconds, contract, taskQueue }: Sleeper): JsonObject {
  const lowest = { ...contract, priority: 5 } as unknown as JsonValue;
  return { sleeper: agent, idle_seconds: idleSeconds, contract: lowest, task_queue: taskQueue };
}

/** A thread that is due, as it was seen. */
interface SleepyThread {
  readonly thread_id: string;
  readonly tenant_id: string;
  readonly run_seq: number;
  readonly generation: number;
  readonly after_place: number;
  readonly trigger_version: number;
  readonly sleeper: string;
  readonly contract: RunContract;
  readonly task_queue: string;
}

interface Conversation {
  readonly through_place: number;
  readonly runs: JsonValue;
}

const SLEEPY = {
  name: 'ledger/sleepy-threads',
  text: `select thread_id, tenant_id, run_seq, generation, after_place, trigger_version, sleeper, contract, task_queue
           from holdfast.sleepy_threads($1)`,
};
const READ = {
  name: 'ledger/read-conversation',
  text: 'select holdfast.read_conversation($1, $2) as answer',
};
const BEGIN = {
  name: 'ledger/begin-sleep-run',
  text: 'select holdfast.begin_sleep_run($1, $2, $3) as answer',
};

/** What one idle thread came to. `nothing_new`: all that was said since is out of the transcript. */
export interface SleepBegun {
  readonly threadId: string;
  readonly kind: 'begun' | 'nothing_new' | 'agent_not_found' | 'budget_unmet';
  readonly runId: string;
}

/**
 * Begins a sleep-time run for each idle thread that has something new: once for each idle period and generation, whoever
 * else looks at the same time. A thread that has moved on meanwhile is left for another round.
 */
export async function beginSleepRuns(db: Db, limit: number): Promise<SleepBegun[]> {
  const begun: SleepBegun[] = [];
  for (const seen of (await db.query<SleepyThread>({ ...SLEEPY, values: [limit] })).rows) {
    const { thread_id: threadId, generation, after_place: after } = seen;
    const said = (await callFunction(db, READ, [threadId, after])) as unknown as Conversation;
    const { run } = await prepareRun(db, {
      agent: seen.sleeper,
      // What it is to consolidate; the memory so far stands in its instructions.
      input: { thread_id: threadId, from_generation: generation, conversation: said.runs },
      contract: seen.contract,
      taskQueue: seen.task_queue,
    });
    const place = {
      thread_id: threadId,
      run_seq: seen.run_seq,
      ...{ generation, after_place: after, trigger_version: seen.trigger_version },
    };
    const answer = await callFunction(db, BEGIN, [jsonb(place), said.through_place, jsonb(run)]);
    if (answer['kind'] === 'moved_on') continue;
    begun.push({ threadId, kind: answer['kind'] as 'begun', runId: answer['run_id'] as string });
  }
  return begun;
}
