import { beforeAll, describe, expect, test } from 'vitest';
import type { TrailEntry } from '../shared/domain/protocol.js';
import { edges, RUN_STATES, type RunState } from '../shared/domain/run-machine.js';
import { REFUSALS, refusalOf } from '../shared/ledger/refusals.js';
import { commitTrail, readResumePoint, takeOver } from '../shared/ledger/trail.js';
import { bringRunTo, callOf } from './support/ledger-run.js';
import { type LedgerWorld, openLedger } from './support/ledger-world.js';

// Goal: what a workflow decided becomes durable once, in order, and only for the execution that owns the run.

let ledger: LedgerWorld;
beforeAll(async () => {
  ledger = await openLedger();
});

const move = (to: RunState): TrailEntry => ({ kind: 'move', to, reason: 'internal_error' });
const warning = (code: string): TrailEntry => ({ kind: 'warning', code });
const refused = (promise: Promise<unknown>): Promise<unknown> => promise.then(() => 'written', refusalOf);

describe('a trail', () => {
  test('is written once, however often it is sent, also together with what came after', async () => {
    const run = await ledger.newRun();
    const entries = [move('running'), warning('first'), move('retry_wait')];
    for (let time = 0; time < 3; time += 1) await commitTrail(ledger.db, run, { from: 1, entries });
    await commitTrail(ledger.db, run, { from: 1, entries: [...entries, move('running')] });
    await commitTrail(ledger.db, run, {
      from: 3,
      entries: [move('retry_wait'), move('running'), warning('second')],
    });
    expect(await ledger.path(run.runId)).toStrictEqual(['admitted', 'running', 'retry_wait', 'running']);
    const warnings = (await ledger.events(run.runId)).filter(({ type }) => type === 'run.warning');
    expect(warnings.map(({ data }) => data['code'])).toStrictEqual(['first', 'second']);
  });

  test.each([
    ['leaves a hole', { from: 3, entries: [warning('late')] }],
    ['ends before what is durable', { from: 1, entries: [] }],
    ['is empty and ahead', { from: 9, entries: [] }],
  ])('that %s is out of step, and nothing of it is written', async (_, trail) => {
    const run = await ledger.newRun();
    await run.commit(move('running'));
    const before = await ledger.footprint(run.runId);
    expect(await refused(commitTrail(ledger.db, run, trail))).toBe('out_of_step');
    expect(await ledger.footprint(run.runId)).toStrictEqual(before);
  });

  test('with one illegal move in it is refused whole', async () => {
    const run = await ledger.newRun();
    await run.start();
    const before = await ledger.footprint(run.runId);
    expect(await refused(run.commit(warning('kept?'), move('retry_wait'), move('completed')))).toBe(
      'illegal_move',
    );
    expect(await ledger.footprint(run.runId)).toStrictEqual(before);
  });

  test('with an entry of a kind or region that nobody knows is refused', async () => {
    const run = await ledger.newRun();
    await run.start();
    const strange = [
      { kind: 'jump', to: 'running' },
      { kind: 'control', to: 'running', reason: 'retry_due' },
    ];
    for (const entry of strange) {
      const trail = { from: 2, entries: [entry as unknown as TrailEntry] };
      expect(await refused(commitTrail(ledger.db, run, trail))).toBe('illegal_move');
    }
  });

  test('writes a retry with its owner, its series deadline and when it is due', async () => {
    const run = await ledger.newStep([callOf('keyed')]);
    await run.call(0).attempt('throttled');
    const row = { kind: 'retry', turn: 1, step: 1, reason: 'throttled', attempt: 1, attemptsMax: 5 } as const;
    await run.commit(
      { ...row, slot: 0, action: 'retry', waitMs: 120_000, retryAfterSeconds: 90 },
      { ...row, action: 'give_up' },
    );
    const rows = await ledger.rows(
      `select action, owner, slot, effect_id is not null as effect, retry_after_seconds::int as asked,
              extract(epoch from eligible_at - created_at)::int as wait, deadline_at > created_at as open
         from holdfast.retries where run_id = $1 order by trail_seq`,
      run.runId,
    );
    expect(rows).toStrictEqual([
      { action: 'retry', owner: 'desk', slot: 0, effect: true, asked: 90, wait: 120, open: true },
      { action: 'give_up', owner: 'desk', slot: null, effect: false, asked: null, wait: null, open: true },
    ]);
  });

  test('of the first execution makes it the owner; every other is refused', async () => {
    const run = await ledger.newRun();
    await run.start();
    expect(await ledger.runRow(run.runId)).toMatchObject({ epoch: 1, owner_execution: run.execution });
    const stranger = { runId: run.runId, execution: 'exec-stranger' };
    expect(await refused(commitTrail(ledger.db, stranger, { from: 2, entries: [] }))).toBe(
      'unknown_execution',
    );
    const nobody = { runId: `run_${'0'.repeat(32)}`, execution: 'exec' };
    expect(await refused(commitTrail(ledger.db, nobody, { from: 1, entries: [] }))).toBe('run_not_found');
  });

  test('of twenty first executions at once makes one the owner', async () => {
    const run = await ledger.newRun();
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, index) =>
        refused(
          commitTrail(ledger.db, { runId: run.runId, execution: `exec-${index}` }, { from: 1, entries: [] }),
        ),
      ),
    );
    expect(answers.filter((answer) => answer === 'written')).toHaveLength(1);
    expect(answers.filter((answer) => answer === 'unknown_execution')).toHaveLength(19);
    expect((await ledger.runRow(run.runId)).epoch).toBe(1);
  });
});

