import { randomUUID } from 'node:crypto';
import { RunContract } from '../../shared/domain/contract.js';
import type { Db } from '../../shared/ledger/database.js';
import { newId } from '../../shared/ledger/new-id.js';
import { listOccurrences, type OccurrenceRecord } from '../../shared/ledger/reads/list-schedules.js';
import {
  askBackfill,
  changeSchedule,
  decideOccurrence,
  type ScheduleChange,
  type ScheduleDefinition,
} from '../../shared/ledger/schedules.js';
import { LEDGER_AGENT } from './ledger-world.js';

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

/** A schedule with an occurrence that runs, one that waits and one that was asked for and skipped, and a backfill. */
export async function addSchedule(db: Db): Promise<void> {
  const schedule = await newSchedule(db, definitionOf(LEDGER_AGENT.name, { overlap: 'buffer_one' }));
  for (const plannedAt of ['2026-01-01T00:00:00.000Z', '2026-01-01T00:01:00.000Z'])
    await schedule.tick(plannedAt);
  await schedule.runNow();
  const { tenantId, scheduleId } = schedule;
  const stretch = {
    from: '2025-01-01T00:00:00.000Z',
    to: '2025-01-02T00:00:00.000Z',
    idempotencyKey: 'stretch',
  };
  await askBackfill(db, { tenantId, scheduleId, actorId: 'user:olga', roles: ['operator'], ...stretch });
}
