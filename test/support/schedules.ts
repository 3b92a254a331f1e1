import { randomUUID } from 'node:crypto';
import { RunContract } from '../../shared/domain/contract.js';
import { newId } from '../../shared/ledger/new-id.js';
import { listOccurrences, type OccurrenceRecord } from '../../shared/ledger/reads/list-schedules.js';
import {
  changeSchedule,
  decideOccurrence,
  type ScheduleChange,
  type ScheduleDefinition,
} from '../../shared/ledger/schedules.js';
import type { Db } from '../../shared/ledger/database.js';

/** What a schedule of a test is made of, unless the test says otherwise. */
export function definitionOf(agent: string, changes: Partial<ScheduleDefinition> = {}): ScheduleDefinition {
  return {
    ...{ name: `s-${randomUUID()}`, agent, thread_id: null, input: 'A' },
    contract: RunContract.parse({
      objective: 'The books are in order.',
      acceptance: { rule: 'They balance.', accepted_by: 'desk' },
      owner: 'desk',
    }),
    timing: { cron: ['* * * * *'], time_zone: 'UTC' },
    ...{ overlap: 'skip', catch_up_seconds: 600 },
    ...changes,
  };
}

/** A schedule of a test, with what a test asks of it. */
export class TestSchedule {
  readonly db: Db;
  readonly scheduleId: string;
  readonly tenantId = 'default';

  constructor(db: Db, scheduleId: string) {
    this.db = db;
    this.scheduleId = scheduleId;
  }

  async change(change: ScheduleChange): Promise<void> {
    const changed = await changeSchedule(this.db, {
      ...{ tenantId: this.tenantId, actorId: 'user:ada', roles: ['requester'], scheduleId: this.scheduleId },
      ...{ endpoint: 'a test', idempotencyKey: randomUUID(), expectedVersion: null, change },
    });
    if (changed.kind !== 'done') throw new Error(`not changed: ${changed.kind}`);
  }

  /** One planned time, as Temporal would tell it. */
  async tick(plannedAt: string): Promise<OccurrenceRecord> {
    return await this.#judged(
      await decideOccurrence(this.db, this.scheduleId, { source: 'tick', plannedAt }),
    );
  }

  /** A start that somebody asks for. */
  async runNow(idempotencyKey: string = randomUUID()): Promise<OccurrenceRecord> {
    const occasion = { source: 'run_now', actorId: 'user:olga', idempotencyKey } as const;
    return await this.#judged(await decideOccurrence(this.db, this.scheduleId, occasion));
  }

  async #judged(decided: Awaited<ReturnType<typeof decideOccurrence>>): Promise<OccurrenceRecord> {
    if (decided.kind === 'gone') throw new Error('the schedule is gone');
    const all = await this.occurrences();
    return all.find(({ occurrence_id: id }) => id === decided.occurrenceId)!;
  }

  /** The oldest planned time first. */
  async occurrences(): Promise<OccurrenceRecord[]> {
    const { tenantId, scheduleId } = this;
    const page = { after: null, limit: 1_000 };
    return (await listOccurrences(this.db, { tenantId, scheduleId }, null, page)).toReversed();
  }
}

/** A schedule that `user:ada` defined and no worker has told Temporal of. */
export async function newSchedule(
  db: Db,
  definition: ScheduleDefinition,
  taskQueue = 'nobody-listens',
): Promise<TestSchedule> {
  const schedule = new TestSchedule(db, newId('sch'));
  await schedule.change({ kind: 'created', definition, taskQueue });
  return schedule;
}
