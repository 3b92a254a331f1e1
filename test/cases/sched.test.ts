import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { submitCommand } from '../../shared/ledger/commands.js';
import { askBackfill, startQueuedOccurrences } from '../../shared/ledger/schedules.js';
import { createScheduler } from '../../workers/scheduler.js';
import { submit } from '../support/desk.js';
import { bringRunTo, LedgerRun } from '../support/ledger-run.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from '../support/ledger-world.js';
import { definitionOf, newSchedule, type TestSchedule } from '../support/schedules.js';
import { startWorld, until, type World } from '../support/world.js';

// Goal: the schedules of CASES (SCHED): each planned time is judged once and for all to see, and never two run where one may.
// Method: overlaps are played on the ledger, which judges them, from many connections at once; the clock changes, the missed
// times and the backfills are asked of a real Temporal.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const at = (minute: number): string => new Date(Date.UTC(2026, 0, 1, 0, minute)).toISOString();
const minutes = (count: number): number[] => Array.from({ length: count }, (_, minute) => minute);

/** The run of an occurrence, spoken for by an execution of its own. */
function runOf({ run_id }: { readonly run_id: string | null }): LedgerRun {
  return new LedgerRun(ledger, run_id!, `exec-${randomUUID()}`);
}

async function bring(run: LedgerRun, state: Parameters<typeof bringRunTo>[1]): Promise<void> {
  await run.start();
  await bringRunTo(run, state);
}

const states = async (schedule: TestSchedule) =>
  (await schedule.occurrences()).map(({ state, reason }) =>
    reason === null ? state : `${state}: ${reason}`,
  );

describe('a start that somebody asks for (case 80)', () => {
  test('and ticks at the same time make one run under `skip`, and the rest is written down with what blocked it', async () => {
    const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
    const key = randomUUID();
    await Promise.all([
      ...minutes(8).map((m) => schedule.tick(at(m))),
      schedule.runNow(key),
      schedule.runNow(key),
    ]);
    const occurrences = await schedule.occurrences();
    const started = occurrences.filter(({ state }) => state === 'started');
    expect([started.length, occurrences.length]).toEqual([1, 9]);
    for (const skipped of occurrences.filter(({ state }) => state === 'skipped')) {
      expect(skipped).toMatchObject({ reason: 'overlap', blocked_by: started[0]!.run_id });
    }
  });

  test('waits under `buffer_one` while one runs, a second is one too many, and the first starts when that run ended', async () => {
    const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name, { overlap: 'buffer_one' }));
    const first = await schedule.tick(at(0));
    await schedule.runNow();
    await schedule.tick(at(1));
    expect((await states(schedule)).toSorted()).toEqual(['queued', 'skipped: buffer_full', 'started']);
    await startQueuedOccurrences(ledger.db);
    expect((await states(schedule)).filter((state) => state === 'queued')).toHaveLength(1);
    await bring(runOf(first), 'completed');
    await Promise.all([startQueuedOccurrences(ledger.db), startQueuedOccurrences(ledger.db)]);
    expect((await states(schedule)).toSorted()).toEqual(['skipped: buffer_full', 'started', 'started']);
  });

  test('under `cancel_other` stops the one that runs, supersedes the one that waits, and takes its place', async () => {
    const schedule = await newSchedule(
      ledger.db,
      definitionOf(LEDGER_AGENT.name, { overlap: 'cancel_other' }),
    );
    const first = await schedule.tick(at(0));
    const run = runOf(first);
    await bring(run, 'running');
    await schedule.tick(at(1));
    await schedule.tick(at(2));
    expect(await states(schedule)).toEqual(['started', 'skipped: superseded', 'queued']);
    expect((await ledger.runRow(run.runId)).control).toBe('cancel_requested');
    await bringRunTo(run, 'cancelled');
    await startQueuedOccurrences(ledger.db);
    expect(await states(schedule)).toEqual(['started', 'skipped: superseded', 'started']);
  });
});

test('a run that waits for an approval is under way: a tick at the moment of the yes is skipped, never beside it (case 81)', async () => {
  const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
  const run = runOf(await schedule.tick(at(0)));
  await bring(run, 'awaiting_approval');
  await Promise.all([
    run.commit({ kind: 'move', to: 'running', reason: 'approval_decided' }),
    ...minutes(4).map((minute) => schedule.tick(at(minute + 1))),
  ]);
  expect(await states(schedule)).toEqual(['started', ...Array<string>(4).fill('skipped: overlap')]);
});