describe('every pair of states', () => {
  const legal = new Set(
    edges()
      .filter(({ region }) => region === 'run')
      .map(({ from, to }) => `${from} ${to}`),
  );

  test.each(RUN_STATES)('from %s only the edges of the table can be written', async (from) => {
    const written = await Promise.all(
      RUN_STATES.map(async (to) => {
        const run = await ledger.newRun();
        await bringRunTo(run, from);
        const answer = await refused(run.commit(move(to)));
        const { state } = await ledger.runRow(run.runId);
        expect([to, state]).toStrictEqual([to, answer === 'written' ? to : from]);
        return [to, answer] as const;
      }),
    );
    for (const [to, answer] of written) {
      const ended = ['completed', 'compensated', 'failed', 'cancelled'].includes(from);
      const expected = legal.has(`${from} ${to}`) ? 'written' : ended ? 'run_ended' : 'illegal_move';
      expect([from, to, answer]).toStrictEqual([from, to, expected]);
    }
  });
});

describe('an end', () => {
  test.each(['completed', 'failed'] as const)(
    'as %s withdraws what never left and settles lost reads, each with its event',
    async (end) => {
      const run = await ledger.newStep([callOf('opaque'), callOf('read'), callOf('keyed')]);
      await run.call(0).attempt('not_sent');
      await run.call(1).attempt('unknown');
      await run.call(2).attempt('succeeded');
      await run.commit(move(end));
      expect((await ledger.effects(run.runId)).map(({ state }) => state)).toStrictEqual([
        ...['withdrawn', 'not_committed', 'succeeded'],
      ]);
      const events = await ledger.events(run.runId);
      expect(
        events
          .slice(-3)
          .map(({ type }) => type)
          .toSorted(),
      ).toStrictEqual(['effect.closed', 'effect.settled', 'run.transition']);
      expect(events.at(-1)).toMatchObject({ type: 'run.transition', data: { to: end } });
    },
  );

  test.each([
    ['completed', 'dispatching'],
    ['completed', 'unknown'],
    ['failed', 'dispatching'],
    ['failed', 'unknown'],
  ] as const)('as %s is refused over an effect that is %s', async (end, state) => {
    const call = await ledger.newCall('keyed');
    await call.bringTo(state);
    const before = await ledger.footprint(call.run.runId);
    await expect(call.run.commit(move(end))).rejects.toThrow(/^unresolved_effects/);
    expect(await ledger.footprint(call.run.runId)).toStrictEqual(before);
  });

  test('is for good: the owner may say again what is durable, and nothing more', async () => {
    const run = await ledger.newRun();
    const entries = [move('running'), move('failed')];
    await commitTrail(ledger.db, run, { from: 1, entries });
    expect(await commitTrail(ledger.db, run, { from: 1, entries })).toStrictEqual({ state: 'failed' });
    expect(await refused(commitTrail(ledger.db, run, { from: 3, entries: [warning('late')] }))).toBe(
      'run_ended',
    );
    expect(await refused(takeOver(ledger.db, { runId: run.runId, execution: 'exec-b' }, 1, 'reset'))).toBe(
      'run_ended',
    );
  });
});

