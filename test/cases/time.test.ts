import { randomUUID } from 'node:crypto';
import { afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { ProblemView } from '../../api/views/common.js';
import { unstartedRuns } from '../../shared/ledger/admission.js';
import { decideOccurrence } from '../../shared/ledger/schedules.js';
import { decide, interruptOf, newGate } from '../support/desk.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from '../support/ledger-world.js';
import { MOVABLE_CLOCK, setClock } from '../support/movable-clock.js';
import { definitionOf, newSchedule } from '../support/schedules.js';
import { startBody, startTestApi, type TestApi } from '../support/test-api.js';

// Goal: the ledger's clock alone says what is over, and its numbers alone what came first (FAULTS H). Method: this process' own
// clock, which is the API's and the worker's, is set wrong; then the ledger's is set back.

const HOUR = 3_600_000;

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  await ledger.rows(MOVABLE_CLOCK);
  api = await startTestApi({ databaseUrl: ledger.url });
});
afterEach(async () => {
  vi.useRealTimers();
  await setClock(ledger, Date.now());
});

async function send(path: string, body: unknown): Promise<Response> {
  const headers = { 'content-type': 'application/json', 'idempotency-key': randomUUID() };
  return await api.request(path, { method: 'POST', headers, body: JSON.stringify(body) });
}
const approve = async (gate: Awaited<ReturnType<typeof newGate>>): Promise<string> => {
  const body = { decision: 'approve', scope_sha256: gate.scopeSha256 };
  const response = await send(`/v1/interrupts/${gate.interruptId}/resolve`, body);
  return response.ok ? 'approved' : ProblemView.parse(await response.json()).code;
};

describe('a process whose clock is wrong', () => {
  test.each([
    ['two hours ahead', 2 * HOUR],
    ['two hours behind', -2 * HOUR],
  ])('%s ends no wait early, revives none, and changes no order (H01)', async (_, offset) => {
    const open = await newGate(ledger, { contract: { timeouts: { approval_seconds: 3_600 } } });
    const over = await newGate(ledger, { contract: { timeouts: { approval_seconds: 3_600 } } });
    const before = await ledger.newRun();
    const now = Date.now();
    vi.useFakeTimers({ toFake: ['Date'], now: now + offset });
    expect(await approve(open)).toBe('approved');
    const wrong = await ledger.newRun();
    expect(await open.call.ask()).toBe('claimed');
    vi.useRealTimers();
    const after = await ledger.newRun();
    const started = (await unstartedRuns(ledger.db, 1_000)).map(({ run_id: id }) => id);
    const mine = [before, wrong, after].map(({ runId }) => runId);
    expect(started.filter((id) => mine.includes(id))).toEqual(mine);

    await setClock(ledger, now + HOUR + 60_000);
    vi.useFakeTimers({ toFake: ['Date'], now: now + offset });
    expect(await approve(over)).toBe('interrupt_expired');
  });
});

test('a ledger whose clock steps back ten minutes keeps its order by number, and what had expired stays so (H05)', async () => {
  const now = Date.now();
  const gate = await newGate(ledger, { contract: { timeouts: { approval_seconds: 60 } } });
  await setClock(ledger, now + 120_000);
  expect(await approve(gate)).toBe('interrupt_expired');
  expect(await gate.call.ask()).not.toBe('claimed');
  expect((await interruptOf(gate.call)).state).toBe('expired');
  const run = await ledger.newRun();
  await run.start();

  await setClock(ledger, now - 600_000);
  expect(await decide(gate)).not.toMatchObject({ kind: 'decided' });
  expect(await approve(gate)).toBe('interrupt_expired');
  expect(await gate.call.ask()).not.toBe('claimed');
  await run.plan([]);
  await run.commit({ kind: 'move', to: 'failed', reason: 'internal_error' });
  const events = await ledger.rows<{ seq: number; earlier: boolean }>(
    `select seq::int, created_at < lag(created_at) over (order by seq) as earlier from holdfast.run_events
      where run_id = $1 order by seq`,
    run.runId,
  );
  expect(events.some(({ earlier }) => earlier)).toBe(true);
  const response = await api.request(`/v1/runs/${run.runId}/events`);
  const page = (await response.json()) as { events: { seq: number }[] };
  expect(page.events.map(({ seq }) => seq)).toEqual(events.map(({ seq }) => seq));
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
});