test('a run that is stuck makes each later tick a skip that names it, until its end lets the next start (case 82)', async () => {
  const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
  const run = runOf(await schedule.tick(at(0)));
  await bring(run, 'retry_wait');
  for (const minute of [1, 2, 3, 4, 5]) {
    expect(await schedule.tick(at(minute))).toMatchObject({ state: 'skipped', blocked_by: run.runId });
  }
  await run.commit({ kind: 'move', to: 'failed', reason: 'limit_wall_clock' });
  expect(await schedule.tick(at(6))).toMatchObject({ state: 'started' });
});

test('a change of the input reaches every later run, also one made while paused, and no run that began before (case 83)', async () => {
  const definition = definitionOf(LEDGER_AGENT.name);
  const schedule = await newSchedule(ledger.db, definition);
  const inputOf = async (occurrence: { run_id: string | null }): Promise<unknown> =>
    (
      await ledger.rows<{ input: unknown }>(
        'select input from holdfast.runs where run_id = $1',
        occurrence.run_id,
      )
    )[0]!.input;
  const first = await schedule.tick(at(0));
  await schedule.change({ kind: 'changed', definition: { ...definition, input: 'B' } });
  await bring(runOf(first), 'completed');
  const second = await schedule.tick(at(1));
  await schedule.change({ kind: 'paused' });
  await schedule.change({ kind: 'changed', definition: { ...definition, input: 'C' } });
  await schedule.change({ kind: 'resumed' });
  await bring(runOf(second), 'completed');
  const third = await schedule.tick(new Date(Date.now() + 60_000).toISOString());
  expect([await inputOf(first), await inputOf(second), await inputOf(third)]).toEqual(['A', 'B', 'C']);
});

test('a scheduled run that is cancelled twice is cancelled once, and its occurrence shows it (case 35)', async () => {
  const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
  const run = runOf(await schedule.tick(at(0)));
  await submit(run, 'cancel', { idempotencyKey: 'one' });
  expect(await submit(run, 'cancel', { idempotencyKey: 'one' })).toMatchObject({ kind: 'replayed' });
  expect((await schedule.occurrences())[0]).toMatchObject({ state: 'started', run_state: 'cancelled' });
  expect(await schedule.tick(at(1))).toMatchObject({ state: 'started' });
});

test('what the ledger cannot make a run of is refused and told, in its turn or at its time, and holds up no other', async () => {
  const definition = definitionOf(LEDGER_AGENT.name, { overlap: 'buffer_one' });
  const broken = await newSchedule(ledger.db, definition);
  const sound = await newSchedule(ledger.db, { ...definition, name: `s-${randomUUID()}` });
  for (const schedule of [broken, sound]) {
    const first = runOf(await schedule.tick(at(0)));
    await schedule.tick(at(1));
    await submit(first, 'cancel');
  }
  await ledger.rows(
    `update holdfast.schedules set contract = contract - 'owner' where schedule_id = $1`,
    broken.scheduleId,
  );
  await startQueuedOccurrences(ledger.db);
  expect(await states(broken)).toEqual(['started', 'refused: not_admitted']);
  expect(await states(sound)).toEqual(['started', 'started']);
  expect(await broken.tick(at(2))).toMatchObject({ state: 'refused', reason: 'not_admitted' });
});

