import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { ProblemView } from '../api/views/common.js';
import {
  OccurrenceListView,
  OccurrenceView,
  ScheduleListView,
  ScheduleView,
} from '../api/views/schedule-views.js';
import { decideOccurrence, startQueuedOccurrences } from '../shared/ledger/schedules.js';
import { createThread } from '../shared/ledger/threads.js';
import { LEDGER_AGENT, type LedgerWorld, openLedger } from './support/ledger-world.js';
import { definitionOf, newSchedule } from './support/schedules.js';
import { startTestApi, type TestApi } from './support/test-api.js';
import { newEndpoint } from './support/webhook-world.js';

// Goal: a schedule is made, changed, paused, run and ended by those who may, and what becomes no run is told (SPEC 10, 11).

let ledger: LedgerWorld;
let api: TestApi;
beforeAll(async () => {
  ledger = await openLedger();
  api = await startTestApi({ databaseUrl: ledger.url });
});

interface Sent {
  readonly method?: string;
  readonly key?: string;
  readonly roles?: string;
  readonly actor?: string;
  readonly tenant?: string;
}

async function send(path: string, body?: unknown, sent: Sent = {}): Promise<Response> {
  return await api.request(path, {
    method: sent.method ?? 'POST',
    ...(sent.tenant === undefined ? {} : { tenant: sent.tenant }),
    headers: {
      ...{ 'x-actor': sent.actor ?? 'ada', 'idempotency-key': sent.key ?? randomUUID() },
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...(sent.roles === undefined ? {} : { 'x-roles': sent.roles }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
}

function bodyOf(changes: Record<string, unknown> = {}): Record<string, unknown> {
  const { thread_id: _, ...definition } = definitionOf(LEDGER_AGENT.name);
  return { ...definition, ...changes };
}

const problemOf = async (response: Response) => ProblemView.parse(await response.json());
const make = async (changes: Record<string, unknown> = {}, sent: Sent = {}) =>
  ScheduleView.parse(await (await send('/v1/schedules', bodyOf(changes), sent)).json());
const read = async (id: string) =>
  ScheduleView.parse(await (await api.request(`/v1/schedules/${id}`)).json());

describe('POST /v1/schedules', () => {
  test('makes a schedule once under its key, which GET shows and the list holds', async () => {
    const key = randomUUID();
    const body = bodyOf({ timing: { cron: ['30 2 * * MON-FRI'], time_zone: 'Europe/Berlin' } });
    const made = await send('/v1/schedules', body, { key });
    expect(made.status).toBe(201);
    const schedule = ScheduleView.parse(await made.json());
    expect(schedule).toMatchObject({
      version: 1,
      overlap: 'skip',
      defined_by: 'ada',
      synced: false,
      next_at: null,
    });
    const again = await send('/v1/schedules', body, { key });
    expect([again.status, again.headers.get('idempotent-replayed')]).toEqual([200, 'true']);
    expect((await problemOf(await send('/v1/schedules', bodyOf(), { key }))).code).toBe(
      'idempotency_key_reused',
    );
    const listed = ScheduleListView.parse(await (await api.request('/v1/schedules')).json());
    expect(listed.schedules.map(({ schedule_id: id }) => id)).toContain(schedule.schedule_id);
    const foreign = await api.request(`/v1/schedules/${schedule.schedule_id}`, { tenant: 'other' });
    expect((await problemOf(foreign)).code).toBe('schedule_not_found');
  });

  test.each([
    ['a cron line of four fields', { timing: { cron: ['* * * *'] } }, 'body/timing'],
    ['a minute that there is not', { timing: { cron: ['60 * * * *'] } }, 'body/timing'],
    ['no time zone', { timing: { cron: ['* * * * *'], time_zone: 'Mars/Olympus' } }, 'body/timing'],
    ['an offset past its interval', { timing: { every_seconds: 60, offset_seconds: 60 } }, 'body/timing'],
    ['a catch-up of nothing', { catch_up_seconds: 0 }, 'body/catch_up_seconds'],
    ['an overlap rule of its own', { overlap: 'pile_up' }, 'body/overlap'],
    ['an unknown member', { when: 'soon' }, 'body'],
  ])('refuses %s and says where', async (_, changes, at) => {
    const problem = await problemOf(await send('/v1/schedules', bodyOf(changes)));
    expect(problem.code).toBe('invalid_request');
    expect(problem.errors?.some((error) => error.at.startsWith(at))).toBe(true);
  });

  test('refuses a name that is taken, an agent or a thread that is none, and whoever may not', async () => {
    const { name } = await make();
    const refusals = [
      [bodyOf({ name }), {}, 409, 'schedule_name_taken'],
      [bodyOf({ agent: 'nobody' }), {}, 422, 'agent_not_found'],
      [bodyOf({ thread: `thr_${'0'.repeat(32)}` }), {}, 404, 'thread_not_found'],
      [bodyOf(), { roles: 'auditor' }, 403, 'role_required'],
    ] as const;
    for (const [body, sent, status, code] of refusals) {
      const refused = await send('/v1/schedules', body, sent);
      expect([refused.status, (await problemOf(refused)).code]).toEqual([status, code]);
    }
  });
});

describe('a schedule', () => {
  test('is changed for the version that was read, and not for one before', async () => {
    const { schedule_id: id } = await make();
    const put = (expected_version: number) =>
      send(`/v1/schedules/${id}`, bodyOf({ input: 'B', expected_version }), { method: 'PUT' });
    expect((await put(1)).status).toBe(200);
    const refused = await problemOf(await put(1));
    expect(refused).toMatchObject({ code: 'schedule_version_conflict', version: 2 });
    expect(await read(id)).toMatchObject({ version: 2, input: 'B' });
  });

  test('is paused, resumed and ended by an operator or by whoever defined it, once however often', async () => {
    const { schedule_id: id } = await make();
    const order = (what: string, sent: Sent = {}) => send(`/v1/schedules/${id}/${what}`, undefined, sent);
    const stranger = { actor: 'eve', roles: 'requester' };
    expect((await problemOf(await order('pause', stranger))).code).toBe('role_required');
    expect((await order('pause', { actor: 'ada', roles: 'requester' })).status).toBe(200);
    expect((await order('pause')).status).toBe(200);
    expect(await read(id)).toMatchObject({ version: 2, paused_at: expect.any(String) });
    // A tick that was on its way when the pause came starts nothing, and says so.
    const tick = { source: 'tick', plannedAt: new Date().toISOString() } as const;
    await decideOccurrence(ledger.db, id, tick);
    expect((await order('resume', { actor: 'olga', roles: 'operator' })).status).toBe(200);
    const page = await (await api.request(`/v1/schedules/${id}/occurrences`)).json();
    expect(OccurrenceListView.parse(page).occurrences).toMatchObject([
      { state: 'skipped', reason: 'schedule_paused' },
    ]);
    for (const _ of [1, 2]) {
      const ended = await api.request(`/v1/schedules/${id}`, {
        method: 'DELETE',
        headers: { 'x-actor': 'ada' },
      });
      expect(ended.status).toBe(200);
    }
    expect((await problemOf(await order('pause'))).code).toBe('schedule_not_found');
    expect(
      await decideOccurrence(ledger.db, id, { ...tick, plannedAt: '2026-01-01T00:00:00.000Z' }),
    ).toMatchObject({
      kind: 'gone',
    });
  });

  test('that was paused already is not paused by the same request when it comes again later', async () => {
    const { schedule_id: id } = await make();
    const order = (what: string, key: string) => send(`/v1/schedules/${id}/${what}`, undefined, { key });
    const key = randomUUID();
    for (const [what, under] of [
      ['pause', randomUUID()],
      ['pause', key],
      ['resume', randomUUID()],
      ['pause', key],
    ] as const) {
      expect((await order(what, under)).status).toBe(200);
    }
    expect(await read(id)).toMatchObject({ version: 3, paused_at: null });
  });

  test('is run now under its own rule, once under a key, and lists its occurrences page by page', async () => {
    const { schedule_id: id } = await make();
    const key = randomUUID();
    const run = async (sent: Sent = {}) => await send(`/v1/schedules/${id}/occurrences`, undefined, sent);
    const first = await run({ key });
    const started = OccurrenceView.parse(await first.json());
    expect([first.status, started.state, started.run_state, started.asked_by]).toEqual([
      201,
      'started',
      'admitted',
      'ada',
    ]);
    const again = await run({ key });
    expect([again.status, OccurrenceView.parse(await again.json()).occurrence_id]).toEqual([
      200,
      started.occurrence_id,
    ]);
    for (const _ of [1, 2]) {
      expect(OccurrenceView.parse(await (await run()).json())).toMatchObject({
        ...{ state: 'skipped', reason: 'overlap', blocked_by: started.run_id },
      });
    }
    expect((await problemOf(await run({ roles: 'auditor' }))).code).toBe('role_required');
    const seen: string[] = [];
    for (let cursor: string | null = ''; cursor !== null;) {
      const query = `limit=1${cursor === '' ? '' : `&cursor=${cursor}`}`;
      const page = OccurrenceListView.parse(
        await (await api.request(`/v1/schedules/${id}/occurrences?${query}`)).json(),
      );
      seen.push(...page.occurrences.map(({ state }) => state));
      cursor = page.next_cursor;
    }
    expect(seen).toEqual(['skipped', 'skipped', 'started']);
  });

  test('is asked for planned times of the past by an operator alone, and never of the future', async () => {
    const { schedule_id: id } = await make();
    const ask = (body: unknown, sent: Sent = {}) => send(`/v1/schedules/${id}/backfills`, body, sent);
    const body = { from: '2026-01-01T00:00:00.000Z', to: '2026-01-01T01:00:00.000Z' };
    expect((await ask(body, { roles: 'requester' })).status).toBe(403);
    expect((await ask({ from: body.to, to: body.from })).status).toBe(400);
    expect((await ask({ ...body, to: '2999-01-01T00:00:00.000Z' })).status).toBe(400);
    // What sorts otherwise than it is, what no clock of the ledger shows, and more than anybody wants at once.
    for (const [from, to] of [
      ['2026-01-01T00:00:00.5Z', '2026-01-01T00:00:00Z'],
      ['0000-01-01T00:00:00Z', '0000-01-02T00:00:00Z'],
      ['2026-01-01T00:00:00Z', '2026-02-01T00:00:01Z'],
    ]) {
      expect((await problemOf(await ask({ from, to }))).code).toBe('invalid_request');
    }
    const near = { from: '2026-01-01T00:00:00.9989999Z', to: '2026-01-01T00:00:00.999Z' };
    expect((await ask(near)).status).toBe(200);
    const key = randomUUID();
    expect((await ask(body, { key })).status).toBe(200);
    expect((await ask(body, { key })).status).toBe(200);
    expect((await problemOf(await ask({ ...body, to: '2026-01-01T02:00:00.000Z' }, { key }))).code).toBe(
      'idempotency_key_reused',
    );
  });

  test('tells a webhook what became no run', async () => {
    await newEndpoint(ledger.db, 'https://example.com/hook', {
      kinds: ['schedule.skipped', 'schedule.refused'],
    });
    const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name));
    await schedule.runNow();
    const skipped = await schedule.runNow();
    const [told] = await ledger.rows<{ kind: string; payload: { data: unknown } }>(
      `select kind, payload from holdfast.webhook_deliveries where payload #>> '{data,schedule_id}' = $1`,
      schedule.scheduleId,
    );
    expect(told).toMatchObject({
      ...{ kind: 'schedule.skipped' },
      payload: {
        data: { occurrence_id: skipped.occurrence_id, reason: 'overlap', blocked_by: skipped.blocked_by },
      },
    });
  });
});

describe('a stateful schedule', () => {
  test('posts each occurrence to its thread, and counts as under way while its message waits or its run does', async () => {
    const thread = await newThread();
    const schedule = await newSchedule(
      ledger.db,
      definitionOf(LEDGER_AGENT.name, { thread_id: thread, overlap: 'buffer_all' }),
    );
    const first = await schedule.runNow();
    expect(first).toMatchObject({ state: 'started', run_state: 'admitted', message_id: expect.any(String) });
    await schedule.runNow();
    await startQueuedOccurrences(ledger.db);
    expect((await schedule.occurrences()).map(({ state }) => state)).toEqual(['started', 'queued']);
    const [run] = await ledger.rows<{ thread_id: string }>(
      'select thread_id from holdfast.runs where run_id = $1',
      first.run_id,
    );
    expect(run).toEqual({ thread_id: thread });
  });

  test('that cancels the other takes its message back where that has no run yet', async () => {
    const thread = await newThread();
    const post = (text: string) => send(`/v1/threads/${thread}/messages`, { text });
    await post('somebody talks already');
    const schedule = await newSchedule(
      ledger.db,
      definitionOf(LEDGER_AGENT.name, { thread_id: thread, overlap: 'cancel_other' }),
    );
    const stale = await schedule.runNow();
    await schedule.runNow();
    await startQueuedOccurrences(ledger.db);
    expect((await schedule.occurrences()).map(({ state }) => state)).toEqual(['started', 'started']);
    const told = await api.request(`/v1/threads/${thread}/messages/${String(stale.message_id)}`);
    expect(await told.json()).toMatchObject({ state: 'superseded', code: 'schedule_overlap' });
    const messages = await ledger.rows<{ state: string }>(
      'select state from holdfast.thread_messages where thread_id = $1 order by seq',
      thread,
    );
    expect(messages.map(({ state }) => state)).toEqual(['delivered', 'superseded', 'queued']);
  });

  test('whose thread was archived is refused, with the reason, and never runs elsewhere', async () => {
    const thread = await newThread();
    const schedule = await newSchedule(ledger.db, definitionOf(LEDGER_AGENT.name, { thread_id: thread }));
    await ledger.rows(
      `update holdfast.threads set archived_at = now(), archived_by = 'x' where thread_id = $1`,
      thread,
    );
    expect(await schedule.runNow()).toMatchObject({
      state: 'refused',
      reason: 'thread_archived',
      run_id: null,
    });
  });
});

async function newThread(): Promise<string> {
  const { contract } = definitionOf(LEDGER_AGENT.name);
  const made = await createThread(ledger.db, {
    ...{ tenantId: 'default', actorId: 'user:ada', agent: LEDGER_AGENT.name, policy: 'enqueue', contract },
    ...{ endpoint: 'POST /v1/threads', idempotencyKey: randomUUID() },
  });
  if (made.kind !== 'created') throw new Error(`no thread: ${made.kind}`);
  return made.threadId;
}