describe('a silly time (H06)', () => {
  const SILLY = [
    '1999-01-01T00:00:00Z',
    '9999-12-31T23:59:59Z',
    '0000-01-01T00:00:00Z',
    '2026-02-30T00:00:00Z',
    '2026-12-01T25:00:00Z',
    '2026-12-01T12:00:00',
    '2026-12-01',
    'infinity',
    'now',
    '',
    1e20,
    null,
  ];

  test('is refused wherever the API takes one, and changes nothing', async () => {
    const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
    const run = await ledger.newRun();
    await run.start();
    const before = await ledger.footprint(run.runId);
    const grant = {
      ...{ tool: 'pay', tool_version: 'a'.repeat(64), constraints: [{ at: '/slot', equals: 0 }], count: 1 },
      note: 'A test.',
    };
    const soon = new Date(Date.now() - HOUR).toISOString();
    for (const time of SILLY) {
      const answers = await Promise.all([
        send('/v1/standing-grants', { ...grant, expires_at: time }),
        send(`/v1/runs/${run.runId}/commands`, { kind: 'change_deadline', deadline_at: time }),
        send(`/v1/schedules/${schedule.scheduleId}/backfills`, { from: time, to: soon }),
        send(`/v1/schedules/${schedule.scheduleId}/backfills`, { from: soon, to: time }),
      ]);
      const codes = answers.map(({ status }) => status >= 400 && status < 500);
      expect([time, codes]).toEqual([time, [true, true, true, true]]);
    }
    // Earlier by its digits, later by its letters.
    const [later, earlier] = ['2026-01-01T00:00:00.500Z', '2026-01-01T00:00:00Z'];
    const stretch = (from: string, to: string) =>
      send(`/v1/schedules/${schedule.scheduleId}/backfills`, { from, to });
    expect((await stretch(later, earlier)).status).toBe(400);
    expect((await stretch(earlier, later)).status).toBe(200);
    expect(await ledger.footprint(run.runId)).toEqual(before);
    expect(await ledger.rows('select from holdfast.standing_grants')).toHaveLength(0);
    expect(await ledger.rows('select from holdfast.schedule_backfills')).toHaveLength(1);
  });

  test('is refused as a span of a schedule or a contract, and judged as one of a tick', async () => {
    const { contract } = startBody();
    const body = (timing: unknown, more: object = {}) => ({
      ...{ name: randomUUID(), agent: LEDGER_AGENT.name, input: 'x', contract, timing, ...more },
    });
    for (const [name, sent] of Object.entries({
      never: body({ every_seconds: 0 }),
      negative: body({ every_seconds: -10 }),
      fraction: body({ every_seconds: 10.5 }),
      forever: body({ every_seconds: 1e18 }),
      nowhere: body({ cron: ['0 0 * * *'], time_zone: 'Mars/Olympus' }),
      minute61: body({ cron: ['61 * * * *'] }),
      catchUp: body({ every_seconds: 60 }, { catch_up_seconds: 1e12 }),
      wallClock: body(
        { every_seconds: 60 },
        {
          contract: { ...(contract as object), limits: { wall_clock_seconds: 1e15 } },
        },
      ),
    })) {
      const { status } = await send('/v1/schedules', sent);
      expect([name, status >= 400 && status < 500]).toEqual([name, true]);
    }
    expect(await ledger.rows(`select from holdfast.schedules where input = '"x"'`)).toHaveLength(0);
    // A tick of long ago is one of the ledger's own, and is judged like any.
    const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
    const tick = { source: 'tick', plannedAt: '1970-01-01T00:00:00.000Z' } as const;
    expect(await decideOccurrence(ledger.db, schedule.scheduleId, tick)).toMatchObject({ kind: 'decided' });
  });
});
