import type { JsonValue } from '../../domain/json.js';
import type { Db } from '../database.js';
import { isoTime } from './row-values.js';

/** One generation of a thread's memory, and who made it. */
export interface MemoryRecord {
  readonly generation: number;
  readonly text: string;
  readonly run_id: string;
  readonly effect_id: string;
  readonly through_place: number;
  readonly created_at: string;
}

const LIST = {
  name: 'reads/thread-memories',
  text: `
    select generation, text, run_id, effect_id, through_place, created_at from holdfast.thread_memories
     where thread_id = $1 and tenant_id = $2 and ($3::int is null or generation < $3)
     order by generation desc limit $4`,
};

/** The generations of a thread's memory before one (null: all), newest first. */
export async function listMemories(
  db: Db,
  thread: { readonly tenantId: string; readonly threadId: string },
  page: { readonly before: number | null; readonly limit: number },
): Promise<MemoryRecord[]> {
  const { rows } = await db.query<Omit<MemoryRecord, 'created_at'> & { created_at: Date }>({
    ...LIST,
    values: [thread.threadId, thread.tenantId, page.before, page.limit],
  });
  return rows.map((row) => ({ ...row, created_at: isoTime(row.created_at) }));
}

/** Who consolidates the idle threads of an agent. */
export interface SleepTriggerRecord {
  readonly agent: string;
  readonly version: number;
  readonly sleeper: {
    readonly agent: string;
    readonly idle_seconds: number;
    readonly contract: JsonValue;
  };
  readonly changed_by: string;
  readonly changed_at: string;
}

const TRIGGERS = {
  name: 'reads/sleep-triggers',
  text: `
    select agent, version, sleeper, idle_seconds, contract, actor_id as changed_by, changed_at
      from holdfast.sleep_triggers_in_force where tenant_id = $1 order by agent`,
};

/** The tenant's sleep triggers in force, by agent. */
export async function listSleepTriggers(db: Db, tenantId: string): Promise<SleepTriggerRecord[]> {
  const { rows } = await db.query<{
    agent: string;
    version: number;
    sleeper: string;
    idle_seconds: number;
    contract: JsonValue;
    changed_by: string;
    changed_at: Date;
  }>({ ...TRIGGERS, values: [tenantId] });
  return rows.map(({ agent, version, sleeper, idle_seconds, contract, changed_by, changed_at }) => ({
    ...{ agent, version, changed_by, changed_at: isoTime(changed_at) },
    sleeper: { agent: sleeper, idle_seconds, contract },
  }));
}