describe('a takeover', () => {
  test('of twenty at once lets one through; the epoch rises by one', async () => {
    const run = await ledger.newRun();
    await run.start();
    const racers = Array.from({ length: 20 }, (_, index) => ({
      runId: run.runId,
      execution: `racer-${index}`,
    }));
    const answers = await Promise.all(racers.map((racer) => refused(takeOver(ledger.db, racer, 1, 'reset'))));
    expect(answers.toSorted()).toStrictEqual([...Array<string>(19).fill('lost_takeover'), 'written']);
    const row = await ledger.runRow(run.runId);
    expect(row).toMatchObject({ epoch: 2, owner_execution: racers[answers.indexOf('written')]!.execution });
  });

  test('is repeated by its winner without another epoch, and lost for good by who was taken over', async () => {
    const run = await ledger.newRun();
    await run.start();
    const next = { runId: run.runId, execution: 'exec-next' };
    for (let time = 0; time < 3; time += 1) await takeOver(ledger.db, next, 1, 'continued');
    expect((await ledger.runRow(run.runId)).epoch).toBe(2);
    expect(await refused(takeOver(ledger.db, run, 2, 'reset'))).toBe('lost_ownership');
    expect(await refused(run.commit(warning('stale')))).toBe('lost_ownership');
    expect(await readResumePoint(ledger.db, run)).toMatchObject({
      known: true,
      owner: 'exec-next',
      epoch: 2,
    });
    expect(await readResumePoint(ledger.db, { ...next, execution: 'exec-other' })).toMatchObject({
      known: false,
    });
  });

  test('makes what is in flight unknown, and leaves everything else of the run as it is', async () => {
    const run = await ledger.newStep([callOf('opaque'), callOf('keyed'), callOf('read'), callOf('opaque')]);
    const states = ['dispatching', 'unknown', 'succeeded', 'intended'] as const;
    for (const [slot, state] of states.entries()) await run.call(slot).bringTo(state);
    await run.commit(move('retry_wait'));
    const next = await run.takenOver();
    expect((await ledger.effects(run.runId)).map(({ state }) => state)).toStrictEqual([
      ...['unknown', 'unknown', 'succeeded', 'intended'],
    ]);
    expect((await ledger.runRow(run.runId)).state).toBe('retry_wait');
    expect(await readResumePoint(ledger.db, next)).toMatchObject({
      ...{ state: 'retry_wait', turn: 1, step: 1, trailPosition: run.position, known: true },
      unknown: [
        { turn: 1, step: 1, slot: 0 },
        { turn: 1, step: 1, slot: 1 },
      ],
    });
  });

  test('of a run that nobody started is possible, and of one that nobody knows is not', async () => {
    const run = await ledger.newRun();
    await takeOver(ledger.db, run, 0, 'reset');
    expect(await ledger.runRow(run.runId)).toMatchObject({ epoch: 1, state: 'admitted' });
    const nobody = { runId: `run_${'0'.repeat(32)}`, execution: 'exec' };
    expect(await refused(takeOver(ledger.db, nobody, 0, 'reset'))).toBe('run_not_found');
    expect(await refused(readResumePoint(ledger.db, nobody))).toBe('run_not_found');
  });

  test('in a long row of owners: each epoch is granted once and every transition carries its own', async () => {
    let run = await ledger.newRun();
    await run.start();
    for (let time = 0; time < 5; time += 1) {
      run = await run.takenOver();
      await run.commit(move('retry_wait'), move('running'));
    }
    const epochs = (await ledger.transitions(run.runId)).map(({ epoch }) => epoch);
    expect(epochs).toStrictEqual([0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]);
    const granted = await ledger.rows<{ epoch: number }>(
      'select epoch from holdfast.run_executions where run_id = $1 order by epoch',
      run.runId,
    );
    expect(granted.map(({ epoch }) => epoch)).toStrictEqual([1, 2, 3, 4, 5, 6]);
  });
});

test('every refusal that the ledger raises is known by its name, and none else', async () => {
  const [{ found }] = (await ledger.rows<{ found: string[] }>(
    `select array_agg(distinct m[1] || ' ' || m[2]) as found from pg_proc p,
       regexp_matches(p.prosrc, 'raise exception ''(\\w+)[^;]*?errcode = ''(HF\\d+)''', 'g') m
      where p.pronamespace = 'holdfast'::regnamespace`,
  )) as [{ found: string[] }];
  const known = Object.entries(REFUSALS).map(([code, name]) => `${name} ${code}`);
  expect(found.toSorted()).toStrictEqual(known.toSorted());
});