describe('with a real Temporal', () => {
  let world: World;
  let scheduler: ReturnType<typeof createScheduler>;
  beforeAll(async () => {
    world = await startWorld();
    const { db, client, namespace, log } = world;
    scheduler = createScheduler({ db, client, namespace, log });
  });

  const make = async (changes: Parameters<typeof definitionOf>[1]): Promise<TestSchedule> => {
    const made = await newSchedule(
      world.db,
      definitionOf(world.project.agents[0]!.name, changes),
      world.taskQueue,
    );
    await scheduler.round();
    return made;
  };
  const backfill = async (schedule: TestSchedule, from: string, to: string): Promise<void> => {
    const who = { tenantId: 'default', actorId: 'user:olga', roles: ['operator'] } as const;
    const asked = { scheduleId: schedule.scheduleId, from, to, idempotencyKey: randomUUID() };
    expect(await askBackfill(world.db, { ...who, ...asked })).toBe('done');
    await scheduler.round();
  };
  /** Ends a run that no worker has begun. */
  const cancel = async ({ run_id: runId }: { readonly run_id: string | null }): Promise<void> => {
    await submitCommand(world.db, {
      ...{ tenantId: 'default', runId: runId!, kind: 'cancel', payload: {}, expectedStateVersion: null },
      ...{ actorId: 'user:olga', authority: 'operator', endpoint: 'a test', idempotencyKey: randomUUID() },
    });
  };
  const planned = async (schedule: TestSchedule, count: number): Promise<string[]> => {
    await until(`${count} planned times`, async () => (await schedule.occurrences()).length >= count);
    return (await schedule.occurrences()).map(({ planned_at: time }) => time);
  };

  test('a daily time that the clocks skip does not come, one that they repeat comes once, and no planned time comes twice (case 79, H02, H03)', async () => {
    const inBerlin = (...cron: string[]) =>
      make({ timing: { cron, time_zone: 'Europe/Berlin' }, overlap: 'allow_all' });
    const daily = await inBerlin('30 2 * * *');
    await backfill(daily, '2026-03-28T00:00:00.000Z', '2026-03-31T00:00:00.000Z');
    expect(await planned(daily, 2)).toEqual(['2026-03-28T01:30:00.000Z', '2026-03-30T00:30:00.000Z']);
    await backfill(daily, '2026-10-24T00:00:00.000Z', '2026-10-27T00:00:00.000Z');
    expect((await planned(daily, 5)).slice(2)).toEqual([
      '2026-10-24T00:30:00.000Z',
      '2026-10-25T01:30:00.000Z',
      '2026-10-26T01:30:00.000Z',
    ]);
    // The hour from 2 to 3 is there twice; each of its times comes once, in the one or in the other.
    const often = await inBerlin('0,30 * * * *');
    const night = ['2026-10-25T00:00:00.000Z', '2026-10-25T02:00:00.000Z'] as const;
    await backfill(often, ...night);
    const halfHours = minutes(5).map((n) => new Date(Date.UTC(2026, 9, 25, 0, 30 * n)).toISOString());
    const clock = new Intl.DateTimeFormat('en-GB', { timeZone: 'Europe/Berlin', timeStyle: 'short' });
    expect((await planned(often, 3)).map((time) => clock.format(new Date(time)))).toEqual([
      '02:00',
      '02:30',
      '03:00',
    ]);
    // What must come every half hour, whatever the clocks do, says so.
    const steady = await make({ timing: { every_seconds: 1_800, offset_seconds: 0 }, overlap: 'allow_all' });
    await backfill(steady, ...night);
    expect(await planned(steady, 5)).toEqual(halfHours);
    // Asked for again, nothing comes again.
    await backfill(steady, night[0], '2026-10-25T02:30:00.000Z');
    expect(new Set(await planned(steady, 6)).size).toBe(6);
    expect(await steady.occurrences()).toHaveLength(6);
  });

  test('times that nobody saw are missed, each by name, but for those of a pause; asked for, they come after all (case 84)', async () => {
    const schedule = await make({
      overlap: 'allow_all',
      timing: { cron: ['*/10 * * * *'], time_zone: 'UTC' },
    });
    const now = Date.now();
    const hours = (n: number) => new Date(now - n * 3_600_000);
    // Nobody looked for three hours, and the second of them was a pause.
    await world.rows(
      'update holdfast.schedules set watched_until = $2 where schedule_id = $1',
      schedule.scheduleId,
      hours(3),
    );
    await world.rows(
      'insert into holdfast.schedule_pauses values ($1, $2, $3)',
      schedule.scheduleId,
      hours(2),
      hours(1),
    );
    await scheduler.watch();
    const grid = minutes(18 * 10)
      .map((minute) => Math.ceil(hours(3).getTime() / 600_000) * 600_000 + minute * 600_000)
      .filter((time) => time < now - 660_000)
      .filter((time) => time < hours(2).getTime() || time >= hours(1).getTime())
      .map((time) => new Date(time).toISOString());
    const missed = (await schedule.occurrences()).filter(({ state }) => state === 'missed');
    expect(missed.map(({ planned_at: time }) => time)).toEqual(grid);
    await scheduler.watch();
    expect(await schedule.occurrences()).toHaveLength(grid.length);
    await backfill(schedule, hours(2.5).toISOString(), hours(1.5).toISOString());
    const wanted = (time: string) =>
      Date.parse(time) >= hours(2.5).getTime() && Date.parse(time) <= hours(1.5).getTime();
    await until('what was asked for has come', async () => {
      const asked = (await schedule.occurrences()).filter(({ planned_at: time }) => wanted(time));
      return asked.length === 6 && asked.every(({ state }) => state === 'started');
    });
  });

  // Not by stopping a server: a window of ten seconds, the wait for a tick before and the grace after would take minutes. To
  // Temporal an outage and a schedule that it has not heard of yet are the same: times passed of which it told nobody.
  test('after an outage longer than the catch-up window the times within it start, and each one before is missed (H04)', async () => {
    const timing = { every_seconds: 10, offset_seconds: 0 };
    const definition = definitionOf(world.project.agents[0]!.name, {
      ...{ overlap: 'allow_all', timing, catch_up_seconds: 30 },
    });
    const schedule = await newSchedule(world.db, definition, world.taskQueue);
    const { scheduleId } = schedule;
    const since = Date.now() - 180_000;
    await world.rows(
      'update holdfast.schedules set watched_until = $2 where schedule_id = $1',
      scheduleId,
      new Date(since),
    );
    const back = Date.now();
    await scheduler.round();
    await scheduler.watch();
    const watched = Date.now() - 90_000;
    const times = minutes(19).map((n) => Math.ceil(since / 10_000) * 10_000 + n * 10_000);
    // A second on either side of the window's edge may be either's.
    const caughtUp = times.filter((time) => time > back - 29_000 && time < back);
    const lost = times.filter((time) => time < watched - 1_000);
    expect([caughtUp.length >= 2, lost.length >= 8]).toEqual([true, true]);
    const told = async (state: string): Promise<number[]> =>
      (await schedule.occurrences())
        .filter((occurrence) => occurrence.state === state)
        .map(({ planned_at: time }) => Date.parse(time));
    await until('what the window holds has come', async () => {
      const started = await told('started');
      return caughtUp.every((time) => started.includes(time));
    });
    const [started, missed] = [await told('started'), await told('missed')];
    expect(started.filter((time) => time < back - 31_000)).toEqual([]);
    expect(lost.filter((time) => !missed.includes(time))).toEqual([]);
    expect(missed.filter((time) => time > watched + 1_000 || started.includes(time))).toEqual([]);
    await schedule.change({ kind: 'deleted' });
    await scheduler.round();
  });

  test('a schedule that somebody deletes in Temporal is told to it again, and a change, a pause and an end reach it', async () => {
    const schedule = await make({});
    const handle = world.client.schedule.getHandle(schedule.scheduleId);
    await handle.delete();
    await world.rows(
      `update holdfast.schedules set watched_until = now() - interval '1 hour' where schedule_id = $1`,
      schedule.scheduleId,
    );
    await scheduler.watch();
    await scheduler.round();
    expect((await handle.describe()).state.paused).toBe(false);
    await schedule.change({ kind: 'paused' });
    await scheduler.round();
    expect((await handle.describe()).state.paused).toBe(true);
    const timing = { every_seconds: 3_600, offset_seconds: 60 };
    await schedule.change({
      kind: 'changed',
      definition: definitionOf(world.project.agents[0]!.name, { timing }),
    });
    await scheduler.round();
    expect((await handle.describe()).spec).toMatchObject({
      intervals: [{ every: 3_600_000, offset: 60_000 }],
    });
    await schedule.change({ kind: 'deleted' });
    await scheduler.round();
    await expect(handle.describe()).rejects.toThrow();
  });

  test('one that Temporal has lost holds up no other, and gets the times that were asked for once it is told again', async () => {
    const lost = await make({ overlap: 'allow_all', timing: { cron: ['0 0 * * *'], time_zone: 'UTC' } });
    await world.client.schedule.getHandle(lost.scheduleId).delete();
    const other = await make({ overlap: 'buffer_one' });
    const first = await other.runNow();
    await other.runNow();
    await cancel(first);
    await backfill(lost, '2026-01-01T00:00:00.000Z', '2026-01-01T01:00:00.000Z');
    expect((await other.occurrences()).map(({ state }) => state)).toEqual(['started', 'started']);
    await scheduler.round();
    expect(await planned(lost, 1)).toEqual(['2026-01-01T00:00:00.000Z']);
  });
});
